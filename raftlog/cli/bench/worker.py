"""A benchmark's client: what every kind of it can do, and the tally of what it did."""

from __future__ import annotations

from abc import ABC, abstractmethod

from .histogram import Histogram
from .messages import Go, Passed, Progress


class Tally:
    """What was done since the last look; a pass adds to it, `telling` tells it."""

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        self.latency = Histogram()

    def take(self) -> Progress:
        """And begin anew."""
        told = Progress(self.records, self.bytes, self.latency.state())
        self.records, self.bytes, self.latency = 0, 0, Histogram()
        return told


class Worker(ABC):
    """One kind of client."""

    tally: Tally

    @abstractmethod
    async def prepare(self) -> None:
        """All that the clock must not see. Raises `RaftlogError`."""

    @abstractmethod
    async def run(self, go: Go) -> Passed | None:
        """One pass; None where it was no pass. Raises `RaftlogError`."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of everything."""
