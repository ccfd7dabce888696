"""Files of JSON lines that are only appended to. A line that was torn by an interruption is isolated and ignored."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import msgspec


def append_line(file: Path, result: object) -> None:
    """Append one line; concurrent writers wait for each other."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab+") as results:
        fcntl.flock(results, fcntl.LOCK_EX)
        results.seek(0, os.SEEK_END)
        if results.tell():
            results.seek(-1, os.SEEK_END)
            torn = results.read(1) != b"\n"
            results.write(b"\n" * torn)
        results.write(msgspec.json.encode(result) + b"\n")
