"""Data folders: prepared once, refused if they are not valid, and left unchanged."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from raftlog.broker.identity import (
    CLEAN_SHUTDOWN_FILE,
    NODE_FILE,
    STARTS_FILE,
    begin_start,
    init_data_folder,
    mark_clean_shutdown,
)
from raftlog.errors import DiskError, DiskFailed, DiskFull, InvalidRequest, ResourceShortage
from raftlog.model import Endpoint
from raftlog.system.disk import LocalDisk

VOTERS = {0: Endpoint("127.0.0.1", 9641)}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "data")


def prepare(folder: str) -> LocalDisk:
    init_data_folder(folder, cluster_id="c", node_id=0, voters=VOTERS)
    return LocalDisk(folder)


def refusal(folder: str) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        begin_start(LocalDisk(folder), folder)
    return caught.value


def test_starts_are_counted_and_the_marker_is_removed(folder: str) -> None:
    disk = prepare(folder)
    first = begin_start(disk, folder)
    assert (first.cluster_id, first.node_id, first.start_number, first.clean) == ("c", 0, 1, True)
    assert first.voters == VOTERS
    second = begin_start(disk, folder)
    assert (second.start_number, second.clean) == (2, False)
    assert mark_clean_shutdown(disk)
    third = begin_start(disk, folder)
    assert (third.start_number, third.clean) == (3, True)
    assert third.directory_id == first.directory_id
    assert not os.path.exists(os.path.join(folder, CLEAN_SHUTDOWN_FILE))


@pytest.mark.parametrize("error", [ResourceShortage("too many open files"), DiskFull("no room"), DiskFailed("EIO")])
def test_a_stop_whose_marker_cannot_be_written_is_not_trusted_by_the_next_start(folder: str, error: DiskError) -> None:
    class Refusing(LocalDisk):
        def replace(self, path: str, content: bytes) -> None:
            raise error

    disk = prepare(folder)
    begin_start(disk, folder)
    assert not mark_clean_shutdown(Refusing(folder))
    assert not begin_start(disk, folder).clean


def test_a_folder_is_prepared_once(folder: str) -> None:
    prepare(folder)
    before = (Path(folder) / NODE_FILE).read_bytes()
    with pytest.raises(InvalidRequest, match="already"):
        init_data_folder(folder, cluster_id="other", node_id=0, voters=VOTERS)
    assert (Path(folder) / NODE_FILE).read_bytes() == before


def test_a_half_prepared_folder_is_neither_started_nor_prepared_again(folder: str) -> None:
    prepare(folder)
    os.remove(os.path.join(folder, NODE_FILE))
    assert "raftlog server init" in refusal(folder).detail
    with pytest.raises(InvalidRequest, match="not empty"):
        prepare(folder)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format_version": 2}, "format 2"),
        ({"node_id": -1}, "damaged"),
        ({"directory_id": "no"}, "damaged"),
        ({"voters": {"first": {"host": "h", "port": 1}}}, "damaged"),
        ({"voters": {"0": {"host": "h", "port": "x"}}}, "damaged"),
        ({"voters": {"0": {"host": "h", "port": 70_000}}}, "damaged"),
        ({"voters": None}, "damaged"),
    ],
)
def test_a_damaged_identity_is_refused_by_name(folder: str, change: dict[str, object], says: str) -> None:
    prepare(folder)
    path = Path(folder) / NODE_FILE
    path.write_bytes(msgspec.json.encode(msgspec.json.decode(path.read_bytes()) | change))
    told = refusal(folder)
    assert says in told.detail and folder in told.detail
    assert not (Path(folder) / STARTS_FILE).exists()


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[]", b"{" * 100_000])
def test_invalid_identities(folder: str, content: bytes) -> None:
    prepare(folder)
    (Path(folder) / NODE_FILE).write_bytes(content)
    assert "damaged" in refusal(folder).detail


def test_a_damaged_count_of_starts_is_refused(folder: str) -> None:
    disk = prepare(folder)
    begin_start(disk, folder)
    (Path(folder) / STARTS_FILE).write_bytes(b'{"starts": -3}')
    assert STARTS_FILE in refusal(folder).detail


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"voters": {0: Endpoint("h", 1), 1: Endpoint("h", 2)}}, "one of 1, 3, 5"),
        ({"voters": {0: Endpoint("h", 1), 1: Endpoint("h", 1), 2: Endpoint("h", 2)}}, "h:1"),
        ({"voters": {2**31: Endpoint("h", 1)}}, "2147483648"),
        ({"node_id": -1}, "node id"),
        ({"cluster_id": ""}, "cluster id"),
        ({"cluster_id": "x" * 65}, "cluster id"),
    ],
)
def test_folders_that_cannot_be_prepared(folder: str, options: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        init_data_folder(folder, **({"cluster_id": "c", "node_id": 0, "voters": VOTERS} | options))  # type: ignore[arg-type]
    assert not os.path.exists(folder)


def test_a_folder_that_cannot_be_created_is_named() -> None:
    with pytest.raises(InvalidRequest, match="/proc/none"):
        prepare("/proc/none")


# --- Observers -------------------------------------------------------------------------------------------------------


def test_an_observer_is_prepared_with_the_current_voters_and_is_none_of_them(tmp_path: Path) -> None:
    voters = {0: Endpoint("h", 1), 2: Endpoint("h", 2)}
    folder = str(tmp_path / "observer")
    init_data_folder(folder, cluster_id="c", node_id=1, voters=voters, observer=True)
    assert begin_start(LocalDisk(folder), folder).voters == voters
    for number, wrong in ((0, voters), (1, {})):
        with pytest.raises(InvalidRequest, match="is an observer"):
            init_data_folder(str(tmp_path / "other"), cluster_id="c", node_id=number, voters=wrong, observer=True)
    assert not (tmp_path / "other").exists()
