"""The interface of a benchmark's clients, and the tally of their work."""

from __future__ import annotations

from abc import ABC, abstractmethod

from .messages import Go, Passed, Progress


class Tally:
    """The work since the last report: a pass adds to it, and the child reports it."""

    def __init__(self) -> None:
        self._progress = Progress()

    def add(self, records: int, size: int, microseconds: int | None = None) -> None:
        """Count records of a total size; `microseconds` is the latency of each, if it was measured."""
        self._progress.records += records
        self._progress.bytes += size
        if microseconds is not None:
            self._progress.latency.record(microseconds, records)

    def take(self) -> Progress:
        """Return the tally and reset it."""
        taken, self._progress = self._progress, Progress()
        return taken


class Worker(ABC):
    """One kind of client."""

    tally: Tally

    @abstractmethod
    async def prepare(self) -> None:
        """Do everything that must not be timed. Raises `RaftlogError`."""

    @abstractmethod
    async def run(self, go: Go) -> Passed | None:
        """Run one pass. Return None if the order was none. Raises `RaftlogError`."""

    @abstractmethod
    async def close(self) -> None:
        """Release all resources."""
