"""The expiry of unused blocks of ids, transactional ids, and parts of commits that never came.

It runs beside the quorum's leader, one `TransactionExpiry` a term, and proposes with its term. It may be wrong at any
time without harm: the image removes only records that are unchanged since this copy, and the removed transactions are
aborted or unknown, never committed and half visible (S13).

A block expires if none of its ids was decided for twice its timeout: a transaction begun within the timeout can live
for its full duration. A block retired by a commit with a position has a short timeout from then on
(`transaction_ends.ANSWERED_BY_POSITION_MS`). Blocks and parts are timed by this node's monotonic clock, from when this
term first saw their current state. Transactional ids are kept for days, beyond any term: they expire by the cluster's
time, which no single wall clock determines. Positions never expire.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

import msgspec

from metadata.commands.cluster import STAMP_LAG_MS
from metadata.commands.transactions import MAX_EXPIRED, Expire, ExpiredBlock, ExpiredParts, ExpiredProducer
from metadata.records.transaction_table import Transactions
from raftlog.model import ClusterTime, ProducerId

Key = TypeVar("Key", bound=Hashable)

LOOK_SECONDS = 1.0
"""The interval between two looks at blocks and parts."""
BLOCK_TIMEOUTS = 2
PARTS_SECONDS = 60.0
"""The lifetime of staged parts: a commit is staged within seconds."""
NAMES_SECONDS = 60.0
"""The interval between two passes over transactional ids."""
NAMES_PER_LOOK = 2_000


class _Seen(msgspec.Struct):
    """An observed state, and since when it has been unchanged."""

    version: int
    since: float


class _Watch(Generic[Key]):
    """Observed states of one kind, each since when it has been unchanged."""

    def __init__(self) -> None:
        self._seen: dict[Key, _Seen] = {}

    def unchanged(self, states: Iterable[tuple[Key, int, float]], now: float) -> list[tuple[Key, int]]:
        """Record all (key, version, seconds), and return those unchanged for their seconds, at most `MAX_EXPIRED`."""
        old: list[tuple[Key, int]] = []
        seen: dict[Key, _Seen] = {}
        for key, version, seconds in states:
            known = self._seen.get(key)
            if known is None or known.version != version:
                known = _Seen(version, now)
            seen[key] = known
            if now - known.since >= seconds and len(old) < MAX_EXPIRED:
                old.append((key, version))
        self._seen = seen
        return old


class TransactionExpiry:
    """The transaction expiry of one term."""

    def __init__(self, transactions: Transactions, term: int, *, unused_ms: int) -> None:
        """`unused_ms`: how long an unused transactional id is kept, in milliseconds."""
        self.term = term
        self._transactions = transactions
        self._unused_ms = unused_ms
        self._blocks: _Watch[ProducerId] = _Watch()
        self._parts: _Watch[bytes] = _Watch()
        self._names: list[str] = []
        """The rest of the current pass."""
        self._next_pass = float("-inf")

    def decide(self, now: float, time: ClusterTime) -> Expire | None:
        """Return the command to propose, if any; remaining records are proposed again at the next look.

        `time`: the cluster's time, as the view shows it; without one, no transactional id expires.
        """
        blocks = self._old_blocks(now)
        parts = self._old_parts(now)
        producers = self._unused_names(now, time)
        if not (blocks or parts or producers):
            return None
        return Expire(self.term, tuple(blocks), tuple(producers), tuple(parts))

    def next_call(self, now: float) -> float | None:
        """Return when to look again; None if nothing can expire."""
        known = self._transactions
        if known.block_count or known.staged():
            return now + LOOK_SECONDS
        if self._names:
            return now + LOOK_SECONDS
        return max(now, self._next_pass) if known.producer_count else None

    # --- Inside ------------------------------------------------------------------------------------------------------

    def _old_blocks(self, now: float) -> list[ExpiredBlock]:
        blocks = self._transactions.blocks()
        states = ((one.first, one.changed, BLOCK_TIMEOUTS * one.timeout_ms / 1000) for one in blocks)
        return [ExpiredBlock(*one) for one in self._blocks.unchanged(states, now)]

    def _old_parts(self, now: float) -> list[ExpiredParts]:
        states = ((commit_id, count, PARTS_SECONDS) for commit_id, count in self._transactions.staged())
        return [ExpiredParts(*one) for one in self._parts.unchanged(states, now)]

    def _unused_names(self, now: float, time: ClusterTime) -> list[ExpiredProducer]:
        if now >= self._next_pass and not self._names:
            self._next_pass = now + NAMES_SECONDS
            if time:
                self._names = self._transactions.names_of_producers()
        old: list[ExpiredProducer] = []
        before_ms = time.now_ms - self._unused_ms - STAMP_LAG_MS
        some, self._names = self._names[:NAMES_PER_LOOK], self._names[NAMES_PER_LOOK:]
        for name in some:
            producer = self._transactions.producer(name)
            if producer is not None and time.since_ms(producer.used_ms) < before_ms and len(old) < MAX_EXPIRED:
                old.append(ExpiredProducer(name, *producer.key))
        return old
