"""`Admin` against the real HTTP API (in front of a broker in memory): both agree on requests and answers."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from raftlog import Admin
from raftlog.api.cluster import HealthInfo
from raftlog.errors import InvalidRequest, RetriableError
from raftlog.records.batch import encode
from tests.support.client.fake_broker import CLUSTER_ID, FakeBroker
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
