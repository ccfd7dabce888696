"""Each optimized part of the replica's cores compared with a simple model: high watermark, ISR, producers, truncation,
frames.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from partitions.producers.entries import BATCH_BYTES, PRODUCER_BYTES, SEQUENCES
from partitions.producers.state import (
    REMEMBERED_BATCHES,
    Ahead,
    Duplicate,
    InSequence,
    NoRoom,
    ProducerBounds,
    ProducerStates,
    RefusedSequence,
)
from partitions.replica import effects as fx
from partitions.replica.effects import Fate
from partitions.replica.isr import IsrState
from partitions.replica.log_view import compare_follower, truncation_for
from partitions.replication.protocol import decode_from_follower, decode_from_leader
from raftlog.errors import RemoteProtocolError
from raftlog.model import BrokerId, LeaderEpoch, Offset
from raftlog.records.batch import BatchHeader
from tests.support.partitions.replication_cores import CoreDriver, FakeLog, broker, header, isr_of, record

# --- High watermark and ISR of a leader, over any sequence of events --------------------------------------------------


@dataclass
class DumbLeader:
    """A leader's quantities, recomputed from scratch each time."""

    isr: set[int]
    minimum: int
    possible: list[set[int]] = field(default_factory=list)
    stable: dict[int, int] = field(default_factory=dict)
    """Only of members that matched in their current incarnation; broker 0 is the leader itself."""
    high_watermark: int = 0

    def advance(self) -> None:
        if len(self.isr) < self.minimum:
            return
        counted = set(self.isr).union(*self.possible)
        if all(member in self.stable for member in counted):
            self.high_watermark = max(self.high_watermark, min(self.stable[member] for member in counted))


FOLLOWER = st.sampled_from([1, 2])
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("produce"), st.integers(1, 3)),
        st.tuples(st.just("fsync"), st.just(0)),
        st.tuples(st.just("match"), FOLLOWER),
        st.tuples(st.just("report"), FOLLOWER),
        st.tuples(st.just("rebirth"), FOLLOWER),
        st.tuples(st.just("fence"), FOLLOWER),
        st.tuples(st.just("answer"), st.sampled_from(list(Fate))),
        st.tuples(st.just("record"), st.sampled_from([(0,), (0, 1), (0, 2), (0, 1, 2)])),
        st.tuples(st.just("tick"), st.sampled_from([0.3, 6.0])),
    ),
    max_size=60,
)


@settings(max_examples=400, deadline=None)
@given(EVENTS, st.sampled_from([1, 2, 3]))
def test_the_high_watermark_equals_the_models(events: list[tuple[str, object]], minimum: int) -> None:
    core = CoreDriver()
    core.lead(minimum=minimum)
    dumb = DumbLeader({0, 1, 2}, minimum, stable={0: 0})
    epoch, lives = 1, {1: 1, 2: 1}
    lost: list[set[int]] = []
    in_flight: tuple[int, set[int]] | None = None
    seen = 0

    for name, value in events:
        if name == "produce":
            core.produce(value)
        elif name == "fsync":
            core.fsync()
            dumb.stable[0] = core.log.log_end_offset
        elif name == "match":
            end = dumb.stable.get(value, 0)
            core.subscribe(value, last_epoch=1 if end else -1, end=end, incarnation=lives[value])
            dumb.stable[value] = end
        elif name == "report" and value in dumb.stable:
            end = core.log.log_end_offset
            core.report(value, end, incarnation=lives[value])
            dumb.stable[value] = end
        elif name in {"rebirth", "fence"}:
            if name == "rebirth":
                lives[value] += 1
                dumb.stable.pop(value, None)
            core.brokers[BrokerId(value)] = broker(value, lives[value], fenced=name == "fence")
            core.do(core.replica.on_broker(BrokerId(value), core.now))
        elif name == "answer" and in_flight is not None:
            attempt, isr = in_flight
            core.do(core.replica.on_isr_answer(LeaderEpoch(1), attempt, value, core.now))
            in_flight = None
            if value is Fate.UNKNOWN:
                lost.append(isr)
            dumb.possible = [*lost, isr] if value is Fate.ACCEPTED else list(lost)
        elif name == "record":
            epoch += 1
            isr = set(value)
            core.do(core.replica.on_record(record(isr=sorted(isr), partition_epoch=epoch, minimum=minimum), core.now))
            dumb.isr, dumb.possible, lost, in_flight = isr, [], [], None
        elif name == "tick":
            core.tick(value)
        proposals = core.proposals()
        for proposal in proposals[seen:]:
            assert in_flight is None or name == "record", "one at a time"
            in_flight = (proposal.attempt, set(isr_of(proposal)))
            dumb.possible = [*lost, in_flight[1]]
            joining = in_flight[1] - dumb.isr
            assert all(dumb.stable.get(member, -1) >= core.leader.high_watermark for member in joining)
        seen = len(proposals)
        dumb.advance()
        assert core.leader.high_watermark == dumb.high_watermark, (name, value, str(core.leader))


