"""Consumer groups on real processes: members join, leave and die, the coordinator dies; nothing is skipped (S8)."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from raftlog import Admin, Consumer, Producer
from raftlog.cli.nodes.local_cluster import LocalCluster
from raftlog.client import GroupConsumer, GroupPartition
from raftlog.errors import InvalidRequest, RaftlogError
from tests.support.client.parts import MortalCalls, mortal_members
from tests.support.clusters.cluster import PATIENCE_S, all_in_sync, eventually, running_cluster

__all__ = ["mortal_members"]

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mortal_members")]

PARTITIONS = 6
TIMES: dict[str, Any] = {"session_timeout_ms": 2_000, "heartbeat_interval_ms": 200, "auto_commit_interval_ms": 100}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with running_cluster() as running:
        yield running


class Reader:
    """A member that reads continuously, and records what it got."""

    def __init__(self, cluster: LocalCluster, group: str, topic: str, seen: Counter[bytes], **settings: Any) -> None:
        self.told: list[tuple[str, list[GroupPartition]]] = []
        self.consumer = Consumer.subscribe(
            cluster.bootstrap,
            group,
            [topic],
            auto_offset_reset="earliest",
            on_assigned=lambda partitions: self.told.append(("assigned", partitions)),
            on_revoked=lambda partitions: self.told.append(("revoked", partitions)),
            on_lost=lambda partitions: self.told.append(("lost", partitions)),
            **{**TIMES, **settings},
        )
        self._calls = MortalCalls.latest
        self._seen = seen
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            for record in await self.consumer.poll(timeout=0.2):
                assert record.value is not None
                self._seen[record.value] += 1

    async def stop(self) -> None:
        """Stop in order."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self.consumer.close()

    async def die(self) -> None:
        """Die without committing or leaving."""
        self._calls.dead = True
        told = list(self.told)
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self.consumer.close(processed=False)
        self.told = told  # a dead process runs no callbacks


