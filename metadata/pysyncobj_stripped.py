"""pysyncobj's class without what must not run here, or would run for nothing.

It has ways of its own to write dumps, to load them, and to change its membership: calling one is a bug of ours. It
looks through all its attributes for methods that callers replicate, twice for each object; there are none. And it asks
the system for news of sockets in every tick, of which it has none, which lets go of the interpreter's lock each time.

The class has pysyncobj's name, so that its private names are pysyncobj's (see `pysyncobj_core.py`). What is *not* here:
what is overridden to be done in another way (`pysyncobj_elections.py`, `pysyncobj_core.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pysyncobj.syncobj import SyncObj

from raftlog.errors import InvariantViolation

from .pysyncobj_outbox import NothingToPoll


class _SyncObj(SyncObj):  # type: ignore[misc]
    """What the others are built on."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._poller = NothingToPoll()

    def __dir__(self) -> Iterable[str]:
        """What pysyncobj looks through for replicated methods."""
        return ()

    def __tryLogCompaction(self) -> None:  # noqa: N802
        """The node compacts, when it has a snapshot."""

    def __forbidden(self, *args: object, **kwargs: object) -> Any:
        raise InvariantViolation("pysyncobj does by itself what is overridden here")

    __sendNextNodeIdx = __loadDumpFile = __parseChangeClusterRequest = __forbidden
    __changeCluster = __doChangeCluster = __forbidden
