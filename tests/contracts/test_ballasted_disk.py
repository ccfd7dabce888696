"""A disk with a ballast keeps the disk contract, with its whole ballast and with none left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jepsen_like.simulator.world.disk import SimDisk
from raftlog.config import MIB
from raftlog.ports import Disk
from raftlog.system.ballast import Ballast
from raftlog.system.ballasted_disk import BallastedDisk
from raftlog.system.disk import LocalDisk

from .check_disk import CHECKS


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return LocalDisk(str(tmp_path)) if request.param == "real" else SimDisk()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_disk_with_a_ballast_keeps_the_contract(check: Callable[[Disk], None], disk: Disk) -> None:
    ballast = Ballast(disk, MIB)
    assert ballast.whole
    check(_without_the_ballast(BallastedDisk(disk, ballast), disk))


def _without_the_ballast(product: Disk, disk: Disk) -> Disk:
    """In a folder below the root the checks would differ from the contract's. The ballast, whose name is open only
    while it is given up or filled, is removed instead."""
    disk.remove("ballast")
    return product


def test_a_ballast_on_a_real_disk_is_allocated_given_up_and_filled(tmp_path: Path) -> None:
    disk = LocalDisk(str(tmp_path))
    ballast = Ballast(disk, MIB)
    file = tmp_path / "ballast"
    assert (file.stat().st_size, file.stat().st_blocks * 512 >= MIB) == (MIB, True)
    assert ballast.give_up()
    assert (file.stat().st_size, ballast.whole, ballast.missing_bytes) == (MIB - MIB // 16, False, MIB // 16)
    assert BallastedDisk(disk, ballast).space().reserve_whole
    assert file.stat().st_size == MIB


def test_a_ballast_with_holes_is_filled_at_a_start(tmp_path: Path) -> None:
    file = tmp_path / "ballast"
    with file.open("wb") as sparse:
        sparse.truncate(MIB)
    assert file.stat().st_blocks * 512 < MIB
    assert Ballast(LocalDisk(str(tmp_path)), MIB).whole
    assert file.stat().st_blocks * 512 >= MIB
