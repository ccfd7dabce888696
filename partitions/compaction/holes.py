"""Which empty batches and markers a log still needs, and one hole in place of those that it does not.

Compaction leaves batches without a record. Such a batch may still say something: up to where a producer's sequence had
come, and which of its last batches were appended, so that a resend is recognised (S1). Every replica, and whoever
copies a log from its beginning, gets that from the batches' headers alone. So of each producer that `ProducerStates`
would still know, the batches that it remembers stay as they are, however empty. All others that follow one another in
the same leader epoch become one hole: offsets stay dense (S2), and so do all checks that rest on that.

    [k=1] [  ] [  ] [  ] [k=2] [  ]       →       [k=1] [  hole  ] [k=2] [  ]
           p7   p7   p9         p7                                        p7: its last batch

A marker is needed while a batch that it ends is there, empty or not: without it the transaction would be open again to
whoever reads the log from its beginning (S13). One that finds nothing open when the pass begins has said all that it
had to say; what it ended went in an earlier pass, so it never goes before that.

What is needed is judged as of the pass's end, which is below the high watermark. Whatever of the log above is lost or
copied from somebody else: a batch that a producer's state needs later was among its last ones then, too.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass, replace

from partitions.producers.state import ProducerStates
from partitions.producers.transactions import keys_of
from raftlog.model import NO_PRODUCER_ID, Offset, ProducerId
from raftlog.records.batch import BatchHeader, Control
from raftlog.records.batch_filter import hole, is_hole

_DELTA_MAX = 2**31 - 1


class NeededBatches:
    """Which batches producers' state rests on: told all headers of a log in order, up to the pass's end.

    Invariant: at most as many as `ProducerStates` remembers, and the markers that end something.
    """

    def __init__(self) -> None:
        self._states = ProducerStates()
        self._base_offsets: frozenset[int] = frozenset()
        self._spent = array("q")
        """Base offsets of markers that end nothing any more, rising."""

    def add(self, header: BatchHeader, control: Control | None = None) -> None:
        """The next batch; `control` is what a control batch says."""
        if control is not None and not any(map(self._states.transactions.is_open, keys_of(control))):
            self._spent.append(header.base_offset)
        self._states.append(header, control)
        # What is aborted was asked for elsewhere.
        self._states.transactions.forget_compacted(Offset(header.base_offset))

    def settle(self) -> None:
        """That was all."""
        entries = (self._states.get(producer) for producer in self._states)
        self._base_offsets = frozenset(
            batch.base_offset for entry in entries if entry is not None for batch in entry.batches
        )

    def forgotten_with(self, header: BatchHeader) -> ProducerId:
        """The greatest id of those of whom nothing is left in the log without this batch, which is not needed; -1: of
        none. Producers that the other batches tell of are not among them, nor are transactions, which have ended."""
        producer_id = ProducerId(header.producer_id)
        if is_hole(header):
            return producer_id
        known = header.is_transactional or self._states.get(producer_id) is not None
        return NO_PRODUCER_ID if known else producer_id

    def __contains__(self, header: BatchHeader) -> bool:
        """Whether this batch, which holds no users' records, is needed."""
        if header.is_control:
            place = bisect_left(self._spent, header.base_offset)
            return place == len(self._spent) or self._spent[place] != header.base_offset
        return header.base_offset in self._base_offsets


@dataclass(frozen=True, slots=True)
class Hole:
    """Empty batches that follow one another and that nobody needs; the first of them as it is."""

    first: BatchHeader
    first_batch: bytes
    first_changed: bool
    """It is not as it was before the pass."""
    end_offset: int
    max_timestamp: int
    greatest_id: int
    """Of the producers of whom nothing else tells; -1: of none."""

    @classmethod
    def of(cls, header: BatchHeader, batch: bytes, *, changed: bool, forgotten: int = NO_PRODUCER_ID) -> Hole:
        """`forgotten`: see `NeededBatches.forgotten_with`."""
        return cls(header, batch, changed, header.end_offset, header.max_timestamp, forgotten)

    def with_next(self, header: BatchHeader, forgotten: int = NO_PRODUCER_ID) -> Hole | None:
        """With the batch that follows; None where one batch cannot stand for both: another leader epoch, too long."""
        if header.leader_epoch != self.first.leader_epoch or header.last_offset - self.first.base_offset > _DELTA_MAX:
            return None
        latest = max(self.max_timestamp, header.max_timestamp)
        greatest_id = max(self.greatest_id, forgotten)
        return replace(self, end_offset=header.end_offset, max_timestamp=latest, greatest_id=greatest_id)

    @property
    def joined(self) -> bool:
        """It stands for more than the first."""
        return self.end_offset > self.first.end_offset

    @property
    def changed(self) -> bool:
        """It is not as it was before the pass."""
        return self.first_changed or not self._stays

    @property
    def _stays(self) -> bool:
        """A single batch stays what it is: there is nothing to be gained, unless it holds a marker."""
        return not self.joined and (self.first.is_control or not self.first.is_transactional)

    @property
    def batch(self) -> bytes:
        """To be written."""
        if self._stays:
            return self.first_batch
        first = self.first
        return hole(first.base_offset, self.end_offset, first.leader_epoch, self.max_timestamp, self.greatest_id)
