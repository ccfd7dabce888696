"""Each invariant of the quorum's records, of what clients are told and of groups can fail: what breaks it is told to
it, by itself, and is found (11, 14, 17 to 19, 22, 24, 27, 29 of `jepsen_like/README.md`, and others).
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from jepsen_like.simulator.brokers.history import Fate, History, Read, Send
from jepsen_like.simulator.groups.truth import GroupTruth, Tenure
from jepsen_like.simulator.load.clients import Clients
from jepsen_like.simulator.load.consumers import SimConsumer
from jepsen_like.simulator.truth.client_truth import ClientTruth
from jepsen_like.simulator.truth.invariants import Truth
from jepsen_like.simulator.truth.partition_truth import PartitionTruth
from jepsen_like.simulator.truth.record_rules import RecordRules
from jepsen_like.simulator.world.heap import EventHeap
from jepsen_like.simulator.world.violation import Violation
from metadata.commands.cluster import RegisterBroker
from metadata.records.tickets import RecoveryTicket
from metadata.view import BrokerChanged, PartitionChanged
from raftlog.model import (
    BrokerId,
    BrokerRecord,
    DirectoryId,
    Endpoint,
    Incarnation,
    LeaderEpoch,
    Offset,
    PartitionRecord,
    ReplicaReport,
)
from raftlog.wire import FetchedPartition, FoundOffset
from tests.support.committed import RECORD, TP, batch, committed

HERE = Endpoint("127.0.0.1", 9641)


def changed(record: PartitionRecord = RECORD, **fields: Any) -> PartitionRecord:
    """The next one."""
    after = {"partition_epoch": record.partition_epoch + 1} | fields
    return msgspec.structs.replace(record, **after)


# --- Records of the quorum -------------------------------------------------------------------------------------------


def decided(*records: PartitionRecord) -> None:
    rules = RecordRules()
    for index, record in enumerate(records):
        rules.applied(index + 1, [PartitionChanged(record)])


def test_records_that_follow_the_rules_pass() -> None:
    smaller = changed(isr=(BrokerId(0), BrokerId(1)), commit_set=(BrokerId(0), BrokerId(1)))
    elected = changed(smaller, leader=BrokerId(1), leader_epoch=LeaderEpoch(5))
    decided(RECORD, smaller, elected)


@pytest.mark.parametrize(
    ("record", "wrong"),
    [
        (changed(isr=()), "the ISR is empty"),
        (changed(isr=(BrokerId(0), BrokerId(7)), commit_set=(BrokerId(0), BrokerId(7))), "a member is no replica"),
        (changed(leader=BrokerId(2), isr=(BrokerId(0), BrokerId(1))), "the leader is not in the ISR"),
        (changed(not_eligible=(BrokerId(0),)), "the leader may not lead"),
        (changed(isr=(BrokerId(0), BrokerId(1))), "the commit set is not the full ISR"),
    ],
)
def test_11_leader_isr_and_commit_set_belong_together(record: PartitionRecord, wrong: str) -> None:
    with pytest.raises(Violation, match=f"S6: {wrong}"):
        decided(RECORD, record)


def test_11_the_commit_set_stays_while_nobody_can_commit() -> None:
    alone = changed(isr=(BrokerId(0),))
    with pytest.raises(Violation, match=r"S6: the commit set changed while nobody could commit"):
        decided(RECORD, alone, changed(alone, commit_set=(BrokerId(0),)))


def test_14_who_is_elected_was_in_the_isr_or_the_commit_set() -> None:
    pair = (BrokerId(0), BrokerId(1))
    smaller = changed(isr=pair, commit_set=pair)
    outside = (BrokerId(1), BrokerId(2))
    elected = changed(smaller, leader=BrokerId(2), leader_epoch=LeaderEpoch(5), isr=outside, commit_set=outside)
    with pytest.raises(Violation, match=r"S6: elected from outside"):
        decided(RECORD, smaller, elected)


@pytest.mark.parametrize(
    ("record", "wrong"),
    [
        (RECORD, "S5: the partition epoch does not rise"),
        (changed(leader=BrokerId(1)), "S5: two leaders of one epoch"),
        (changed(leader_incarnation=Incarnation(9)), "S5: two leaders of one epoch"),
        (changed(leader_epoch=LeaderEpoch(3)), "S5: two leaders of one epoch, or a fallen one"),
    ],
)
def test_24_epochs_rise_with_what_they_name(record: PartitionRecord, wrong: str) -> None:
    with pytest.raises(Violation, match=wrong):
        decided(RECORD, record)


def broker(number: int, *, start: int = 1, fenced: bool = False) -> BrokerRecord:
    incarnation = Incarnation(10 * start + number)
    return BrokerRecord(BrokerId(number), incarnation, DirectoryId(b"d" * 16), start, HERE, HERE, "", fenced, 1)


def registering(rules: RecordRules, number: int, *, epoch: int, end: int, cut: bool) -> None:
    report = ReplicaReport(TP, False, LeaderEpoch(epoch), Offset(end), cut)
    directory = DirectoryId(b"d" * 16)
    command = RegisterBroker.of(
        BrokerId(number), directory, 1, api=HERE, data=HERE, rack="", feature_level=1, reports=[report]
    )
    rules.registering(command)


def test_22_who_lost_records_is_no_eligible_member_from_its_registration_on() -> None:
    """S9."""
    rules = RecordRules()
    rules.applied(1, [PartitionChanged(RECORD)])
    registering(rules, 2, epoch=4, end=5, cut=True)
    with pytest.raises(Violation, match=r"S9: broker 2 cannot vouch for"):
        rules.applied(2, [BrokerChanged(broker(2))])
    marked = changed(not_eligible=(BrokerId(2),))
    rules = RecordRules()
    rules.applied(1, [PartitionChanged(RECORD)])
    registering(rules, 2, epoch=4, end=5, cut=True)
    rules.applied(2, [PartitionChanged(marked), BrokerChanged(broker(2))])
    assert rules.losses_reported == 1


def recovery(ends: dict[int, int], winner: int) -> None:
    """All members are marked; those with an end are back, and one of them is elected."""
    rules = RecordRules()
    nobody = changed(leader=BrokerId(-1), leader_epoch=LeaderEpoch(5), not_eligible=RECORD.replicas)
    tickets = tuple(
        RecoveryTicket(BrokerId(n), Incarnation(10 + n), DirectoryId(b"d" * 16), True, LeaderEpoch(4), Offset(end))
        for n, end in ends.items()
    )
    for number, end in ends.items():
        registering(rules, number, epoch=4, end=end, cut=False)
    rules.applied(1, [PartitionChanged(RECORD)])
    rules.applied(2, [*(BrokerChanged(broker(number)) for number in ends), PartitionChanged(nobody, tickets)])
    others = tuple(one for one in RECORD.replicas if one != winner)
    won = changed(
        nobody, leader=BrokerId(winner), leader_epoch=LeaderEpoch(6), isr=(BrokerId(winner),), not_eligible=others
    )
    rules.applied(3, [PartitionChanged(won)])


def test_22_a_recovery_election_has_enough_participants_and_takes_the_greatest_log() -> None:
    recovery({0: 5, 1: 9}, winner=1)
    with pytest.raises(Violation, match=r"S6: a recovery election among \[1\] only"):
        recovery({1: 9}, winner=1)
    with pytest.raises(Violation, match=r"S6: a smaller log was recovered"):
        recovery({0: 5, 1: 9}, winner=0)


# --- What clients are told -------------------------------------------------------------------------------------------


def told(history: History, *values: bytes) -> None:
    truth = committed(*values)
    client = ClientTruth(history, lambda tp: truth)
    client.check()
    client.check_refused()


def read(position: int, *records: tuple[int, bytes], high_watermark: int = 2) -> History:
    return History(reads=[Read(1, TP, 0.0, records, high_watermark, position)])


def test_17_what_was_acknowledged_is_committed_where_it_was_said_to_be() -> None:
    send = Send(1, TP, (b"b",), 0.0, -1, Fate.OK, 1)
    told(History(sends=[send]), b"a", b"b")
    for values in ((b"a",), (b"a", b"x")):
        with pytest.raises(Violation, match=r"S1: b'b' was acknowledged at"):
            told(History(sends=[send]), *values)


def test_what_was_refused_is_nowhere() -> None:
    with pytest.raises(Violation, match=r"S1: Send.* was refused, and is committed"):
        told(History(sends=[Send(1, TP, (b"a",), 0.0, -1, Fate.FAIL)]), b"a")


def test_18_and_29_readers_see_what_is_committed_in_order_below_the_high_watermark() -> None:
    told(read(0, (0, b"a"), (1, b"b")), b"a", b"b")
    with pytest.raises(Violation, match=r"S3: consumer 1 saw b'x'"):
        told(read(0, (0, b"x")), b"a")
    with pytest.raises(Violation, match=r"S3: consumer 1 .* the high watermark is 1"):
        told(read(0, (0, b"a"), (1, b"b"), high_watermark=1), b"a", b"b")
    with pytest.raises(Violation, match=r"S3: consumer 1 .* was at 0 and saw 1"):
        told(read(0, (1, b"b")), b"a", b"b")
    with pytest.raises(Violation, match=r"S3: consumer 1 .* was at 1 and saw 0"):
        told(read(0, (0, b"a"), (0, b"a")), b"a", b"b")


def clients_of(truth: PartitionTruth) -> Clients:
    judge = Truth([], History())
    judge.partitions[TP] = truth
    return Clients(EventHeap(), [], random.Random(1), History(), judge, set())


def test_19_an_offset_that_is_found_by_time_is_committed_and_the_first() -> None:
    consumer = SimConsumer(1, TP, clients_of(committed(b"a", b"b")))
    consumer._found(FoundOffset(TP.topic_id, TP.partition, offset=1, timestamp_ms=1_001), 1_001)
    assert consumer.position == 1
    for offset, asked in ((1, 1_000), (0, 1_001), (7, 1_000)):
        with pytest.raises(Violation, match=r"S3: .* was found for"):
            consumer._found(FoundOffset(TP.topic_id, TP.partition, offset=offset, timestamp_ms=asked), asked)


def test_a_position_is_wrong_only_where_records_were_deleted() -> None:
    """S3."""
    consumer = SimConsumer(1, TP, clients_of(committed(b"a", b"b")))
    consumer.position = 1
    with pytest.raises(Violation, match=r"S3: consumer 1 at 1"):
        consumer._out_of_range(FetchedPartition(TP.topic_id, 0, log_start_offset=0, high_watermark=2))


def test_damaged_bytes_without_rot_are_a_violation() -> None:
    clients = clients_of(committed(b"a"))
    damaged = bytearray(batch(0, b"a"))
    damaged[-1] ^= 1
    with pytest.raises(Violation, match=r"S3: a consumer was sent damaged bytes, and no disk rots"):
        list(clients.sound_batches(bytes(damaged)))


# --- Groups ----------------------------------------------------------------------------------------------------------


def test_27_a_partition_has_one_owner_and_its_tenure_begins_at_the_committed_offset() -> None:
    """S8.3, S8.4."""
    truth = GroupTruth("g", [])
    mine, yours = Tenure("m", 1, 5), Tenure("n", 2, 6)
    truth.owners, truth.offsets, truth.incarnations = {TP: mine}, {TP: 3}, {"m": 1, "n": 2}
    truth._existing = {TP: RECORD}
    truth.begins(TP, mine, 3)
    with pytest.raises(Violation, match=r"S8\.4: .* begins .* at 4; committed is 3"):
        truth.begins(TP, mine, 4)
    reader: Any = SimpleNamespace(member_id="n", reading={TP: yours})
    with pytest.raises(Violation, match=r"S8\.3: n reads"):
        truth.check(reader)
    with pytest.raises(Violation, match=r"S8\.3: n begins to read .*, which it was never given"):
        truth.tenure(TP, "n", 2, 6)
