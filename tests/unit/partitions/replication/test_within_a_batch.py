"""A follower whose log ends within a batch of its leader's.

An empty one begins where its leader does; any other is inconsistent, gets nothing, and holds up no other (S10).
"""

from __future__ import annotations

import pytest

from partitions.replica import effects as fx
from partitions.replication import protocol as rp
from partitions.replication.pushes import CHECKED_BYTES
from raftlog.model import NO_PRODUCER_ID, Acks, BrokerId, Incarnation, Offset
from raftlog.records.batch import encode
from tests.support.partitions.replication_cluster import AutoLink, ReplicationCluster, tp
from tests.support.partitions.replication_cores import CoreDriver, FakeLog, isr_of

JOBS_MAX = 20


class Listener:
    """The other end of a link: records its messages."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def on_opened(self, link: object) -> None: ...

    def on_message(self, link: object, message: memoryview) -> None:
        self.told.append(rp.decode_from_leader(message)[0])

    def on_closed(self, link: object) -> None: ...


@pytest.mark.parametrize("cache_bytes", [0, CHECKED_BYTES], ids=["cold", "in memory"])
def test_it_is_refused_once_and_not_served_repeatedly(cache_bytes: int) -> None:
    cluster = ReplicationCluster(cache_bytes=cache_bytes)
    cluster.members[1].links[0].close()
    cluster.settle()
    batch = encode([b"a", b"b", b"c"], base_timestamp_ms=cluster.scheduler.clock.wall_ms())
    cluster.members[0].manager.produce(tp(0), batch, Acks.LEADER, lambda answer: None)
    cluster.settle()
    follower = Listener()
    accepted = cluster.members[0].manager.accepted
    here, there = AutoLink(cluster.scheduler, 0, follower), AutoLink(cluster.scheduler, -1, accepted)
    here.other, there.other = there, here
    accepted.on_opened(there)
    here.send(rp.encode(rp.Hello("tests", 1, 1)))
    here.send(rp.encode(rp.SubscribeFrame([rp.Subscription(1, tp(0).topic_id, 0, 1, 1, 1, 1)])))
    for _ in range(JOBS_MAX):
        cluster.scheduler.run()
        if not cluster.members[0].worker.pending:
            break
        cluster.members[0].worker.run_one()
    assert not cluster.members[0].worker.pending, "it reads the same batch for ever"
    assert here.open
    answers = [answer for frame in follower.told if isinstance(frame, rp.AnswersFrame) for answer in frame.answers]
    assert [type(answer) for answer in answers] == [rp.MatchedSlot, rp.RefusedSlot]
    assert not any(isinstance(frame, rp.PushFrame) and frame.entries for frame in follower.told)


def test_an_empty_follower_that_does_not_count_begins_where_its_leader_does() -> None:
    """S1: it began where a log did which all replicas have lost since (`flush=os`). It lacks the batches that were
    written below since then; nor need a batch begin there."""
    core = CoreDriver(FakeLog.of((1, 4), (3, 10), start=2))
    core.log.batch_bases = (0, 4, 8)
    core.lead(epoch=4, isr=(0, 1))
    for end in (8, 9, 10):
        core.subscribe(2, last_epoch=-1, end=end)
        assert core.last_answer() == fx.StartAt(Offset(0), NO_PRODUCER_ID)
        assert core.proposals() == []


def test_an_empty_follower_that_begins_at_its_given_offset_may_although_the_index_is_gone() -> None:
    """The starts of batches are known as far as the index is in memory; without it, only the segment's base is. A
    follower that was given a batch nearer to the log's start is not sent back and forth (S10)."""
    core = CoreDriver(FakeLog.of((3, 10), start=6))
    core.log.batch_bases = (0, 4, 8)
    core.lead(epoch=4, isr=(0, 1))
    core.subscribe(2, last_epoch=-1, end=9)
    assert core.last_answer() == fx.StartAt(Offset(4), NO_PRODUCER_ID)
    core.log.batch_bases = (0,)
    core.subscribe(2, last_epoch=-1, end=4)
    assert isinstance(core.last_answer(), fx.Matched)


@pytest.mark.parametrize(
    ("isr", "commit_set", "not_eligible", "expected"),
    [
        ((0, 1), (0, 2), (), fx.Matched),
        ((0,), (0, 1), (), fx.Matched),
        ((0,), (0, 2), (), fx.StartAt),
        ((0,), (0, 1), (1,), fx.StartAt),
        ((0, 1), (0, 2), (1,), fx.StartAt),
    ],
)
def test_an_empty_follower_that_counts_knows_that_the_rest_was_deleted(
    isr: tuple[int, ...], commit_set: tuple[int, ...], not_eligible: tuple[int, ...], expected: type[fx.Answer]
) -> None:
    """Even if its leader does not know that yet. It counts by the ISR or the commit set, unless it lost data."""
    core = CoreDriver(FakeLog.of((1, 10), start=2))
    core.lead(epoch=4, isr=isr, commit_set=commit_set, not_eligible=not_eligible)
    core.subscribe(1, last_epoch=-1, end=10)
    assert isinstance(core.last_answer(), expected)


def test_a_follower_that_may_be_in_the_isr_counts() -> None:
    """S6: by its own record it may be a member, and may drop no committed record."""
    core = CoreDriver(FakeLog.of((1, 10), start=2))
    core.lead(epoch=4, isr=(0,), commit_set=(0, 2))
    core.do(core.replica.on_follower_start(BrokerId(1), Incarnation(1), core.replica.leader_epoch, Offset(2)))
    core.subscribe(1, last_epoch=1, end=10)
    assert [isr_of(proposal) for proposal in core.proposals()] == [[0, 1]], "its fate is open"
    core.subscribe(1, last_epoch=-1, end=10)
    assert isinstance(core.last_answer(), fx.Matched)
