"""Fetch sessions at a broker: changed partitions are named, the others wait and cost nothing (the idea of KIP-227; S1,
S3, S13).
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from partitions.driver.reads import ReplicaReads
from partitions.fetch import session as fetch_session
from partitions.fetch import sessions as fetch_sessions
from partitions.manager import TopicRemoved
from raftlog.errors import RaftlogError
from tests.support.client.session_reader import SessionReader
from tests.support.partitions.replication_cluster import TOPIC, ReplicationCluster, tp
from tests.support.partitions.transaction_logs import key


def refusal(reader: SessionReader, **request: Any) -> str:
    with pytest.raises(RaftlogError) as caught:
        reader.poll(**request)
    return caught.value.code


def test_a_slot_that_was_named_once_waits_until_it_has_something() -> None:
    cluster = ReplicationCluster(3)
    reader = SessionReader(cluster)
    first = reader.poll({1: (0, 0), 2: (1, 0), 3: (2, 0)}, wait_ms=500)
    assert first.slots is None
    cluster.produce(0, 1)
    cluster.settle()
    assert first.over == {2: ""} and first.values == 1
    again = reader.poll({4: (1, 1)})
    cluster.produce(0, 2)
    cluster.settle()
    assert again.over == {3: ""}, "named with the request before"
    last = reader.poll()
    cluster.produce(0, 2)
    cluster.settle()
    assert last.slots is None, "a slot that was answered is over: nothing is given twice (S1)"
    cluster.scheduler.advance(0.5)
    assert last.slots == []


def test_nothing_at_or_above_the_high_watermark_is_given() -> None:
    """S3: records that only the leader has are withheld, from a waiting slot and from a new one."""
    cluster = ReplicationCluster()
    reader = SessionReader(cluster)
    cluster.produce(0)
    cluster.settle()
    assert reader.poll({1: (0, 0)}).ends[1] == [(0, 1)]
    waiting = reader.poll({2: (0, 1)})
    cluster.members[1].links[0].close()
    cluster.settle()
    cluster.produce(0)
    cluster.settle()
    assert cluster.log_end(0)[0] == 2 and waiting.slots is None
    other = reader.poll({3: (0, 0)})
    assert waiting.over == {3: ""} and waiting.ends[3] == [(0, 1)], "by the first poll that waits, and nothing more"
    assert other.slots is None


def test_marks_are_sent_with_data_and_only_once() -> None:
    cluster = ReplicationCluster(2)
    reader = SessionReader(cluster)
    first = reader.poll({1: (0, 0), 2: (1, 0)}, wait_ms=100)
    cluster.scheduler.advance(0.1)
    assert [(slot.slot, slot.high_watermark, slot.length, slot.error) for slot in first.slots or ()] == [
        (1, 0, 0, ""), (2, 0, 0, ""),
    ]  # fmt: skip
    second = reader.poll(wait_ms=100)
    cluster.scheduler.advance(0.1)
    assert second.slots == [], "nothing is news"


def test_an_idle_partition_is_not_examined_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are idle, a poll and its answer examine none of them."""
    looks: list[int] = []
    readable_end = ReplicaReads.readable_end

    def counted(self: ReplicaReads, epoch: int = -1) -> Any:
        looks.append(int(self._name.rpartition("/")[2]))
        return readable_end(self, epoch)

    monkeypatch.setattr(ReplicaReads, "readable_end", counted)
    cluster = ReplicationCluster(40)
    reader = SessionReader(cluster)
    first = reader.poll({number + 1: (number, 0) for number in range(40)}, wait_ms=100)
    cluster.scheduler.advance(0.1)
    assert first.slots is not None and sorted(looks) == list(range(40))
    looks.clear()
    for round_number in range(5):
        poll = reader.poll(wait_ms=100)
        cluster.scheduler.advance(0.1)
        assert poll.slots == [], round_number
    assert looks == []
    poll = reader.poll(wait_ms=100)
    cluster.produce(0, 17)
    cluster.settle()
    assert poll.over == {18: ""} and set(looks) == {17}


