"""`raftlog partition verify` on a stopped node's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from partitions.opening.folders import folder_of, prepare_folders
from raftlog.api.cluster import NodeInfo
from raftlog.api.scrubs import Scrub, ScrubFinding, StartScrub
from raftlog.broker.identity import init_data_folder, new_cluster_id
from raftlog.cli.commands.partition import _scrub, _text, _verify_nodes
from raftlog.cli.terminal.connection import Connection
from raftlog.config import TopicConfig
from raftlog.errors import RetriableError
from raftlog.model import Endpoint, TopicId, TopicPartition
from raftlog.system.disk import LocalDisk
from tests.support.cli_runner import Result, run
from tests.support.partitions.storage import append, recover_log, settle

TOPIC = bytes(range(16)).hex()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of node 3, with one replica of several segments."""
    init_data_folder(str(tmp_path), cluster_id=new_cluster_id(), node_id=3, voters={3: Endpoint("127.0.0.1", 9671)})
    disk = LocalDisk(str(tmp_path))
    prepare_folders(disk)
    path = folder_of(TopicPartition(TopicId(bytes.fromhex(TOPIC)), 4))
    log, _ = recover_log(disk, path, TopicConfig(segment_bytes=1024), clean_shutdown=False)
    for _ in range(20):
        append(log, count=3)
        settle(log)
    log.close(clean=True)
    return tmp_path


def segment(folder: Path) -> Path:
    return sorted((folder / "partitions" / f"{TOPIC}-4").glob("*.log"))[0]


def verify(folder: Path, *arguments: str) -> Result:
    return run("partition", "verify", *arguments, "--data-folder", str(folder))


def test_a_folder_without_damage(folder: Path) -> None:
    result = verify(folder)
    assert result.code == 0, result.stderr
    shown = verify(folder, "-o", "json").json
    assert shown["healthy"] is True and shown["bytes_read"] > 1000
    assert [(r["node_id"], r["topic"], r["partition"], r["findings"]) for r in shown["replicas"]] == [(3, TOPIC, 4, [])]


def test_damage_is_named_and_gives_the_exit_code(folder: Path) -> None:
    data = bytearray(segment(folder).read_bytes())
    data[100] ^= 1
    segment(folder).write_bytes(data)
    result = verify(folder, TOPIC, "4")
    assert result.code == 10
    assert f"{TOPIC}/4 on node 3: 00000000000000000000.log at byte 0: " in result.text
    assert result.table("Topic")[1][:3] == [TOPIC, "4", "3"]
    assert segment(folder).read_bytes() == bytes(data), "nothing was changed"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("orders",), "give the topic's id"), ((TOPIC, "5"), "has no replica"), ((TOPIC, "-1"), "-1")],
)
def test_missing_folders_and_replicas(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    """S11."""
    result = verify(folder, *arguments)
    assert result.code in (1, 2) and message in result.stderr


def test_a_folder_belongs_to_one_node(folder: Path) -> None:
    assert verify(folder, "--node", "3").code == 2


def test_a_folder_of_no_node(tmp_path: Path) -> None:
    result = verify(tmp_path)
    assert result.code == 1 and "is not prepared" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_by_a_node(folder: Path) -> None:
    lock = LocalDisk(str(folder)).lock("lock")
    try:
        result = verify(folder)
    finally:
        lock.close()
    assert result.code == 1 and "locked by another process" in result.stderr


async def test_a_node_that_restarts_meanwhile_is_not_reported_as_intact() -> None:
    """Its findings are lost."""

    class Api:
        def __init__(self) -> None:
            self.answers = [Scrub(0, True, 5, 0, 100, 10, []), Scrub(0, False, 0, 0, 0, 0, [])]

        def of(self, address: str) -> Api:
            return self

        async def change(self, *_: object) -> Scrub:
            return self.answers.pop(0)

        async def get(self, *_: object) -> Scrub:
            return self.answers.pop(0)

        async def __aenter__(self) -> Api:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

    node = NodeInfo(2, "127.0.0.1:1", "127.0.0.1:2")
    with pytest.raises(RetriableError, match="node 2 was restarted"):
        await _scrub(Api(), node, StartScrub())  # type: ignore[arg-type]


async def test_unreachable_nodes_are_named_and_the_others_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown state is not healthy; the other nodes' findings are shown nevertheless."""
    nodes = [
        NodeInfo(0, "127.0.0.1:1", "127.0.0.1:2", fenced=True),
        NodeInfo(1, "127.0.0.1:3", "127.0.0.1:4"),
        NodeInfo(2, "127.0.0.1:5", "127.0.0.1:6"),
    ]

    async def scrub(cluster: object, node: NodeInfo, wanted: object) -> Scrub:
        if node.id == 1:
            raise RetriableError("connection_lost", "it went away")
        return Scrub(0, False, 3, 3, 100, 100, [ScrubFinding("orders", 1, "a.log at byte 0: rotten")])

    monkeypatch.setattr("raftlog.cli.commands.partition._scrub", scrub)
    cluster = Connection(bootstrap="127.0.0.1:1").api()
    found = await _verify_nodes(cluster, nodes, None, None, None)
    assert not found.healthy and found.checked == 3
    assert [(r.node_id, r.topic, r.findings) for r in found.replicas] == [(2, "orders", ["a.log at byte 0: rotten"])]
    assert found.unchecked == ["node 0 is fenced", "node 1: connection_lost: it went away"]
    assert "not checked: node 0 is fenced" in _text(found, wide=False)
    nodes[2] = nodes[0]
    assert not (await _verify_nodes(cluster, nodes, None, None, None)).healthy
