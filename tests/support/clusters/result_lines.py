"""Results of long runs, one line of JSON each, appended as they arrive, so that an interrupted run can continue."""

from __future__ import annotations

import contextlib
import functools
import subprocess
from pathlib import Path
from typing import TypeVar

import msgspec

from jepsen_like.scoreboard.json_lines import append_line

T = TypeVar("T")


def append(result: object, path: str) -> None:
    """Append durably. An incomplete line of a killed run stays on a line of its own."""
    append_line(Path(path), result)
    print(msgspec.json.encode(result).decode(), flush=True)  # noqa: T201


def read(path: str, kind: type[T]) -> list[T]:
    """All results of this kind; incomplete lines are skipped."""
    found = []
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        for line in file:
            with contextlib.suppress(msgspec.DecodeError):
                found.append(msgspec.json.decode(line, type=kind))
    return found


@functools.cache
def commit() -> str:
    """The commit of the working tree; empty if there is none."""
    command = ("git", "describe", "--always", "--dirty")
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.strip()
    return ""
