"""Reading by a group member, against a cluster in memory: partitions come and go, pause, and topics are deleted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from raftlog.api.groups import GroupPartition
from raftlog.client.consuming.topic_consumer import TopicConsumer
from raftlog.client.groups import reading as group_reading
from raftlog.client.groups.reading import GroupReading
from raftlog.client.settings import GroupConsumerSettings
from raftlog.records.batch import encode, stamp
from raftlog.wire import FetchRequest
from tests.support.client.fake_cluster import OK, FakeCluster, FakeTopic, Fate


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as started:
        yield started


@pytest.fixture
async def reading(cluster: FakeCluster) -> AsyncIterator[GroupReading]:
    made = GroupReading(cluster.bootstrap, GroupConsumerSettings(auto_offset_reset="earliest"))
    yield made
    await made.close()


def topic_of(cluster: FakeCluster, name: str, partitions: int = 2, rows: int = 20) -> FakeTopic:
    topic = cluster.create_topic(name, partitions=partitions)
    for partition in topic.partitions:
        for _ in range(0, rows, 5):
            batch = encode([b"x"] * 5, base_timestamp_ms=1000)
            partition.put(b"".join(map(bytes, stamp(batch, partition.end_offset, partition.leader_epoch))))
    return topic


def named(topic: FakeTopic, number: int) -> GroupPartition:
    return GroupPartition(topic.name, number, topic.id.hex())


async def read(reading: GroupReading, count: int) -> list[tuple[str, int, int]]:
    """Return exactly this number of records."""
    found: list[tuple[str, int, int]] = []
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(10):
        while len(found) < count:
            found += [(r.topic, r.partition, r.offset) for r in reading.hand_out(count - len(found))]
            if len(found) < count:
                await reading.wait(count - len(found), loop.time() + 1.0, asyncio.Event())
    return found


async def test_a_partition_that_comes_back_begins_where_it_is_told_and_the_other_goes_on(
    cluster: FakeCluster, reading: GroupReading
) -> None:
    topic = topic_of(cluster, "t")
    asked: list[tuple[int, int]] = []

    def on_fetch(request: FetchRequest) -> Fate:
        asked.extend((one.partition, one.offset) for one in request.partitions)
        return OK

    cluster.nodes[1].on_fetch = on_fetch
    kept, moved = named(topic, 0), named(topic, 1)
    reading.begin({kept: 0, moved: 0})
    first = await read(reading, 9)
    reading.stop([moved])
    assert reading.positions == {kept: sum(number == 0 for _, number, _ in first)}
    reading.begin({moved: 15})
    rest = await read(reading, 20 + 5 - reading.positions[kept])
    assert [offset for _, number, offset in [*first, *rest] if number == 0] == list(range(20))
    assert [offset for _, number, offset in rest if number == 1] == list(range(15, 20))
    assert asked.count((0, 0)) == 1, "what was fetched ahead was kept"
    assert reading.lag == {kept: 0, moved: 0}


async def test_a_reading_has_caught_up_only_when_every_partition_has_answered(
    cluster: FakeCluster, reading: GroupReading
) -> None:
    topic = topic_of(cluster, "t")
    answered, silent = named(topic, 0), named(topic, 1)
    assert not reading.caught_up, "nothing is read yet"
    reading.begin({answered: 0})
    await read(reading, 20)
    assert (reading.lag, reading.caught_up) == ({answered: 0}, True)
    reading.begin({silent: 0})
    assert (reading.lag, reading.caught_up) == ({answered: 0}, False), "no leader has answered for the other"
    await read(reading, 20)
    assert (reading.lag, reading.caught_up) == ({answered: 0, silent: 0}, True)


async def test_what_is_paused_keeps_its_place_also_of_what_is_ahead(
    cluster: FakeCluster, reading: GroupReading
) -> None:
    topics = [topic_of(cluster, name, 1) for name in ("a", "b")]
    a, b = (named(topic, 0) for topic in topics)
    reading.begin({a: 0, b: 0})
    await read(reading, 1)
    await asyncio.sleep(0)
    held = b if reading.positions[a] else a
    reading.pause([held])
    other = a if held == b else b
    assert {topic for topic, _, _ in await read(reading, 19)} == {other.topic}
    assert not reading.hand_out(5) and reading.positions == {held: 0, other: 20}
    reading.resume([held])
    assert await read(reading, 20) == [(held.topic, 0, offset) for offset in range(20)]


async def test_a_topic_that_is_gone_costs_nothing_and_is_read_when_it_is_there_after_all(
    cluster: FakeCluster, reading: GroupReading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_reading, "READ_AGAIN_SECONDS", 0.1)
    polls = 0
    poll = TopicConsumer.poll

    async def counted(self: TopicConsumer, max_records: int = 500, timeout: float = 1.0) -> object:
        nonlocal polls
        polls += 1
        return await poll(self, max_records, timeout)

    monkeypatch.setattr(TopicConsumer, "poll", counted)
    monkeypatch.setattr("raftlog.client.consuming.fetcher.UNKNOWN_TOPIC_GRACE", 0.0)
    there = topic_of(cluster, "there", 1)
    reading.begin({GroupPartition("gone", 0, "00" * 16): 3, named(there, 0): 0})
    assert len(await read(reading, 20)) == 20
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 0.5
    while await reading.wait(5, deadline, asyncio.Event()):
        assert reading.hand_out(5) == []
    assert polls < 40, "whoever waits does not ask again and again at once"
    gone = topic_of(cluster, "gone", 1)
    gone.id = bytes(16)  # the nodes were stale
    assert await read(reading, 17) == [(gone.name, 0, offset) for offset in range(3, 20)]


def with_values(topic: FakeTopic, values: list[bytes]) -> None:
    for value in values:
        end = topic.partitions[0].end_offset
        batch = encode([value], base_timestamp_ms=1000)
        topic.partitions[0].put(b"".join(map(bytes, stamp(batch, end, topic.partitions[0].leader_epoch))))


async def values_of(reading: GroupReading, count: int) -> list[bytes | None]:
    """Return this number of records, within a bounded time."""
    found: list[bytes | None] = []
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(15):
        while len(found) < count:
            found += [record.value for record in reading.hand_out(100)]
            await reading.wait(100, loop.time() + 0.5, asyncio.Event())
    return found


@pytest.mark.parametrize("heedless", [True, False])
async def test_of_a_deleted_topic_nothing_is_handed_out_as_of_the_one_that_has_its_name_now(heedless: bool) -> None:
    """S8: a partitioned node still describes and serves the deleted topic; the member is assigned the one that was
    created again. The position is committed under the new id, so records would be skipped permanently."""
    async with FakeCluster(nodes=2) as cluster:
        old = cluster.create_topic("t")
        old.partitions[0].leader = 2
        with_values(old, [b"old"] * 5)
        new = cluster.create_topic("t")
        with_values(new, [b"new-%d" % i for i in range(8)])
        cluster.nodes[2].behind["t"], cluster.nodes[2].heedless = old, heedless
        bootstrap = [cluster.nodes[number].api_address for number in (2, 1)]
        reading = GroupReading(bootstrap, GroupConsumerSettings(auto_offset_reset="earliest"))
        reading.begin({named(new, 0): 0})
        assert await values_of(reading, 8) == [b"new-%d" % i for i in range(8)]
        assert reading.positions == {named(new, 0): 8}
        assert cluster.nodes[2].fetches == [], "the node that is behind was asked for no records"
        await reading.close()


async def test_a_reader_of_the_present_topic_waits_while_every_node_is_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The topic is missing for longer than a reader waits: another topic takes its place."""
    monkeypatch.setattr(group_reading, "READ_AGAIN_SECONDS", 0.05)
    monkeypatch.setattr("raftlog.client.consuming.topic_readers.UNKNOWN_TOPIC_GRACE", 0.05)
    async with FakeCluster() as cluster:
        old = topic_of(cluster, "t", 1)
        new = cluster.create_topic("t")
        cluster.nodes[1].behind["t"] = old
        reading = GroupReading(cluster.bootstrap, GroupConsumerSettings(auto_offset_reset="earliest"))
        reading.begin({named(new, 0): 0})
        loop = asyncio.get_running_loop()
        deadline = loop.time() + 0.4
        while await reading.wait(5, deadline, asyncio.Event()):
            assert reading.hand_out(5) == []
        assert cluster.nodes[1].fetches == [] and reading.positions == {named(new, 0): 0}
        with_values(new, [b"new"])
        cluster.nodes[1].behind.clear()
        assert await values_of(reading, 1) == [b"new"]
        await reading.close()


