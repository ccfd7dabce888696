"""The abilities of this machine are tried and missing ones named; names identify a resource's owner; dead runs are
cleaned up.

Tests that need root or a missing program are skipped, with its name.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

import pytest

from jepsen_like.clusters import __main__ as command
from jepsen_like.clusters import capabilities, clocks, disk_faults, leftovers, ownership
from jepsen_like.clusters.capabilities import CAPABILITIES, lack, require
from jepsen_like.clusters.commands import CommandFailed, run
from jepsen_like.clusters.node import NodeProcess
from jepsen_like.clusters.ownership import Subnet, Tag, folder_owners, owner
from jepsen_like.clusters.power_loss import Volumes
from raftlog.config import load_node_config
from raftlog.errors import InvalidRequest
from raftlog.model import Endpoint
from tests.support.clusters.held_port import HOST, HeldPort


def need(*names: str) -> None:
    """Skip the calling test, with the missing ability."""
    for name in names:
        if (why := lack(name)) is not None:
            pytest.skip(why)


# --- Abilities --------------------------------------------------------------------------------------------------------


def test_a_missing_ability_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(clocks, "_PLACES", ())
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    lack.cache_clear()
    try:
        told = {capability.name: lack(capability.name) for capability in CAPABILITIES}
        with pytest.raises(InvalidRequest, match=r"this machine lacks .*root"):
            require(capabilities.NAMESPACES_NEED, capabilities.NAMESPACES_GIVE)
        assert require([], ["links", "faketime", "strace"]) == {"links"}
    finally:
        lack.cache_clear()
    for name, package in {"namespaces": "iproute2", "nftables": "nftables", "faketime": "faketime"}.items():
        assert f"apt-get install {package}" in (told[name] or "")
    assert "strace is not installed" in (told["strace"] or "")
    assert told["power-loss"] is not None and told["root"] is not None


def test_the_table_has_everything_and_a_missing_expectation_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [(one.name, one.means, "strace: gone" if one.name == "strace" else "") for one in CAPABILITIES]
    monkeypatch.setattr(command, "table", lambda: rows)
    assert command.main([]) == 0
    assert command.main(["--expect", "faketime"]) == 0
    assert command.main(["--expect", "all"]) == 1
    told = capsys.readouterr()
    assert "missing: strace" in told.err and "strace: gone" in told.out
    assert all(one.name in told.out for one in CAPABILITIES)


def test_layouts_need_and_give_what_exists() -> None:
    names = {one.name for one in CAPABILITIES} | {capabilities.LINKS, capabilities.PROXIES, capabilities.DISKS}
    for some in (capabilities.NAMESPACES_NEED, capabilities.NAMESPACES_GIVE):
        assert some <= names
    for some in (capabilities.LOOPBACK_NEED, capabilities.LOOPBACK_GIVE):
        assert some <= names


# --- Ownership --------------------------------------------------------------------------------------------------------


def test_names_contain_their_owner() -> None:
    tag = Tag(4_194_304, 12)
    assert owner(tag.namespace("n1")) == owner(tag.interface("br")) == 4_194_304
    assert len(tag.interface("n1")) <= 15
    assert owner("raftlog-power-77-a_b1") == owner("raftlog-cluster-77-x") == 77
    for strange in ("eth0", "rl", "raftlog-test-x", "docker0", "raftlog-x-1-n1", "rl12", "lo"):
        assert owner(strange) is None
    assert folder_owners("python --config /tmp/raftlog-cluster-7-x/n1/node.toml /tmp/raftlog-power-8-y/data") == {7, 8}
    assert folder_owners("python -m pytest") == set()


def test_no_two_clusters_have_the_same_network() -> None:
    one, other = Subnet(), Subnet()
    assert one.number != other.number
    number = one.number
    one.close()
    again = Subnet()
    assert again.number == number or again.number != other.number
    assert again.bridged(1) == f"10.77.{again.number}.1" and again.loopback(10) == f"127.77.{again.number}.10"
    again.close()
    other.close()


# --- Remains of dead runs ---------------------------------------------------------------------------------------------


@pytest.fixture
def dead(monkeypatch: pytest.MonkeyPatch) -> int:
    """A process that this one considers dead. For all others, which may clean up at this moment, it is alive."""
    monkeypatch.setattr(leftovers, "is_alive", lambda pid: pid != os.getpid() and ownership.is_alive(pid))
    return os.getpid()


def test_processes_and_folders_of_a_dead_run_are_removed_and_those_of_a_living_one_stay(dead: int) -> None:
    abandoned = ownership.new_folder()
    kept = Path(tempfile.mkdtemp(prefix=f"{ownership.FOLDER_PREFIX}{os.getppid()}-"))
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen([*sleeper, str(abandoned)]) as orphan, subprocess.Popen([*sleeper, str(kept)]) as living:
        try:
            orphan.send_signal(signal.SIGSTOP)  # a paused node does not notice that its parent is gone
            deadline = time.monotonic() + 20
            while orphan.pid not in leftovers.abandoned_processes():  # its program has begun
                assert time.monotonic() < deadline
            removed = leftovers.remove_leftovers()
            assert f"process {orphan.pid}" in removed and f"folder {abandoned.name}" in removed
            assert orphan.wait(20) == -9 and living.poll() is None
            assert kept.exists() and not abandoned.exists()
        finally:
            orphan.kill()
            living.kill()
    kept.rmdir()


def test_networks_of_a_dead_run_are_removed(dead: int) -> None:
    need(capabilities.ROOT, capabilities.NAMESPACES)
    tag = Tag.new()
    name, outer = tag.namespace("n1"), tag.interface("n1")
    run("ip", "netns", "add", name)
    run("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", name)
    assert f"network namespace {name}" in leftovers.remove_leftovers()
    assert not (leftovers.NAMESPACES / name).exists() and not (leftovers.INTERFACES / outer).exists()
    leftovers.remove_namespace(name)
    leftovers.remove_interface(outer)


def test_everything_of_a_killed_run_is_removed() -> None:
    need(capabilities.ROOT, capabilities.NAMESPACES)
    code = (
        "import os, signal\n"
        "from jepsen_like.clusters.namespaces import Network\n"
        "from jepsen_like.clusters.ownership import Subnet, Tag, new_folder\n"
        "new_folder(), Network(Tag.new(), Subnet(), ['n1', 'n2']).make()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with subprocess.Popen([sys.executable, "-P", "-c", code]) as killed:
        assert killed.wait(60) == -9
    leftovers.remove_leftovers()
    for folder in (leftovers.NAMESPACES, leftovers.INTERFACES, Path(tempfile.gettempdir())):
        assert not [name for name in os.listdir(folder) if owner(name) == killed.pid]


def test_a_resource_that_vanishes_by_itself_is_no_failure_and_one_that_stays_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leftovers, "GONE_SECONDS", 0.05)
    leftovers._unless_gone(Path("/nowhere"), "false")
    with pytest.raises(CommandFailed):
        leftovers._unless_gone(Path("/proc"), "false")


# --- Disks ------------------------------------------------------------------------------------------------------------


def test_a_full_disk_refuses_writes_until_it_is_emptied() -> None:
    need(capabilities.POWER_LOSS)
    with Volumes() as volumes:
        volume = volumes.add("disk", 8 * 1024 * 1024)
        assert disk_faults.refusal(volume) is None
        assert disk_faults.fill(volume) > 1024 * 1024
        assert disk_faults.refusal(volume) == errno.ENOSPC
        disk_faults.empty(volume)
        disk_faults.empty(volume)
        assert disk_faults.refusal(volume) is None
        disk = disk_faults.device_of(volume)
        assert disk.startswith("/dev/loop")
    with pytest.raises(CommandFailed, match="not mounted"):
        disk_faults.device_of(volume)


def test_a_read_only_disk_refuses_open_files_and_is_intact_after_its_repair() -> None:
    need(capabilities.READ_ONLY)
    with Volumes() as volumes:
        volume = volumes.add("disk", 8 * 1024 * 1024)
        path = Path(volume.data, "file")
        with path.open("wb", buffering=0) as file:
            file.write(b"before")
            os.fsync(file.fileno())
            disk_faults.turn_read_only(volume)
            with pytest.raises(OSError, match=r"Read-only|Input/output"):
                file.write(b"after")
                os.fsync(file.fileno())
        assert disk_faults.refusal(volume) in {errno.EROFS, errno.EIO}
        disk_faults.repair(volume)
        assert disk_faults.refusal(volume) is None and path.read_bytes() == b"before"


# --- Nodes ------------------------------------------------------------------------------------------------------------


def test_a_nodes_settings_are_written_to_its_file(tmp_path: Path) -> None:
    node = NodeProcess(
        "n1",
        0,
        tmp_path,
        tmp_path / 'a "strange" folder',
        Endpoint("127.77.1.10", 9640),
        Endpoint("127.77.1.10", 9641),
        {1: Endpoint("127.77.1.101", 9641), 2: Endpoint("127.77.1.102", 9641)},
        settings={"retention_check_ms": "5000"},
    )
    read = load_node_config(node._settings_text())
    assert read.data_folder == str(tmp_path / 'a "strange" folder') and read.retention_check_ms == 5000
    assert read.api.listen.endpoint == node.api and read.data.listen.endpoint == node.data
    assert {peer: config.data.endpoint for peer, config in read.peers.items()} == {
        "1": node.peers[1],
        "2": node.peers[2],
    }


def test_a_node_that_never_ran_is_no_process(tmp_path: Path) -> None:
    here = Endpoint("127.0.0.1", 1)
    node = NodeProcess("n1", 0, tmp_path, tmp_path, here, here, {})
    assert node.pid is None and node.reap() is None and node.stop() is None and node.log_tail() == ""


def test_clock_files_are_replaced_atomically(tmp_path: Path) -> None:
    wall = clocks.Clocks(tmp_path / "clocks", ["n1", "n2"], "/lib/faketime.so")
    file = Path(wall.environment("n1")["FAKETIME_TIMESTAMP_FILE"])
    assert file.read_text() == "+0.000000\n"
    wall.set("n1", -288.5)
    assert file.read_text() == "-288.500000\n"
    assert Path(wall.environment("n2")["FAKETIME_TIMESTAMP_FILE"]).read_text() == "+0.000000\n"
    assert wall.environment("n1")["LD_PRELOAD"] == "/lib/faketime.so"


@pytest.mark.parametrize("ahead", [-288, 0, 3600])
async def test_a_nodes_api_shows_its_clock(ahead: int) -> None:
    date = format_datetime(datetime.fromtimestamp(time.time() + ahead, UTC), usegmt=True)
    async with answering(f"HTTP/1.1 503 No\r\nDATE: {date}\r\nContent-Length: 0\r\n\r\n".encode()) as api:
        assert await clocks.offset_of(api) == pytest.approx(ahead, abs=3)


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nDate: noon\r\n\r\n", b"x" * 100_000]
)
async def test_a_node_without_a_date_is_no_proof(answer: bytes) -> None:
    async with answering(answer) as api:
        with pytest.raises(clocks.ClockUnreadable):
            await clocks.offset_of(api)


async def test_a_node_that_is_down_has_no_date(held: HeldPort) -> None:
    with pytest.raises(clocks.ClockUnreadable):
        await clocks.offset_of(Endpoint(HOST, held.number))


@contextlib.asynccontextmanager
async def answering(content: bytes) -> AsyncIterator[Endpoint]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(content)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])


def test_the_shared_memory_of_libfaketime_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "SHARED_MEMORY", tmp_path)
    for name in ("faketime_shm_77", "sem.faketime_sem_77", "faketime_shm_777"):
        (tmp_path / name).touch()
    clocks.forget(77)
    clocks.forget(77)
    assert [path.name for path in tmp_path.iterdir()] == ["faketime_shm_777"]
