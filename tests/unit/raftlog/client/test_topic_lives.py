"""A topic was deleted and re-created, and one node, cut off from the quorum, still describes the deleted one.

No client goes back to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from raftlog import Consumer, Producer
from raftlog.api.topics import TopicDescription
from raftlog.client.cluster.api import HttpApi
from raftlog.client.cluster.metadata import ClusterMetadata
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError
from raftlog.wire import ProduceRequest
from tests.support.client.fake_cluster import OK, FakeCluster, FakeTopic, Fate


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(nodes=3) as started:
        yield started


def created_twice(cluster: FakeCluster, *, behind: int, heedless: bool = True) -> tuple[FakeTopic, FakeTopic]:
    """The deleted topic, which is led by the lagging node, and the present one, which node 1 leads."""
    cluster.nodes[behind].heedless = heedless
    old = cluster.create_topic("t")
    old.partitions[0].leader, old.partitions[0].leader_epoch = behind, 7
    new = cluster.create_topic("t")
    cluster.nodes[behind].behind["t"] = old
    return old, new


async def test_of_two_topics_of_one_name_the_one_created_later_is_known(cluster: FakeCluster) -> None:
    """And the next request goes to another node than the lagging one."""
    old, new = created_twice(cluster, behind=2)
    api = HttpApi([cluster.nodes[n].api_address for n in (2, 1)])
    metadata = ClusterMetadata(api)

    async def described() -> TopicDescription | RaftlogError:
        return (await metadata.refresh(["t"]))["t"]

    first = await described()
    assert isinstance(first, TopicDescription)
    assert first.id_bytes == old.id, "nothing better is known yet"
    api.prefer_another()
    while str(api.addresses[0]) != cluster.nodes[1].api_address:
        api.prefer_another()
    second = await described()
    assert isinstance(second, TopicDescription)
    assert (second.id_bytes, first.is_older_than(second)) == (new.id, True)
    while str(api.addresses[0]) != cluster.nodes[2].api_address:
        api.prefer_another()
    third = await described()
    assert isinstance(third, RetriableError)
    assert third.code == "metadata_behind"
    assert str(api.addresses[0]) != cluster.nodes[2].api_address
    assert metadata.topics["t"].id_bytes == new.id
    await api.close()


async def test_requests_contain_the_topic_that_the_client_knows(cluster: FakeCluster) -> None:
    asked: list[str] = []
    route = cluster.nodes[1]._route

    async def recorded(request):  # type: ignore[no-untyped-def]
        asked.append(request.path_qs)
        return await route(request)

    cluster.nodes[1]._route = recorded  # type: ignore[method-assign]
    known = cluster.create_topic("t").id.hex()
    api = HttpApi(cluster.nodes[1].api_address)
    for metadata in (ClusterMetadata(api), ClusterMetadata(api, {"t": "ab" * 16})):
        await metadata.refresh(["t"])
        await metadata.refresh(["t"])
    asked = [path for path in asked if "topics" in path]
    told = f"/v1/topics/t?topic_id={known}"
    assert asked == ["/v1/topics/t", told, f"/v1/topics/t?topic_id={'ab' * 16}", told]
    await api.close()


@pytest.mark.parametrize("heedless", [True, False])
async def test_one_description_from_a_lagging_node_appends_nothing_twice(cluster: FakeCluster, heedless: bool) -> None:
    """S1: the batch is in the log and its answer is lost; a client that took the deleted topic for a new one would drop
    the batch's sequence numbers and append it again."""
    old, new = created_twice(cluster, behind=2, heedless=heedless)
    answers_lost = 0

    def fate(_: ProduceRequest) -> Fate:
        nonlocal answers_lost
        answers_lost += 1
        return Fate(drop_after=True) if answers_lost <= 8 else OK

    cluster.nodes[1].on_produce = fate
    async with Producer(cluster.nodes[1].api_address) as producer:
        delivery = await producer.send("t", b"x", partition=0)
    assert cluster.nodes[2].api_calls.count("GET /v1/topics/t") > 0, "the node that is behind was asked"
    assert delivery.base_offset == 0
    assert (new.partitions[0].values(), old.partitions[0].values()) == ([b"x"], [])


@pytest.mark.parametrize("heedless", [True, False])
async def test_a_reader_of_the_present_topic_survives_a_description_of_the_deleted_one(
    cluster: FakeCluster, heedless: bool
) -> None:
    """S10: for half a second there is no leader; the third request in a row goes to the lagging node."""
    created_twice(cluster, behind=2, heedless=heedless)
    async with (
        Producer(cluster.nodes[1].api_address) as producer,
        Consumer(cluster.nodes[1].api_address, "t") as consumer,
    ):
        await producer.send("t", b"a", partition=0)
        assert [record.value for record in await consumer.poll(10, 5)] == [b"a"]
        cluster.move_leader("t", 0, -1)
        cluster.nodes[1].drop_connections()
        asked = cluster.nodes[2].api_calls
        await cluster.until(lambda: asked.count("GET /v1/topics/t") >= 2)
        cluster.move_leader("t", 0, 3)
        await producer.send("t", b"b", partition=0)
        assert [record.value for record in await consumer.poll(10, 5)] == [b"b"]


