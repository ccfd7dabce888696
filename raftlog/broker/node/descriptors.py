"""The number of file descriptors that connections may use, so that logs and the quorum never run out.

A log keeps its active segment open, and another one during reads; compaction and recovery need a few more, one replica
at a time. The number of clients' connections is unpredictable. So connections may use the process's limit
(RLIMIT_NOFILE) minus a reserve that grows with the number of replicas. Each of the two listeners gets half of that, so
that clients of one never keep brokers from the other. Further connections are refused.

If there is a shortage anyway (for example because other processes use the machine's descriptors), it is logged once in
`TELL_SECONDS`, and is a problem of this node's health for that time.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable

from raftlog.errors import InvalidRequest
from raftlog.ports import Clock, Logger

MIN_DESCRIPTORS = 1024
"""Enough for a node with a few replicas and a few hundred connections."""
OWN_DESCRIPTORS = 256
"""Descriptors of the node itself: quorum, loops, libraries, connections to other nodes, running jobs and scrubbing."""
PER_REPLICA = 2
"""Descriptors of a replica: the active segment, and one that is being read."""
PER_CONNECTION = 2
"""Descriptors of a connection: its socket, and the duplicate for writing (`raftlog/system/zero_copy.py`)."""
LEAST_CONNECTIONS = 64
"""Minimum for each listener, whatever the number of replicas: brokers must reach each other."""
TELL_SECONDS = 60.0


class DescriptorBudget:
    """The descriptor budget of one process."""

    def __init__(self, limit: int | None, replicas: Callable[[], int], clock: Clock, logger: Logger) -> None:
        """`limit` is RLIMIT_NOFILE, None for none. `replicas` returns this node's current number of replicas."""
        self._limit = limit
        self._replicas = replicas
        self._clock = clock
        self._logger = logger
        self._short_at = -TELL_SECONDS
        """When the last shortage was logged."""
        self._untold = 0
        self._shortage = ""

    @property
    def reserved(self) -> int:
        """Number of descriptors that connections must not use."""
        return OWN_DESCRIPTORS + PER_REPLICA * self._replicas()

    def connections(self) -> int | None:
        """Return how many connections each of the two listeners may have now; None: unlimited."""
        if self._limit is None:
            return None
        return max(LEAST_CONNECTIONS, (self._limit - self.reserved) // (2 * PER_CONNECTION))

    def on_short(self, error: OSError) -> None:
        """Handle a listener's lack of descriptors."""
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
        """Return the problems for the node's health."""
        lines = []
        least = self.reserved + 2 * LEAST_CONNECTIONS * PER_CONNECTION
        if self._limit is not None and self._limit < least:
            lines.append(
                f"it may open {self._limit} files, but its {self._replicas()} replicas and some connections need "
                f"{least}: raise `ulimit -n`"
            )
        if self._shortage and self._clock.monotonic() - self._short_at < TELL_SECONDS:
            lines.append(
                f"connections wait because it has no file descriptors left ({self._shortage}): close idle ones, or "
                "raise `ulimit -n`"
            )
        return lines


def raise_descriptor_limit() -> int | None:
    """Raise this process's soft limit to the hard one, and return it; None: unlimited.

    Raises `InvalidRequest` if the limit is below the minimum of any node.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return None
    if soft < MIN_DESCRIPTORS:
        raise InvalidRequest(
            "invalid_config", f"this process may open {soft} files, but {MIN_DESCRIPTORS} are needed: raise `ulimit -n`"
        )
    return soft