@given(st.lists(st.tuples(st.sampled_from([(0,), (0, 1), (0, 1, 2)]), st.sampled_from(list(Fate))), max_size=8))
def test_the_maximal_isr_covers_every_outcome_that_is_still_possible(
    attempts: list[tuple[tuple[int, ...], Fate]],
) -> None:
    """Whatever the outcomes, the next record has the old ISR or one of the proposals that are not certainly refused."""
    state = IsrState.of(record(isr=(0, 2)))
    outcomes: list[set[int]] = [{0, 2}]
    for isr, fate in attempts:
        if not state.may_propose(1e9):
            break
        attempt = state.propose(tuple(map(BrokerId, isr)))
        state.on_answer(attempt, fate, retry_at=0.0)
        if fate is not Fate.REFUSED:
            outcomes.append(set(isr))
    assert set(state.maximal) == set().union(*outcomes)


# --- Producers --------------------------------------------------------------------------------------------------------


@dataclass
class DumbProducers:
    """Every batch ever appended, searched from the beginning."""

    appended: list[BatchHeader] = field(default_factory=list)

    def check(self, candidate: BatchHeader) -> str:
        own = [h for h in self.appended if h.producer_id == candidate.producer_id]
        if not own:
            return "append" if candidate.base_sequence == 0 else "ahead"
        epoch = own[-1].producer_epoch
        if candidate.producer_epoch < epoch:
            return "refuse"
        if candidate.producer_epoch > epoch:
            return "append" if candidate.base_sequence == 0 else "ahead"
        own = [h for h in own if h.producer_epoch == epoch]
        expected = (own[-1].base_sequence + own[-1].record_count) % SEQUENCES
        if candidate.base_sequence == expected:
            return "append"
        for h in own[-REMEMBERED_BATCHES:]:
            if (h.base_sequence, h.record_count) == (candidate.base_sequence, candidate.record_count):
                return f"duplicate {h.base_offset}"
        return "ahead" if (candidate.base_sequence - expected) % SEQUENCES < SEQUENCES // 2 else "refuse"


def in_words(verdict: object) -> str:
    match verdict:
        case InSequence():
            return "append"
        case Duplicate(batch):
            return f"duplicate {batch.base_offset}"
        case Ahead():
            return "ahead"
        case RefusedSequence():
            return "refuse"
    raise AssertionError(verdict)


SENDS = st.lists(
    st.tuples(
        st.integers(1, 3),  # producer
        st.sampled_from([0, 0, 0, 0, 1, 2]),  # epoch
        st.integers(-3, 2),  # distance from the next sequence, in batches
        st.integers(1, 3),  # records
    ),
    max_size=60,
)


def play(sends: list[tuple[int, int, int, int]]) -> tuple[ProducerStates, DumbProducers]:
    """Send batches near the next sequence; append those that are in sequence."""
    states, dumb = ProducerStates(), DumbProducers()
    cursor: dict[tuple[int, int], int] = {}
    end = 0
    for producer, epoch, distance, count in sends:
        sequence = (cursor.get((producer, epoch), 0) + distance) % SEQUENCES
        candidate = header(count, base_offset=end, producer=(producer, epoch, sequence))
        verdict = in_words(states.check(candidate))
        assert verdict == dumb.check(candidate), candidate
        if verdict == "append":
            states.append(candidate)
            dumb.appended.append(candidate)
            end += count
            cursor[producer, epoch] = sequence + count
    return states, dumb


@settings(max_examples=300)
@given(SENDS)
def test_the_producer_states_equal_the_models(sends: list[tuple[int, int, int, int]]) -> None:
    play(sends)


@settings(max_examples=200)
@given(SENDS, st.integers(0, 60), st.integers(0, 60))
def test_the_state_is_a_function_of_the_remaining_batches(
    sends: list[tuple[int, int, int, int]], kept: int, snapshot_at: int
) -> None:
    """After a truncation, the state from any snapshot below it and the following headers equals that from all
    headers."""
    _, dumb = play(sends)
    left = dumb.appended[: min(kept, len(dumb.appended))]
    whole = ProducerStates()
    for batch in left:
        whole.replay(batch)
    rebuilt = ProducerStates()
    cut = min(snapshot_at, len(left))
    for batch in left[:cut]:
        rebuilt.append(batch)
    packed = rebuilt.snapshot()
    for batch in dumb.appended[cut:]:
        rebuilt.append(batch)
    rebuilt.restore(packed)
    for batch in left[cut:]:
        rebuilt.replay(batch)
    assert rebuilt == whole
    assert rebuilt.snapshot() == whole.snapshot()


