"""The collector of cyclic garbage, and what lives for good.

A replica is some hundred objects that stay as long as the node does. Python's collector looks at all of them again each
time their number has grown by a quarter: with ten thousand replicas that holds every thread for half a second. So what
is made in bulk is put out of its sight (`gc.freeze`, which takes no time): after the start, and after every so many new
replicas. Objects that are let go of are freed all the same; what is never found is only a cycle that was garbage at
that very moment.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

REPLICAS_PER_FREEZE = 256


class BulkCreation:
    """Counts new replicas."""

    def __init__(self, freeze: Callable[[], None] = gc.freeze) -> None:
        self._freeze = freeze
        self._new = 0

    def on_new_replica(self) -> None:
        """There is one more."""
        self._new += 1
        if self._new >= REPLICAS_PER_FREEZE:
            self._new = 0
            self._freeze()


@contextmanager
def loading() -> Iterator[None]:
    """Nothing is collected meanwhile, and what was made is out of sight afterwards."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