def test_several_polls_can_be_in_flight() -> None:
    cluster = ReplicationCluster(2)
    reader = SessionReader(cluster)
    polls = [reader.poll({1: (0, 0)}), reader.poll({2: (1, 0)}), reader.poll()]
    for partition in (1, 0):
        cluster.produce(0, partition)
        cluster.settle()
    assert [poll.slots and poll.over for poll in polls] == [{2: ""}, {1: ""}, None]
    cluster.scheduler.advance(0.5)
    assert polls[2].slots == []


def test_min_bytes_waits_for_enough_and_the_deadline_answers_with_the_rest() -> None:
    cluster = ReplicationCluster(2)
    reader = SessionReader(cluster)
    poll = reader.poll({1: (0, 0), 2: (1, 0)}, min_bytes=3000, wait_ms=5000)
    for partition in (0, 1):
        cluster.produce(0, partition, size=1000)
        cluster.settle()
        cluster.scheduler.advance(0.1)
    assert poll.slots is None
    cluster.produce(0, 1, size=1000)  # of a slot that has something already
    cluster.settle()
    cluster.scheduler.advance(0.1)
    assert poll.values == 3 and poll.over == {1: "", 2: ""}
    late = reader.poll({3: (0, 0)}, min_bytes=1 << 19, wait_ms=1000)
    cluster.scheduler.advance(0.9)
    assert late.slots is None
    cluster.scheduler.advance(0.2)
    assert late.values == 1


def test_a_poll_with_more_data_than_an_answer_can_hold_gets_a_full_one() -> None:
    cluster = ReplicationCluster(2)
    reader = SessionReader(cluster)
    poll = reader.poll({1: (0, 0), 2: (1, 0)}, min_bytes=1 << 20, max_bytes=6000, wait_ms=60_000)
    for partition in (0, 1):
        assert poll.slots is None, "not so many are there"
        cluster.produce(0, partition, size=5000)
        cluster.settle()
        cluster.scheduler.advance(0.1)
    assert (poll.values, poll.over) == (1, {1: ""}), "the next one has no room"
    poll = reader.poll({3: (0, 1)}, dropped=(2,), min_bytes=1 << 20, max_bytes=6000, wait_ms=60_000)
    for _ in range(2):
        assert poll.slots is None
        cluster.produce(0, 0, size=5000)
        cluster.settle()
        cluster.scheduler.advance(0.1)
    assert (poll.values, poll.over) == (1, {3: ""})


def test_max_bytes_bounds_an_answer_and_slots_that_got_nothing_come_first() -> None:
    cluster = ReplicationCluster(3)
    for partition in range(3):
        cluster.produce(0, partition, size=5000)
    cluster.settle()
    reader = SessionReader(cluster)
    first = reader.poll({1: (0, 0), 2: (1, 0), 3: (2, 0)}, max_bytes=100)
    assert (first.values, first.over) == (1, {1: ""}), "one batch at least"
    second = reader.poll({4: (0, 0)}, max_bytes=11_000)
    assert (second.values, second.over) == (2, {2: "", 3: ""})


def test_errors_end_their_slots_and_no_others() -> None:
    cluster = ReplicationCluster(3)
    cluster.elect(1, partition=2)
    cluster.settle()
    reader = SessionReader(cluster)
    poll = reader.poll({1: (0, 0), 2: (1, 9), 3: (2, 0), 4: (7, 0)})
    assert poll.over == {2: "offset_out_of_range", 3: "not_leader", 4: "unknown_partition"}
    told = poll.by_slot
    assert (told[2].high_watermark, told[2].log_start_offset) == (0, 0) and told[3].leader == 1
    poll = reader.poll()
    cluster.produce(0, 0)
    cluster.settle()
    assert poll.over == {1: ""}


def test_the_leader_epoch_of_a_consumer_is_checked() -> None:
    cluster = ReplicationCluster()
    reader = SessionReader(cluster)
    reader.epoch = 0
    assert reader.poll({1: (0, 0)}).over == {1: "fenced_leader_epoch"}
    reader.epoch = 2
    assert reader.poll({2: (0, 0)}).over == {2: "unknown_leader_epoch"}


