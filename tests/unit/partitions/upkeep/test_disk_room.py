"""Two limits of free space: one for clients, half of it for leaders; and the measurement of the disk."""

from __future__ import annotations

import pytest

from jepsen_like.simulator.world.disk import SimDisk
from partitions.files.disk_room import DiskRoom
from partitions.upkeep.room_watch import LOOK_SECONDS, RoomWatch
from raftlog.errors import DiskFailed
from raftlog.ports import Space
from tests.support.partitions.manual import ManualScheduler, ManualWorker

TOTAL = 100_000
MARK = 5_000
"""A twentieth."""


def looked(room: DiskRoom, free: int, *, reserve_whole: bool = True) -> tuple[bool, bool]:
    room.begin_look()
    room.looked(Space(free, TOTAL, reserve_whole))
    return room.short, room.very_short


def test_clients_are_refused_at_the_limit_and_leaders_at_half_of_it() -> None:
    room = DiskRoom(1 << 30)
    assert looked(room, MARK) == (False, False)
    assert looked(room, MARK - 1) == (True, False)
    assert looked(room, MARK // 2) == (True, False)
    assert looked(room, MARK // 2 - 1) == (True, True)


def test_a_reached_limit_counts_until_there_is_a_quarter_more() -> None:
    room = DiskRoom(1 << 30)
    assert looked(room, 0) == (True, True)
    assert looked(room, MARK // 2 * 5 // 4 - 1) == (True, True)
    assert looked(room, MARK // 2 * 5 // 4) == (True, False)
    assert looked(room, MARK * 5 // 4 - 1) == (True, False)
    assert looked(room, MARK * 5 // 4) == (False, False)


def test_appends_since_the_last_measurement_and_during_it_count() -> None:
    room = DiskRoom(1_000)
    assert looked(room, 3_000) == (False, False)
    room.appended(1_500)
    assert not room.short
    room.appended(501)
    assert (room.short, room.free) == (True, 999)
    # It is unknown whether batches appended before this measurement began are written.
    assert looked(room, 3_000) == (True, False)
    assert looked(room, 3_000) == (False, False)


def test_while_the_ballast_is_in_use_nothing_is_accepted() -> None:
    assert looked(DiskRoom(0), TOTAL, reserve_whole=False) == (True, True)


def test_without_a_reserve_the_disk_may_be_filled() -> None:
    room = DiskRoom(0)
    assert looked(room, 0) == (False, False)
    room.appended(1)
    assert not room.short


def test_the_refusal_names_the_reason_and_the_remedy() -> None:
    room = DiskRoom(1 << 30)
    looked(room, 17)
    refusal = room.refusal("orders/0")
    assert refusal.code == "disk_full"
    assert refusal.retriable
    for said in ("orders/0", "17 bytes", str(MARK), "disk_reserved_bytes", "retention.ms"):
        assert said in refusal.detail


class Lines:
    """A logger that keeps events."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def info(self, event: str, **fields: object) -> None:
        self.events.append(event)

    warning = error = info


class Watched:
    """A watch over a simulated disk."""

    def __init__(self) -> None:
        self.disk, self.scheduler, self.lines = SimDisk(TOTAL), ManualScheduler(), Lines()
        self.worker = ManualWorker(self.scheduler)
        self.room, self.told = DiskRoom(1 << 30), 0
        self.watch = RoomWatch(self.room, self.disk, self.scheduler, self.worker, self.lines, self._change)
        self.watch.look_here()
        self.watch.start()

    def _change(self) -> None:
        self.told += 1

    def look(self) -> None:
        self.scheduler.advance(LOOK_SECONDS)
        self.worker.run_all()


def test_each_change_is_reported_once() -> None:
    watched = Watched()
    watched.look()
    assert (watched.room.short, watched.told) == (False, 0)
    watched.disk.occupy()
    watched.look()
    watched.look()
    assert (watched.room.short, watched.told, watched.lines.events) == (True, 1, ["short of room"])
    watched.disk.vacate()
    watched.look()
    assert (watched.room.short, watched.told, watched.lines.events[1:]) == (False, 2, ["room again"])


def test_a_failed_measurement_changes_nothing_and_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched()

    def fails() -> Space:
        raise DiskFailed("no")

    monkeypatch.setattr(watched.disk, "space", fails)
    watched.look()
    watched.look()
    assert watched.lines.events == ["the room on the disk is not known"]
    monkeypatch.undo()
    watched.disk.occupy()
    watched.look()
    assert watched.told == 1


def test_a_closed_watch_measures_no_more() -> None:
    watched = Watched()
    watched.watch.close()
    watched.disk.occupy()
    watched.look()
    assert watched.told == 0
