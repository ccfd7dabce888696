"""Transactions on real processes: visible completely or not at all, zombies fenced, programs and nodes killed (S13)."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from itertools import chain
from pathlib import Path

import pytest

from raftlog import Admin, Consumer, Producer, commit_together
from raftlog.cli.nodes.local_cluster import LocalCluster
from raftlog.client import TransactionState
from raftlog.errors import InvalidRequest
from tests.support.clusters.cluster import PATIENCE_S, all_in_sync, eventually, running_cluster
from tests.support.clusters.transformer import transform

pytestmark = pytest.mark.integration

PARTITIONS = 3
SOAK_KILLS = int(os.environ.get("RAFTLOG_TRANSFORMER_KILLS", "20"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with running_cluster() as running:
        yield running


@pytest.fixture
async def admin(cluster: LocalCluster) -> AsyncIterator[Admin]:
    async with Admin(cluster.bootstrap) as made:
        yield made


async def read_all(cluster: LocalCluster, topic: str, *, isolation: str = "read_committed") -> list[bytes]:
    """Read everything up to the end of the readable part."""
    return list(chain.from_iterable(await read_partitions(cluster, topic, isolation=isolation)))


async def read_partitions(cluster: LocalCluster, topic: str, *, isolation: str = "read_committed") -> list[list[bytes]]:
    """Return the records of each partition, in order."""
    found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    async with Consumer(cluster.bootstrap, topic, isolation=isolation, max_wait_ms=50) as consumer:
        async with asyncio.timeout(PATIENCE_S):
            while len(consumer.lag) < PARTITIONS or any(consumer.lag.values()):
                for record in await consumer.poll(timeout=0.05):
                    found[record.partition].append(record.value or b"")
    return found


async def test_a_committed_transaction_is_visible_completely_and_an_aborted_one_never_s13(
    cluster: LocalCluster, admin: Admin
) -> None:
    await admin.create_topic("whole", partitions=PARTITIONS)
    async with Producer(cluster.bootstrap, transactional_id="whole") as producer, Producer(cluster.bootstrap) as other:
        async with producer.transaction(wait="visible") as transaction:
            await transaction.send_many(
                "whole", [b"in %d" % i for i in range(300)], keys=[b"%d" % i for i in range(300)]
            )
        assert sorted(await read_all(cluster, "whole")) == sorted(b"in %d" % i for i in range(300))
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction() as transaction:
                await transaction.send_and_wait("whole", b"out")
                raise ZeroDivisionError
        # While one is open, no reader sees records beyond it, from any producer.
        async with producer.transaction(wait="visible") as transaction:
            await transaction.send_and_wait("whole", b"open", partition=0)
            await other.send_and_wait("whole", b"plain", partition=0)
            assert sorted(await read_all(cluster, "whole")) == sorted(b"in %d" % i for i in range(300))
        seen = Counter(await read_all(cluster, "whole"))
        assert len(seen) == 302 and seen[b"open"] == seen[b"plain"] == 1 and b"out" not in seen
        assert b"out" in await read_all(cluster, "whole", isolation="read_uncommitted")


async def test_a_zombie_is_fenced_and_its_records_are_never_visible_s13(cluster: LocalCluster, admin: Admin) -> None:
    await admin.create_topic("zombie", partitions=PARTITIONS)
    async with (
        Producer(cluster.bootstrap, transactional_id="zombie") as zombie,
        Producer(cluster.bootstrap, transactional_id="zombie") as successor,
    ):
        transaction = zombie.transaction()
        with pytest.raises(InvalidRequest) as caught:
            async with transaction:
                await transaction.send_and_wait("zombie", b"zombie")
                async with successor.transaction() as other:
                    other.send("zombie", b"successor")
        assert caught.value.code == "producer_fenced" and transaction.state is TransactionState.UNKNOWN
        async with successor.transaction(wait="visible") as other:
            other.send("zombie", b"again")
    assert sorted(await read_all(cluster, "zombie")) == [b"again", b"successor"]


async def test_writers_commit_together_with_a_position_once_s13(cluster: LocalCluster, admin: Admin) -> None:
    """Two drivers publish the same piece of work: the second one learns that it is already published."""
    await admin.create_topic("together", partitions=PARTITIONS)
    for attempt in range(2):
        async with (
            Producer(cluster.bootstrap) as a,
            Producer(cluster.bootstrap) as b,
            a.transaction() as one,
            b.transaction() as other,
        ):
            await asyncio.gather(one.send_many("together", [b"a"] * 10), other.send_many("together", [b"b"] * 10))
            if attempt == 0:
                await commit_together([one, other], positions={"work/1": (-1, 7)}, wait="visible")
            else:
                with pytest.raises(InvalidRequest) as caught:
                    await commit_together([one, other], positions={"work/1": (-1, 7)})
                assert caught.value.code == "position_taken"
                assert (one.state, other.state) == (TransactionState.ABORTED, TransactionState.ABORTED)
    assert await eventually_all(cluster, "together") == Counter({b"a": 10, b"b": 10})


async def eventually_all(cluster: LocalCluster, topic: str) -> Counter[bytes]:
    """Wait until no transaction is open, and read all committed records."""

    async def look() -> bool:
        ends = []
        for isolation in ("read_committed", "read_uncommitted"):
            async with Consumer(cluster.bootstrap, topic, start="latest", isolation=isolation) as consumer:
                ends.append(consumer.positions)
        return ends[0] == ends[1]

    await eventually(look, f"nothing is open in {topic}")
    return Counter(await read_all(cluster, topic))


# --- A transformer that is killed ------------------------------------------------------------------------------------


async def fill(cluster: LocalCluster, admin: Admin, source: str, sink: str, count: int) -> list[bytes]:
    for topic in (source, sink):
        await admin.create_topic(topic, partitions=PARTITIONS)
    values = [b"value %05d" % i for i in range(count)]
    async with Producer(cluster.bootstrap) as producer:
        await producer.send_many(source, values, keys=[b"%d" % i for i in range(count)])
    return values


def start_transformer(cluster: LocalCluster, source: str, sink: str) -> subprocess.Popen[bytes]:
    arguments = (cluster.bootstrap, source, sink, f"{source}-group", f"{source}-transformer")
    command = [sys.executable, "-P", "-m", "tests.support.clusters.transformer", *arguments]
    root = str(Path(__file__).parents[3])
    path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root, env={**os.environ, "PYTHONPATH": path})


async def survive(cluster: LocalCluster, admin: Admin, name: str, records: int, kills: int) -> None:
    """Kill it at random moments after some progress, and finally let it finish: the sink is the image of the source,
    exactly and in order, and the group has committed everything that it read."""
    dice = random.Random(name)
    values = await fill(cluster, admin, f"{name}-source", f"{name}-sink", records)
    loop = asyncio.get_running_loop()
    killed = 0
    while True:
        process = start_transformer(cluster, f"{name}-source", f"{name}-sink")
        assert process.stdout is not None
        try:
            for _ in range(dice.randrange(1, 4)):
                async with asyncio.timeout(PATIENCE_S):
                    line = await loop.run_in_executor(None, process.stdout.readline)
                if not line:
                    break
            if line and killed < kills:
                await asyncio.sleep(dice.random() * 0.02)  # anywhere between two commits
                killed += 1
                continue
            async with asyncio.timeout(PATIENCE_S):
                await loop.run_in_executor(None, process.stdout.read)
            assert process.wait() == 0
            break
        finally:
            process.kill()
            process.stdout.close()
            process.wait()
    assert killed == kills, "it finished before it was killed often enough: give it more records"
    assert await eventually_all(cluster, f"{name}-sink") == Counter(map(transform, values))
    source, sink = await read_partitions(cluster, f"{name}-source"), await read_partitions(cluster, f"{name}-sink")
    assert [list(map(transform, partition)) for partition in source] == sink
    committed = {one.partition: one.offset for one in await admin.group_offsets(f"{name}-source-group")}
    assert committed == {number: len(partition) for number, partition in enumerate(source)}


async def test_a_killed_transformer_continues_exactly_once_s13(cluster: LocalCluster, admin: Admin) -> None:
    await survive(cluster, admin, "transformer", records=400, kills=2)


@pytest.mark.soak
async def test_a_transformer_that_is_killed_repeatedly_s13(cluster: LocalCluster, admin: Admin) -> None:
    await survive(cluster, admin, "long-transformer", records=200 * SOAK_KILLS, kills=SOAK_KILLS)


# --- A quorum leader that is killed ----------------------------------------------------------------------------------


async def test_commits_are_known_although_the_quorums_leader_is_killed_s13(cluster: LocalCluster, admin: Admin) -> None:
    await admin.create_topic("failover", partitions=PARTITIONS)
    await all_in_sync(admin, "failover")
    committed: list[bytes] = []
    leader = (await admin.quorum()).leader
    async with Producer(cluster.bootstrap, transactional_id="failover", linger_ms=1) as producer:
        for number in range(12):
            value = b"%d" % number
            async with producer.transaction() as transaction:
                await transaction.send_many("failover", [value] * 6)
                if number == 3:
                    await transaction.drain()
                    await asyncio.to_thread(cluster.kill_node, leader)
            assert transaction.state is TransactionState.COMMITTED
            committed += [value] * 6
    await asyncio.to_thread(cluster.start_node, leader)
    assert await eventually_all(cluster, "failover") == Counter(committed)
    await all_in_sync(admin, "failover")
