"""Leases over a socket: ranges for one at a time, acknowledgement by offset, redelivery of what was not (S8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from metadata.commands.leases import MAX_RANGES
from metadata.view import QuotaLimits
from raftlog.model import Offset
from raftlog.records.batch import encode, encode_control
from raftlog.security.acls import Operation, ResourceType
from raftlog.version import FEATURE_LEVEL
from raftlog.wire import OffsetToCommit
from tests.support.client.fake_broker import FakeBroker
from tests.support.client.secured_broker import SecuredBroker
from tests.support.http.api_client import Api, eventually, running_api
from tests.support.security.rules import allow

pytestmark = pytest.mark.integration

LEASES = "/v1/groups/workers/leases"


@pytest_asyncio.fixture
async def api() -> AsyncIterator[Api]:
    broker = FakeBroker()
    broker.add_topic("t")
    broker.view.feature_level = FEATURE_LEVEL
    async with running_api(broker) as running:
        yield running


def put(api: Api, *values: bytes, topic: str = "t", partition: int = 0) -> None:
    api.broker.append(topic, encode(list(values), base_timestamp_ms=1000), partition)


async def take(api: Api, **options: Any) -> Any:
    answer = await api.post(LEASES, {"topics": ["t"], **options})
    assert answer.status == 200, answer
    return answer.document["lease"]


async def acknowledge(api: Api, lease: Any, offset: int | None = None) -> int:
    answer = await api.post(f"{LEASES}/{lease['id']}/acknowledge", {} if offset is None else {"offset": offset})
    assert answer.status == 200, answer
    committed: int = answer.document["committed_offset"]
    return committed


def values(lease: Any) -> list[Any]:
    return [one["value"] for one in lease["records"]]


async def test_workers_get_different_records_and_acknowledge_in_any_order(api: Api) -> None:
    put(api, b"a", b"b", b"c", b"d", b"e")
    first, second = await take(api, max_records=2), await take(api, max_records=2)
    assert (values(first), values(second)) == (["a", "b"], ["c", "d"])
    assert (first["start_offset"], first["end_offset"], first["deliveries"]) == (0, 2, 1)
    assert (first["topic"], first["partition"], first["lease_ms"]) == ("t", 0, 30_000)
    assert await acknowledge(api, second) == 0
    assert await acknowledge(api, first, 1) == 1
    assert await acknowledge(api, first) == 4
    third = await take(api)
    assert values(third) == ["e"]
    assert await take(api) is None
    assert await acknowledge(api, third) == 5
    (await api.post(f"{LEASES}/{third['id']}/acknowledge")).problem("lease_lost")
    offsets = (await api.get("/v1/groups/workers/offsets")).document["offsets"]
    assert [one["offset"] for one in offsets] == [5]
    await api.is_well()


async def test_what_is_not_acknowledged_in_time_goes_to_another(api: Api) -> None:
    put(api, b"a", b"b", b"c", b"d")
    first = await take(api, lease_ms=5_000)
    await acknowledge(api, first, 1)
    api.broker.lease_clock.advance(4.9)
    assert await take(api) is None
    api.broker.lease_clock.advance(0.2)
    second = await take(api, max_records=2)
    assert values(second) == ["b", "c"] and second["deliveries"] == 2
    (await api.post(f"{LEASES}/{first['id']}/acknowledge", {"offset": 2})).problem("offset_out_of_range")
    assert await acknowledge(api, second) == 3
    third = await take(api)
    assert values(third) == ["d"], "the rest of the lease that is over"
    assert third["deliveries"] == 2
    (await api.post(f"{LEASES}/{first['id']}/acknowledge")).problem("lease_lost")
    assert await acknowledge(api, third) == 4


async def test_a_lease_is_renewed_given_back_and_listed(api: Api) -> None:
    put(api, b"a", b"b")
    lease = await take(api, lease_ms=5_000, max_records=1)
    api.broker.lease_clock.advance(4)
    assert (await api.post(f"{LEASES}/{lease['id']}/renew", {"lease_ms": 10_000})).status == 204
    api.broker.lease_clock.advance(9)
    (listed,) = (await api.get(LEASES)).document["leases"]
    assert (listed["id"], listed["lease_ms"], listed["left_ms"]) == (lease["id"], 10_000, 1_000)
    assert values(await take(api)) == ["b"]
    assert (await api.call("DELETE", f"{LEASES}/{lease['id']}")).status == 204
    again = await take(api)
    assert values(again) == ["a"] and again["id"] != lease["id"] and again["deliveries"] == 2
    (await api.call("DELETE", f"{LEASES}/{lease['id']}")).problem("lease_lost")
    (await api.post(f"{LEASES}/{lease['id']}/renew")).problem("lease_lost")


async def test_many_workers_at_once_get_every_record_once(api: Api) -> None:
    for number in range(20):
        put(api, *(b"%d" % (10 * number + place) for place in range(10)))
    got: list[str] = []

    async def work() -> None:
        while (lease := await take(api, max_records=7)) is not None:
            got.extend(values(lease))
            await acknowledge(api, lease)

    async with asyncio.timeout(30):
        await asyncio.gather(*(work() for _ in range(5)))
    assert sorted(map(int, got)) == list(range(200))
    assert (await api.get(LEASES)).document["leases"] == []
    assert (await api.get("/v1/groups/workers/offsets")).document["offsets"][0]["offset"] == 200


async def test_a_request_waits_for_records_and_for_leases_that_are_over(api: Api) -> None:
    waiting = asyncio.ensure_future(take(api, max_wait_ms=20_000))
    await eventually(lambda: api.broker.fetches_waiting > 0)
    put(api, b"later")
    lease = await waiting
    assert values(lease) == ["later"]
    waiting = asyncio.ensure_future(api.post(LEASES, {"topics": ["t"]}, headers={"Prefer": "wait=20"}))
    await eventually(lambda: api.broker.fetches_waiting > 0)
    api.broker.lease_clock.advance(31)
    assert values((await waiting).document["lease"]) == ["later"]


async def test_a_group_begins_where_it_is_asked_to(api: Api) -> None:
    put(api, b"old")
    assert await take(api, start="latest") is None
    put(api, b"new")
    assert values(await take(api, start="latest")) == ["new"], "the end of the first request counts"
    other = await api.post("/v1/groups/others/leases", {"topics": ["t"]})
    assert values(other.document["lease"]) == ["old", "new"]


async def test_holes_and_deleted_records_do_not_stop_a_group(api: Api) -> None:
    api.broker.append("t", encode_control(1, [(1, 0, 2)], base_timestamp_ms=5))
    put(api, b"a")
    lease = await take(api)
    assert values(lease) == ["a"] and (lease["start_offset"], lease["end_offset"]) == (0, 2)
    put(api, b"b")
    api.broker.log("t").log_start_offset = 2
    api.broker.lease_clock.advance(31)
    # The records of the lease that is over are deleted: their range is acknowledged, and reading goes on.
    found = await take(api, max_wait_ms=5_000)
    assert values(found) == ["b"] and found["deliveries"] == 1
    assert await acknowledge(api, found) == 3


async def test_a_group_with_members_is_theirs_and_a_reset_ends_leases(api: Api) -> None:
    put(api, b"a", b"b")
    lease = await take(api, max_records=1)
    api.broker.groups.reset(
        "workers",
        api.broker.groups.groups.by_id["workers"].epoch,
        [OffsetToCommit(lease_topic(api), 0, Offset(1))],
        (),
        lambda outcome: None,
    )
    (await api.post(f"{LEASES}/{lease['id']}/acknowledge", {"offset": 1})).problem("lease_lost")
    assert values(await take(api)) == ["b"]
    assert (await api.post("/v1/groups/workers/members", {"topics": ["t"]})).status == 201
    (await api.post(LEASES, {"topics": ["t"]})).problem("group_not_empty")


def lease_topic(api: Api) -> Any:
    topic = api.broker.view.topic("t")
    assert topic is not None
    return topic.topic_id


async def test_leases_are_bounded(api: Api) -> None:
    put(api, *(b"%d" % number for number in range(MAX_RANGES + 1)))
    for _ in range(MAX_RANGES):
        assert await take(api, max_records=1) is not None
    (await api.post(LEASES, {"topics": ["t"], "max_records": 1})).problem("overloaded")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"topics": []},
        {"topics": ["t"], "lease_ms": 1},
        {"topics": ["t"], "max_records": 0},
        {"topics": ["t"], "start": "@5"},
        {"topics": ["t"], "value_format": "xml"},
        {"topics": ["t"], "other": 1},
    ],
)
async def test_bad_requests_change_nothing_s11(api: Api, body: Any) -> None:
    put(api, b"a")
    (await api.post(LEASES, body)).problem("invalid_request")
    assert api.broker.view.leases.count == 0 and api.broker.view.groups.group("workers") is None


async def test_bad_names_are_refused(api: Api) -> None:
    (await api.post(LEASES, {"topics": ["absent"]})).problem("unknown_topic")
    topic = bytes(16).hex()
    for name in ("x", f"{topic}-0-1", f"{topic}-9999999999-{1:016x}", f"{topic}-0-{'f' * 16}"):
        (await api.post(f"{LEASES}/{name}/acknowledge")).problem("invalid_request")
    (await api.post(f"{LEASES}/{bytes(16).hex()}-0-{1:016x}/acknowledge")).problem("lease_lost")
    api.broker.view.feature_level = FEATURE_LEVEL
    await api.is_well()


async def test_a_request_that_finds_nothing_costs_no_decision_of_the_quorum() -> None:
    broker = SecuredBroker()
    broker.add_topic("t")
    broker.view.feature_level = FEATURE_LEVEL
    await broker.allow(
        allow(Operation.READ, ResourceType.TOPIC, "t"), allow(Operation.READ, ResourceType.GROUP, "workers")
    )
    alice = await broker.user("alice")
    await broker.security.put_quota("User:alice", QuotaLimits(metadata_commands_per_second=1))
    async with running_api(broker) as api:
        for _ in range(5):
            answer = await api.post(LEASES, {"topics": ["t"]}, headers=alice)
            assert answer.document == {"lease": None}
        put(api, *(b"%d" % number for number in range(20)))
        answers = [await api.post(LEASES, {"topics": ["t"], "max_records": 1}, headers=alice) for _ in range(20)]
        assert answers[0].status == 200
        assert {one.status for one in answers} == {200, 429}
        assert broker.view.leases.count == 1
