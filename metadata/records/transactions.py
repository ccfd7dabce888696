"""Transactions as the quorum agreed on them: named producers, blocks of producer ids, and the standing of a
transaction.

Two kinds of producers have transactions. A **named** one (`transactional_id`) has a row: each initialization and each
end raises its epoch, so a transaction is one epoch, and requests of an older epoch are fenced (KIP-98, KIP-890). An id
**without a name** comes from a block and serves one transaction, of epoch 0; the block keeps the outcome of each of its
ids until it expires. Outcomes are kept as ranges, since ids are handed out in order and mostly end alike. Blocks whose
outcomes alternate cost more, so ranges have a bound of their own.

The same request never gets two different answers: the row keeps the last end and its outcome, the block the outcome of
every id. An initialization clears the row's last end, so a retry of that end after another producer began gets
`producer_fenced`, never the other producer's next key. A transaction that is no longer kept (`Standing.FENCED`,
`Standing.EXPIRED`) is never reported as aborted.

A record is never modified, only replaced.
"""

from __future__ import annotations

import enum
import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

import msgspec

from raftlog.model import NO_PRODUCER_ID, ProducerEpoch, ProducerId
from raftlog.transactions import ATTEMPT_BYTES, Outcome, TransactionKey

MAX_PRODUCER_EPOCH = 2**15 - 1
"""The last epoch of a producer id; after it the producer continues with another id."""

UNNAMED_EPOCH = ProducerEpoch(0)

ATTEMPTS_KEPT = 4
"""The number of initializations remembered for each name: a retry arrives within seconds."""


class Standing(enum.Enum):
    """The standing of a transaction."""

    UNDECIDED = "undecided"
    COMMITTED = "committed"
    ABORTED = "aborted"
    FENCED = "fenced"
    """An older epoch of its producer, or one that its producer never had. Its outcome is not kept."""
    EXPIRED = "expired"
    """Its block or named producer is no longer kept, or the id was never granted for transactions."""
    UNKNOWN = "unknown"
    """Not granted yet, as far as this copy knows."""


# --- Ids as ranges ---------------------------------------------------------------------------------------------------

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Sorted half-open ranges that neither overlap nor touch."""

_FEW = 8


def has_id(ranges: Ranges, one: int) -> bool:
    """Return whether one of the ranges contains the id."""
    place = bisect_right(ranges, (one, math.inf)) - 1
    return place >= 0 and one < ranges[place][1]


def with_ids(ranges: Ranges, ids: Sequence[int]) -> Ranges:
    """Return the ranges extended by these ids."""
    if len(ids) <= _FEW:
        for one in ids:
            ranges = _with_id(ranges, one)
        return ranges
    ordered = sorted(set(ids))
    breaks = [0, *(i for i, (before, after) in enumerate(pairwise(ordered), 1) if after != before + 1), len(ordered)]
    runs = [(ordered[start], ordered[stop - 1] + 1) for start, stop in pairwise(breaks)]
    joined: list[tuple[int, int]] = []
    for first, end in sorted([*ranges, *runs]):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((first, end))
    return tuple(joined)


def _with_id(ranges: Ranges, one: int) -> Ranges:
    place = bisect_right(ranges, (one, math.inf))
    first, end, start, stop = one, one + 1, place, place
    if place and ranges[place - 1][1] > one:
        return ranges
    if place and ranges[place - 1][1] == one:
        first, start = ranges[place - 1][0], place - 1
    if place < len(ranges) and ranges[place][0] == one + 1:
        end, stop = ranges[place][1], place + 1
    return (*ranges[:start], (first, end), *ranges[stop:])


def with_attempt(attempts: bytes, attempt: bytes | None) -> bytes:
    """Return the initializations with one more at the front; None means one that cannot be retried but takes its
    turn.
    """
    return (attempt or bytes(ATTEMPT_BYTES)) + attempts[: (ATTEMPTS_KEPT - 1) * ATTEMPT_BYTES]


# --- Records ---------------------------------------------------------------------------------------------------------


class NamedProducer(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, gc=False):
    """A `transactional_id` and its current producer; in snapshots an array of these fields.

    Invariant: if `ended` is set, there is an outcome, and `key` is the next transaction of the producer that ended it.
    """

    transactional_id: str
    producer_id: ProducerId
    epoch: ProducerEpoch
    """The epoch of the current transaction, which is undecided and may not have begun."""
    timeout_ms: int
    """The time that a transaction may stay open, in milliseconds."""
    used_ms: int
    """The time of its last initialization or end, in milliseconds, by the clock of the node that took the request."""
    ended: TransactionKey | None = None
    """The last transaction ended since the initialization: a retry of that end gets the first answer (KIP-890)."""
    outcome: Outcome = Outcome.UNDECIDED
    """The outcome of `ended`."""
    former_id: ProducerId = NO_PRODUCER_ID
    """The previous id, whose epochs were exhausted: requests with it are fenced."""
    attempts: bytes = b""
    """The remembered initializations: `ATTEMPT_BYTES` each, at most `ATTEMPTS_KEPT`, the newest first."""

    @property
    def key(self) -> TransactionKey:
        """Return the key of the transaction that is not decided yet."""
        return TransactionKey(self.producer_id, self.epoch)

    def standing(self, key: TransactionKey) -> Standing:
        """Return the standing of a transaction whose id is, or was, this producer's."""
        if key == self.key:
            return Standing.UNDECIDED
        if key == self.ended:
            return Standing.COMMITTED if self.outcome is Outcome.COMMITTED else Standing.ABORTED
        ahead = key.producer_id == self.producer_id and key.producer_epoch > self.epoch
        return Standing.UNKNOWN if ahead else Standing.FENCED

    def turn_of(self, attempt: bytes) -> int | None:
        """Return how many initializations followed this one, or None if it is not remembered."""
        known = self.attempts
        starts = range(0, len(known), ATTEMPT_BYTES)
        return next((at // ATTEMPT_BYTES for at in starts if known[at : at + ATTEMPT_BYTES] == attempt), None)


class Block(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, gc=False):
    """Producer ids without a name, `[first, first + count)`; in snapshots an array of these fields.

    Invariant: `committed` and `aborted` lie within and do not overlap.
    """

    first: ProducerId
    count: int
    name: str
    """The name by which the block is found again until it is retired. Empty: the block cannot be requested again."""
    timeout_ms: int
    changed: int
    """The index of the log entry that last changed the block."""
    retired: bool = False
    """Whether the block is closed: every id that is not committed is aborted, and none may begin."""
    committed: Ranges = ()
    aborted: Ranges = ()
    """The ids aborted individually; empty for a retired block, in which all others are aborted."""

    @property
    def end(self) -> int:
        """Return the first id after the block."""
        return self.first + self.count

    def standing(self, key: TransactionKey) -> Standing:
        """Return the standing of one of its ids."""
        if key.producer_epoch != UNNAMED_EPOCH:
            return Standing.FENCED
        if has_id(self.committed, key.producer_id):
            return Standing.COMMITTED
        if self.retired or has_id(self.aborted, key.producer_id):
            return Standing.ABORTED
        return Standing.UNDECIDED
