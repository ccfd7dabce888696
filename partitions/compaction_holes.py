"""Which empty batches a log still needs, and one hole in place of those that it does not.

Compaction leaves batches without a record. Such a batch may still say something: up to where a producer's sequence had
come, and which of its last batches were appended, so that a resend is recognised (S1). Every replica, and whoever
copies a log from its beginning, gets that from the batches' headers alone. So of each producer that `ProducerStates`
would still know, the batches that it remembers stay as they are, however empty. All others that follow one another in
the same leader epoch become one hole: offsets stay dense (S2), and so do all checks that rest on that.

    [k=1] [  ] [  ] [  ] [k=2] [  ]       →       [k=1] [  hole  ] [k=2] [  ]
           p7   p7   p9         p7                                        p7: its last batch

What is needed is judged as of the pass's end, which is below the high watermark. Whatever of the log above is lost or
copied from somebody else: a batch that a producer's state needs later was among its last ones then, too.

What is *not* here: which records stay (`compaction.py`), the bytes of a hole (`record_batch_filter.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from raftlog.record_batch import BatchHeader
from raftlog.record_batch_filter import hole

from .producer_state import ProducerStates

_DELTA_MAX = 2**31 - 1


class NeededBatches:
    """Which batches producers' state rests on: told all headers of a log in order, up to the pass's end.

    Invariant: at most as many as `ProducerStates` remembers.
    """

    def __init__(self) -> None:
        self._states = ProducerStates()
        self._base_offsets: frozenset[int] = frozenset()

    def add(self, header: BatchHeader) -> None:
        """The next batch."""
        self._states.append(header)

    def settle(self) -> None:
        """That was all."""
        entries = (self._states.get(producer) for producer in self._states)
        self._base_offsets = frozenset(
            batch.base_offset for entry in entries if entry is not None for batch in entry.batches
        )

    def __contains__(self, header: BatchHeader) -> bool:
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

    @classmethod
    def of(cls, header: BatchHeader, batch: bytes, *, changed: bool) -> Hole:
        return cls(header, batch, changed, header.end_offset, header.max_timestamp)

    def with_next(self, header: BatchHeader) -> Hole | None:
        """With the batch that follows; None where one batch cannot stand for both: another leader epoch, too long."""
        if header.leader_epoch != self.first.leader_epoch or header.last_offset - self.first.base_offset > _DELTA_MAX:
            return None
        latest = max(self.max_timestamp, header.max_timestamp)
        return replace(self, end_offset=header.end_offset, max_timestamp=latest)

    @property
    def joined(self) -> bool:
        """It stands for more than the first."""
        return self.end_offset > self.first.end_offset

    @property
    def batch(self) -> bytes:
        """To be written. A single batch stays what it is: there is nothing to be gained."""
        if not self.joined:
            return self.first_batch
        return hole(self.first.base_offset, self.end_offset, self.first.leader_epoch, self.max_timestamp)
