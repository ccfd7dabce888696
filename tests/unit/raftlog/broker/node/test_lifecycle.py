"""A refused start leaves the folder unchanged; a stop that hangs ends nevertheless."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from metadata.view import BrokerChanged
from raftlog.broker import replication_links
from raftlog.broker.identity import CLEAN_SHUTDOWN_FILE, STARTS_FILE, init_data_folder
from raftlog.broker.node import main as node_main
from raftlog.broker.node import node as lifecycle
from raftlog.config import NodeConfig, load_node_config
from raftlog.errors import DiskFailed, InvalidRequest
from raftlog.model import BrokerId, BrokerRecord, DirectoryId, Endpoint, Incarnation
from raftlog.system.disk import LocalDisk
from tests.support.recorded import recorded

PATIENCE_S = 60.0


@pytest.fixture
def folder(tmp_path: Path) -> str:
    path = str(tmp_path / "data")
    init_data_folder(path, cluster_id="c", node_id=0, voters={0: Endpoint("127.0.0.1", 0)})
    return path


def settings(api_port: int = 0) -> str:
    return f'[api.listen]\nhost = "127.0.0.1"\nport = {api_port}\n[data.listen]\nhost = "127.0.0.1"\nport = 0\n'


async def fail_to_start(folder: str, api_port: int = 0) -> BaseException:
    """The message of a node that cannot start, after it has stopped in order."""
    interval = sys.getswitchinterval()
    node = lifecycle.Node(load_node_config(settings(api_port)), folder)
    try:
        with pytest.raises((InvalidRequest, DiskFailed)) as caught:
            await node.start()
        return caught.value
    finally:
        await node.stop()
        sys.setswitchinterval(interval)


def is_marked_clean(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, CLEAN_SHUTDOWN_FILE))


async def test_an_unprepared_folder_can_still_be_prepared_after_it_was_refused(tmp_path: Path) -> None:
    """The refusal names the remedy, which must still work."""
    with pytest.raises(InvalidRequest, match="raftlog server init"):
        lifecycle.Node(load_node_config(settings()), str(tmp_path))
    assert os.listdir(tmp_path) == []
    init_data_folder(str(tmp_path), cluster_id="c", node_id=0, voters={0: Endpoint("127.0.0.1", 0)})


async def test_a_folder_in_use_is_refused_and_no_start_is_counted(folder: str) -> None:
    held = LocalDisk(folder).lock(lifecycle.LOCK_FILE)
    with contextlib.closing(held), pytest.raises(DiskFailed, match="locked by another process"):
        lifecycle.Node(load_node_config(settings()), folder)
    assert not LocalDisk(folder).exists(STARTS_FILE)
    assert is_marked_clean(folder)


async def test_too_few_descriptors_are_refused(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 100))
    with pytest.raises(InvalidRequest, match="ulimit"):
        lifecycle.Node(load_node_config(settings()), folder)
    assert is_marked_clean(folder), "nothing was touched"


async def test_a_port_in_use_is_named_and_the_folder_stays_clean(folder: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port}" in str(await fail_to_start(folder, port))
    assert is_marked_clean(folder)


async def test_no_clean_marker_over_logs_that_were_not_recovered(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    os.remove(os.path.join(folder, CLEAN_SHUTDOWN_FILE))  # it crashed

    def fail(broker: object) -> None:
        raise DiskFailed("read: it is broken")

    monkeypatch.setattr(lifecycle.Broker, "load", fail)
    assert "it is broken" in str(await fail_to_start(folder))
    assert not is_marked_clean(folder)


class Dialing:
    """A `ReconnectingDialer` that dials no peer."""

    made: ClassVar[list[tuple[str, int]]] = []
    closed: ClassVar[list[tuple[str, int]]] = []

    def __init__(self, host: str, port: int, *others: object, **options: object) -> None:
        self._where = (host, port)
        self.made.append(self._where)

    async def close(self) -> None:
        self.closed.append(self._where)


async def test_a_leader_that_returns_at_another_address_is_dialed_there(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication_links, "ReconnectingDialer", Dialing)
    dialers: list[replication_links.ReplicationDialer] = recorded(monkeypatch, lifecycle, "ReplicationDialer")
    node = lifecycle.Node(load_node_config(settings()), folder)
    try:
        dialers[0].connect(BrokerId(1))
        assert Dialing.made == [], "nobody knows where it is"
        for index, port in enumerate((7, 7, 8), start=1):
            where = Endpoint("there", port)
            directory = DirectoryId(bytes(16))
            record = BrokerRecord(BrokerId(1), Incarnation(index), directory, index, where, where, "", False, 1)
            node.broker.on_events(index, [BrokerChanged(record)])
        assert Dialing.made == [("there", 7), ("there", 8)]
    finally:
        await node.stop()
    assert Dialing.closed == Dialing.made


_HANGS = """
import sys, threading, time
from metadata.view import BrokerChanged
from raftlog.broker import replication_links
from raftlog.broker.node import main as node_main

class Stuck:
    def __init__(self, *_): pass
    def stop_soon(self): pass
    async def start(self): pass
    async def wait(self): return 0
    async def stop(self):
        await node_main.asyncio.to_thread(time.sleep, 600)  # an fsync that does not return

node_main.Node = Stuck
node_main.read_settings = lambda path: (node_main.NodeConfig(shutdown_timeout_ms=200), "")
node_main.run_node("")
print("not reached")
"""


def test_a_stop_that_hangs_ends_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", _HANGS], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 1
    assert "did not stop in time" in done.stdout and "not reached" not in done.stdout


class Described:
    """A node that ends as soon as it has started."""

    made: ClassVar[list[tuple[NodeConfig, str]]] = []
    """The settings and the data folder of each."""
    workers: ClassVar[list[object]] = []

    def __init__(self, config: NodeConfig, folder: str, stalls: object) -> None:
        self.made.append((config, folder))

    def stop_soon(self) -> None: ...

    async def start(self) -> None: ...

    async def wait(self) -> int:
        return 0

    async def stop(self) -> None: ...


def test_relative_paths_start_at_the_nodes_settings_and_absolute_ones_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_main, "Node", Described)
    path = tmp_path / "node.toml"
    path.write_text(settings())
    assert node_main.run_node(str(path)) == 0
    config, folder = Described.made.pop()
    assert (config.tls, folder) == (None, str(tmp_path / "data"))
    tls = '[tls]\ncertificate = "node.pem"\nkey = "/etc/keys/node.key"\nauthority = "tls/authority.pem"\n'
    path.write_text(settings() + tls)
    assert node_main.run_node(str(path)) == 0
    config, _ = Described.made.pop()
    assert config.tls is not None
    assert config.tls.certificate == str(tmp_path / "node.pem")
    assert config.tls.key == "/etc/keys/node.key"
    assert config.tls.authority == str(tmp_path / "tls" / "authority.pem")
