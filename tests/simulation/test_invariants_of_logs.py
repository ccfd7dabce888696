"""Each invariant of a partition's committed log, and of a replica's log, can fail.

Each test passes it a violation, which is found (16, 17, 19, 23, 28 of `jepsen_like/simulator/truth/README.md`, and
others).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from jepsen_like.simulator.truth.committed_log import Batch, CommittedLog
from jepsen_like.simulator.truth.last_look import _compacted
from jepsen_like.simulator.truth.mirror import LeaderMark, Mirror
from jepsen_like.simulator.world.violation import Violation
from raftlog.model import BrokerId, Incarnation, LeaderEpoch
from raftlog.ports import FileRegion
from raftlog.records.batch import encode, stamp
from tests.support.partitions.committed import RECORD, batch, committed


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


def test_17_a_replica_whose_committed_part_is_missing_or_different_is_found() -> None:
    truth = committed(b"a", b"b")
    mirror = Mirror()
    mirror.refresh(replica_of(batch(0, b"a"), end=1), lambda found: None, compacts=False)
    assert mirror.compare(truth.log, 1) == ""
    assert mirror.compare(truth.log, 2) == "lacks [1, 2)"
    other = Mirror()
    other.refresh(replica_of(batch(0, b"x"), end=1), lambda found: None, compacts=False)
    assert other.compare(truth.log, 1).startswith("has Batch")


def test_17_a_hole_may_reach_beyond_the_replicas_known_committed_part() -> None:
    """The hole was written before a restart, when the replica knew a higher offset; its new leader begins with a lower
    one."""
    truth = committed(b"a", b"b", b"c")
    mirror = Mirror(batches=[Batch(0, 2, 1, 0, hole=True), Batch(2, 3, 1, 0)])
    assert mirror.compare(truth.log, 1) == "" and mirror.verified == 0
    assert mirror.compare(truth.log, 2) == "" and mirror.verified == 1
    mirror = Mirror(batches=[Batch(0, 2, 1, 0)])
    assert mirror.compare(truth.log, 1) == "lacks [0, 1)"
    mirror = Mirror(batches=[Batch(0, 2, 1, 0, hole=True)])
    assert mirror.compare(truth.log, 3) == "lacks [2, 3)"


@pytest.mark.parametrize(("epoch", "exposed"), [(3, 1), (4, 1), (2, 9)])
def test_19_the_offsets_that_consumers_see_do_not_fall(epoch: int, exposed: int) -> None:
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


def test_deleted_records_stay_deleted() -> None:
    """S1."""
    truth = committed(b"a", b"b")
    truth.shortened = True
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
    log.extend(batch(3, b"d", producer=7, producer_epoch=1, sequence=0))
    with pytest.raises(Violation, match=r"S1: producer 7 committed epoch 0 sequence 3, due is epoch 1"):
        log.extend(batch(4, b"e", producer=7, sequence=3))
    with pytest.raises(Violation, match=r"S1: b'a' is committed at 0 and again at 4"):
        log.extend(batch(4, b"a"))


def test_17_a_recovery_election_leaves_what_its_winner_has_stable() -> None:
    """Records that the winner has only in memory are committed when its high watermark passes them again, and not
    before."""
    partition = committed(b"a", b"b", b"c")
    winner = Mirror(batches=list(partition.log.batches))
    assert partition.lose(winner, 3) == 0
    assert partition.lose(winner, 2) == 1
    assert partition.log.end_offset == 2 and partition.log.holds(2, b"c")
    partition.log.extend(batch(2, b"c"))
    assert partition.log.end_offset == 3
    shorter = Mirror(batches=partition.log.batches[:1])
    assert partition.lose(shorter, 3) == 2, "stable is no more than what the log has"


def test_s4_a_replica_is_compared_again_after_a_loss() -> None:
    """Its records were those that were committed once, and others may be committed in their place."""
    partition = committed(b"a", b"b", b"c")
    replica = Mirror(batches=list(partition.log.batches))
    assert replica.compare(partition.log, 3) == ""
    partition.log.lose_from(2, 0)
    replica.compare_anew_from(partition.log.end_offset)
    assert replica.verified_end == 2
    partition.log.extend(batch(2, b"d", epoch=1))
    assert replica.compare(partition.log, 3).startswith("has Batch(base_offset=2")


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


def test_s4_a_compacted_replica_may_lack_records_that_a_lost_one_had_superseded_and_no_others() -> None:
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
