"""Each invariant of the quorum's records, of committed logs and of what clients are told can fail: what breaks it is
told to it, by itself, and is found (11, 16 to 19, 22 to 24, 27 to 29 of `jepsen_like/README.md`, and others).

What is *not* here: what compares replicas (`test_invariants_of_replicas.py`), offsets of groups (26: planted bugs).
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from jepsen_like.simulator.client_truth import ClientTruth
from jepsen_like.simulator.clients import Clients
from jepsen_like.simulator.committed_log import Batch, CommittedLog
from jepsen_like.simulator.consumers import SimConsumer
from jepsen_like.simulator.group_truth import GroupTruth, Tenure
from jepsen_like.simulator.heap import EventHeap
from jepsen_like.simulator.history import Fate, History, Read, Send
from jepsen_like.simulator.invariants import Truth
from jepsen_like.simulator.last_look import _compacted
from jepsen_like.simulator.mirror import LeaderMark, Mirror
from jepsen_like.simulator.partition_truth import PartitionTruth
from jepsen_like.simulator.record_rules import RecordRules
from jepsen_like.simulator.violation import Violation
from metadata.commands import RegisterBroker
from metadata.image_elections import RecoveryTicket
from metadata.view import BrokerChanged, PartitionChanged
from raftlog.model import (
    BrokerId,
    BrokerRecord,
    DirectoryId,
    Endpoint,
    Incarnation,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    PartitionRecord,
    ReplicaReport,
    TopicId,
    TopicPartition,
)
from raftlog.ports import FileRegion
from raftlog.record_batch import encode, stamp
from raftlog.wire import FetchedPartition, FoundOffset

TP = TopicPartition(TopicId(b"t" * 16), 0)
HERE = Endpoint("127.0.0.1", 9641)
RECORD = PartitionRecord(
    TP,
    replicas=(BrokerId(0), BrokerId(1), BrokerId(2)),
    leader=BrokerId(0),
    leader_incarnation=Incarnation(1),
    leader_epoch=LeaderEpoch(4),
    partition_epoch=PartitionEpoch(7),
    isr=(BrokerId(0), BrokerId(1), BrokerId(2)),
    commit_set=(BrokerId(0), BrokerId(1), BrokerId(2)),
    min_insync_replicas=2,
)


def changed(record: PartitionRecord = RECORD, **fields: Any) -> PartitionRecord:
    """The next one."""
    after = {"partition_epoch": record.partition_epoch + 1} | fields
    return msgspec.structs.replace(record, **after)


def batch(
    base_offset: int, *values: bytes | None, epoch: int = 0, producer: int = -1, sequence: int = -1
) -> memoryview:
    """As a leader appended it."""
    made = encode(
        list(values),
        base_timestamp_ms=1_000 + base_offset,
        producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1,
        base_sequence=sequence,
    )
    return memoryview(b"".join(stamp(made, base_offset, epoch)))


def committed(*values: bytes) -> PartitionTruth:
    truth = PartitionTruth(TP, CommittedLog(), may_lose=False)
    for offset, value in enumerate(values):
        truth.log.extend(batch(offset, value))
    return truth


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


# --- Committed logs --------------------------------------------------------------------------------------------------


def test_16_an_offset_of_an_epoch_names_one_batch() -> None:
    truth = committed(b"a")
    truth.name(Batch(3, 4, 1, 77))
    truth.name(Batch(3, 4, 2, 78))
    with pytest.raises(Violation, match=r"S2: offset 3 of epoch 1 .* names two batches"):
        truth.name(Batch(3, 4, 1, 79))


def test_16_committed_batches_are_dense_and_their_epochs_do_not_fall() -> None:
    log = CommittedLog()
    log.extend(batch(0, b"a", epoch=2))
    with pytest.raises(Violation, match=r"S2: committed batch at 2, the committed log ends at 1"):
        log.extend(batch(2, b"b", epoch=2))
    with pytest.raises(Violation, match=r"S2: epoch 1 is committed after"):
        log.extend(batch(1, b"b", epoch=1))


def replica_of(*views: memoryview, end: int) -> Any:
    """A driver whose log has these bytes."""
    whole = b"".join(views)

    def read(start: int, end_offset: int, max_bytes: int) -> Any:
        parts: list[bytes | FileRegion] = [whole]
        return SimpleNamespace(load=None, next_offset=end, parts=parts)

    return SimpleNamespace(log=SimpleNamespace(log_start_offset=0, log_end_offset=end, read=read))


def test_16_batches_of_a_replica_follow_one_another() -> None:
    mirror = Mirror()
    mirror.refresh(replica_of(batch(0, b"a"), batch(1, b"b"), end=2), lambda found: None, compacts=False)
    assert mirror.end_offset == 2
    with pytest.raises(Violation, match=r"S2: Batch.* follows Batch"):
        Mirror().refresh(replica_of(batch(0, b"a"), batch(2, b"b"), end=3), lambda found: None, compacts=False)
    with pytest.raises(Violation, match=r"S2: Batch.* follows Batch"):
        fallen = replica_of(batch(0, b"a", epoch=3), batch(1, b"b", epoch=2), end=2)
        Mirror().refresh(fallen, lambda found: None, compacts=False)


def test_a_replica_in_service_has_no_damaged_batch() -> None:
    """S9."""
    damaged = bytearray(batch(0, b"a"))
    damaged[-1] ^= 1
    with pytest.raises(Violation, match=r"S9: .* has a damaged batch in service"):
        Mirror().refresh(replica_of(memoryview(damaged), end=1), lambda found: None, compacts=False)


def test_16_a_log_has_no_hole() -> None:
    log = SimpleNamespace(
        log_start_offset=0,
        log_end_offset=1,
        read=lambda start, end, size: SimpleNamespace(load=None, next_offset=start, parts=[]),
    )
    with pytest.raises(Violation, match=r"S2: .* has a hole at 0"):
        Mirror().refresh(SimpleNamespace(log=log), lambda found: None, compacts=False)  # type: ignore[arg-type]


def test_17_a_replica_that_lacks_what_is_committed_or_has_another_is_found() -> None:
    truth = committed(b"a", b"b")
    mirror = Mirror()
    mirror.refresh(replica_of(batch(0, b"a"), end=1), lambda found: None, compacts=False)
    assert mirror.compare(truth.log, 1) == ""
    assert mirror.compare(truth.log, 2) == "lacks [1, 2)"
    other = Mirror()
    other.refresh(replica_of(batch(0, b"x"), end=1), lambda found: None, compacts=False)
    assert other.compare(truth.log, 1).startswith("has Batch")


def test_17_a_hole_may_reach_beyond_what_a_replica_knows_to_be_committed() -> None:
    """It was made before a restart, when the replica knew of more; its new leader begins with less."""
    truth = committed(b"a", b"b", b"c")
    mirror = Mirror(batches=[Batch(0, 2, 1, 0, hole=True), Batch(2, 3, 1, 0)])
    assert mirror.compare(truth.log, 1) == "" and mirror.verified == 0
    assert mirror.compare(truth.log, 2) == "" and mirror.verified == 1
    mirror = Mirror(batches=[Batch(0, 2, 1, 0)])
    assert mirror.compare(truth.log, 1) == "lacks [0, 1)"
    mirror = Mirror(batches=[Batch(0, 2, 1, 0, hole=True)])
    assert mirror.compare(truth.log, 3) == "lacks [2, 3)"


@pytest.mark.parametrize(("epoch", "exposed"), [(3, 1), (4, 1), (2, 9)])
def test_19_what_consumers_are_shown_does_not_fall(epoch: int, exposed: int) -> None:
    truth = committed(b"a", b"b")
    truth.exposes(LeaderEpoch(2), 1)
    truth.exposes(LeaderEpoch(3), 2)
    truth.exposes(LeaderEpoch(2), 2)
    with pytest.raises(Violation, match=rf"S3: .* epoch {epoch} exposes {exposed}"):
        truth.exposes(LeaderEpoch(epoch), exposed)


def test_23_below_the_minimum_nothing_is_committed() -> None:
    truth = committed(b"a")
    alone = msgspec.structs.replace(RECORD, isr=(BrokerId(0),))
    leader: Any = SimpleNamespace(record=alone, high_watermark=4)
    assert truth.check_floor(leader, LeaderMark(leader, 4, alone.partition_epoch))
    with pytest.raises(Violation, match=r"S6: the high watermark moved from 3 below the minimum"):
        truth.check_floor(leader, LeaderMark(leader, 3, alone.partition_epoch))


def test_one_life_of_one_broker_leads_an_epoch() -> None:
    """S5."""
    truth = committed(b"a")
    assert truth.led_by(LeaderEpoch(3), (BrokerId(0), Incarnation(1)))
    assert not truth.led_by(LeaderEpoch(2), (BrokerId(1), Incarnation(2)))
    with pytest.raises(Violation, match=r"S5: .* epoch 3 is led by"):
        truth.led_by(LeaderEpoch(3), (BrokerId(0), Incarnation(5)))


def test_what_was_deleted_stays_deleted() -> None:
    """S1."""
    truth = committed(b"a", b"b")
    truth.deleted(LeaderEpoch(3), 2)
    truth.begins_at(LeaderEpoch(2), 0)
    with pytest.raises(Violation, match=r"S1: .* begins at 1 in epoch 4"):
        truth.begins_at(LeaderEpoch(4), 1)


def test_28_each_producers_batches_are_committed_once_in_order_and_without_gap() -> None:
    log = CommittedLog()
    log.extend(batch(0, b"a", b"b", producer=7, sequence=0))
    for sequence in (0, 1, 3):
        with pytest.raises(Violation, match=f"S1: producer 7 committed epoch 0 sequence {sequence}, due is epoch 0"):
            log.extend(batch(2, b"c", producer=7, sequence=sequence))
    log.extend(batch(2, b"c", producer=7, sequence=2))
    log._producers[7] = (1, 0)
    with pytest.raises(Violation, match=r"S1: producer 7 committed epoch 0 sequence 3, due is epoch 1"):
        log.extend(batch(3, b"d", producer=7, sequence=3))
    with pytest.raises(Violation, match=r"S1: b'a' is committed at 0 and again at 3"):
        log.extend(batch(3, b"a"))


def keyed(offset: int, key: bytes, value: bytes | None) -> memoryview:
    return memoryview(b"".join(stamp(encode([value], keys=[key], base_timestamp_ms=1), offset, 0)))


def test_compaction_leaves_the_last_of_each_key() -> None:
    log = CommittedLog(compacts=True)
    for offset, (key, value) in enumerate([(b"k", b"1"), (b"k", b"2"), (b"j", b"3"), (b"i", None)]):
        log.extend(keyed(offset, key, value))
    whole: Any = replica_of(keyed(1, b"k", b"2"), keyed(2, b"j", b"3"), keyed(3, b"i", None), end=4)
    assert _compacted(log, whole, 4, keeps_tombstones=True) == ""
    without: Any = replica_of(keyed(1, b"k", b"2"), keyed(2, b"j", b"3"), end=4)
    assert _compacted(log, without, 4, keeps_tombstones=False) == ""
    assert _compacted(log, without, 4, keeps_tombstones=True) == "lacks None, the last of b'i', at 3"
    last: Any = replica_of(keyed(2, b"j", b"3"), end=4)
    assert _compacted(log, last, 4, keeps_tombstones=False).startswith("lacks b'2', the last of b'k'")
    other: Any = replica_of(keyed(1, b"k", b"9"), end=4)
    assert _compacted(log, other, 4, keeps_tombstones=False).startswith("has b'9' for b'k' at 1, committed is b'2'")


def test_s4_a_compacted_replica_may_lack_what_a_lost_record_had_overwritten_and_nothing_else() -> None:
    log = CommittedLog(compacts=True)
    for base, (key, value) in enumerate(((b"k", b"1"), (b"j", b"2"), (b"k", b"3"))):
        log.extend(keyed(base, key, value))
    without: Any = replica_of(keyed(1, b"j", b"2"), end=2)
    assert log.lose_from(2, 0) == 1
    assert log.latest_of_keys() == {b"j": 1}
    assert _compacted(log, without, 2, keeps_tombstones=True) == ""
    other: Any = replica_of(keyed(0, b"k", b"1"), end=2)
    assert _compacted(log, other, 2, keeps_tombstones=True) == "lacks b'2', the last of b'j', at 1"
    log.extend(keyed(2, b"k", b"4"))
    longer: Any = replica_of(keyed(1, b"j", b"2"), end=3)
    assert _compacted(log, longer, 3, keeps_tombstones=True) == "lacks b'4', the last of b'k', at 2"
    assert log.lose_from(1, 0) == 2
    log.extend(keyed(1, b"k", b"5"))
    assert log.latest_of_keys() == {b"k": 1}, "written after the last loss"


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
