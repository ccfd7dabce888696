"""A network worse than TCP: on an open connection messages are lost, duplicated, or delayed.

The quorum's engine promises safety regardless of what happens to its messages, and progress once the network is
reliable again; this network tests that. Handshakes are spared: no real network has a connection whose first message
vanished and which stays open. `departs_at` holds back a process's messages until its slow disk is done: the process is
still in its fsync and has not sent yet.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from .heap import EventHeap
from .network import NetworkShape, SimLink, SimNetwork

HANDSHAKE_MESSAGES = 1
LATEST_COPY = 3.0
"""Maximum delay, in seconds, of a duplicate after the original..."""
SOON = 0.002
"""...and of every other duplicate, which arrives so soon that its answer still counts."""


class UnkindNetwork(SimNetwork):
    """Connections with random faults of single messages."""

    def __init__(
        self, heap: EventHeap, rng: random.Random, shape: NetworkShape, sent: Callable[[int, int, bytes], None]
    ) -> None:
        super().__init__(heap, rng, shape, sent)
        self.drop = 0.0
        """Probability that a message is lost."""
        self.duplicate = 0.0
        """Probability that a message is duplicated, up to `LATEST_COPY` seconds later."""
        self.delay = 0.0
        """Maximum additional delay of every message in seconds, in order."""
        self.echoes: dict[tuple[int, int], float] = {}
        """(From, to) → seconds after which every message sent this way is repeated."""
        self.departs_at: dict[int, float] = {}
        """Node → the time when messages that it sends now depart."""

    def clear_up(self) -> None:
        """Make the network reliable again."""
        self.drop = self.duplicate = self.delay = 0.0
        self.echoes.clear()

    def _deliver_later(self, link: SimLink, message: bytes) -> None:
        link.carried += 1
        now = self._heap.now
        leaves = max(self.departs_at.get(link.owner, 0.0), now)
        link.arrival = max(leaves + self._latency(), link.arrival)
        if link.carried > HANDSHAKE_MESSAGES:
            if self.delay:
                link.arrival += self._rng.uniform(0.0, self.delay)
            echo = self.echoes.get((link.owner, link.peer))
            if echo is not None:
                self._deliver_at(link, message, link.arrival + echo)
            if self.drop and self._rng.random() < self.drop:
                return
            if self.duplicate and self._rng.random() < self.duplicate:
                latest = LATEST_COPY if self._rng.random() < 0.5 else SOON
                self._deliver_at(link, message, link.arrival + self._rng.uniform(0.0, latest))
        self._deliver_at(link, message, link.arrival)
