"""A network that is worse than TCP: on an open connection messages are lost, come twice, or come late.

The quorum's engine promises to be safe whatever becomes of its messages, and to make progress once the network is kind
again; here that is asked of it. Handshakes are spared: a connection whose first message vanished, and which still stays
open, exists in no network. `departs_at` holds back what a process sends until its slow disk is done: the process is at
its fsync and has not sent yet.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from .heap import EventHeap
from .network import NetworkShape, SimLink, SimNetwork

HANDSHAKE_MESSAGES = 1
LATEST_COPY = 3.0
"""Seconds after the first, at most, that a message comes a second time..."""
SOON = 0.002
"""...and every other one so soon that what it answers is still asked."""


class UnkindNetwork(SimNetwork):
    """Connections with weather. All three are kinds of luck of a single message."""

    def __init__(
        self, heap: EventHeap, rng: random.Random, shape: NetworkShape, sent: Callable[[int, int, bytes], None]
    ) -> None:
        super().__init__(heap, rng, shape, sent)
        self.drop = 0.0
        """Probability of a message being lost."""
        self.duplicate = 0.0
        """Probability of its coming a second time, up to `LATEST_COPY` seconds later."""
        self.delay = 0.0
        """Seconds that every message may take longer, in order."""
        self.echoes: dict[tuple[int, int], float] = {}
        """(From, to) → seconds after which all that is sent this way comes again."""
        self.departs_at: dict[int, float] = {}
        """Node → when what it sends now leaves."""

    def clear_up(self) -> None:
        """Kind again."""
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
