"""The checks of a disk: room, file system, fsync; nothing is left behind."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from raftlog.cli.doctor.disk import check_file_system, check_fsync, check_room, file_system_of

MOUNTS = """\
/dev/sda / ext4 rw 0 0
/dev/sdb /var/lib ext4 rw 0 0
tmpfs /var/lib/cache tmpfs rw 0 0
server:/x /mnt/with\\040space nfs4 rw 0 0
overlay /layers overlay rw 0 0
"""


@pytest.fixture
def mounts(tmp_path: Path) -> str:
    (tmp_path / "mounts").write_text(MOUNTS)
    return str(tmp_path / "mounts")


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/var/lib/raftlog", "ext4"),
        ("/var/libs", "ext4"),
        ("/var/lib/cache/a", "tmpfs"),
        ("/mnt/with space/a", "nfs4"),
        ("/", "ext4"),
    ],
)
def test_the_longest_mount_point_counts(folder: str, kind: str, mounts: str) -> None:
    assert file_system_of(folder, mounts) == kind


@pytest.mark.parametrize(
    ("folder", "level"),
    [("/var/lib/a", "ok"), ("/var/lib/cache", "problem"), ("/mnt/with space", "warning"), ("/layers/a", "warning")],
)
def test_file_systems_that_lose_records_are_told(folder: str, level: str, mounts: str) -> None:
    assert [one.level for one in check_file_system(folder, mounts)] == [level]
    assert check_file_system(folder, "/none") == []


@pytest.mark.parametrize(("milliseconds", "level"), [(0.5, "ok"), (30, "warning"), (500, "problem")])
def test_the_median_latency_of_fsync_counts(tmp_path: Path, milliseconds: float, level: str) -> None:
    ticks = itertools.count()
    (finding,) = check_fsync(str(tmp_path), lambda: next(ticks) * milliseconds / 1000)
    assert finding.level == level
    assert os.listdir(tmp_path) == [], "nothing is left behind"


def test_a_folder_that_is_not_there_or_not_full_enough(tmp_path: Path) -> None:
    (missing,) = check_room(str(tmp_path / "none"), 0)
    assert missing.level == "problem" and "No such file" in missing.text
    (unwritable,) = check_fsync(str(tmp_path / "none"))
    assert unwritable.level == "problem"
    assert check_room(str(tmp_path), 0)[0].area == "disk"


def test_less_room_than_the_reserve_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs(tmp_path)

    def nearly_full(_: str) -> os.statvfs_result:
        fields = list(real)
        fields[3] = fields[4] = real.f_blocks // 100  # free and available blocks
        return os.statvfs_result(fields)

    monkeypatch.setattr("raftlog.cli.doctor.disk.os.statvfs", nearly_full)
    assert check_room(str(tmp_path), 2**62)[0].level == "problem", "the reserve is at most a twentieth"
    assert check_room(str(tmp_path), 0)[0].level == "warning"