FIRST_BATCHES = st.lists(
    st.tuples(
        st.integers(0, 12),  # producer
        st.sampled_from((0, 0, 1)),  # epoch
        st.sampled_from((0, 0, 1)),  # base sequence
        st.booleans(),  # first attempt (or a resend)
        st.sampled_from((0.0, 0.0, 0.4, 1.1)),  # expiration times that pass before
        st.sampled_from(("", "", "", "restart", "copy")),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(FIRST_BATCHES)
def test_no_resend_is_appended_twice_whatever_state_has_expired(
    sends: list[tuple[int, int, int, bool, float, str]],
) -> None:
    """S1: the model knows everything that was ever appended. A first attempt is sent once; a resend of a first batch is
    accepted only if the model has none. Those with the greatest ids so far are always accepted."""
    bounds = ProducerBounds(max_bytes=4 * (PRODUCER_BYTES + BATCH_BYTES), expiration_ms=1000)
    states, appended, now = ProducerStates(bounds), set[tuple[int, int, int]](), 0.0
    for producer, epoch, sequence, first, passed, event in sends:
        now += passed
        states.advance(now)
        if event == "restart":
            again = states.empty()
            again.restore(states.snapshot())
            states = again
        elif event == "copy":  # a replica that begins in the middle of the log
            greatest, states = states.greatest_id, states.empty()
            states.lacks_past(greatest)
        name = (producer, epoch, sequence)
        verdict = states.check(header(producer=name), resent=not first or name in appended)
        newest = all(producer > known for known, _, _ in appended)
        if not first and newest and sequence == 0 and epoch == 0:
            assert isinstance(verdict, InSequence | NoRoom), "nobody can have forgotten it"
        if isinstance(verdict, InSequence):
            assert name not in appended
            appended.add(name)
            states.append(header(base_offset=len(appended), producer=name))


@given(st.integers(0, 20), st.lists(st.integers(1, 4), min_size=1, max_size=12))
def test_sequences_wrap_around(before_the_end: int, counts: list[int]) -> None:
    states = ProducerStates()
    sequence = SEQUENCES - before_the_end
    for offset, count in enumerate(counts):
        candidate = header(count, base_offset=offset, producer=(1, 0, sequence % SEQUENCES))
        if offset:
            assert in_words(states.check(candidate)) == "append"
            behind = header(1, producer=(1, 0, (sequence - 40) % SEQUENCES))
            assert in_words(states.check(behind)) == "refuse"
        states.append(candidate)
        assert in_words(states.check(candidate)) == f"duplicate {offset}"
        sequence += count


# --- Matching two logs ------------------------------------------------------------------------------------------------

# A history of epochs: each leader's log is a prefix of an earlier one, continued in its own epoch.
LINEAGE = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 12), st.integers(0, 4)), min_size=1, max_size=6)


def grow(lineage: list[tuple[int, int, int]]) -> list[list[int]]:
    """Logs as lists of epochs, one record each. Log n+1 keeps a part of an earlier one and adds records of epoch
    n+1."""
    logs: list[list[int]] = [[]]
    for epoch, (parent, kept, added) in enumerate(lineage, start=1):
        logs.append([*logs[parent % len(logs)][:kept], *[epoch] * added])
    return logs


def as_log(epochs: list[int]) -> FakeLog:
    ends = [(epoch, end) for epoch, run in itertools.groupby(epochs) for end in [len(list(run))]]
    total, pieces = 0, []
    for epoch, length in ends:
        total += length
        pieces.append((epoch, total))
    return FakeLog.of(*pieces)


@settings(max_examples=500)
@given(LINEAGE, st.integers(0, 6), st.integers(0, 6), st.booleans())
def test_truncation_ends_at_the_longest_common_prefix(
    lineage: list[tuple[int, int, int]], one: int, other: int, counted: bool
) -> None:
    """Records are identified by (offset, epoch): the follower keeps exactly the ones that the leader has as well."""
    logs = grow(lineage)
    ours, theirs = logs[one % len(logs)], logs[other % len(logs)]
    common = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False))))
    leader, follower = as_log(theirs), as_log(ours)
    for _ in range(20):
        last_epoch = follower.epochs.latest_epoch
        answer = compare_follower(leader, Offset(0), last_epoch, follower.log_end_offset, counted=counted)
        if isinstance(answer, fx.Matched):
            break
        end = truncation_for(follower, answer) if isinstance(answer, fx.Diverged) else Offset(0)
        assert end < follower.log_end_offset, "each round is shorter"
        assert end >= 0
        follower.truncate_to(end) if end else follower.start_at(Offset(0))
    assert follower.log_end_offset == common


# --- Frames -----------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_the_peers_fault(junk: bytes) -> None:
    for message in (junk, len(junk).to_bytes(4, "big") + junk):
        for decode in (decode_from_follower, decode_from_leader):
            with contextlib.suppress(RemoteProtocolError):
                decode(message)
