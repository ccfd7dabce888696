"""Transactions as the quorum agreed on them: named producers, blocks of producer ids, and where a transaction stands.

Two kinds of producers have transactions. A **named** one (`transactional_id`) has a row: each initialisation and each
end raises its epoch, so a transaction is one epoch, and whoever comes with an older one is fenced (KIP-98, KIP-890). An
id **without a name** comes from a block and is good for one transaction, of epoch 0; the block keeps what became of
each of its ids until it expires.

Nobody asks twice for the same thing and gets two answers: the row keeps the last end and its outcome, the block the
outcome of every id. What is not kept any more (`Standing.FENCED`, `Standing.EXPIRED`) is never called aborted.

A record is never changed, only replaced.
"""

from __future__ import annotations

import enum
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from raftlog.model import NO_PRODUCER_ID, ProducerEpoch, ProducerId
from raftlog.transactions import Outcome, TransactionKey

MAX_PRODUCER_EPOCH = 2**15 - 1
"""After a transaction of this epoch its producer goes on with another id."""

UNNAMED_EPOCH = ProducerEpoch(0)

ATTEMPT_BYTES = 16
ATTEMPTS_KEPT = 4
"""Initialisations of a name that are told apart: one that is repeated comes within seconds."""


class Standing(enum.Enum):
    """What is known of a transaction."""

    UNDECIDED = "undecided"
    COMMITTED = "committed"
    ABORTED = "aborted"
    FENCED = "fenced"
    """An older epoch of its producer, or one that its producer never had. What became of it is not kept."""
    EXPIRED = "expired"
    """Of a block, or a named producer, that is not kept any more; or an id that was never granted for transactions."""
    UNKNOWN = "unknown"
    """Beyond all that was granted, as far as this copy knows."""


# --- Ids as ranges ---------------------------------------------------------------------------------------------------

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Sorted half-open ranges that neither overlap nor touch."""

_FEW = 8


def has_id(ranges: Ranges, one: int) -> bool:
    """Whether it is in one of them."""
    place = bisect_right(ranges, (one, math.inf)) - 1
    return place >= 0 and one < ranges[place][1]


def with_ids(ranges: Ranges, ids: Sequence[int]) -> Ranges:
    """The ranges, with these ids in them too."""
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
    """These initialisations, and one more; None: one that cannot be repeated, and yet takes its turn."""
    return (attempt or bytes(ATTEMPT_BYTES)) + attempts[: (ATTEMPTS_KEPT - 1) * ATTEMPT_BYTES]


# --- Records ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NamedProducer:
    """A `transactional_id` and its producer of now.

    Invariant: with `ended` there is an outcome, and `key` is what whoever ended that goes on with.
    """

    transactional_id: str
    producer_id: ProducerId
    epoch: ProducerEpoch
    """Of the transaction that is not decided yet, and perhaps not begun."""
    timeout_ms: int
    """How long a transaction may stay open."""
    used_ms: int
    """When it was initialised or ended something last, by the clock of the node that was asked."""
    ended: TransactionKey | None = None
    """The last one, since the initialisation: a retry of that end gets the first answer (KIP-890)."""
    outcome: Outcome = Outcome.UNDECIDED
    """Of `ended`."""
    former_id: ProducerId = NO_PRODUCER_ID
    """The id before this one, whose epochs had come to their end: whoever still has it is fenced."""
    attempts: bytes = b""
    """Which initialisations there were: `ATTEMPT_BYTES` each, at most `ATTEMPTS_KEPT`, the last one first."""

    @property
    def key(self) -> TransactionKey:
        """The transaction that is not decided yet."""
        return TransactionKey(self.producer_id, self.epoch)

    def standing(self, key: TransactionKey) -> Standing:
        """Of a transaction whose id is, or was, this producer's."""
        if key == self.key:
            return Standing.UNDECIDED
        if key == self.ended:
            return Standing.COMMITTED if self.outcome is Outcome.COMMITTED else Standing.ABORTED
        ahead = key.producer_id == self.producer_id and key.producer_epoch > self.epoch
        return Standing.UNKNOWN if ahead else Standing.FENCED

    def turn_of(self, attempt: bytes) -> int | None:
        """How many initialisations came after this one; None: it is not among those that are remembered."""
        known = self.attempts
        starts = range(0, len(known), ATTEMPT_BYTES)
        return next((at // ATTEMPT_BYTES for at in starts if known[at : at + ATTEMPT_BYTES] == attempt), None)


@dataclass(frozen=True, slots=True)
class Block:
    """Producer ids without a name, `[first, first + count)`.

    Invariant: `committed` and `aborted` lie within and do not overlap.
    """

    first: ProducerId
    count: int
    name: str
    """Whoever asks for the same name gets the same block, until it is retired. Empty: nobody else gets it."""
    timeout_ms: int
    changed: int
    """The entry that last changed it."""
    retired: bool = False
    """Whatever is not committed is aborted, and nothing is begun any more."""
    committed: Ranges = ()
    aborted: Ranges = ()
    """Those that were aborted one by one; of a retired block: none, because all others are."""

    @property
    def end(self) -> int:
        """The first id beyond."""
        return self.first + self.count

    def standing(self, key: TransactionKey) -> Standing:
        """Of one of its ids."""
        if key.producer_epoch != UNNAMED_EPOCH:
            return Standing.FENCED
        if has_id(self.committed, key.producer_id):
            return Standing.COMMITTED
        if self.retired or has_id(self.aborted, key.producer_id):
            return Standing.ABORTED
        return Standing.UNDECIDED
