"""Backups of a cluster of real processes: what a backup holds, and what the next one adds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from raftlog import Admin, Consumer, Producer
from raftlog.cli.nodes.local_cluster import LocalCluster
from tests.support.cli_runner import Result, run
from tests.support.clusters.cluster import running_cluster

pytestmark = pytest.mark.integration


async def cli(*arguments: str, bootstrap: str | None) -> Result:
    """Run a command in a thread: it brings its own event loop."""
    return await asyncio.to_thread(lambda: run(*arguments, bootstrap=bootstrap))


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with running_cluster() as running:
        yield running


@pytest.fixture
async def admin(cluster: LocalCluster) -> AsyncIterator[Admin]:
    async with Admin(cluster.bootstrap) as made:
        yield made


async def test_backups_hold_everything_and_continue_each_other(
    cluster: LocalCluster, admin: Admin, tmp_path: Path
) -> None:
    place = str(tmp_path / "backups")
    await admin.create_topic("orders", 2, 3, {"retention.ms": "-1"})
    await admin.create_topic("empty", 1, 3)
    async with Producer(cluster.bootstrap) as producer:
        await producer.send_many("orders", [b"%d" % n for n in range(500)], partition=0)
        await producer.send_many("orders", [b"x" * 10_000] * 50, partition=1)
        async with producer.transaction() as transaction:
            transaction.set_position("job", -1, 7)
            await producer.send("orders", b"in a transaction", partition=0)
    async with Consumer.subscribe(cluster.bootstrap, "billing", ["orders"], auto_offset_reset="earliest") as consumer:
        while not any(record.partition == 0 for record in await consumer.poll(timeout=1)):
            pass
        await consumer.commit()
    first = await cli("backup", "create", place, "--file-size", "64KiB", "-o", "json", bootstrap=cluster.bootstrap)
    assert first.code == 0, first.stderr
    assert (first.json["topics"], first.json["partitions"], first.json["groups"]) == (2, 3, 1)
    assert first.json["positions"] == 1 and first.json["bytes"] > 500_000 and first.json["previous"] is None

    async with Producer(cluster.bootstrap) as producer:
        await producer.send_many("orders", [b"more"] * 10, partition=1)
    second = await cli("backup", "create", place, "-o", "json", bootstrap=cluster.bootstrap)
    assert second.code == 0, second.stderr
    assert second.json["previous"] == first.json["backup"] and second.json["bytes"] < 10_000

    verified = await cli("backup", "verify", place, "-o", "json", bootstrap=None)
    assert verified.code == 0, verified.text
    assert verified.json["backups"] == 2 and verified.json["problems"] == []
    listed = (await cli("backup", "list", place, bootstrap=None)).table("BACKUP")
    assert [row[1] for row in listed[1:]] == ["complete", "complete"]

    victim = sorted((tmp_path / "backups").rglob("*.batches"))[0]
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)
    damaged = await cli("backup", "verify", place, bootstrap=None)
    assert damaged.code == 1 and "DAMAGED" in damaged.text and "PROBLEM" in damaged.text