def test_a_waiting_slot_ends_with_the_leadership_the_replica_or_the_topic() -> None:
    cluster = ReplicationCluster(2)
    reader = SessionReader(cluster)
    poll = reader.poll({1: (0, 0), 2: (1, 0)}, wait_ms=10_000)
    cluster.elect(1)
    cluster.settle()
    assert poll.over == {1: "not_leader"}
    poll = reader.poll(wait_ms=10_000)
    cluster.tell(TopicRemoved(TOPIC))
    cluster.settle()
    assert poll.over == {2: "unknown_topic"}


def test_a_waiting_slot_ends_when_its_replica_has_moved_away() -> None:
    cluster = ReplicationCluster(brokers=3)
    reader = SessionReader(cluster)
    poll = reader.poll({1: (0, 0)}, wait_ms=10_000)
    record = cluster.records[0]
    left = record.replicas[1:]
    cluster.tell(
        msgspec.structs.replace(
            record,
            replicas=left,
            isr=left,
            commit_set=left,
            leader=left[0],
            leader_epoch=record.leader_epoch + 1,
            partition_epoch=record.partition_epoch + 1,
        )
    )
    cluster.settle()
    assert tp(0) not in cluster.members[0].manager.drivers
    assert poll.over == {1: "not_leader"} and poll.by_slot[1].leader == left[0]


def test_a_new_epoch_of_the_same_leader_ends_slots_of_the_old_one() -> None:
    cluster = ReplicationCluster()
    reader = SessionReader(cluster)
    reader.epoch = 1
    poll = reader.poll({1: (0, 0)}, wait_ms=10_000)
    cluster.elect(0)
    cluster.settle()
    assert poll.over == {1: "fenced_leader_epoch"}


def test_dropped_slots_are_not_answered() -> None:
    cluster = ReplicationCluster(2)
    reader = SessionReader(cluster)
    poll = reader.poll({1: (0, 0), 2: (1, 0)})
    other = reader.poll(dropped=(1, 77))
    cluster.produce(0, 0)
    cluster.settle()
    assert poll.slots is None and other.slots is None
    assert reader.sessions.slots == 1
    cluster.produce(0, 1)
    cluster.settle()
    assert poll.over == {2: ""}


def test_read_committed_sees_no_open_transaction_and_gets_the_aborted_ranges() -> None:
    """S13. If the high watermark moves while a transaction is open behind it, only the mark is reported."""
    cluster = ReplicationCluster()
    one = key(7)
    reader = SessionReader(cluster, isolation=1)
    poll = reader.poll({1: (0, 0)}, wait_ms=1000)
    cluster.write(0, one, b"hidden")
    cluster.settle()
    assert poll.slots is None
    cluster.scheduler.advance(1.0)
    (told,) = poll.by_slot.values()
    assert (told.slot, told.high_watermark, told.last_stable_offset, told.length) == (1, 1, 0, 0)
    poll = reader.poll(wait_ms=1000)
    cluster.decide(lambda decisions: decisions.abort(one))
    cluster.settle()
    told = poll.by_slot[1]
    assert told.last_stable_offset == 2 and told.length
    assert [(r.producer_id, r.first_offset, r.end_offset) for r in told.aborted] == [(7, 0, 1)]


def test_cold_data_is_loaded_before_the_answer() -> None:
    cluster = ReplicationCluster(2, cache_bytes=0)
    for partition in (0, 1):
        cluster.produce(0, partition)
    cluster.settle()
    cluster.members[0].disk.cold = True
    reader = SessionReader(cluster)
    poll = reader.poll({1: (0, 0), 2: (1, 0)}, max_bytes=2 << 20)
    assert poll.slots is None
    cluster.settle()
    assert poll.values == 2
    dropped = reader.poll({3: (0, 0)})
    reader.close()
    cluster.settle()
    assert dropped.slots == [], "the stream is gone: nobody is sent what was loaded"


