"""Each invariant of the quorum's records, of clients' answers and of groups can fail.

Each test passes it a violation, which is found (11, 14, 17 to 19, 22, 24, 27, 29 of
`jepsen_like/simulator/truth/README.md`, and others).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
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
    TopicPartition,
)
from raftlog.wire import (
    FetchedPartition,
    FetchRequest,
    FetchResponse,
    FoundOffset,
    OffsetsRequest,
    OffsetsResponse,
)
from tests.support.partitions.committed import RECORD, TP, batch, committed

HERE = Endpoint("127.0.0.1", 9641)


def changed(record: PartitionRecord = RECORD, **fields: Any) -> PartitionRecord:
    """The next record."""
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
        (changed(isr=(BrokerId(0), BrokerId(7)), commit_set=(BrokerId(0), BrokerId(7))), "a member is not a replica"),
        (changed(leader=BrokerId(2), isr=(BrokerId(0), BrokerId(1))), "the leader is not in the ISR"),
        (changed(not_eligible=(BrokerId(0),)), "the leader may not lead"),
        (changed(isr=(BrokerId(0), BrokerId(1))), "the commit set is not the full ISR"),
    ],
)
def test_11_leader_isr_and_commit_set_belong_together(record: PartitionRecord, wrong: str) -> None:
    with pytest.raises(Violation, match=f"S6: {wrong}"):
        decided(RECORD, record)


def test_11_the_commit_set_stays_while_no_leader_can_commit() -> None:
    alone = changed(isr=(BrokerId(0),))
    with pytest.raises(Violation, match=r"S6: the commit set changed while no leader could commit"):
        decided(RECORD, alone, changed(alone, commit_set=(BrokerId(0),)))


def test_14_an_elected_leader_was_in_the_isr_or_the_commit_set() -> None:
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
def test_24_epochs_rise_with_each_change(record: PartitionRecord, wrong: str) -> None:
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


def test_22_a_replica_that_lost_records_is_not_eligible_from_its_registration_on() -> None:
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
    with pytest.raises(Violation, match=r"S6: a recovery election chose a smaller log"):
        recovery({0: 5, 1: 9}, winner=0)


# --- Clients' answers ------------------------------------------------------------------------------------------------


def told(history: History, *values: bytes) -> None:
    truth = committed(*values)
    client = ClientTruth(history, lambda tp: truth)
    client.check()
    client.check_refused()


def read(position: int, *records: tuple[int, bytes], high_watermark: int = 2) -> History:
    return History(reads=[Read(1, TP, 0.0, records, high_watermark, position)])


def test_17_an_acknowledged_record_is_committed_at_its_reported_offset() -> None:
    send = Send(1, TP, (b"b",), 0.0, -1, Fate.OK, 1)
    told(History(sends=[send]), b"a", b"b")
    for values in ((b"a",), (b"a", b"x")):
        with pytest.raises(Violation, match=r"S1: b'b' was acknowledged at"):
            told(History(sends=[send]), *values)


def test_a_refused_record_is_in_no_log() -> None:
    with pytest.raises(Violation, match=r"S1: Send.* was refused, and is committed"):
        told(History(sends=[Send(1, TP, (b"a",), 0.0, -1, Fate.FAIL)]), b"a")


def test_18_and_29_readers_see_the_committed_records_in_order_below_the_high_watermark() -> None:
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


class Answering:
    """Clients that are connected to one broker, which answers at once and as the test wants."""

    def __init__(self, truth: PartitionTruth) -> None:
        self.found = FoundOffset(TP.topic_id, TP.partition)
        self.fetched = FetchedPartition(TP.topic_id, TP.partition)
        self.heap = EventHeap()
        self.history = History()
        self.truth = SimpleNamespace(of=lambda topic_partition: truth)
        self._node = SimpleNamespace(broker=SimpleNamespace(local=self))

    # --- For the consumer ---

    def record_of(self, topic_partition: TopicPartition) -> Any:
        return SimpleNamespace(leader_epoch=1)

    def node_of(self, record: Any) -> Any:
        return self._node

    def send(self, target: Any, deliver: Callable[[], None]) -> None:
        deliver()

    def answer(self, target: Any, hear: Callable[[], None]) -> None:
        hear()

    def sound_batches(self, body: bytes) -> Iterator[Any]:
        return iter(())

    # --- The broker ---

    def offsets(self, request: OffsetsRequest, answered: Callable[[OffsetsResponse], None]) -> None:
        answered(OffsetsResponse(1, [self.found]))

    def fetch(self, request: FetchRequest, answered: Callable[[FetchResponse, list[Any]], None]) -> None:
        answered(FetchResponse(1, [self.fetched]), [])


def test_19_an_offset_found_by_time_is_committed_and_the_first() -> None:
    clients: Any = Answering(committed(b"a", b"b"))
    consumer = SimConsumer(1, TP, clients)
    clients.found = FoundOffset(TP.topic_id, TP.partition, offset=1, timestamp_ms=1_001)
    consumer.seek(1_001)
    assert consumer.position == 1
    for offset, asked in ((1, 1_000), (0, 1_001), (7, 1_000)):
        clients.found = FoundOffset(TP.topic_id, TP.partition, offset=offset, timestamp_ms=asked)
        with pytest.raises(Violation, match=r"S3: .* was found for"):
            consumer.seek(asked)


def test_a_position_is_out_of_range_only_if_records_were_deleted() -> None:
    """S3."""
    clients: Any = Answering(committed(b"a", b"b"))
    consumer = SimConsumer(1, TP, clients)
    consumer.position = 1
    clients.fetched = FetchedPartition(
        TP.topic_id, TP.partition, error="offset_out_of_range", log_start_offset=0, high_watermark=2
    )
    with pytest.raises(Violation, match=r"S3: consumer 1 at 1"):
        consumer.poll(lambda: None)


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
    with pytest.raises(Violation, match=r"S8\.3: n begins to read .*, which it never owned"):
        truth.tenure(TP, "n", 2, 6)
