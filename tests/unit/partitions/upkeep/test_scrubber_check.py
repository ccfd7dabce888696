"""Every file of a replica × every kind of damage: it is found and named correctly (S9)."""

from __future__ import annotations

import pytest

from jepsen_like.simulator.world.disk import SimDisk
from partitions.producers.state import ProducerStates
from partitions.upkeep.folder_check import check_folder
from partitions.upkeep.scrub_check import Finding, FolderCheck, What
from partitions.upkeep.scrub_plan import plan_of_log, still_stands
from raftlog.config import TopicConfig
from raftlog.records.batch import HEADER_BYTES
from tests.support.partitions.compaction import COMPACTED, append_records, compact
from tests.support.partitions.storage import PATH, append, open_log, recover_log, settle

SMALL = TopicConfig(segment_bytes=600, index_interval_bytes=64)
FIRST = "00000000000000000000"

HEADER_FIELDS = {
    "base offset": 0, "batch length": 8, "leader epoch": 12, "magic": 16, "crc": 17, "attributes": 21,
    "last offset delta": 23, "base timestamp": 27, "max timestamp": 35, "producer id": 43, "producer epoch": 51,
    "base sequence": 53, "record count": 57,
}  # fmt: skip


def written(*, clean: bool = True) -> SimDisk:
    """Several sealed segments, two leader epochs, a producer snapshot; stopped."""
    disk = SimDisk()
    disk.make_directory("partitions")
    log, _ = recover_log(disk, PATH, SMALL, clean_shutdown=False, producers=ProducerStates())
    for number in range(12):
        append(log, count=2, epoch=number // 6, size=60)
        settle(log)
    log.close(clean=clean)
    return disk


def content(disk: SimDisk, name: str) -> bytearray:
    inode = disk.inode_of(f"{PATH}/{name}")
    assert inode is not None
    return inode.current


def flip(disk: SimDisk, name: str, position: int, bit: int = 0) -> None:
    content(disk, name)[position] ^= 1 << bit


def cut(disk: SimDisk, name: str, length: int) -> None:
    del content(disk, name)[length:]


def findings(disk: SimDisk) -> list[Finding]:
    return check_folder(disk, PATH).run()


def names(disk: SimDisk, suffix: str) -> list[str]:
    return [name for name in disk.list(PATH) if name.endswith(suffix)]


@pytest.mark.parametrize("clean", [True, False], ids=["closed clean", "killed"])
def test_nothing_is_found_in_an_intact_folder(clean: bool) -> None:
    assert findings(written(clean=clean)) == []


def test_the_whole_log_is_read() -> None:
    disk = written()
    check = check_folder(disk, PATH)
    told: list[int] = []
    check.run(told.append)
    logs = sum(len(content(disk, name)) for name in names(disk, ".log"))
    assert check.bytes_read == sum(told) >= logs > 0
    assert check.plan.total_bytes == logs


@pytest.mark.parametrize("field", HEADER_FIELDS)
def test_a_flipped_bit_in_any_field_of_any_header_is_found(field: str) -> None:
    for name in names(written(), ".log"):
        for bit in (0, 7):
            disk = written()
            if len(content(disk, name)):
                flip(disk, name, HEADER_FIELDS[field], bit)
                (found,) = findings(disk)
                assert (found.what, found.file, found.position) == (What.SEGMENT, name, 0)
                assert found.offset == found.base_offset == int(name[:20])


def test_a_flipped_bit_anywhere_in_a_segment_is_found() -> None:
    """Every byte of a whole segment, one after the other; the finding names the batch that contains it."""
    disk = written()
    name = f"{FIRST}.log"
    sizes = [len(append(open_log(_empty()), count=2, size=60).data)]
    for position in range(len(content(disk, name))):
        flip(disk, name, position, position % 8)
        (found,) = findings(disk)
        assert found.what is What.SEGMENT and found.file == name
        assert found.position == position // sizes[0] * sizes[0]
        assert found.offset == 2 * (found.position // sizes[0])
        flip(disk, name, position, position % 8)
    assert findings(disk) == []


def _empty() -> SimDisk:
    disk = SimDisk()
    disk.make_directory("partitions")
    return disk


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".producers"])
def test_a_flipped_bit_anywhere_in_a_small_file_of_a_segment_is_found(suffix: str) -> None:
    disk = written()
    name = names(disk, suffix)[0]
    what = What.PRODUCERS if suffix == ".producers" else What.INDEX
    for position in range(len(content(disk, name))):
        flip(disk, name, position, position % 8)
        assert [(found.what, found.file) for found in findings(disk)] == [(what, name)]
        flip(disk, name, position, position % 8)


