"""How many of the process's descriptors connections may take, so that logs and the quorum never run out of theirs.

A log has its active segment open, and another while somebody reads it; compaction and recovery a few more, one replica
at a time. Clients are strangers: nobody knows how many connections they open. So the limit of the process
(RLIMIT_NOFILE) less a reserve that grows with the replicas is what connections may have together, half of it for each
of the two listeners, so that clients of the one never keep brokers away from the other. More are refused.

A shortage all the same (other processes have the machine's descriptors, say) is told once in `TELL_SECONDS`, and is a
problem of this node's health for that long.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable

from raftlog.errors import InvalidRequest
from raftlog.ports import Clock, Logger

MIN_DESCRIPTORS = 1024
"""A node with a few replicas and a few hundred connections."""
OWN_DESCRIPTORS = 256
"""Of the node: its quorum, loops and libraries, what it dials to other nodes, jobs and scrubbing under way."""
PER_REPLICA = 2
"""The active segment, and one that is read."""
PER_CONNECTION = 2
"""A connection's socket, and the duplicate that it is written through (`raftlog/system/zero_copy.py`)."""
LEAST_CONNECTIONS = 64
"""For each listener, however many replicas there are: brokers have to reach each other."""
TELL_SECONDS = 60.0


class DescriptorBudget:
    """One process's. See the module."""

    def __init__(self, limit: int | None, replicas: Callable[[], int], clock: Clock, logger: Logger) -> None:
        """`limit`: RLIMIT_NOFILE; None: there is none. `replicas`: how many this node has now."""
        self._limit = limit
        self._replicas = replicas
        self._clock = clock
        self._logger = logger
        self._short_at = -TELL_SECONDS
        """When the last shortage was told."""
        self._untold = 0
        self._shortage = ""

    @property
    def reserved(self) -> int:
        """Descriptors that connections leave alone."""
        return OWN_DESCRIPTORS + PER_REPLICA * self._replicas()

    def connections(self) -> int | None:
        """How many each of the two listeners may have now; None: this is no bound."""
        if self._limit is None:
            return None
        return max(LEAST_CONNECTIONS, (self._limit - self.reserved) // (2 * PER_CONNECTION))

    def on_short(self, error: OSError) -> None:
        """A listener found none."""
        now = self._clock.monotonic()
        self._shortage = error.strerror or str(error)
        if now - self._short_at < TELL_SECONDS:
            self._untold += 1
            return
        self._logger.error(
            "no descriptor for a connection",
            error=self._shortage,
            limit=self._limit,
            reserved=self.reserved,
            times_since_last_line=self._untold,
            remedy="close idle connections, or raise `ulimit -n`",
        )
        self._short_at, self._untold = now, 0

    def problems(self) -> list[str]:
        """For the node's health."""
        lines = []
        least = self.reserved + 2 * LEAST_CONNECTIONS * PER_CONNECTION
        if self._limit is not None and self._limit < least:
            lines.append(
                f"it may open {self._limit} files, its {self._replicas()} replicas and the least of connections need "
                f"{least}: raise `ulimit -n`"
            )
        if self._shortage and self._clock.monotonic() - self._short_at < TELL_SECONDS:
            lines.append(
                f"connections wait, since it has no descriptor for them ({self._shortage}): close idle ones, or raise "
                "`ulimit -n`"
            )
        return lines


def raise_descriptor_limit() -> int | None:
    """Raise this process's soft limit to the hard one. What it is then; None: there is none. Raises `InvalidRequest`
    where that is less than any node needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return None
    if soft < MIN_DESCRIPTORS:
        raise InvalidRequest(
            "invalid_config", f"this process may open {soft} files, {MIN_DESCRIPTORS} are needed: raise `ulimit -n`"
        )
    return soft
