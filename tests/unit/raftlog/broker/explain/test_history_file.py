"""The history survives restarts, damage and a disk that fails, within its bound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raftlog.broker.explain.history import Change, ChangeHistory
from raftlog.broker.explain.history_file import FILES, FLUSH_SECONDS, FOLDER, MAX_FILE_BYTES, HistoryFile
from raftlog.errors import DiskFull
from raftlog.model import BrokerId
from raftlog.ports import File
from raftlog.system.disk import LocalDisk
from tests.support.partitions.manual import ManualClock, ManualScheduler, ManualWorker


class Log:
    """A logger that keeps the names of events."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def warning(self, event: str, **fields: Any) -> None:
        self.events.append(event)

    info = error = warning


class Life:
    """One process of a node with a history."""

    def __init__(self, disk: LocalDisk) -> None:
        self.log = Log()
        self.scheduler = ManualScheduler(ManualClock())
        self.worker = ManualWorker(self.scheduler)
        self.history = ChangeHistory()
        self.file = HistoryFile(self.history, disk, self.scheduler, self.worker, self.log)
        self.file.load()

    def note(self, index: int) -> None:
        self.history.note_quorum_leader(BrokerId(index % 3), index, index * 1_000)

    def flush(self) -> None:
        self.scheduler.advance(FLUSH_SECONDS)
        self.worker.run_all()
        self.scheduler.run()


def indexes(changes: list[Change]) -> list[int]:
    return [one.index for one in changes]


def test_changes_survive_a_crash_and_an_orderly_stop(tmp_path: Path) -> None:
    disk = LocalDisk(str(tmp_path))
    first = Life(disk)
    first.note(1)
    first.flush()
    first.note(2)  # not written yet when the process dies
    second = Life(disk)
    assert indexes(second.history.all()) == [1]
    second.note(3)
    second.file.close()
    assert indexes(Life(disk).history.all()) == [1, 3]


def test_reading_ends_at_damage_and_writing_goes_on_behind_what_was_read(tmp_path: Path) -> None:
    disk = LocalDisk(str(tmp_path))
    life = Life(disk)
    for index in range(1, 4):
        life.note(index)
        life.flush()
    path = tmp_path / FOLDER / FILES[0]
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3 + 3] ^= 1
    path.write_bytes(content)
    life = Life(disk)
    assert indexes(life.history.all()) == [1, 2]
    life.note(9)
    life.flush()
    assert indexes(Life(disk).history.all()) == [1, 2, 9]


def test_the_files_are_bounded_and_keep_the_newest_changes(tmp_path: Path) -> None:
    disk = LocalDisk(str(tmp_path))
    life = Life(disk)
    count = 60_000
    for index in range(1, count + 1):
        life.note(index)
        if index % 5_000 == 0:
            life.flush()
    sizes = [(tmp_path / FOLDER / name).stat().st_size for name in FILES]
    assert max(sizes) <= MAX_FILE_BYTES and sum(sizes) > MAX_FILE_BYTES / 2
    assert indexes(Life(disk).history.all())[-1] == count


class FullOnce(LocalDisk):
    """A disk on which one file cannot be opened."""

    full = True

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, bulk: bool = False) -> File:
        if self.full and path.startswith(FOLDER):
            raise DiskFull("no room")
        return super().open(path, create=create, exclusive=exclusive, bulk=bulk)


def test_a_full_disk_costs_changes_and_nothing_else(tmp_path: Path) -> None:
    disk = FullOnce(str(tmp_path))
    life = Life(disk)
    life.note(1)
    life.flush()
    assert life.log.events == ["history_not_written"]
    disk.full = False
    life.note(2)
    life.flush()
    assert indexes(life.history.all()) == [1, 2]
    assert indexes(Life(disk).history.all()) == [2]
