"""An acknowledgement with `acks=all` means fsynced on every in-sync replica; with `acks=1`, on the leader.

Three unmodified nodes, with sockets and quorum threads, run in this process on real folders, but the fsync of a node's
partitions can be withheld. A written record is then in the page cache, and on disk at every other replica: only the one
fsync is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import aiohttp
import pytest
import pytest_asyncio

from partitions.driver.driver import PartitionDriver
from partitions.opening.folders import FOLDER
from raftlog import Admin
from raftlog.api.topics import TopicDescription
from raftlog.broker.node import node as lifecycle
from raftlog.cli.nodes.local_cluster import SETTINGS_FILE, LocalCluster, free_base_port
from raftlog.config import load_node_config
from raftlog.model import TopicId, TopicPartition
from raftlog.ports import Buffer, File
from raftlog.system.disk import LocalDisk
from tests.support.clusters.cluster import PATIENCE_S, all_in_sync, eventually, known_everywhere
from tests.support.http.api_client import eventually as holds_soon

pytestmark = pytest.mark.integration

TOPIC = "t"
LOOK_S = 0.3
"""The time for which the absence of an answer is observed."""


class Gate:
    """Whether fsyncs of partitions return. `waiting` of them do not."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self._lock = threading.Lock()
        self.waiting = 0

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def pass_through(self) -> None:
        with self._lock:
            self.waiting += 1
        try:
            assert self._open.wait(PATIENCE_S), "the gate was never opened"
        finally:
            with self._lock:
                self.waiting -= 1


class GatedFile:
    """A file whose fsyncs pass the gate first; everything else is the file's own."""

    def __init__(self, file: File, gate: Gate) -> None:
        self._file = file
        self._gate = gate

    def fsync(self) -> None:
        self._gate.pass_through()
        self._file.fsync()

    def pwritev_stable(self, buffers: Sequence[Buffer], position: int) -> int:
        self._gate.pass_through()
        return self._file.pwritev_stable(buffers, position)

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


