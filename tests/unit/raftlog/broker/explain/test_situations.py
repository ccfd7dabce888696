"""Fifteen situations as facts: the first finding names the true cause and its remedy."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from metadata.records.groups import CommittedOffset, GroupRecord, MemberRecord
from metadata.records.leases import LeasedPartition, LeasedRange
from raftlog.api.explain import AccessDecision, Explanation, Finding
from raftlog.broker.explain.case import OpenBy
from raftlog.broker.explain.facts import FollowerFacts, OpenFacts, QuorumFacts, Unanswered, WriterFacts
from raftlog.broker.explain.group import GroupCase, PartitionFacts, explain_group
from raftlog.broker.explain.history import Change
from raftlog.broker.explain.partition import explain_partition
from raftlog.broker.explain.transaction import Place, TransactionCase, explain_transaction
from raftlog.model import BrokerId, Offset, ReplicationThrottle, TopicPartition
from tests.support.explained import LOG_END, NOW_MS, TOPIC, broker, case, fence, node, record, replica

REFUSED = Unanswered(2, "127.0.0.1:9661: connection refused")
WITHOUT_2 = (BrokerId(0), BrokerId(1))


def first(found: Explanation, code: str, *remedies: str) -> Finding:
    """The first finding, which must have this code and name these remedies."""
    finding = found.findings[0]
    assert finding.code == code, [one.code for one in found.findings]
    for remedy in remedies:
        assert any(remedy in line for line in finding.remedies), finding.remedies
    return finding


def test_a_healthy_partition() -> None:
    found = explain_partition(case())
    assert [one.code for one in found.findings] == ["healthy"]
    assert found.state == "led by node 0, leader epoch 7, 3 of 3 replicas in sync (minimum 2), takes writes"
    assert [one.lag_records for one in found.replicas] == [0, 0, 0]


def test_1_a_node_is_dead() -> None:
    found = explain_partition(
        case(
            answers={2: REFUSED},
            brokers={2: broker(2, fenced=True)},
            record=record(isr=WITHOUT_2),
            changes=(fence(2),),
        )
    )
    finding = first(found, "node_dead", "start node 2", "raftlog cluster drain 2")
    assert finding.node == 2 and "no heartbeat for 5.0 s" in finding.summary
    assert REFUSED.reason in finding.evidence
    assert found.unanswered == {"2": REFUSED.reason}
    assert any(one.code == "voter_lost" and one.node == 2 for one in found.findings)


def test_2_a_disk_is_slow() -> None:
    slow = node(2, writer=WriterFacts(3.2, 0.9, 4.0, 20), replica=replica(2, stable_end=400))
    finding = first(explain_partition(case(answers={2: slow})), "slow_disk", "look at the disk of node 2")
    assert finding.node == 2 and "3.2 s" in finding.summary
    assert "600 records of this partition are written there and not fsynced" in finding.evidence


def test_2_the_disk_of_a_replica_that_left_the_isr_is_slow() -> None:
    slow = node(2, writer=WriterFacts(0.0, 0.9, 4.0, 20), replica=replica(2, stable_end=400))
    first(explain_partition(case(answers={2: slow}, record=record(isr=WITHOUT_2))), "slow_disk")


def test_3_the_network_is_cut_in_one_direction() -> None:
    cut = node(2, replica=replica(2, link="detached", stable_end=700, log_end=700))
    found = explain_partition(case(answers={2: cut}, record=record(isr=WITHOUT_2)))
    finding = first(found, "network_cut", "from node 2 to node 0's data address")
    assert finding.node == 2 and "in that direction only" in finding.summary


def test_4_the_isr_shrank_since_a_replica_lags() -> None:
    slow = node(2, replica=replica(2, stable_end=300, log_end=320))
    leader = node(0, replica=replica(0, followers=[FollowerFacts(2, True, 300, 320, 42.0)]))
    change = Change(480, NOW_MS, TOPIC, 0, "isr", "lagged", 2, 0, 7, 0, (0, 1), (0, 1, 2))
    found = explain_partition(
        case(answers={2: slow, 0: leader}, record=record(isr=WITHOUT_2), changes=(change,)),
    )
    finding = first(found, "isr_shrunk", "compare the lag", "raftlog cluster balance")
    assert "longer than the leader allows" in finding.summary
    assert finding.evidence == [
        "it has fsynced up to 300, 700 records behind the leader",
        "it was last caught up 42.0 s ago",
    ]
    assert "the ISR changed from 0,1,2 to 0,1: the leader removed node 2" in found.timeline[-1].text


def test_5_a_replica_came_back_unclean() -> None:
    back = node(2, replica=replica(2, stable_end=10, log_end=10))
    marked = record(isr=WITHOUT_2, not_eligible=(BrokerId(2),))
    finding = first(explain_partition(case(answers={2: back}, record=marked)), "unclean_restart", "partition verify")
    assert "may not lead until it has caught up" in finding.summary


def test_5_all_members_came_back_unclean_and_one_is_missing() -> None:
    nobody = record(leader=BrokerId(-1), not_eligible=(BrokerId(0), BrokerId(1), BrokerId(2)))
    waits = "no leader: waits for 2 of its members with their directories (1 now)"
    answers = {
        0: node(0, replica=replica(0, role="idle")),
        1: Unanswered(1, "connection refused"),
        2: REFUSED,
    }
    dead = {number: broker(number, fenced=True) for number in (1, 2)}
    answers[0] = msgspec.structs.replace(answers[0], quorum=QuorumFacts(leader=0, term=4, voters=[0]))
    found = explain_partition(case(answers=answers, brokers=dead, record=nobody, offline=waits, asker=0))
    finding = first(found, "no_leader", "start node 1", "elect --unclean")
    assert waits in finding.summary
    assert {one.code for one in found.findings} >= {"node_dead", "unclean_restart"}


def test_5_a_replica_that_left_the_isr_for_an_unclean_restart_copies_again() -> None:
    back = node(2, replica=replica(2, stable_end=10, log_end=10))
    left = Change(480, NOW_MS - 9_000, TOPIC, 0, "isr", "unclean_restart", 2, 0, 7, 0, (0, 1), (0, 1, 2), 990)
    found = explain_partition(case(answers={2: back}, record=record(isr=WITHOUT_2), changes=(left,)))
    finding = first(found, "unclean_restart", "rejoins the ISR when it has caught up")
    assert "restarted after an unclean stop" in finding.summary
    assert finding.evidence == [
        "it registered 9.0 s ago",
        "its log ended at 990",
        "it is 990 records behind the leader",
    ]
    assert found.timeline[-1].text.endswith("cannot vouch for all records of its replica (its log ends at 990)")
    again = Change(482, NOW_MS - 5_000, TOPIC, 0, "isr", "caught_up", 2, 0, 7, 0, (0, 1, 2), (0, 1))
    lagged = Change(484, NOW_MS, TOPIC, 0, "isr", "lagged", 2, 0, 7, 0, (0, 1), (0, 1, 2))
    later = case(answers={2: back}, record=record(isr=WITHOUT_2), changes=(left, again, lagged))
    first(explain_partition(later), "isr_shrunk")


def test_5_a_node_came_back_with_another_folder() -> None:
    back = node(2, replica=replica(2, stable_end=10, log_end=10))
    fenced, elsewhere = fence(2), Change(495, NOW_MS, b"", -1, "broker", "registered_elsewhere", 2)
    found = explain_partition(
        case(answers={2: back}, record=record(isr=WITHOUT_2), changes=(fenced, elsewhere)),
    )
    assert "with another data folder" in first(found, "unclean_restart", "node 2's log and machine").summary


def test_5_a_fenced_replica_that_came_back_copies_what_it_missed() -> None:
    back = node(2, replica=replica(2, stable_end=900, log_end=900))
    left = Change(490, NOW_MS - 5_000, TOPIC, 0, "isr", "fenced", 2, 0, 7, 0, (0, 1), (0, 1, 2))
    registered = Change(495, NOW_MS - 1_000, b"", -1, "broker", "registered", 2)
    found = explain_partition(
        case(answers={2: back}, record=record(isr=WITHOUT_2), changes=(fence(2), left, registered)),
    )
    assert "It was fenced 5.0 s ago, came back, and copies what it missed" in first(found, "isr_shrunk").summary


def returned(flush: str, ago_ms: int = 60_000) -> Explanation:
    """A healthy partition whose replicas all restarted uncleanly, which a recovery election gave to node 0."""
    at = NOW_MS - ago_ms
    changes = (
        Change(300, at - 9_000, TOPIC, 0, "leader", "elected", 1, 1, 5, 0, (0, 1, 2), (0, 1, 2)),
        Change(310, at - 8_000, TOPIC, 0, "isr", "unclean_restart", 2, 1, 5, 1, (0, 1), (0, 1, 2)),
        Change(311, at - 7_000, TOPIC, 0, "isr", "caught_up", 2, 1, 5, 1, (0, 1, 2), (0, 1)),
        Change(400, at - 3_000, TOPIC, 0, "leader", "unclean_restart", 1, -1, 6, 1, (0, 2), (0, 1, 2), 580),
        Change(401, at - 2_000, TOPIC, 0, "isr", "other_folder", 0, -1, 6, -1, (0,), (0,), 600),
        Change(402, at, TOPIC, 0, "leader", "recovery", 0, 0, 7, -1, (0,), (0,)),
        Change(403, at + 50, TOPIC, 0, "isr", "caught_up", 1, 0, 7, 0, (0, 1), (0,)),
    )
    return explain_partition(case(changes=changes, flush=flush))


def test_5_records_were_lost_when_all_nodes_stopped() -> None:
    finding = first(returned("os"), "recovery_election", "flush=fsync", "at offset 600 and beyond")
    assert finding.summary.startswith("nodes 0 and 1 restarted, and none could vouch")
    assert "1.0 min ago" in finding.summary or "60.0 s ago" in finding.summary
    assert "not written back, at offset 600 and beyond, are lost" in finding.summary
    assert finding.evidence[:2] == [
        "node 0 came back with another data folder; its log ended at 600",
        "node 1 came back after an unclean stop or damage; its log ended at 580",
    ]
    safe = first(returned("fsync"), "recovery_election", "partition verify orders")
    assert "2 or more of the disks" in safe.summary
    first(returned("os", ago_ms=25 * 3_600_000), "healthy")


def test_5_an_operator_ordered_an_unclean_election() -> None:
    ordered = Change(402, NOW_MS - 5_000, TOPIC, 0, "leader", "unclean", 0, 0, 7, -1, (0,), (0,))
    finding = first(explain_partition(case(changes=(ordered,))), "unclean_election", "audit log")
    assert "gave orders/0 5.0 s ago to node 0" in finding.summary and "at offset 600 and beyond" in finding.summary


def test_6_a_move_is_throttled() -> None:
    target = tuple(map(BrokerId, (0, 1, 3)))
    moving = record(replicas=tuple(map(BrokerId, (0, 1, 2, 3))), adding_replicas=(BrokerId(3),), target_replicas=target)
    copying = node(3, replica=replica(3, stable_end=100, log_end=100))
    throttle = ReplicationThrottle(leader_rate=1_000_000)
    found = explain_partition(case(answers={3: copying}, brokers={3: broker(3)}, record=moving, throttle=throttle))
    finding = first(found, "throttled_move", "raftlog cluster reassign --throttle")
    assert finding.node == 3
    assert "leader.replication.throttled.rate is 1.0 MB/s" in finding.evidence
    assert "that is about 90.0 MB: at least 90.0 s at this rate" in finding.evidence


def test_7_a_voter_without_a_replica_is_lost() -> None:
    quorum = QuorumFacts(leader=1, term=4, voters=[0, 1, 3])
    answers = {number: node(number, quorum=quorum) for number in (0, 1, 2)}
    found = explain_partition(case(answers={**answers, 3: Unanswered(3, "connection refused")}))
    finding = first(found, "voter_lost", "start node 3", "raftlog quorum remove 3")
    assert finding.node == 3 and "no other may fail" in finding.summary


def test_7_a_voter_forgot_what_it_had_acknowledged() -> None:
    answers = {0: node(0, quorum=msgspec.structs.replace(node(0).quorum, forgetful=[2]))}
    assert first(explain_partition(case(answers=answers)), "voter_lost", "raftlog quorum remove 2").node == 2


def test_8_the_leaders_disk_is_full() -> None:
    full = node(0, short_of_room=True, disk_free=5_000_000)
    found = explain_partition(case(answers={0: full}, brokers={0: broker(0, short_of_room=True)}))
    finding = first(found, "full_disk", "free some space on node 0", "raftlog cluster drain 0")
    assert finding.severity == "critical" and "it refuses records from clients" in finding.summary
    assert "5.0 MB are free, 1.0 GB must stay free (disk_reserved_bytes)" in finding.evidence


def test_9_a_certificate_has_expired() -> None:
    reason = "host:9661: its certificate is not accepted here: certificate has expired"
    found = explain_partition(
        case(
            answers={2: Unanswered(2, reason, is_certificate=True)},
            brokers={2: broker(2, fenced=True)},
            record=record(isr=WITHOUT_2),
        )
    )
    finding = first(found, "expired_certificate", "raftlog tls create-certificate", "clocks")
    assert finding.node == 2 and reason in finding.evidence


def test_9_the_own_certificate_has_expired() -> None:
    expired = node(1, expired=["this node's TLS certificate has expired: no new connections can be made; replace it"])
    assert first(explain_partition(case(answers={1: expired})), "expired_certificate").node == 1


def test_10_a_rule_denies_a_principal() -> None:
    rule = "deny User:bob read topic orders"
    denied = AccessDecision("User:bob", "read", "topic orders", allowed=False, reason=rule, rule=rule)
    finding = first(explain_partition(case(access=[denied])), "acl_denied", "raftlog acl delete", "raftlog acl check")
    assert finding.summary.startswith("User:bob may not read topic orders")
    assert finding.evidence == [f"the rule that decides: {rule}"]


def test_10_no_rule_allows_a_principal() -> None:
    denied = AccessDecision("User:bob", "write", "topic orders", allowed=False, reason="no rule allows it")
    allowed = AccessDecision("User:bob", "read", "topic orders", allowed=True, reason="allow", rule="allow")
    found = explain_partition(case(access=[allowed, denied]))
    first(found, "acl_denied", "raftlog acl create --principal User:bob --operation write")
    assert len(found.findings) == 1


def open_transaction() -> OpenFacts:
    return OpenFacts(TOPIC, 0, 4001, 3, 900, 61.0)


def test_11_an_open_transaction_holds_the_last_stable_offset() -> None:
    leader = node(0, replica=replica(0, last_stable=900, open=[open_transaction()], open_count=1))
    by = {4001: OpenBy("billing", 900_000, "undecided")}
    found = explain_partition(case(answers={0: leader}, producers=by))
    finding = first(
        found, "open_transaction", "transaction abort --producer-id 4001", "raftlog explain transaction billing"
    )
    assert "'billing'" in finding.summary and "at 900 for 61.0 s" in finding.summary
    assert "100 records wait behind it" in finding.evidence


def test_11_the_transaction_itself() -> None:
    places = [Place("orders/0", open_transaction(), waiting=100)]
    found = explain_transaction(TransactionCase("billing", 4001, 3, 900_000, "undecided", places, 0, 1, 500, NOW_MS, 1))
    finding = first(found, "transaction_open", "transaction abort --producer-id 4001")
    assert "open for 61.0 s" in finding.summary and "orders/0 from offset 900" in finding.summary


def test_11_a_committed_transaction_waits_for_its_marker() -> None:
    waits = [Place("orders/0", None, "no leader: waits for broker 2 to come back")]
    found = explain_transaction(TransactionCase("billing", 4001, 3, 900_000, "committed", waits, 1, 1, 500, NOW_MS, 1))
    first(found, "partition_without_leader", "raftlog explain orders/0")
    assert found.findings[1].code == "marker_waits"


A, B = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)


def member(name: str, owned: dict[TopicPartition, int], target: set[TopicPartition]) -> MemberRecord:
    return MemberRecord(
        name, "", 5, f"{name}-client", "10.0.0.7", ("orders",), "", 10_000, 60_000, 9, owned, frozenset(target)
    )


def group(*members: MemberRecord, positions: dict[TopicPartition, CommittedOffset]) -> GroupCase:
    facts = {
        tp: PartitionFacts(f"orders/{tp.partition}", at.offset, at.commit_timestamp_ms, 0, LOG_END, LOG_END)
        for tp, at in positions.items()
    }
    known = GroupRecord("g", 9, 9, "uniform", members={one.member_id: one for one in members})
    return GroupCase(known, facts, 500, NOW_MS, 1, 1)


def committed(offset: int, ago_ms: int = 0) -> CommittedOffset:
    return CommittedOffset(Offset(offset), -1, "", NOW_MS - ago_ms)


def test_12_a_member_hangs_while_it_processes_records() -> None:
    stuck = member("a", {A: 5, B: 5}, {A, B})
    found = explain_group(group(stuck, positions={A: committed(200, 300_000), B: committed(LOG_END)}))
    finding = first(found, "member_stuck", "a-client on 10.0.0.7", "restart it")
    assert "owns orders/0" in finding.summary and "800 records wait" in finding.summary


def test_12_a_member_does_not_give_partitions_up() -> None:
    holds, waits = member("a", {A: 5, B: 5}, {A}), member("b", {}, {B})
    found = explain_group(group(holds, waits, positions={A: committed(LOG_END), B: committed(LOG_END)}))
    finding = first(found, "member_holds_partitions", "rebalance timeout of 60.0 s")
    assert "orders/1" in finding.summary and "b is to get" in finding.summary


def test_12_other_reasons_of_a_member_without_records() -> None:
    caught_up = explain_group(group(member("a", {A: 5}, {A}), positions={A: committed(LOG_END)}))
    assert caught_up.findings[0].code == "nothing_to_read"
    idle = explain_group(group(member("a", {A: 5}, {A}), member("b", {}, set()), positions={A: committed(LOG_END)}))
    assert idle.findings[0].code == "more_members_than_partitions"
    assert explain_group(group(positions={A: committed(1)})).findings[0].code == "group_without_members"


def test_12_a_group_that_is_read_by_leases() -> None:
    ranges = (LeasedRange(200, 205, 1, 30_000, 7, 4), LeasedRange(300, 310, 2, 30_000, 8))
    leased = {A: LeasedPartition("g", A, 200, 310, ranges)}
    case = replace(group(positions={A: committed(200)}), leases=leased)
    found = explain_group(case)
    finding = first(found, "delivered_often", "lease_ms")
    assert "orders/0: the records from offset 200 to 204 were delivered 4 times" in finding.summary
    assert found.findings[1].code == "read_by_leases" and "2 ranges in 1 partitions" in found.findings[1].summary
    hidden = explain_group(replace(case, partitions={}))
    assert [one.code for one in hidden.findings] == ["read_by_leases"] and hidden.findings[0].evidence == []


def test_13_too_few_replicas_are_in_sync() -> None:
    dead = {1: Unanswered(1, "connection refused"), 2: REFUSED}
    quorum = QuorumFacts(leader=0, term=4, voters=[0])
    found = explain_partition(
        case(
            answers={0: node(0, quorum=quorum), **dead},
            brokers={number: broker(number, fenced=True) for number in (1, 2)},
            record=record(isr=(BrokerId(0),)),
            asker=0,
        )
    )
    finding = first(found, "below_min_isr", "start node 1", "start node 2")
    assert finding.severity == "critical"
    assert "1 of 2 required" in finding.summary and "node 1 is down" in finding.summary
    assert "refuses writes with acks=all" in found.state


def test_13_the_minimum_exceeds_the_replicas() -> None:
    raised = record(min_insync_replicas=4)
    first(explain_partition(case(record=raised)), "below_min_isr", "lower min.insync.replicas")


def test_14_the_leader_is_cut_off_from_the_quorum() -> None:
    alone = node(0, quorum=QuorumFacts(leader=-1, term=9, applied=420, voters=[0, 1, 2]))
    found = explain_partition(case(answers={0: alone}))
    finding = first(found, "leader_cut_off", "between node 0 and the voters")
    assert finding.node == 0 and "others follow node 1" in finding.summary


def test_14_it_still_leads_an_epoch_that_has_ended() -> None:
    alone = node(0, quorum=QuorumFacts(leader=-1, term=9, voters=[0, 1, 2]), replica=replica(0, leader_epoch=6))
    elected = record(leader=BrokerId(1), isr=(BrokerId(1), BrokerId(2)))
    answers = {0: alone, 1: node(1, replica=replica(1, role="leader"))}
    found = explain_partition(case(answers=answers, record=elected, brokers={0: broker(0, fenced=True)}))
    assert "which led the partition" in first(found, "leader_cut_off").summary


def test_15_the_quorum_has_no_majority() -> None:
    alone = node(0, quorum=QuorumFacts(leader=-1, term=4, voters=[0, 1, 2]))
    silent = {1: Unanswered(1, "connection refused"), 2: REFUSED}
    found = explain_partition(case(answers={0: alone, **silent}, asker=0))
    finding = first(found, "quorum_without_majority", "start nodes 1 and 2", "1 more voter is enough")
    assert "1 of 3 voters answer, 2 are needed" in finding.summary
    assert "Nothing can be decided" in finding.summary
