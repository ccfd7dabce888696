"""The interface of a benchmark's clients, and the tally of their work."""

from __future__ import annotations

from abc import ABC, abstractmethod

from .histogram import Histogram
from .messages import Go, Passed, Progress


class Tally:
    """The work since the last report: a pass adds to it, and the child reports it."""

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        self.latency = Histogram()

    def take(self) -> Progress:
        """Return the tally and reset it."""
        told = Progress(self.records, self.bytes, self.latency.state())
        self.records, self.bytes, self.latency = 0, 0, Histogram()
        return told


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