async def test_both_topics_of_a_name_keep_their_own_positions(cluster: FakeCluster, reading: GroupReading) -> None:
    """For a moment both are assigned: the deleted one until the group revokes it."""
    old = cluster.create_topic("t")
    with_values(old, [b"old-%d" % i for i in range(3)])
    reading.begin({named(old, 0): 1})
    assert await values_of(reading, 2) == [b"old-1", b"old-2"]
    new = cluster.create_topic("t")
    with_values(new, [b"new-%d" % i for i in range(2)])
    reading.begin({named(new, 0): 0})
    assert await values_of(reading, 2) == [b"new-0", b"new-1"]
    assert reading.positions == {named(old, 0): 3, named(new, 0): 2}
    reading.stop([named(old, 0)])
    assert reading.positions == {named(new, 0): 2}
    with_values(new, [b"new-2"])
    assert await values_of(reading, 1) == [b"new-2"]


async def test_whoever_is_cancelled_however_often_loses_no_record(cluster: FakeCluster, reading: GroupReading) -> None:
    topic = topic_of(cluster, "t", 1, rows=200)
    reading.begin({named(topic, 0): 0})
    loop = asyncio.get_running_loop()
    found: list[int] = []
    turns = 0
    async with asyncio.timeout(20):
        while len(found) < 200:
            waiting = loop.create_task(reading.wait(3, loop.time() + 1.0, asyncio.Event()))
            for _ in range(turns % 7):
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.sleep(0)
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting
            turns += 1
            found += [record.offset for record in reading.hand_out(500)]
            if not turns % 7:
                await asyncio.sleep(0.001)
    assert found == list(range(200))