class GatedDisk(LocalDisk):
    """The real disk; partitions' files are gated, the quorum's are not."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.gate = Gate()

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, bulk: bool = False) -> File:
        file = super().open(path, create=create, exclusive=exclusive, bulk=bulk)
        return GatedFile(file, self.gate) if path.startswith(FOLDER) else file  # type: ignore[return-value]


@dataclass
class Gated:
    """Three nodes with one topic of one partition of one record, all in sync."""

    cluster: LocalCluster
    nodes: list[lifecycle.Node]
    gates: list[Gate]
    session: aiohttp.ClientSession
    description: TopicDescription

    @property
    def leader(self) -> int:
        leader = self.description.partitions[0].leader
        assert leader is not None
        return leader

    @property
    def followers(self) -> list[int]:
        return [node for node in self.description.partitions[0].replicas if node != self.leader]

    def driver(self, node_id: int) -> PartitionDriver:
        driver = self.nodes[node_id].broker.manager.driver(TopicPartition(TopicId(self.description.id_bytes), 0))
        assert driver is not None
        return driver

    def stable_ends(self) -> list[int]:
        """The fsynced ends, by node."""
        return [self.driver(node).log.stable_end_offset for node in range(3)]

    async def produce(self, acks: str, value: str = "x") -> int:
        """Produce one record at the leader; returns its offset once it is acknowledged."""
        url = f"http://{self.cluster.nodes[self.leader].api}/v1/topics/{TOPIC}/records?acks={acks}"
        async with self.session.post(url, json={"records": [{"value": value}]}) as answer:
            assert answer.status == 200, await answer.text()
            return int((await answer.json())["offsets"][0]["offset"])

    async def readable_end(self) -> int:
        url = f"http://{self.cluster.nodes[self.leader].api}/v1/topics/{TOPIC}/partitions/0/offsets"
        async with self.session.get(url) as answer:
            return int((await answer.json())["latest"])


@pytest_asyncio.fixture
async def gated(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gated]:
    disks: list[GatedDisk] = []

    def gated_disk(root: str) -> GatedDisk:
        disks.append(GatedDisk(root))
        return disks[-1]

    monkeypatch.setattr(lifecycle, "LocalDisk", gated_disk)
    monkeypatch.setattr(lifecycle, "configure_logging", lambda *_, **__: None)
    # A withheld follower would leave the ISR after a while, as it should.
    settings = {"timing": "{replica_lag_max_ms = 600000}"}
    cluster = LocalCluster(str(tmp_path_factory.mktemp("gated")), 3, free_base_port(3), settings=settings)
    interval = sys.getswitchinterval()
    nodes = []
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(sys.setswitchinterval, interval)
        for config, folder in prepare(cluster):
            node = lifecycle.Node(load_node_config(config), folder)
            nodes.append(node)
            stack.push_async_callback(node.stop)
        stack.callback(lambda: [disk.gate.open() for disk in disks])
        await asyncio.gather(*(node.start() for node in nodes))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        async with Admin(cluster.bootstrap) as admin:
            await eventually(lambda: _all_alive(admin), "three nodes are registered")
            await admin.create_topic(TOPIC, 1, replication_factor=3)
            await all_in_sync(admin, TOPIC)
        described = await known_everywhere(cluster, TOPIC)
        made = Gated(cluster, nodes, [disk.gate for disk in disks], session, described)
        # Every replica exists, follows, and has its files.
        assert await made.produce("all") == 0
        assert made.stable_ends() == [1, 1, 1]
        yield made


def prepare(cluster: LocalCluster) -> list[tuple[str, str]]:
    """Folders and settings as for processes: (text of `node.toml`, data folder) by node."""
    cluster.prepare()
    found = []
    for node in cluster.nodes:
        cluster.write_settings(node)
        with open(f"{node.folder}/{SETTINGS_FILE}") as file:
            found.append((file.read(), f"{node.folder}/data"))
    return found


async def _all_alive(admin: Admin) -> bool:
    return [node.fenced for node in (await admin.cluster()).nodes] == [False] * 3


async def is_withheld(answer: asyncio.Task[int]) -> bool:
    """It is not answered, although there is time."""
    done, _ = await asyncio.wait([answer], timeout=LOOK_S)
    return not done


async def test_all_waits_for_the_fsync_of_every_in_sync_replica(gated: Gated) -> None:
    for expected, withheld in enumerate((gated.leader, *gated.followers), start=1):
        gate = gated.gates[withheld]
        await holds_soon(lambda: gated.stable_ends() == [expected] * 3)  # noqa: B023
        gate.close()
        answer = asyncio.create_task(gated.produce("all"))
        # All have the record, the others have it on disk, and one waits in its fsync.
        others = [node for node in range(3) if node != withheld]
        await holds_soon(lambda: gate.waiting > 0)  # noqa: B023
        await holds_soon(lambda: all(gated.stable_ends()[node] == expected + 1 for node in others))  # noqa: B023
        assert gated.driver(withheld).log.log_end_offset == expected + 1
        assert await is_withheld(answer)
        assert gated.stable_ends()[withheld] == expected
        assert await gated.readable_end() == expected, "S3: nor may anybody read it"
        gate.open()
        assert await answer == expected
        assert await gated.readable_end() == expected + 1
        assert gated.stable_ends() == [expected + 1] * 3


async def test_all_waits_for_two_fsyncs_that_end_one_after_the_other(gated: Gated) -> None:
    one, other = gated.followers
    for node in (one, other):
        gated.gates[node].close()
    answer = asyncio.create_task(gated.produce("all"))
    await holds_soon(lambda: all(gated.gates[node].waiting > 0 for node in (one, other)))
    gated.gates[one].open()
    await holds_soon(lambda: gated.stable_ends()[one] == 2)
    assert await is_withheld(answer)
    gated.gates[other].open()
    assert await answer == 1


async def test_one_waits_for_the_leaders_fsync_only(gated: Gated) -> None:
    for node in gated.followers:
        gated.gates[node].close()
    assert await gated.produce("1") == 1
    assert await gated.readable_end() == 1, "S3: acknowledged by one is not replicated"
    assert [gated.stable_ends()[node] for node in gated.followers] == [1, 1]
    for node in gated.followers:
        gated.gates[node].open()
    await holds_soon(lambda: gated.stable_ends() == [2, 2, 2])

    gate = gated.gates[gated.leader]
    gate.close()
    answer = asyncio.create_task(gated.produce("1"))
    await holds_soon(lambda: gate.waiting > 0)
    await holds_soon(lambda: [gated.stable_ends()[node] for node in gated.followers] == [3, 3])
    assert await is_withheld(answer)
    gate.open()
    assert await answer == 2
