"""The history of a run as it is written: every operation when it begins and when it ends, numbered, one line each.

Clients' operations come from the interpreter; whoever else does something to the cluster notes it under a name. Lines
are in the order of their times, since there is one writer. A line is complete when it is written: a run that is killed
leaves a history that can be judged up to there.
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
        """Lines so far."""
        return self._count

    def add(self, operation: Operation) -> Operation:
        """Write it down, with the number and the time that it gets here."""
        numbered = Operation(
            self._count, operation.process, operation.kind, operation.f, operation.value, self._now(),
            operation.node, operation.error, operation.rebalanced,
        )  # fmt: skip
        write(self._file, (numbered,))
        self._file.flush()
        self._count += 1
        return numbered

    def note(self, who: str, f: str, value: Any = None) -> Operation:
        """Something that is no client's: a fault, a heal."""
        return self.add(Operation(0, who, "info", f, value))

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
