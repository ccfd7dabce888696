"""A follower whose log ends within a batch of its leader's is broken: it gets nothing, and holds nobody up (S10)."""

from __future__ import annotations

import pytest

from partitions import replication_protocol as rp
from partitions.replication_pushes import CHECKED_BYTES
from raftlog.model import Acks
from raftlog.record_batch import encode
from tests.support.replication_cluster import AutoLink, ReplicationCluster, tp

JOBS_MAX = 20


class Listener:
    """The other end of a link: keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def on_opened(self, link: object) -> None: ...

    def on_message(self, link: object, message: memoryview) -> None:
        self.told.append(rp.decode_from_leader(message)[0])

    def on_closed(self, link: object) -> None: ...


@pytest.mark.parametrize("cache_bytes", [0, CHECKED_BYTES], ids=["cold", "in memory"])
def test_it_is_refused_once_and_not_read_for_again_and_again(cache_bytes: int) -> None:
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
