"""The empty batches and markers that a log still needs, and one hole in place of those that it does not.

Compaction leaves batches without records. Such a batch may still carry information: how far a producer's sequence had
come, and which of its last batches were appended, so that a resend is recognized (S1). Every replica, and every copy of
a log from its beginning, gets that from the batches' headers alone. So for each producer that `ProducerStates` would
still know, the batches that it remembers stay as they are, however empty. All others that follow one another in the
same leader epoch become one hole: offsets stay dense (S2), and so do all checks that rest on that.

    [k=1] [  ] [  ] [  ] [k=2] [  ]       →       [k=1] [  hole  ] [k=2] [  ]
           p7   p7   p9         p7                                        p7: its last batch

A marker is needed while a batch that it ends exists, empty or not: without it the transaction would be open again for a
reader of the log from its beginning (S13). A marker that finds nothing open when the pass begins is spent; an earlier
pass removed what it ended, so the marker never goes before that.

The need is judged as of the pass's end, which is below the high watermark. This stays right if the log above is lost or
copied from another replica: a batch that a producer's state needs later was among its last ones then, too.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

import msgspec
from msgspec.structs import replace

from partitions.producers.state import ProducerStates
from partitions.producers.transactions import keys_of
from raftlog.idempotency import is_keyed
from raftlog.model import NO_PRODUCER_ID, Offset, ProducerId
from raftlog.records.batch import BatchHeader, Control
from raftlog.records.batch_filter import hole, is_hole

_DELTA_MAX = 2**31 - 1


class NeededBatches:
    """The batches on which producers' state rests, found from all headers of a log in order, up to the pass's end.

    Invariant: at most as many as `ProducerStates` remembers, and the markers that end something.
    """

    def __init__(self) -> None:
        self._states = ProducerStates()
        self._base_offsets: frozenset[int] = frozenset()
        self._spent = array("q")
        """Base offsets of markers that end nothing any more, rising."""

    def add(self, header: BatchHeader, control: Control | None = None) -> None:
        """Add the next batch; `control` is a control batch's content."""
        if control is not None and not any(map(self._states.transactions.is_open, keys_of(control))):
            self._spent.append(header.base_offset)
        self._states.append(header, control)
        # The pass has the aborted ranges from elsewhere.
        self._states.transactions.forget_compacted(Offset(header.base_offset))

    def settle(self) -> None:
        """End the input."""
        entries = (self._states.get(producer) for producer in self._states)
        self._base_offsets = frozenset(
            batch.base_offset for entry in entries if entry is not None for batch in entry.batches
        )

    def forgotten_with(self, header: BatchHeader) -> ProducerId:
        """Return the greatest id among the producers of which nothing is left in the log without this batch; -1: none.

        The batch is not needed. Producers of other batches do not count, nor do transactions, which have ended.
        """
        producer_id = ProducerId(header.producer_id)
        if is_hole(header):
            return producer_id
        if is_keyed(producer_id):
            return NO_PRODUCER_ID  # Keys do not count up, so no bound tells which were forgotten.
        known = header.is_transactional or self._states.get(producer_id) is not None
        return NO_PRODUCER_ID if known else producer_id

    def __contains__(self, header: BatchHeader) -> bool:
        """Whether this batch, which holds no users' records, is needed."""
        if header.is_control:
            place = bisect_left(self._spent, header.base_offset)
            return place == len(self._spent) or self._spent[place] != header.base_offset
        return header.base_offset in self._base_offsets


class Hole(msgspec.Struct, frozen=True):
    """Consecutive empty batches that are not needed; the first one is kept as it was."""

    first: BatchHeader
    first_batch: bytes
    first_changed: bool
    """Whether the first batch differs from the one before the pass."""
    end_offset: int
    max_timestamp: int
    greatest_id: int
    """The greatest id of the producers of which nothing else is left; -1: none."""

    @classmethod
    def of(cls, header: BatchHeader, batch: bytes, *, changed: bool, forgotten: int = NO_PRODUCER_ID) -> Hole:
        """Begin a hole with one batch; `forgotten` is the result of `NeededBatches.forgotten_with`."""
        return cls(header, batch, changed, header.end_offset, header.max_timestamp, forgotten)

    def with_next(self, header: BatchHeader, forgotten: int = NO_PRODUCER_ID) -> Hole | None:
        """Extend the hole by the next batch; None if they cannot be one: another leader epoch, or too long."""
        if header.leader_epoch != self.first.leader_epoch or header.last_offset - self.first.base_offset > _DELTA_MAX:
            return None
        latest = max(self.max_timestamp, header.max_timestamp)
        greatest_id = max(self.greatest_id, forgotten)
        return replace(self, end_offset=header.end_offset, max_timestamp=latest, greatest_id=greatest_id)

    @property
    def joined(self) -> bool:
        """Whether the hole replaces more than one batch."""
        return self.end_offset > self.first.end_offset

    @property
    def changed(self) -> bool:
        """Whether the hole differs from what was there before the pass."""
        return self.first_changed or not self._stays

    @property
    def _stays(self) -> bool:
        """Whether the single batch stays: nothing would be gained, unless it is a marker."""
        return not self.joined and (self.first.is_control or not self.first.is_transactional)

    @property
    def batch(self) -> bytes:
        """The batch to write."""
        if self._stays:
            return self.first_batch
        first = self.first
        return hole(first.base_offset, self.end_offset, first.leader_epoch, self.max_timestamp, self.greatest_id)
