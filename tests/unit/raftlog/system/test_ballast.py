"""The ballast: space for the operations that free space, on a disk without a free block."""

from __future__ import annotations

import pytest

from jepsen_like.simulator.world.disk import BLOCK_BYTES, SimDisk
from partitions.log.log import PartitionLog
from raftlog.broker.identity import begin_start, prepare_folder
from raftlog.config import MIB, TopicConfig
from raftlog.errors import DiskFull
from raftlog.model import BrokerId, Endpoint, Offset
from raftlog.system.ballast import BALLAST_NAME, SLICES, Ballast, ballast_bytes
from raftlog.system.ballasted_disk import BallastedDisk
from tests.support.partitions.storage import PATH, append, open_log, read_batches, settle

SIZE = SLICES * BLOCK_BYTES
SMALL = TopicConfig(segment_bytes=1000, index_interval_bytes=100)


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    disk.make_directory("partitions")
    return disk


def ballasted(disk: SimDisk) -> BallastedDisk:
    return BallastedDisk(disk, Ballast(disk, SIZE))


def retry(log: PartitionLog) -> DiskFull | None:
    """One job, as the log writer runs it."""
    job = log.take_job()
    assert job is not None
    try:
        job.run()
    except DiskFull as error:
        log.job_done(job, error)
        return error
    log.job_done(job, None)
    return None


@pytest.mark.parametrize(
    ("wanted", "total", "size"),
    [(32 * MIB, 1 << 40, 32 * MIB), (32 * MIB, 48 * MIB, 3 * MIB), (0, 1 << 40, 0), (SIZE - 1, 1 << 40, 0)],
)
def test_a_ballast_consists_of_slices_and_is_at_most_a_sixteenth_of_the_disk(
    wanted: int, total: int, size: int
) -> None:
    assert ballast_bytes(wanted, total) == size


def test_a_write_without_space_releases_ballast_and_a_bulk_write_does_not(disk: SimDisk) -> None:
    product = ballasted(disk)
    essential, bulk = product.open("journal", create=True), product.open("batches", create=True, bulk=True)
    disk.occupy()
    with pytest.raises(DiskFull):
        bulk.pwritev([b"b"], 0)
    assert disk.files()[BALLAST_NAME] == SIZE
    essential.pwritev([b"e" * (BLOCK_BYTES + 1)], 0)
    assert disk.files() == {"journal": BLOCK_BYTES + 1, "batches": 0, BALLAST_NAME: SIZE - 2 * BLOCK_BYTES}
    # Released space is for operations that free space: a batch must not use it.
    product.remove("journal")
    with pytest.raises(DiskFull, match="ballast is in use"):
        bulk.pwritev([b"b"], 0)
    assert product.space().reserve_whole
    disk.occupy(1)
    bulk.pwritev_stable([b"b"], 0)


def test_the_ballast_is_bounded_and_its_end_is_a_full_disk(disk: SimDisk) -> None:
    product = ballasted(disk)
    file = product.open("journal", create=True)
    disk.occupy()
    file.pwritev([b"e" * SIZE], 0)
    assert disk.files()[BALLAST_NAME] == 0
    with pytest.raises(DiskFull):
        file.pwritev([b"e"], SIZE)
    with pytest.raises(DiskFull):
        product.replace("small", b"content")


def test_the_ballast_is_restored_if_there_is_space_for_all_of_it(disk: SimDisk) -> None:
    product = ballasted(disk)
    disk.occupy()
    product.replace("a", b"content")
    product.replace("b", b"content")
    disk.occupy(1)
    assert not product.space().reserve_whole
    assert disk.files()[BALLAST_NAME] == SIZE - 2 * BLOCK_BYTES
    disk.occupy(3)
    assert product.space() == (BLOCK_BYTES, disk.total_bytes, True)
    assert disk.files()[BALLAST_NAME] == SIZE


def test_a_start_adopts_the_ballast_and_fills_it_as_far_as_there_is_space(disk: SimDisk) -> None:
    product = ballasted(disk)
    disk.occupy()
    for name in "abcd":
        product.replace(name, b"content")
    disk.occupy(2)
    ballast = Ballast(disk, SIZE)
    assert (ballast.whole, ballast.missing_bytes) == (False, 2 * BLOCK_BYTES)
    disk.vacate()
    assert Ballast(disk, SIZE).whole
    assert disk.files()[BALLAST_NAME] == SIZE
    assert not Ballast(disk, 0).give_up()
    assert not disk.exists(BALLAST_NAME)


def test_retention_frees_space_on_a_disk_without_a_free_block(disk: SimDisk) -> None:
    """Removing a segment begins with a checkpoint (S10)."""
    product = ballasted(disk)
    log = open_log(product, SMALL)
    made = [append(log, size=900) for _ in range(12)]
    settle(log)
    disk.occupy()
    made.append(append(log, size=900))
    assert retry(log) is not None
    log.advance_log_start(Offset(10))
    for _ in range(4):
        if retry(log) is None:
            break
        product.space()
    settle(log)
    assert (log.full, log.stable_end_offset, log.log_start_offset) == (False, 13, 10)
    assert [name for name in disk.list(PATH) if name.endswith(".log")] == [f"{n:020}.log" for n in range(10, 13)]
    assert product.space().reserve_whole
    log.close(clean=False)
    assert read_batches(open_log(ballasted(disk), SMALL), 10) == [one.data for one in made[10:]]


def test_a_log_on_a_full_disk_removes_every_removable_segment(disk: SimDisk) -> None:
    """It must not try the same few segments forever."""
    ballast = Ballast(disk, SIZE)
    product = BallastedDisk(disk, ballast)
    log = open_log(product, SMALL)
    for _ in range(14):
        append(log, size=900)
    settle(log)
    append(log, size=900)
    assert ballast.give_up()
    assert retry(log) is not None
    log.advance_log_start(Offset(13))
    for _ in range(5):
        assert retry(log) is not None
    assert [name for name in disk.list(PATH) if name.endswith(".log")] == [f"{n:020}.log" for n in (13, 14)]


def test_a_node_starts_on_a_disk_without_a_free_block(disk: SimDisk) -> None:
    disk = SimDisk()
    voters = {BrokerId(1): Endpoint("127.0.0.1", 1)}
    prepare_folder(disk, "node", cluster_id="c", node_id=1, voters=voters, directory_id=b"d" * 16)
    Ballast(disk, SIZE)
    disk.occupy()
    assert [begin_start(ballasted(disk), "node").start_number for _ in range(3)] == [1, 2, 3]


def test_retention_needs_no_ballast_if_segments_have_indexes(disk: SimDisk) -> None:
    """The removed files' own space is released first."""
    log = open_log(disk, SMALL)
    for _ in range(12):
        append(log, size=900)
    settle(log)
    disk.occupy()
    append(log, size=900)
    assert retry(log) is not None
    log.advance_log_start(Offset(10))
    settle(log)
    assert (log.full, log.stable_end_offset, log.log_start_offset) == (False, 13, 10)