async def balanced(admin: Admin, group: str, members: int) -> None:
    """Wait until this number of members own all partitions evenly."""

    async def look() -> bool:
        described = await admin.describe_group(group)
        loads = [sum(len(one.partitions) for one in member.assigned) for member in described.members]
        return described.state == "Stable" and sorted(loads) == [PARTITIONS // members] * members

    await eventually(look, f"{members} members of {group} share {PARTITIONS} partitions")


async def produce(cluster: LocalCluster, topic: str, first: int, count: int) -> set[bytes]:
    values = [b"%d" % number for number in range(first, first + count)]
    async with Producer(cluster.bootstrap) as producer:
        await producer.send_many(topic, values, keys=values)
    return set(values)


async def all_seen(seen: Counter[bytes], wanted: set[bytes]) -> None:
    async def look() -> bool:
        return wanted <= set(seen)

    await eventually(look, f"{len(wanted)} records are read")


async def test_members_share_die_and_outlive_the_coordinator(cluster: LocalCluster) -> None:
    seen: Counter[bytes] = Counter()
    async with Admin(cluster.bootstrap) as admin, asyncio.timeout(2 * PATIENCE_S):
        await admin.create_topic("shared", partitions=PARTITIONS)
        wanted = await produce(cluster, "shared", 0, 600)
        readers = [Reader(cluster, "team", "shared", seen) for _ in range(3)]
        await balanced(admin, "team", 3)
        await all_seen(seen, wanted)

        await readers[0].die()
        wanted |= await produce(cluster, "shared", 600, 600)
        await balanced(admin, "team", 2)
        await all_seen(seen, wanted)

        coordinator = (await admin.describe_group("team")).coordinator
        assert coordinator is not None
        cluster.kill_node(coordinator)
        wanted |= await produce(cluster, "shared", 1200, 600)
        await all_seen(seen, wanted)
        await balanced(admin, "team", 2)
        cluster.start_node(coordinator)

        third = Reader(cluster, "team", "shared", seen)
        await balanced(admin, "team", 3)
        for reader in (third, *readers[1:]):
            await reader.stop()
            assert not [told for told in reader.told if told[0] == "lost"]
        offsets = await admin.group_offsets("team")
        assert len(offsets) == PARTITIONS
        assert [one.lag for one in offsets] == [0] * PARTITIONS
        assert set(seen) == wanted
        assert (await admin.describe_group("team")).state == "Empty"
        await all_in_sync(admin, "shared")


async def test_a_group_continues_at_its_committed_offsets_and_where_a_seek_puts_it(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin, asyncio.timeout(PATIENCE_S):
        await admin.create_topic("log")
        await produce(cluster, "log", 0, 100)
        settings: dict[str, Any] = {**TIMES, "auto_offset_reset": "earliest", "enable_auto_commit": False}
        async with GroupConsumer(cluster.bootstrap, "solo", ["log"], **settings) as consumer:
            first = await read(consumer, 40)
            assert [record.offset for record in first] == list(range(40))
            await consumer.commit()
            (partition,) = consumer.assignment
            assert await consumer.committed() == {partition: 40}
            assert consumer.positions == {partition: 40}
            assert consumer.lag == {partition: 60}
            with pytest.raises(InvalidRequest, match="members"):
                await admin.seek_group("solo", "earliest")
            await read(consumer, 10)
        async with GroupConsumer(cluster.bootstrap, "solo", ["log"], **settings) as consumer:
            assert (await read(consumer, 1))[0].offset == 40
        (planned,) = await admin.seek_group("solo", "shift", -15, plan=True)
        assert (planned.offset, planned.new_offset) == (40, 25)
        (row,) = await admin.group_offsets("solo")
        assert (row.offset, row.lag) == (40, 60)
        await admin.seek_group("solo", "shift", -15)
        async with GroupConsumer(cluster.bootstrap, "solo", ["log"], **settings) as consumer:
            assert (await read(consumer, 1))[0].offset == 25
            assert {partition.topic for partition in consumer.assignment} == {"log"}
        await admin.delete_group("solo")
        assert "solo" not in [summary.group for summary in await admin.list_groups()]


async def test_a_pattern_includes_topics_created_later(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin, asyncio.timeout(PATIENCE_S):
        await admin.create_topic("metric-a")
        settings: dict[str, Any] = {**TIMES, "auto_offset_reset": "earliest"}
        async with GroupConsumer(cluster.bootstrap, "by-name", pattern="metric-.*", **settings) as consumer:
            await produce(cluster, "metric-a", 0, 5)
            assert len(await read(consumer, 5)) == 5
            await admin.create_topic("metric-b")
            await produce(cluster, "metric-b", 0, 5)
            assert {record.topic for record in await read(consumer, 5)} == {"metric-b"}
        async with GroupConsumer(cluster.bootstrap, "by-name", pattern="(", **settings) as consumer:
            with pytest.raises(InvalidRequest, match="RE2"):
                await consumer.poll(timeout=PATIENCE_S)


async def test_a_static_member_returns_to_its_partitions(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin, asyncio.timeout(PATIENCE_S):
        await admin.create_topic("static", partitions=PARTITIONS)
        seen: Counter[bytes] = Counter()
        settings: dict[str, Any] = {"session_timeout_ms": 20_000}
        readers = [Reader(cluster, "fixed", "static", seen, instance_id=f"i-{n}", **settings) for n in range(2)]
        await balanced(admin, "fixed", 2)
        epoch = (await admin.describe_group("fixed")).epoch

        async def both_read() -> bool:
            return all(len(reader.consumer.assignment) == PARTITIONS // 2 for reader in readers)

        await eventually(both_read, "both read")
        had = {partition.partition for partition in readers[0].consumer.assignment}
        await readers[0].stop()
        again = Reader(cluster, "fixed", "static", seen, instance_id="i-0", **settings)

        async def is_back() -> bool:
            return {partition.partition for partition in again.consumer.assignment} == had

        await eventually(is_back, "it has what it had")
        assert (await admin.describe_group("fixed")).epoch == epoch
        stayed = {partition.partition for partition in readers[1].consumer.assignment}
        assert stayed == set(range(PARTITIONS)) - had
        for reader in (again, readers[1]):
            await reader.stop()


async def read(consumer: GroupConsumer, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        try:
            found += await consumer.poll(count - len(found), timeout=1.0)
        except RaftlogError as error:
            if not error.retriable:
                raise
    return found
