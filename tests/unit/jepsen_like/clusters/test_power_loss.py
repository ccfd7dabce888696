"""Cutting a disk's power: the lost and the kept data, and that a cut without effect is reported.

If this machine cannot mount images, the tests are skipped, with the missing ability as the reason.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from jepsen_like.clusters import power_loss
from jepsen_like.clusters.power_loss import FaultDidNotBite, Lost, PowerLossUnavailable, Survivors, Volume, Volumes
from tests.support.clusters import power_rounds, result_lines, synced_writer
from tests.support.clusters.power_rounds import (
    Result,
    Void,
    go_through,
    seeds_to_do,
    skip_unless_power_can_be_cut,
)

SMALL = 8 * 1024 * 1024
RNG = random.Random(1)


@pytest.fixture
def volume() -> Iterator[Volume]:
    skip_unless_power_can_be_cut()
    with Volumes() as volumes:
        yield volumes.add("disk", SMALL)
    assert not os.path.exists(volumes.folder)
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        assert volumes.folder not in mounts.read()


def write(volume: Volume, name: str, content: bytes, *, sync: bool) -> None:
    with open(os.path.join(volume.data, name), "ab") as file:
        file.write(content)
        file.flush()
        if sync:
            os.fsync(file.fileno())
    if sync:
        folder = os.open(volume.data, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


def contents(volume: Volume) -> dict[str, bytes]:
    found = {}
    for path in volume.files():
        with open(path, "rb") as file:
            found[os.path.relpath(path, volume.data)] = file.read()
    return found


def test_synced_data_stays_and_nothing_else_does(volume: Volume) -> None:
    write(volume, "synced", b"a" * 10_000, sync=True)
    write(volume, "synced", b"b" * 10_000, sync=False)
    write(volume, "unsynced", b"c" * 70_000, sync=False)
    volume.cut(Survivors.NOTHING, RNG)
    assert volume.restore() == Lost(power_loss.WITNESS_BYTES, {"synced": 10_000, "unsynced": 70_000})
    assert contents(volume) == {"synced": b"a" * 10_000}


def test_a_cut_ends_every_write_at_once_and_a_mount_brings_them_back(volume: Volume) -> None:
    with open(os.path.join(volume.data, "open"), "wb", buffering=0) as file:
        file.write(b"x")
        volume.cut(Survivors.NOTHING, RNG)
        for call in (lambda: os.fsync(file.fileno()), lambda: file.write(b"y")):
            with pytest.raises(OSError) as raised:
                call()
            assert raised.value.errno in {errno.EIO, errno.EROFS}
    volume.restore()
    write(volume, "again", b"z", sync=True)
    volume.cut(Survivors.NOTHING, RNG)
    volume.restore()
    assert contents(volume) == {"again": b"z"}


def test_a_writer_is_not_told_of_a_sync_that_did_not_happen(volume: Volume, tmp_path: Path) -> None:
    """If it continues to run, one round of twenty tells it that lost data was synced."""
    writers = 4
    told = tmp_path / "told"
    rng = random.Random(5)

    def counts() -> list[int]:
        return memoryview(told.read_bytes()).cast("Q")[:writers].tolist()

    for survivors in [Survivors.NOTHING, Survivors.NAMES] * 12:
        told.write_bytes(bytes(mmap.PAGESIZE))
        command = [sys.executable, "-P", synced_writer.__file__, volume.data, str(told), str(writers)]
        with subprocess.Popen(command) as writer:
            try:
                enough = rng.randrange(5, 15)
                while min(counts()) < enough:
                    assert writer.poll() is None
                volume.cut(survivors, rng, [writer.pid])
                synced = counts()
            finally:
                writer.kill()
        assert counts() == synced, "it did not stand still"
        volume.restore()
        after = contents(volume)
        for name, count in enumerate(synced):
            records = b"".join(map(synced_writer.record, range(1, count + 1)))
            assert after[str(name)][: len(records)] == records, f"{survivors}: what was told to be synced is lost"
            os.remove(os.path.join(volume.data, str(name)))


def test_a_process_that_does_not_stop_voids_the_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "60"]) as one:
        try:
            with monkeypatch.context() as never:
                never.setattr(power_loss, "HOLD_SECONDS", 0.0)
                never.setattr(power_loss, "_stands_still", lambda pid: False)
                with pytest.raises(FaultDidNotBite, match=f"{one.pid}.* did not stop"):
                    power_loss.hold([one.pid])
        finally:
            one.kill()
    power_loss.hold([one.pid])  # it is gone


def test_names_may_survive_without_their_data(volume: Volume) -> None:
    write(volume, "unsynced", b"c" * 70_000, sync=False)
    volume.cut(Survivors.NAMES, RNG)
    volume.restore()
    assert set(contents(volume)) == {"unsynced"}
    assert contents(volume)["unsynced"].count(b"c") == 0


def test_parts_of_unsynced_data_may_survive_in_any_order(volume: Volume) -> None:
    """Over some files: bytes that are there, although earlier bytes are not."""
    for number in range(20):
        write(volume, str(number), b"c" * 100_000, sync=False)
    volume.cut(Survivors.PARTS, random.Random(3))
    volume.restore()
    after = contents(volume)
    kept = sum(content.count(b"c") for content in after.values())
    assert 0 < kept < 2_000_000
    assert any(content.lstrip(b"\0") and content[0] == 0 for content in after.values() if content), "no hole"


def test_a_cut_that_lost_nothing_is_no_cut(volume: Volume) -> None:
    with pytest.raises(FaultDidNotBite, match="was not cut"):
        volume.restore()
    volume.cut(Survivors.NOTHING, RNG)
    volume.unmount()
    volume.mount()
    with open(os.path.join(volume.path, power_loss.LOST), "wb") as file:
        file.write(b"l" * 100)
    with pytest.raises(FaultDidNotBite, match="kept 100 bytes"):
        volume.restore()
    volume.cut(Survivors.NOTHING, RNG)
    volume.unmount()
    volume.mount()
    os.remove(os.path.join(volume.path, power_loss.SYNCED))
    with pytest.raises(FaultDidNotBite, match="another fault"):
        volume.restore()


def test_the_remains_of_a_dead_process_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_unless_power_can_be_cut()
    abandoned = Volumes()
    volume = abandoned.add("disk", SMALL)
    assert os.path.ismount(volume.path)
    # For all others, which may clean up at this moment, this process is alive.
    monkeypatch.setattr(power_loss, "_is_alive", lambda pid: pid != os.getpid() and os.path.exists(f"/proc/{pid}"))
    with open(os.path.join(volume.data, "in use"), "wb"):
        power_loss.remove_leftovers()
        assert os.path.ismount(volume.path), "somebody uses it"
    power_loss.remove_leftovers()
    assert not os.path.exists(abandoned.folder)


def test_a_missing_capability_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert power_loss.missing_capability() == "mounting an image needs root"
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(tmp_path))
    volume = Volume(str(tmp_path / "image"), str(tmp_path / "disk"))
    with pytest.raises(PowerLossUnavailable, match=r"mkfs\.ext4 is not installed"):
        volume.make(SMALL)
    program = tmp_path / "mkfs.ext4"
    program.write_text("#!/bin/sh\necho no room >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(PowerLossUnavailable, match=r"mkfs\.ext4 .*: no room"):
        volume.make(SMALL)


# --- The command ------------------------------------------------------------------------------------------------------


def test_recorded_rounds_are_not_repeated(tmp_path: Path) -> None:
    results = str(tmp_path / "results.jsonl")
    assert seeds_to_do(results, 5, 3) == [5, 6, 7]
    result_lines.append(Result(1, 5, []), results)
    result_lines.append(Result(2, 6, [], acknowledged_lost=["a topic was made"]), results)
    with open(results, "ab") as file:
        file.write(b'{"round":3,"se')  # killed while it wrote
    assert seeds_to_do(results, 5, 4) == [6, 7, 8]
    result_lines.append(Result(3, 7, []), results)
    assert seeds_to_do(results, 5, 4) == [6, 8]


def test_a_run_continues_where_it_ended_and_repeats_void_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = str(tmp_path / "results.jsonl")
    made: list[int] = []
    busy_at = [1]

    async def run(powered: None, seeds: Sequence[int], changes: int, results: str, first_seed: int) -> bool:
        for seed in seeds:
            made.append(seed)
            if len(made) - 1 in busy_at:
                raise Void("busy")
            result_lines.append(Result(seed, seed, [], acknowledged_lost=["one"] if seed == 9 else []), results)
            if seed == 9:
                return False
        return True

    monkeypatch.setattr(power_rounds, "run", run)
    monkeypatch.setattr(power_rounds, "powered_cluster", contextlib.nullcontext)
    assert go_through(3, 1, 10, results) == 0
    assert made == [1, 2, 2, 3]
    assert go_through(3, 1, 10, results) == 0 and len(made) == 4, "all of it was done"
    assert go_through(5, 1, 10, results) == 0 and made[4:] == [4, 5]
    assert go_through(3, 8, 10, results) == 1 and made[6:] == [8, 9], "something was lost: no further"
    busy_at += range(100)
    assert go_through(2, 20, 10, results) == power_rounds.EXIT_VOID and made[8:] == [20] * power_rounds.VOIDS_MAX
