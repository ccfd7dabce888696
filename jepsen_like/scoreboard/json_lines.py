"""Results as lines of JSON, only ever appended to. What a stop tore stays by itself, and is no line."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import msgspec


def append_line(file: Path, result: object) -> None:
    """One line, at the end; whoever appends at the same time waits."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab+") as results:
        fcntl.flock(results, fcntl.LOCK_EX)
        results.seek(0, os.SEEK_END)
        if results.tell():
            results.seek(-1, os.SEEK_END)
            torn = results.read(1) != b"\n"
            results.write(b"\n" * torn)
        results.write(msgspec.json.encode(result) + b"\n")