def test_a_session_of_another_stream_is_unknown() -> None:
    cluster = ReplicationCluster()
    reader = SessionReader(cluster)
    assert refusal(reader, begins=False, session=1) == "unknown_fetch_session"
    old = reader.poll({1: (0, 0)})
    new = reader.poll({1: (0, 0)}, begins=True)
    assert old.slots == [], "the one before it ends, and whoever waited there is answered"
    assert refusal(reader, begins=False, session=1) == "unknown_fetch_session"
    cluster.produce(0)
    cluster.settle()
    assert new.over == {1: ""}
    assert (len(reader.sessions), reader.sessions.slots) == (1, 0)


def test_an_invalid_request_changes_nothing() -> None:
    """S11. Slots only rise; polls of a session are bounded."""
    cluster = ReplicationCluster(2)
    reader = SessionReader(cluster)
    poll = reader.poll({5: (0, 0)})
    assert refusal(reader, added={6: (1, 0), 4: (1, 0)}, dropped=(5,)) == "invalid_request"
    assert reader.sessions.slots == 1
    for _ in range(fetch_session.MAX_POLLS - 1):
        reader.poll()
    assert refusal(reader, dropped=(5,)) == "overloaded"
    cluster.produce(0, 0)
    cluster.settle()
    assert poll.over == {5: ""}


def test_sessions_and_slots_are_bounded_and_end_with_their_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "MAX_SESSIONS", 2)
    monkeypatch.setattr(fetch_sessions, "MAX_SLOTS", 3)
    cluster = ReplicationCluster(4)
    one, two, three = (SessionReader(cluster) for _ in range(3))
    one.poll({1: (0, 0), 2: (1, 0)}, wait_ms=100)
    two.poll(wait_ms=100)
    assert refusal(three, added={}) == "overloaded"
    assert refusal(two, added={1: (0, 0), 2: (1, 0)}) == "overloaded"
    cluster.scheduler.advance(1.0)
    two.close()
    three.poll({1: (0, 0)}, wait_ms=100)
    assert (len(one.sessions), one.sessions.slots) == (2, 3)
    cluster.scheduler.advance(fetch_sessions.UNUSED_SECONDS)
    two.session = None
    assert two.poll({1: (2, 0)}, wait_ms=0).over == {}, "who asked for nothing for so long makes room"
    assert refusal(one, begins=False) == "unknown_fetch_session"
    for reader in (one, two, three):
        reader.close()
    assert (len(one.sessions), one.sessions.slots) == (0, 0)


def test_no_turn_examines_or_reads_all_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_session, "LOOKS_A_TURN", 3)
    monkeypatch.setattr(fetch_session, "READS_A_TURN", 2)
    cluster = ReplicationCluster(8)
    for partition in range(8):
        cluster.produce(0, partition)
    cluster.settle()
    reader = SessionReader(cluster)
    found: dict[int, str] = {}
    polls = [reader.poll({number + 1: (number, 0) for number in range(8)}), *(reader.poll() for _ in range(5))]
    cluster.settle()
    for poll in polls:
        if poll.slots is not None:
            assert poll.values <= 2
            found |= poll.over
    assert set(found) == set(range(1, 9))


def test_a_stopping_broker_answers_all_polls() -> None:
    cluster = ReplicationCluster()
    reader = SessionReader(cluster)
    poll = reader.poll({1: (0, 0)}, wait_ms=10_000)
    cluster.members[0].manager.close(lambda clean: None)
    assert poll.slots is not None and poll.over == {}
    assert reader.poll(wait_ms=10_000).slots is not None, "and lets nobody wait any more"


def test_a_closed_session_leaves_no_waiter_behind() -> None:
    cluster = ReplicationCluster(3)
    reader = SessionReader(cluster)
    reader.poll({number + 1: (number, 0) for number in range(3)})
    drivers = [cluster.members[0].manager.drivers[tp(number)] for number in range(3)]
    assert [driver.facts().waiters for driver in drivers] == [1, 1, 1]
    reader.close()
    cluster.settle()
    assert [driver.facts().waiters for driver in drivers] == [0, 0, 0]
