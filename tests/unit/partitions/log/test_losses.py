"""Recovery that lost data: the replica does not vouch until the loss is reported, whatever happens in between."""

from __future__ import annotations

from typing import Any

import pytest

from jepsen_like.simulator.world.disk import SimDisk, SimFile, SimulatedCrash
from raftlog.config import TopicConfig
from raftlog.errors import DiskFull
from tests.support.partitions.damaged_log import CONFIG, Damaged, flip, make
from tests.support.partitions.storage import PATH, append, open_log, read_batches, recover_log, settle


@pytest.mark.parametrize("name", ["checkpoint", "leader-epochs"])
@pytest.mark.parametrize("how", ["absent", "flipped", "shorter"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_lost_small_file_loses_no_batch_but_the_replica_does_not_vouch(name: str, how: str, clean: bool) -> None:
    damaged = make(clean=clean)
    epochs = open_log(damaged.disk, CONFIG, clean=clean).epochs if not clean else None
    path = f"{PATH}/{name}"
    if how == "absent":
        damaged.disk.remove(path)
    else:
        damaged.change(path, flip(14) if how == "flipped" else lambda good: good[:-1])
    log, recovery = damaged.reopen(clean=clean)
    assert recovery.cut_or_quarantined and not recovery.clean
    assert read_batches(log, 0) == damaged.before(48)
    assert epochs is None or log.epochs == epochs
    assert [entry.epoch for entry in log.epochs.entries] == [0, 1, 2, 3, 4]


def test_epochs_written_ahead_of_their_first_batch_are_dropped() -> None:
    damaged = make(clean=False)
    log, _ = damaged.reopen()
    append(log, epoch=7)
    job = log.take_job()
    assert job is not None and job.leader_epochs is not None
    damaged.disk.replace(f"{PATH}/leader-epochs", job.leader_epochs)
    again, recovery = damaged.reopen()
    assert not recovery.cut_or_quarantined
    assert recovery.last_epoch == 4
    append(again, epoch=6)
    settle(again)


def test_a_loss_is_remembered_by_later_recoveries_until_it_was_reported() -> None:
    """1. Recovery truncates an acknowledged batch. 2. The process dies before it could register. 3. The second
    recovery finds nothing wrong any more: if it vouched, the replica would stay in the ISR without that batch."""
    damaged = make(clean=False)
    damaged.change(damaged.names()[-1], lambda good: good[:-1])
    for _ in range(3):
        log, recovery = damaged.reopen()
        assert recovery.cut_or_quarantined
    log.close(clean=True)
    log, recovery = damaged.reopen(clean=True)
    assert recovery.cut_or_quarantined and not recovery.clean
    log.loss_is_reported()
    settle(log)
    log, recovery = damaged.reopen()
    assert not recovery.cut_or_quarantined


@pytest.mark.parametrize("damage", ["corrupt", "torn", "no checkpoint", "no epochs"])
def test_a_crash_anywhere_in_a_lossy_recovery_does_not_make_it_forget(damage: str) -> None:
    """Above the recovery point only the mark remembers: a part truncated there looks as if it never existed."""
    for steps in range(1, 60):
        disk = SimDisk()
        disk.make_directory("partitions")
        log = open_log(disk, CONFIG)
        for _ in range(5):
            append(log, epoch=1)
            settle(log)
        damaged = Damaged(disk, [])
        name = damaged.names()[-1]
        if damage == "corrupt":
            damaged.change(name, flip(3 * log.size_bytes // 5 + 70))
        elif damage == "torn":
            damaged.change(name, lambda good: good[:-1])
        else:
            disk.remove(f"{PATH}/{'checkpoint' if damage == 'no checkpoint' else 'leader-epochs'}")
        disk.crash_countdown = steps
        try:
            damaged.reopen()
        except SimulatedCrash:
            disk.crash_countdown = 0
            _, recovery = damaged.reopen()
            assert recovery.cut_or_quarantined, f"forgotten after {steps} steps"
            continue
        assert steps > 3
        return
    raise AssertionError("recovery has more steps than were tried")


def test_unflushed_topics_are_not_vouched_for_after_an_unclean_stop() -> None:
    disk = SimDisk()
    disk.make_directory("partitions")
    config = TopicConfig(flush="os")
    log = open_log(disk, config)
    log.close(clean=True)
    log, recovery = recover_log(disk, PATH, config, clean_shutdown=False)
    assert not recovery.cut_or_quarantined, "nothing was written since it was closed clean"
    append(log)
    settle(log)
    assert log.stable_end_offset == 1
    log, recovery = recover_log(disk, PATH, config, clean_shutdown=False)
    assert recovery.cut_or_quarantined


def test_a_full_disk_leaves_no_part_of_a_quarantined_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt is repeated every few seconds: copies left each time would fill all space."""
    disk = SimDisk()
    disk.make_directory("partitions")
    log = open_log(disk)
    made = [append(log, size=100) for _ in range(3)]
    settle(log)
    disk.flip(f"{PATH}/{0:020d}.log", len(made[0].data) + 80, 1)
    real = SimFile.pwritev

    def pwritev(file: SimFile, buffers: Any, position: int) -> int:
        if any(file.inode is disk.inode_of(path) for path in disk.files() if path.endswith(".quarantined")):
            raise DiskFull("no room")
        return real(file, buffers, position)

    monkeypatch.setattr(SimFile, "pwritev", pwritev)
    with pytest.raises(DiskFull):
        open_log(disk)
    assert not any(path.endswith(".quarantined") for path in disk.files())
    monkeypatch.undo()
    again, recovery = recover_log(disk, PATH, TopicConfig(), clean_shutdown=False)
    assert recovery.cut_or_quarantined
    assert read_batches(again, 0) == [made[0].data]
