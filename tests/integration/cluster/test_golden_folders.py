"""Data folders of every format since 0.1.0 are opened with today's code: all is there, and work goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raftlog import Admin, Consumer, Producer
from raftlog.broker.identity import CLEAN_SHUTDOWN_FILE
from raftlog.cli.nodes.local_cluster import LocalCluster, free_base_port
from raftlog.version import FEATURE_LEVEL
from tests.support.clusters.cluster import PATIENCE_S, stop_and_check

pytestmark = pytest.mark.integration

FOLDERS = Path(__file__).parents[2] / "golden" / "folders"
KEPT = {"offsets_retention_minutes": "5256000", "transactional_id_expiration_minutes": "5256000"}
"""The folders are older than what is kept by default."""


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[LocalCluster]:
    """A running node on an unpacked folder; it must stop in order."""
    cluster = LocalCluster(str(folder), 1, free_base_port(1), settings=KEPT)
    try:
        cluster.start()
        cluster.wait_ready(PATIENCE_S)
        yield cluster
    except BaseException:
        print(cluster.nodes[0].log_tail(30))  # noqa: T201
        cluster.kill_all()
        raise
    stop_and_check(cluster)


def unpack(archive: Path, folder: Path) -> dict[str, Any]:
    with tarfile.open(archive) as tar:
        tar.extractall(folder / "node-0", filter="data")
    found: dict[str, Any] = json.loads((folder / "node-0" / "expected.json").read_text())
    return found


async def check(bootstrap: str, expected: dict[str, Any]) -> None:
    """Check everything that the folder's clients were answered (S1, S7, S8, S13)."""
    for topic, partitions in expected["topics"].items():
        for number, values in enumerate(partitions):
            found = await values_of(bootstrap, topic, number)
            if topic == "compacted":
                assert last_of_each_key(found) == {f"k{i % 7}": f"c{i}" for i in range(193, 200)}
            else:
                assert [value for _, value in found] == values, (topic, number)
    async with Admin(bootstrap) as admin:
        assert {topic.name for topic in await admin.list_topics()} == set(expected["topics"])
        assert (await admin.describe_topic("plain")).overrides == ["retention.ms", "segment.bytes"]
        if expected["offsets"]:
            committed = {str(one.partition): one.offset for one in await admin.group_offsets("readers")}
            assert committed == expected["offsets"]
        if expected["position"] is not None:
            assert await admin.position("golden/position") == expected["position"]
        if expected["users"]:
            assert [user.name for user in await admin.list_users()] == expected["users"]


async def values_of(bootstrap: str, topic: str, partition: int) -> list[tuple[str | None, str]]:
    """Return keys and values of everything below the last stable offset."""
    found = []
    async with Consumer(bootstrap, topic, partitions=[partition]) as consumer, asyncio.timeout(PATIENCE_S):
        end = (await consumer_end(bootstrap, topic, partition)) or 0
        while consumer.positions.get(partition, 0) < end:
            for record in await consumer.poll(timeout=1):
                key = None if record.key is None else record.key.decode()
                assert record.value is not None
                found.append((key, record.value.decode()))
    return found


async def consumer_end(bootstrap: str, topic: str, partition: int) -> int:
    async with Admin(bootstrap) as admin:
        return (await admin.offsets(topic, partition)).latest


def last_of_each_key(found: list[tuple[str | None, str]]) -> dict[str | None, str]:
    return dict(found)


def test_there_is_a_folder_of_each_feature_level_that_changed_a_format() -> None:
    names = {path.name.removesuffix(".tar.gz") for path in FOLDERS.glob("*.tar.gz")}
    assert names >= {"level-1", "level-2", "level-3", "level-3-journal-3", "level-5", "level-6"}
    described = (FOLDERS / "README.md").read_text()
    assert all(f"| `{name}` |" in described for name in names)


@pytest.mark.parametrize(
    "archive", sorted(FOLDERS.glob("*.tar.gz")), ids=lambda path: path.name.removesuffix(".tar.gz")
)
async def test_a_folder_of_an_earlier_version_is_opened_and_written_on(archive: Path, tmp_path: Path) -> None:
    expected = unpack(archive, tmp_path)
    with opened(tmp_path) as cluster:
        async with Admin(cluster.bootstrap) as admin:
            assert (await admin.cluster()).feature_level == expected["feature_level"]
            await check(cluster.bootstrap, expected)
            assert (await admin.finalize_feature_level()).feature_level == FEATURE_LEVEL
            await admin.create_topic("new", 1, 1)
        async with Producer(cluster.bootstrap) as producer:
            for topic in ("plain", "new"):
                await producer.send_many(topic, [b"written by today's code"] * 10, partition=0)
    expected["topics"]["plain"][0] += ["written by today's code"] * 10
    expected["topics"]["new"] = [["written by today's code"] * 10]
    assert (tmp_path / "node-0" / "data" / CLEAN_SHUTDOWN_FILE).exists()
    with opened(tmp_path) as cluster:
        await check(cluster.bootstrap, expected)
