"""The budget of a fetcher: prefetched data and open requests together stay within `prefetch_bytes`. A pure core.

Every partition has an equal share, and is requested with at most the rest of its share. A poll reserves what the
partitions that it names could bring. Session slots named earlier could bring data as well, but mostly they wait for
records yet to be written, so at each broker the reservation for them is limited to its part of one half. If every poll
reserved the maximum of an answer, as few as eight idle brokers would leave no room for a ninth, and busy ones would be
read in fragments of a batch.
"""

from __future__ import annotations

from raftlog.config import KIB, MIB

REQUEST_BYTES = 4 * MIB
"""Limit of one answer, in bytes."""
PARTITION_BYTES = 2 * MIB
"""Limit of one partition in an answer, in bytes."""
SMALLEST_SHARE = 64 * KIB
WORTH_ASKING = 1 * MIB
"""Room that a larger request waits for, in bytes."""


class FetchBudget:
    """Grants bytes to polls.

    Invariant: `asked_bytes` is the sum of what open polls were granted.
    """

    def __init__(self, prefetch_bytes: int) -> None:
        self._prefetch_bytes = prefetch_bytes
        self.asked_bytes = 0

    def share(self, partitions: int) -> int:
        """Return one partition's share in bytes.

        With very many partitions, the shares add up to more than `prefetch_bytes`.
        """
        return max(self._prefetch_bytes // max(1, partitions), SMALLEST_SHARE)

    def grant(self, named: int, waiting: int, *, open_bytes: int, brokers: int, buffered: int) -> int:
        """Grant bytes to a poll; 0 means not now. The caller returns the grant with `over`.

        `named`: bytes that the partitions it names could bring; `waiting`: the same for slots named earlier;
        `open_bytes`: grants of the polls open at this broker.
        """
        idle = max(0, self._prefetch_bytes // (2 * max(1, brokers)) - open_bytes)
        wanted = min(REQUEST_BYTES, named + min(max(0, waiting - open_bytes), idle))
        if not wanted or not self.has_room(wanted, buffered):
            return 0
        granted = min(wanted, self._room(buffered))
        self.asked_bytes += granted
        return granted

    def has_room(self, wanted: int, buffered: int) -> bool:
        """Whether there is enough room for a request of at least `wanted` bytes to be worthwhile."""
        return self._room(buffered) >= min(wanted, WORTH_ASKING, self._prefetch_bytes // 8)

    def _room(self, buffered: int) -> int:
        return self._prefetch_bytes - buffered - self.asked_bytes

    def over(self, granted: int) -> None:
        """Return the grant of a poll that was answered or lost."""
        self.asked_bytes -= granted
