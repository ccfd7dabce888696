"""A partition's transactions compared with a model that keeps the whole log and searches all of it each time (S13)."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from partitions.producers.state import ProducerStates
from raftlog.model import Offset
from raftlog.records.batch import BatchHeader, Control, ControlKind
from raftlog.transactions import TransactionKey
from tests.support.partitions.transaction_logs import data_header, key, marker_header, says

KEYS = [key(1, 0), key(1, 1), key(2, 0), key(3, 5)]


@dataclass
class Batch:
    base: int
    end: int
    key: TransactionKey | None = None
    control: Control | None = None

    @property
    def header(self) -> BatchHeader:
        if self.control is not None:
            return marker_header(self.base)
        return data_header(self.base, self.key, self.end - self.base)


@dataclass
class Twin:
    """All batches, in order."""

    batches: list[Batch] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else 0

    def marker_of(self, batch: Batch, below: int) -> tuple[int, int] | None:
        """(kind, named offset) of the first marker behind the batch, below an offset, that names it."""
        for later in self.batches:
            if later.control is None or not batch.base < later.base < below:
                continue
            for entry in later.control.entries:
                if (entry.producer_id, entry.producer_epoch) == batch.key:
                    return later.control.kind, entry.named_offset
        return None

    def last_stable_offset(self, high: int) -> int:
        opened = [b.base for b in self.batches if b.key and b.base < high and self.marker_of(b, high) is None]
        return min([high, *opened])

    def committed(self, high: int) -> list[int]:
        """Base offsets of the batches that a `read_committed` reader sees."""
        stable, shown = self.last_stable_offset(high), []
        for batch in self.batches:
            if batch.control is not None or batch.end > stable:
                continue
            marker = self.marker_of(batch, high) if batch.key else (ControlKind.COMMIT, batch.end)
            assert marker is not None
            if marker[0] == ControlKind.COMMIT and batch.base < marker[1]:
                shown.append(batch.base)
        return shown


def read_committed(batches: list[Batch], states: ProducerStates, high: int, start: int = 0) -> list[int]:
    """The reader's algorithm: first the last stable offset, then the ranges, and batches are skipped by their
    headers."""
    stable = states.transactions.last_stable_offset(Offset(high))
    ranges = states.transactions.aborted.overlapping(Offset(start), stable)
    shown = []
    for batch in batches:
        skipped = any(
            (one.producer_id, one.producer_epoch) == batch.key and one.first_offset <= batch.base < one.end_offset
            for one in ranges
        )
        if start <= batch.base and batch.end <= stable and batch.control is None and not skipped:
            shown.append(batch.base)
    return shown


data = st.tuples(st.just("data"), st.sampled_from([None, *KEYS]), st.integers(1, 3))
marker = st.tuples(
    st.just("marker"),
    st.sampled_from([ControlKind.ABORT, ControlKind.COMMIT]),
    st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 40)), min_size=1, max_size=3, unique_by=lambda e: e[0]),
)


def build(steps: list[tuple[str, object, object]]) -> Twin:
    twin = Twin()
    for what, one, other in steps:
        base = twin.end
        if what == "data":
            twin.batches.append(Batch(base, base + other, one))  # type: ignore[operator, arg-type]
        else:
            entries = [(k, -1 if one is ControlKind.ABORT else named) for k, named in other]  # type: ignore[attr-defined]
            # A commit names the end of a batch, or any offset below or above all of them.
            ends = {b.end for b in twin.batches} | {0}
            entries = [(k, max(e for e in ends if e <= max(named, 0)) if named >= 0 else -1) for k, named in entries]
            twin.batches.append(Batch(base, base + 1, control=says(one, *entries)))  # type: ignore[arg-type]
    return twin


def feed(batches: list[Batch], states: ProducerStates | None = None) -> ProducerStates:
    states = ProducerStates() if states is None else states
    for batch in batches:
        states.replay(batch.header, batch.control)
    return states


@given(st.lists(data | marker, max_size=30), st.data())
def test_readers_see_what_the_model_shows(steps: list[tuple[str, object, object]], draw: st.DataObject) -> None:
    twin = build(steps)
    states = feed(twin.batches)
    highs = sorted({0, twin.end, *(batch.end for batch in twin.batches)})
    for high in highs[draw.draw(st.integers(0, len(highs) - 1)) :]:
        assert states.transactions.last_stable_offset(Offset(high)) == twin.last_stable_offset(high)
        start = draw.draw(st.sampled_from(highs))
        seen = read_committed(twin.batches, states, high, start)
        assert seen == [base for base in twin.committed(high) if base >= start]


@given(st.lists(data | marker, min_size=1, max_size=30), st.lists(data | marker, max_size=10), st.data())
def test_truncated_and_recovered_anywhere_the_state_is_that_of_the_remaining_log(
    steps: list[tuple[str, object, object]], more: list[tuple[str, object, object]], draw: st.DataObject
) -> None:
    """A snapshot of any earlier point with the remaining batches behind it gives the same as all batches from the
    beginning."""
    batches = build(steps).batches
    cut = draw.draw(st.integers(0, len(batches)))
    taken = draw.draw(st.integers(0, cut))
    begun = ProducerStates()
    begun.restore(feed(batches[:taken]).snapshot() if taken else None)
    kept = build(steps[:cut] + more).batches
    feed(kept[taken:], begun)
    whole = feed(kept)
    assert begun == whole
    end = kept[-1].end if kept else 0
    assert read_committed(kept, begun, end) == read_committed(kept, whole, end)
    live = feed(batches)
    live.become(begun)
    assert live == whole
    log_start = draw.draw(st.integers(0, end))
    stable = live.transactions.last_stable_offset(Offset(end))
    live.cut(Offset(min(log_start, stable)))
    left = [base for base in read_committed(kept, whole, end) if base >= log_start]
    assert [base for base in read_committed(kept, live, end) if base >= log_start] == left