async def test_a_topic_that_is_named_by_its_id_is_read_and_no_other(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever was created first; an id that never existed is an error after a while."""
    monkeypatch.setattr("raftlog.client.consuming.topic_readers.UNKNOWN_TOPIC_GRACE", 0.1)
    old, new = created_twice(cluster, behind=2)
    for topic, leader in ((old, 2), (new, 1)):
        async with Producer(cluster.nodes[leader].api_address) as producer:
            await producer.send("t", b"of the present" if topic is new else b"of the deleted", partition=0)
    bootstrap = [cluster.nodes[number].api_address for number in (2, 1)]
    async with Consumer(bootstrap, "t", topic_id=new.id.hex()) as consumer:
        assert [record.value for record in await consumer.poll(10, 5)] == [b"of the present"]
    with pytest.raises(InvalidRequest, match="created again"):
        async with Consumer(bootstrap, "t", topic_id="ab" * 16):
            pass
    for no_id in ("ab", "x" * 32):
        with pytest.raises(InvalidRequest, match="hexadecimal"):
            Consumer(bootstrap, "t", topic_id=no_id)


async def test_a_leader_that_does_not_know_the_topic_yet_ends_neither_reader_nor_batch(cluster: FakeCluster) -> None:
    """S10: it is cut off since before the topic was created, and every description says that it leads."""
    cluster.create_topic("t")
    leader = cluster.nodes[1]
    knows_after = asyncio.get_running_loop().time() + 2.5

    def fate(_: object) -> Fate:
        return OK if asyncio.get_running_loop().time() >= knows_after else Fate(error="unknown_topic")

    leader.on_fetch = leader.on_produce = fate
    async with Producer(leader.api_address) as producer, Consumer(leader.api_address, "t") as consumer:
        delivery, records = await asyncio.gather(producer.send("t", b"x", partition=0), consumer.poll(1, 10))
        assert (delivery.base_offset, [record.value for record in records]) == (0, [b"x"])


async def test_a_reader_of_the_deleted_topic_gets_an_error_that_names_a_later_one(cluster: FakeCluster) -> None:
    old = cluster.create_topic("t")
    async with Consumer(cluster.bootstrap, "t") as consumer:
        for node in (2, 3):
            cluster.nodes[node].behind["t"] = old
        cluster.create_topic("t")
        cluster.move_leader("t", 0, 1)
        with pytest.raises(InvalidRequest, match="created again"):
            async with asyncio.timeout(10):
                while True:
                    await consumer.poll(timeout=0.1)


async def test_a_record_for_a_missing_partition_of_the_next_topic_expires_with_that_reason(
    cluster: FakeCluster,
) -> None:
    """It waits, as the topic may grow; the deleted topic's error would not explain why it was not sent."""
    cluster.create_topic("t", partitions=3)
    async with Producer(cluster.bootstrap, delivery_timeout_ms=1_500, request_timeout_ms=500) as producer:
        await producer.send("t", b"a", partition=2)
        cluster.create_topic("t", partitions=1)
        with pytest.raises(RetriableError, match="unknown_partition: topic t has the partitions 0 to 0, not 2") as told:
            await producer.send("t", b"b", partition=2)
        assert told.value.code == "leader_not_available"
        with pytest.raises(InvalidRequest, match="has the partitions 0 to 0, not 2"):
            producer.send("t", b"c", partition=2)


async def test_a_record_for_a_missing_partition_of_the_next_topic_is_sent_once_it_exists(cluster: FakeCluster) -> None:
    cluster.create_topic("t", partitions=2)
    async with Producer(cluster.bootstrap, delivery_timeout_ms=20_000) as producer:
        await producer.send("t", b"a", partition=1)
        cluster.create_topic("t", partitions=1)
        sent = asyncio.ensure_future(producer.send("t", b"b", partition=1))
        asked = [one.api_calls for one in cluster.nodes.values()]
        known = sum(calls.count("GET /v1/topics/t") for calls in asked)
        await cluster.until(lambda: sum(calls.count("GET /v1/topics/t") for calls in asked) > known)
        grown = cluster.create_topic("t", partitions=2)
        assert (await sent).base_offset == 0 and grown.partitions[1].values() == [b"b"]