@pytest.mark.parametrize("rest", ["paused", "resumed at once", "moved"])
async def test_what_was_read_ahead_of_a_pause_is_handed_out_after_it(
    cluster: FakeCluster, reading: GroupReading, rest: str
) -> None:
    """S8: no record between the position and the prefetched ones is skipped, and none is returned during the pause."""
    topic = topic_of(cluster, "t", 1)
    held = named(topic, 0)
    reading.begin({held: 0})
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(10):
        while not reading.hand_out(1):
            await reading.wait(5, loop.time() + 1.0, asyncio.Event())
    assert reading.positions == {held: 1}, "four more of the batch are here"
    reading.pause([held])
    if rest != "resumed at once":
        assert reading.hand_out(10) == []
        assert not await reading.wait(10, loop.time() + 0.05, asyncio.Event())
        assert reading.hand_out(10) == [] and reading.positions == {held: 1}
    if rest == "moved":
        reading.seek(held, 17)
    reading.resume([held])
    first = 17 if rest == "moved" else 1
    assert await read(reading, 20 - first) == [("t", 0, offset) for offset in range(first, 20)]


async def read_batches(reading: GroupReading, count: int) -> list[tuple[str, int, int, int]]:
    """Return this number of batches: topic, partition, and the offsets of each."""
    found: list[tuple[str, int, int, int]] = []
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(10):
        while len(found) < count:
            batch = reading.next_batch()
            if batch is not None:
                found.append((batch.topic, batch.partition, batch.start_offset, batch.end_offset))
            elif len(found) < count:
                await reading.wait(1, loop.time() + 1.0, asyncio.Event(), batches=True)
    return found


async def test_batches_of_several_topics_move_the_positions(cluster: FakeCluster, reading: GroupReading) -> None:
    a, b = topic_of(cluster, "a", partitions=1), topic_of(cluster, "b", partitions=2)
    reading.begin({named(a, 0): 0, named(b, 0): 0, named(b, 1): 7})
    found = await read_batches(reading, 4 + 4 + 3)
    assert sorted(found) == sorted(
        [("a", 0, start, start + 5) for start in (0, 5, 10, 15)]
        + [("b", 0, start, start + 5) for start in (0, 5, 10, 15)]
        + [("b", 1, 7, 10), ("b", 1, 10, 15), ("b", 1, 15, 20)]
    )
    assert reading.positions == {named(a, 0): 20, named(b, 0): 20, named(b, 1): 20}


async def test_records_and_batches_may_be_mixed(cluster: FakeCluster, reading: GroupReading) -> None:
    """Records that were fetched in one form and not handed out are handed out once, in the other form."""
    topic = topic_of(cluster, "a", partitions=2, rows=40)
    reading.begin({named(topic, 0): 0, named(topic, 1): 0})
    seen: dict[int, list[int]] = {0: [], 1: []}
    for _ in range(4):
        for _, partition, offset in await read(reading, 3):
            seen[partition].append(offset)
        for _, partition, start, end in await read_batches(reading, 2):
            seen[partition] += range(start, end)
    for number, offsets in seen.items():
        assert offsets == list(range(len(offsets))), "each once, in order"
        assert reading.positions[named(topic, number)] == len(offsets)
    assert sum(map(len, seen.values())) > 20


async def test_a_paused_or_released_partition_hands_out_no_batch(cluster: FakeCluster, reading: GroupReading) -> None:
    topic = topic_of(cluster, "a", partitions=2)
    reading.begin({named(topic, 0): 0, named(topic, 1): 0})
    await read_batches(reading, 1)
    reading.pause([named(topic, 0)])
    reading.stop([named(topic, 1)])
    loop = asyncio.get_running_loop()
    for _ in range(3):
        assert reading.next_batch() is None
        await reading.wait(1, loop.time() + 0.05, asyncio.Event(), batches=True)
    paused_at = reading.positions[named(topic, 0)]
    reading.resume([named(topic, 0)])
    assert (await read_batches(reading, 1))[0][1:3] == (0, paused_at)
