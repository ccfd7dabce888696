"""Where a record lies, and what a stop of each node would cost."""

from __future__ import annotations

from raftlog.broker.explain.facts import FollowerFacts, QuorumFacts, Unanswered
from raftlog.broker.explain.history import Change
from raftlog.broker.explain.partition import explain_partition
from raftlog.model import BrokerId
from tests.support.explained import NOW_MS, TOPIC, broker, case, node, record, replica


def test_a_record_on_every_replica() -> None:
    leader = replica(0, epoch_at=7, high_watermark=700, last_stable=650, followers=[FollowerFacts(2, True, 900, 900)])
    answers = {
        0: node(0, replica=leader),
        1: node(1, replica=replica(1, epoch_at=7, stable_end=700)),
        2: Unanswered(2, "connection refused"),
    }
    elected = Change(400, NOW_MS - 60_000, TOPIC, 0, "leader", "elected", 0, 0, 7, 1, (0, 1, 2), (0, 1, 2))
    found = explain_partition(case(answers=answers, changes=(elected,), offset=800))
    assert found.subject == "orders/0@800" and found.record is not None
    assert [(one.node, one.state) for one in found.record.places] == [(0, "fsynced"), (1, "written"), (2, "fsynced")]
    assert "as the leader knows" in found.record.places[2].detail
    assert found.record.committed is False and found.record.readable_committed is False
    assert (found.record.not_before_ms, found.record.not_after_ms) == (NOW_MS - 60_000, NOW_MS)


def test_records_that_are_deleted_or_not_written_yet() -> None:
    answers = {number: node(number, replica=replica(number, log_start=100)) for number in (0, 1, 2)}
    for offset, state in ((99, "deleted"), (1_000, "absent")):
        found = explain_partition(case(answers=answers, offset=offset))
        assert found.record is not None
        assert {one.state for one in found.record.places} == {state}


def test_the_stop_of_a_leader_and_of_a_follower() -> None:
    leader, follower, _ = explain_partition(case()).consequences
    assert leader.writes == "pause for about a second: node 1 would be elected" and leader.severity == "warning"
    assert follower.writes == "go on; the ISR would be 0,2" and follower.severity == "info"
    assert "no acknowledged record, even with its disk: all of them are fsynced on nodes 1 and 2" in leader.records
    assert "goes on with 2 of 3 voters; it leads the quorum" in follower.metadata


def test_the_stop_of_the_last_spare_replica() -> None:
    few = record(isr=(BrokerId(0), BrokerId(1)))
    found = explain_partition(
        case(record=few, answers={2: Unanswered(2, "refused")}, brokers={2: broker(2, fenced=True)})
    )
    leader, follower, dead = found.consequences
    assert "with acks=all stop: 1 of 2 required replicas" in follower.writes and follower.severity == "critical"
    assert leader.severity == "critical" and "cannot elect" in leader.metadata
    assert "until the quorum has a majority again" in leader.writes
    assert dead.writes.startswith("no further effect")


def test_the_only_copy() -> None:
    alone = record(isr=(BrokerId(0),), commit_set=(BrokerId(0),), min_insync_replicas=1)
    found = explain_partition(case(record=alone))
    assert "the only complete copy" in found.consequences[0].records
    assert found.consequences[0].writes == "stop until node 0 is back: no other replica could be elected"


def test_a_voter_without_a_replica() -> None:
    quorum = QuorumFacts(leader=1, term=4, voters=[0, 1, 3])
    answers = {number: node(number, quorum=quorum) for number in (0, 1, 2, 3)}
    voter = explain_partition(case(answers=answers, brokers={3: broker(3)})).consequences[-1]
    assert voter.node == 3 and voter.records == "none: it has no replica"
    assert voter.metadata == "the quorum goes on with 2 of 3 voters"


def test_leader_epochs_that_no_node_remembers() -> None:
    elected = Change(400, NOW_MS, TOPIC, 0, "leader", "fenced", 2, -1, 6, 2, (0, 1), (0, 1, 2))
    found = explain_partition(case(changes=(elected,)))
    assert [one.text for one in found.timeline] == [
        "leader epoch 3 wrote from offset 0 on",
        "node 2 lost the leadership; no leader in epoch 6: node 2 sent no heartbeat in time, or announced its stop",
    ]
