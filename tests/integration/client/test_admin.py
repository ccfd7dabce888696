"""`Admin` against the real HTTP API (in front of a broker in memory): both agree on requests and answers."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from raftlog import Admin
from raftlog.api.cluster import HealthInfo
from raftlog.client.consuming import offsets
from raftlog.client.times import milliseconds_of
from raftlog.errors import InvalidRequest, RetriableError
from raftlog.model import TopicPartition
from raftlog.records.batch import encode
from raftlog.wire import OffsetsRequest, OffsetsResponse
from tests.support.client.fake_broker import CLUSTER_ID, FakeBroker
from tests.support.clusters.held_port import HeldPort
from tests.support.http.api_client import running_api

pytestmark = pytest.mark.integration


@pytest.fixture
async def broker() -> FakeBroker:
    return FakeBroker()


@pytest.fixture
async def admin(broker: FakeBroker) -> AsyncIterator[Admin]:
    async with running_api(broker) as api, Admin(f"127.0.0.1:{api.port}") as started:
        yield started


async def test_a_topic_from_creation_to_deletion(admin: Admin) -> None:
    made = await admin.create_topic("orders", 3, 1, {"retention.ms": "1000"})
    assert (made.name, made.partition_count, made.replication_factor, len(made.id_bytes)) == ("orders", 3, 1, 16)
    assert made.configs["retention.ms"] == "1000" and made.overrides == ["retention.ms"]
    assert [(info.partition, info.leader, info.isr) for info in made.partitions] == [(n, 1, [1]) for n in range(3)]
    await admin.create_topic("a")
    assert [(topic.name, topic.partition_count) for topic in await admin.list_topics()] == [("a", 1), ("orders", 3)]
    assert [topic.name for topic in await admin.list_topics("ord.*")] == ["orders"]
    altered = await admin.alter_topic("orders", {"max.message.bytes": "5000"}, ["retention.ms"])
    assert altered.overrides == ["max.message.bytes"] and altered.max_message_bytes == 5000
    assert (await admin.add_partitions("orders", 4)).partition_count == 4
    assert (await admin.describe_topic("orders")).partition_count == 4
    await admin.delete_topic("orders")
    with pytest.raises(InvalidRequest) as gone:
        await admin.describe_topic("orders")
    assert gone.value.code == "unknown_topic"


async def test_refusals_of_the_cluster(admin: Admin) -> None:
    await admin.create_topic("t")
    for code, call in {
        "topic_exists": lambda: admin.create_topic("t"),
        "invalid_topic_name": lambda: admin.create_topic("no/name"),
        "invalid_config": lambda: admin.create_topic("u", configs={"no.such": "thing"}),
        "invalid_request": lambda: admin.create_topic("u", 1, 7),
        "unknown_topic": lambda: admin.delete_topic("nothing"),
        "unknown_partition": lambda: admin.offsets("t", 9),
    }.items():
        with pytest.raises(InvalidRequest) as refused:
            await call()
        assert refused.value.code == code


async def test_requests_that_the_cluster_cannot_serve_now(admin: Admin, broker: FakeBroker) -> None:
    broker.fail["create_topic"] = RetriableError("outcome_unknown", "the quorum did not answer in time")
    with pytest.raises(RetriableError) as unknown:
        await admin.create_topic("t")
    assert unknown.value.code == "outcome_unknown"


async def test_offsets_by_position_and_time(admin: Admin, broker: FakeBroker) -> None:
    broker.add_topic("t")
    start = int(time.time() * 1000)
    for step in range(3):
        broker.append("t", encode([b"x", b"y"], base_timestamp_ms=start + step * 1000))
    found = await admin.offsets("t", 0)
    assert (found.earliest, found.latest) == (0, 6)
    assert await admin.offset_for_timestamp("t", 0, start + 1) == (2, start + 1000)
    assert await admin.offset_for_timestamp("t", 0, start + 99_000) is None


async def test_offsets_of_many_partitions_in_one_call(admin: Admin, broker: FakeBroker) -> None:
    topic = broker.add_topic("t", 3)
    at = datetime(2025, 6, 1, tzinfo=UTC)
    start = milliseconds_of(at)
    for partition, count in ((0, 2), (2, 5)):
        broker.logs[TopicPartition(topic.topic_id, partition)].append(encode([b"x"] * count, base_timestamp_ms=start))
    found = await admin.topic_offsets("t")
    assert {number: (one.earliest, one.latest) for number, one in found.items()} == {0: (0, 2), 1: (0, 0), 2: (0, 5)}
    some = await admin.topic_offsets("t", [2], isolation="read_uncommitted")
    assert [(number, one.latest) for number, one in some.items()] == [(2, 5)]
    assert await admin.topic_offsets("t", []) == {}
    assert await admin.offsets_for_timestamps("t", at) == {0: (0, start), 1: None, 2: (0, start)}
    assert await admin.offsets_for_timestamps("t", {2: start + 1, 0: at}) == {2: None, 0: (0, start)}
    assert await admin.offset_for_timestamp("t", 2, at) == (0, start)
    with pytest.raises(InvalidRequest, match="partitions 0 to 2, not 3"):
        await admin.topic_offsets("t", [3])


async def test_offsets_of_many_partitions_are_asked_for_in_parts(
    admin: Admin, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node refuses a request of too many."""
    sizes: list[int] = []
    answer = broker.offsets

    async def noted(request: OffsetsRequest) -> OffsetsResponse:
        sizes.append(len(request.partitions))
        return await answer(request)

    monkeypatch.setattr(broker, "offsets", noted)
    monkeypatch.setattr(offsets, "LOOKUPS_PER_REQUEST", 4)
    broker.add_topic("t", 5)
    assert sorted(await admin.topic_offsets("t")) == [0, 1, 2, 3, 4]
    assert [one.partition for one in await admin.list_offsets("t", "earliest")] == [0, 1, 2, 3, 4]
    assert sorted(await admin.offsets_for_timestamps("t", 0)) == [0, 1, 2, 3, 4]
    assert sizes == [4, 4, 2, 4, 1, 4, 1]


async def test_a_call_waits_as_long_as_the_program_says(held: HeldPort) -> None:
    begun = time.monotonic()
    async with Admin(str(held), timeout=0.2) as admin:
        with pytest.raises(RetriableError):
            await admin.cluster()
        with pytest.raises(RetriableError):
            await admin.create_topic("t")
    assert time.monotonic() - begun < 4, "reads wait 5 s and changes 15 s otherwise"
    with pytest.raises(InvalidRequest, match="timeout must be between"):
        Admin(str(held), timeout=-1)


async def test_cluster_quorum_and_health(admin: Admin, broker: FakeBroker) -> None:
    cluster = await admin.cluster()
    assert (cluster.cluster_id, [node.id for node in cluster.nodes]) == (CLUSTER_ID, [1])
    assert (cluster.nodes[0].data, cluster.nodes[0].rack, cluster.nodes[0].fenced) == (
        "127.0.0.1:9641",
        "rack-a",
        False,
    )
    quorum = await admin.quorum()
    assert (quorum.leader, quorum.term, quorum.voters, quorum.match_index) == (1, 4, [1, 2], {"1": 11, "2": 10})
    assert (await admin.health()).ready
    broker.health_now = HealthInfo(False, ["disk 1 is on fire"])
    assert (await admin.health()).problems == ["disk 1 is on fire"]