@pytest.mark.parametrize(("name", "what"), [("leader-epochs", What.LEADER_EPOCHS), ("checkpoint", What.CHECKPOINT)])
def test_a_flipped_bit_anywhere_in_the_logs_own_files_is_found(name: str, what: What) -> None:
    disk = written()
    for position in range(len(content(disk, name))):
        flip(disk, name, position, position % 8)
        assert (what, name) in [(found.what, found.file) for found in findings(disk)]
        flip(disk, name, position, position % 8)


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".producers", "leader-epochs", "checkpoint"])
def test_a_shorter_file_is_found_at_any_length(suffix: str) -> None:
    disk = written()
    name = names(disk, suffix)[0]
    whole = bytes(content(disk, name))
    for length in range(len(whole)):
        cut(disk, name, length)
        assert name in [found.file for found in findings(disk)], length
        content(disk, name)[:] = whole


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex"])
def test_a_longer_file_is_found(suffix: str) -> None:
    disk = written()
    name = names(disk, suffix)[0]
    content(disk, name).extend(bytes(HEADER_BYTES))
    assert name in [found.file for found in findings(disk)]


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex"])
def test_two_swapped_files_are_found(suffix: str) -> None:
    disk = written()
    one, two = names(disk, suffix)[:2]
    first, second = content(disk, one), content(disk, two)
    first[:], second[:] = bytes(second), bytes(first)
    assert {found.file for found in findings(disk)} >= {one, two}


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", "leader-epochs", "checkpoint"])
def test_a_missing_file_is_found(suffix: str) -> None:
    disk = written()
    name = names(disk, suffix)[1 if suffix == ".log" else 0]
    disk.remove(f"{PATH}/{name}")
    assert findings(disk), "something must be missing"


def test_a_zeroed_page_in_the_middle_is_found() -> None:
    disk = written()
    name = names(disk, ".log")[1]
    content(disk, name)[0:512] = bytes(len(content(disk, name)[0:512]))
    (found,) = findings(disk)
    assert found.file == name and found.position == 0


@pytest.mark.parametrize("tail", ["cut", "zeros", "header"])
def test_a_torn_tail_after_a_crash_is_no_damage(tail: str) -> None:
    """A killed process leaves it, and recovery cuts it: no reason for alarm."""
    disk = written(clean=False)
    name = names(disk, ".log")[-1]
    if tail == "cut":
        whole = bytes(content(disk, name))
        content(disk, name).extend(whole[: HEADER_BYTES + 5])
        # The beginning of the next batch.
        content(disk, name)[len(whole) : len(whole) + 8] = (24).to_bytes(8, "big")
    else:
        content(disk, name).extend(bytes(700 if tail == "zeros" else HEADER_BYTES - 1))
    assert findings(disk) == []


def test_a_log_that_lost_fsynced_data_is_no_torn_tail() -> None:
    disk = written(clean=False)
    name = names(disk, ".log")[-1]
    cut(disk, name, 0)
    checkpointed = check_folder(disk, PATH).plan.torn_from
    found = findings(disk)
    assert checkpointed is not None
    assert [f.file for f in found] == ([name] if checkpointed > int(name[:20]) else [])


def test_steps_are_bounded_and_small_batches_cost_more_than_their_bytes() -> None:
    disk = written()
    check = check_folder(disk, PATH)
    costs = []
    while not check.done:
        costs.append(check.step(4096))
    assert max(costs) <= 4096 + 2048
    assert sum(costs) > check.bytes_read


def test_findings_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partitions.upkeep.scrub_check.FINDINGS_MAX", 2)
    disk = written()
    for name in names(disk, ".index"):
        flip(disk, name, 4)
    assert len(findings(disk)) == 2


def test_a_check_changes_nothing() -> None:
    disk = written()
    for name in disk.list(PATH):
        flip(disk, name, len(content(disk, name)) // 2)
    before = {name: bytes(content(disk, name)) for name in disk.list(PATH)}
    FolderCheck(check_folder(disk, PATH).plan).run()
    assert {name: bytes(content(disk, name)) for name in disk.list(PATH)} == before


def test_compaction_is_no_damage_and_invalidates_the_plan() -> None:
    """A cleaned segment is another file of the same name: findings about the old one have no meaning."""
    disk = _empty()
    log = open_log(disk, COMPACTED)
    for number in range(60):
        append_records(log, [(b"key-%d" % (number % 5), b"value" * 10)])
        settle(log)
    plan = plan_of_log(log)
    first = plan.segments[0].base_offset
    assert FolderCheck(plan, in_service=True).run() == []
    assert compact(log)
    settle(log)
    assert not still_stands(plan, first, log)
    fresh = plan_of_log(log)
    assert still_stands(fresh, first, log)
    assert FolderCheck(fresh, in_service=True).run() == []
    log.close(clean=True)
    assert findings(disk) == []
