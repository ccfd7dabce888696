"""Python's cyclic garbage collector, and objects that live as long as the node.

A replica is some hundred long-lived objects. The collector examines all of them each time their number has grown by a
quarter: with ten thousand replicas that holds every thread for half a second. So objects that are created in bulk are
hidden from it (`gc.freeze`, which takes no time): after the start, and after every `REPLICAS_PER_FREEZE` new replicas.
Released objects are freed nevertheless; only a cycle that was garbage at the moment of the call is never found.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

REPLICAS_PER_FREEZE = 256


class BulkCreation:
    """A counter of new replicas."""

    def __init__(self, freeze: Callable[[], None] = gc.freeze) -> None:
        self._freeze = freeze
        self._new = 0

    def on_new_replica(self) -> None:
        """Count one more replica, and freeze after enough of them."""
        self._new += 1
        if self._new >= REPLICAS_PER_FREEZE:
            self._new = 0
            self._freeze()


@contextmanager
def loading() -> Iterator[None]:
    """Collect nothing in this context, and freeze afterwards what was created in it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
