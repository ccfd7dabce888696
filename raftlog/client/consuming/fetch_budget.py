"""How much a fetcher may ask for, so that what was fetched ahead and what is under way stay within `prefetch_bytes`. A
pure core.

Every partition has an equal share, and is asked for at most what is left of its own. A poll is reserved as much as what
it names could bring. Slots of a session that were named before could bring something, too; but mostly they wait for
what is yet to be written, so all that is reserved for them at one broker is its part of one half. Were every poll
reserved as much as an answer may hold, as few as eight idle brokers would leave no room for a ninth, and what is left
for busy ones would be asked for in pieces of a batch each.
"""

from __future__ import annotations

from raftlog.config import KIB, MIB

REQUEST_BYTES = 4 * MIB
"""Of one answer."""
PARTITION_BYTES = 2 * MIB
"""Of one partition in it."""
SMALLEST_SHARE = 64 * KIB
WORTH_ASKING = 1 * MIB
"""Whoever wants more than there is room for waits until there is so much."""


class FetchBudget:
    """Invariant: `asked_bytes` is the sum of what open polls were granted."""

    def __init__(self, prefetch_bytes: int) -> None:
        self._prefetch_bytes = prefetch_bytes
        self.asked_bytes = 0

    def share(self, partitions: int) -> int:
        """Of what may be fetched ahead, one partition's. Of very many all together have more than there is."""
        return max(self._prefetch_bytes // max(1, partitions), SMALLEST_SHARE)

    def grant(self, named: int, waiting: int, *, open_bytes: int, brokers: int, buffered: int) -> int:
        """For a poll that names so many bytes at a broker where slots named before could bring `waiting`; polls worth
        `open_bytes` are open there. 0: not now. What is granted is to be handed back to `over`."""
        idle = max(0, self._prefetch_bytes // (2 * max(1, brokers)) - open_bytes)
        wanted = min(REQUEST_BYTES, named + min(max(0, waiting - open_bytes), idle))
        if not wanted or not self.has_room(wanted, buffered):
            return 0
        granted = min(wanted, self._room(buffered))
        self.asked_bytes += granted
        return granted

    def has_room(self, wanted: int, buffered: int) -> bool:
        """Whether it is worth while to ask for at least so much."""
        return self._room(buffered) >= min(wanted, WORTH_ASKING, self._prefetch_bytes // 8)

    def _room(self, buffered: int) -> int:
        return self._prefetch_bytes - buffered - self.asked_bytes

    def over(self, granted: int) -> None:
        """That poll was answered, or lost."""
        self.asked_bytes -= granted
