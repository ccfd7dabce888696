"""Writing a snapshot to disk in slices: the same file, never half, and never instead of a newer one."""

from __future__ import annotations

import random

import pytest
from crc32c import crc32c

from jepsen_like.simulator.world.disk import SimDisk, SimulatedCrash
from metadata.journal import snapshot_file as journal_snapshot
from metadata.journal.journal import Journal, prepare_journal
from metadata.journal.snapshot_file import (
    PATH,
    SLICE_BYTES,
    WRITING_PATH,
    Snapshot,
    load_snapshot,
    save_in_steps,
    save_snapshot,
)
from metadata.raft.messages import SnapshotChunk
from metadata.voters.identity import QuorumIdentity
from raftlog.model import BrokerId, DirectoryId
from tests.support.quorum.bench import Bench

IDENTITY = QuorumIdentity("snapshots", BrokerId(1), DirectoryId(b"d" * 16), (BrokerId(1),))
LARGE = bytes(range(256)) * (5 * SLICE_BYTES // 512)


def prepared() -> SimDisk:
    disk = SimDisk()
    prepare_journal(disk, IDENTITY)
    Journal(disk, IDENTITY).close()
    return disk


@pytest.mark.parametrize("configuration", [b"", b"c" * 70_000])
def test_in_slices_or_at_once_it_is_the_same_file(configuration: bytes) -> None:
    snapshot = Snapshot.of(9, 3, LARGE, configuration)
    whole, sliced = prepared(), prepared()
    save_snapshot(whole, IDENTITY, snapshot)
    steps = sum(1 for _ in save_in_steps(sliced, IDENTITY, snapshot, save_snapshot))
    assert steps >= len(LARGE) // SLICE_BYTES
    assert sliced.read(PATH) == whole.read(PATH)
    assert not sliced.exists(WRITING_PATH)
    sliced.power_loss(random.Random(1))
    assert load_snapshot(sliced, IDENTITY) == snapshot


def test_a_stop_at_any_disk_call_leaves_the_old_one_or_the_new_one() -> None:
    old, new = Snapshot.of(5, 2, b"old"), Snapshot.of(9, 3, LARGE)
    seen = set()
    for operation in range(1, 60):
        disk = prepared()
        save_snapshot(disk, IDENTITY, old)
        disk.crash_countdown = operation
        try:
            for _ in save_in_steps(disk, IDENTITY, new, save_snapshot):
                pass
            done = True
        except SimulatedCrash:
            done = False
        disk.crash_countdown = 0
        disk.power_loss(random.Random(operation))
        found = load_snapshot(disk, IDENTITY)
        assert found in ((new,) if done else (old, new))
        assert not disk.exists(WRITING_PATH), "the next start removes what is half written"
        seen.add(found.index if found is not None else 0)
        if done:
            break
    assert done and seen == {5, 9}


def test_an_abandoned_write_is_started_again() -> None:
    disk = prepared()
    next(save_in_steps(disk, IDENTITY, Snapshot.of(9, 3, LARGE), save_snapshot))
    for _ in save_in_steps(disk, IDENTITY, Snapshot.of(10, 3, LARGE), save_snapshot):
        pass
    found = load_snapshot(disk, IDENTITY)
    assert found is not None and found.index == 10


def test_a_newer_one_from_the_leader_is_not_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_snapshot, "SLICE_BYTES", 64)
    bench = Bench()
    bench.hear(2, bench.append(2, 5, 5, 5, commit=4))
    steps = bench.engine.compact(b"s" * 1_000, 4)
    next(steps)
    state = b"newer"
    bench.hear(3, SnapshotChunk(6, 20, 6, len(state), crc32c(state), 0, crc32c(state), state))
    assert list(steps) == []
    bench.start()
    bench.tick()
    assert bench.engine.status().commit_index == 20
    found = load_snapshot(bench.disk, bench.identity)
    assert found is not None and (found.index, found.state) == (20, state)
