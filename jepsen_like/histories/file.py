"""The history file of a run: one line for each beginning and each end of an operation, numbered.

The interpreter writes the clients' operations; every other actor writes notes under its name. There is one writer, so
the lines are in the order of their times. A line is complete once it is written: the history of a killed run can be
judged up to that point.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .history import Operation, write


class HistoryFile:
    """Belongs to one thread."""

    def __init__(self, path: Path, now: Callable[[], int]) -> None:
        """`now`: nanoseconds since the run began."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("wb")
        self._now = now
        self._count = 0

    @property
    def count(self) -> int:
        """Number of lines so far."""
        return self._count

    def add(self, operation: Operation) -> Operation:
        """Write an operation and return it with its number and time."""
        numbered = Operation(
            self._count, operation.process, operation.kind, operation.f, operation.value, self._now(),
            operation.node, operation.error, operation.rebalanced,
        )  # fmt: skip
        write(self._file, (numbered,))
        self._file.flush()
        self._count += 1
        return numbered

    def note(self, who: str, f: str, value: Any = None, *, node: str = "") -> Operation:
        """Write a note, such as a fault or the heal, that is not an operation of a client."""
        return self.add(Operation(0, who, "info", f, value, node=node))

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
