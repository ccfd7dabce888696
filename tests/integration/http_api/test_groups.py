"""`/v1/groups` in front of a broker in memory: from join to leave, commits, lag, seeking, bad input (S11)."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.api import groups as documents
from raftlog.errors import RetriableError
from raftlog.model import TopicPartition
from raftlog.records.batch import encode
from raftlog.wire import OffsetsRequest, OffsetsResponse
from tests.support.client.fake_broker import FakeBroker
from tests.support.http.api_client import Api

pytestmark = pytest.mark.integration

G = "/v1/groups/g"


@pytest.fixture
async def broker() -> FakeBroker:
    made = FakeBroker()
    topic = made.add_topic("t", 4)
    for partition in range(4):
        for _ in range(5):
            made.logs[TopicPartition(topic.topic_id, partition)].append(encode([b"a", b"b"], base_timestamp_ms=0))
    return made


async def join(api: Api, **asked: Any) -> dict[str, Any]:
    answer = await api.post(f"{G}/members", {"topics": ["t"], **asked})
    assert answer.status == 201, answer
    document: dict[str, Any] = answer.document
    return document


async def beat(api: Api, member: dict[str, Any], **asked: Any) -> dict[str, Any]:
    path = f"{G}/members/{member['member_id']}/heartbeat"
    answer = await api.post(path, {"incarnation": member["incarnation"], **asked})
    assert answer.status == 200, answer
    document: dict[str, Any] = answer.document
    return document


def numbers(assigned: list[dict[str, Any]]) -> list[int]:
    return [number for one in assigned for number in one["partitions"]]


async def test_a_membership_from_join_to_leave(api: Api, broker: FakeBroker) -> None:
    a = await join(api, client_id="app")
    assert a["member_id"].startswith("app-")
    a = await beat(api, a)
    assert (numbers(a["assigned"]), a["revoking"], a["state"]) == ([0, 1, 2, 3], [], "Stable")
    b = await join(api)
    assert numbers(b["assigned"]) == []
    a = await beat(api, a)
    gone = numbers(a["revoking"])
    assert len(gone) == 2 and a["state"] == "Reconciling"
    topic_id = a["revoking"][0]["topic_id"]
    a = await beat(api, a, generation=a["generation"], released=[{"topic_id": topic_id, "partitions": gone}])
    assert (a["revoking"], a["state"]) == ([], "Stable")
    b = await beat(api, b)
    assert numbers(b["assigned"]) == gone
    described = (await api.get(G)).document
    assert described["state"] == "Stable" and len(described["members"]) == 2
    assert (await api.get("/v1/groups")).document["groups"][0]["member_count"] == 2
    left = await api.call("DELETE", f"{G}/members/{b['member_id']}?incarnation={b['incarnation']}")
    assert left.status == 204
    a = await beat(api, a)
    assert numbers(a["assigned"]) == [0, 1, 2, 3]
    again = await api.post(f"{G}/members/{b['member_id']}/heartbeat", {"incarnation": b["incarnation"]})
    again.problem("unknown_member")


async def test_a_topic_that_is_deleted_while_its_lag_is_asked_for_has_no_name(
    api: Api, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = await beat(api, await join(api))
    mine = {"member_id": a["member_id"], "incarnation": a["incarnation"], "generation": a["generation"]}
    one = {"topic": "t", "partition": 0, "offset": 7}
    assert (await api.post(f"{G}/offsets", {**mine, "offsets": [one]})).status == 204
    offsets = broker.offsets

    async def meanwhile(request: OffsetsRequest) -> OffsetsResponse:
        answer = await offsets(request)
        if broker.view.topic("t") is not None:
            await broker.topics.delete("t")
        return answer

    monkeypatch.setattr(broker, "offsets", meanwhile)
    rows = (await api.get(f"{G}/offsets?lag=true")).document["offsets"]
    assert ("", 0, 7) in {(row["topic"], row["partition"], row["offset"]) for row in rows}


async def test_commits_are_fenced_and_never_lower_s8(api: Api, broker: FakeBroker) -> None:
    a = await join(api)
    a = await beat(api, a)
    mine = {"member_id": a["member_id"], "incarnation": a["incarnation"], "generation": a["generation"]}
    one = {"topic": "t", "partition": 0, "offset": 7, "metadata": "here"}
    assert (await api.post(f"{G}/offsets", {**mine, "offsets": [one]})).status == 204
    assert (await api.post(f"{G}/offsets", {**mine, "offsets": [{**one, "offset": 3}]})).status == 204
    (row, *_) = (await api.get(f"{G}/offsets?lag=true")).document["offsets"]
    assert (row["offset"], row["log_end_offset"], row["lag"]) == (7, 10, 3)
    assert row["member_id"] == a["member_id"]
    for wrong, code in (
        ({"incarnation": a["incarnation"] - 1}, "member_fenced"),
        ({"generation": 0}, "stale_generation"),
        ({"member_id": "else"}, "unknown_member"),
        ({"member_id": ""}, "group_not_empty"),
    ):
        (await api.post(f"{G}/offsets", {**mine, **wrong, "offsets": [one]})).problem(code)
    nowhere = {**one, "topic": "no-such"}
    (await api.post(f"{G}/offsets", {**mine, "offsets": [nowhere]})).problem("unknown_topic")


@pytest.mark.parametrize(
    ("asked", "offsets"),
    [
        ({"to": "earliest"}, [0, 0]),
        ({"to": "latest"}, [10, 10]),
        ({"to": "offset", "value": 4}, [4, 4]),
        ({"to": "offset", "value": 400}, [10, 10]),
        ({"to": "shift", "value": -2}, [4, 6]),
        ({"to": "shift", "value": 3}, [9, 10]),
        ({"to": "shift", "value": -100}, [0, 0]),
        ({"to": "timestamp", "value": 0}, [0, 0]),
        ({"to": "duration", "value": 1000}, [10, 10]),
    ],
)
async def test_seeking_is_planned_and_done(api: Api, asked: dict[str, Any], offsets: list[int]) -> None:
    committed = [{"topic": "t", "partition": 0, "offset": 6}, {"topic": "t", "partition": 1, "offset": 8}]
    assert (await api.post(f"{G}/offsets", {"offsets": committed})).status == 204
    planned = (await api.post(f"{G}/seek", {**asked, "plan": True})).document
    assert planned["applied"] is False
    assert [one["offset"] for one in planned["offsets"]] == [6, 8]
    assert [one["new_offset"] for one in planned["offsets"]] == offsets
    assert [one["offset"] for one in (await api.get(f"{G}/offsets")).document["offsets"]] == [6, 8]
    assert (await api.post(f"{G}/seek", asked)).document["applied"] is True
    assert [one["offset"] for one in (await api.get(f"{G}/offsets")).document["offsets"]] == offsets


async def test_a_plan_that_was_shown_is_done_or_refused(api: Api) -> None:
    """If a committed offset has moved since, the plan no longer applies, and nothing changes."""
    committed = [{"topic": "t", "partition": 0, "offset": 6}]
    assert (await api.post(f"{G}/offsets", {"offsets": committed})).status == 204
    asked = {"to": "latest", "topics": [{"topic": "t", "partitions": [0, 1]}]}
    shown = (await api.post(f"{G}/seek", {**asked, "plan": True})).document["offsets"]
    rows = [{key: one[key] for key in ("topic", "topic_id", "partition", "offset", "new_offset")} for one in shown]
    assert [(one["offset"], one["new_offset"]) for one in rows] == [(6, 10), (None, 10)]
    planned = {"to": "planned", "planned": rows}
    moved = [{"topic": "t", "partition": 1, "offset": 3}]
    assert (await api.post(f"{G}/offsets", {"offsets": moved})).status == 204
    (await api.post(f"{G}/seek", planned)).problem("offset_moved")
    assert [one["offset"] for one in (await api.get(f"{G}/offsets")).document["offsets"]] == [6, 3]
    rows[1]["offset"] = 3
    assert (await api.post(f"{G}/seek", {**planned, "plan": True})).document["applied"] is False
    assert (await api.post(f"{G}/seek", planned)).document["applied"] is True
    assert [one["offset"] for one in (await api.get(f"{G}/offsets")).document["offsets"]] == [10, 10]
    (await api.post(f"{G}/seek", {"to": "planned"})).problem("invalid_request")
    (await api.post(f"{G}/seek", {**planned, "planned": [rows[0], rows[0]]})).problem("invalid_request")
    beyond = {**rows[0], "offset": 10, "new_offset": 11}
    (await api.post(f"{G}/seek", {**planned, "planned": [beyond]})).problem("offset_out_of_range")
    gone = {**rows[0], "topic_id": "00" * 16}
    (await api.post(f"{G}/seek", {**planned, "planned": [gone]})).problem("unknown_partition")


async def test_lag_counts_to_what_the_group_reads(
    api: Api, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed = [{"topic": "t", "partition": 0, "offset": 6}]
    assert (await api.post(f"{G}/offsets", {"offsets": committed})).status == 204
    asked: list[int] = []
    offsets = broker.offsets

    async def heard(request: OffsetsRequest) -> OffsetsResponse:
        asked.append(request.isolation)
        return await offsets(request)

    monkeypatch.setattr(broker, "offsets", heard)
    for query in ("", "&isolation=read_committed", "&isolation=read_uncommitted"):
        (one,) = (await api.get(f"{G}/offsets?lag=true{query}")).document["offsets"]
        assert (one["log_end_offset"], one["lag"]) == (10, 4)
    assert asked == [1, 1, 0]
    (await api.get(f"{G}/offsets?lag=true&isolation=dirty")).problem("invalid_request")


async def test_a_seek_that_fails_after_its_first_part_does_not_say_that_nothing_was_done(
    api: Api, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S11: a caller that retried the whole would shift the first part twice."""
    offsets = [{"topic": "t", "partition": partition, "offset": 2} for partition in range(4)]
    assert (await api.post(f"{G}/offsets", {"offsets": offsets})).status == 204
    monkeypatch.setattr(documents, "MAX_OFFSETS_PER_REQUEST", 2)
    reset, calls = broker.groups.reset, 0

    def once(*asked: Any, **named: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            asked[-1](RetriableError("quorum_unavailable", "the metadata quorum cannot decide"))
        else:
            reset(*asked, **named)

    monkeypatch.setattr(broker.groups, "reset", once)
    told = (await api.post(f"{G}/seek", {"to": "shift", "value": 3})).problem("outcome_unknown")
    assert "2 of 4" in told["detail"] and "cannot decide" in told["detail"]
    rows = (await api.get(f"{G}/offsets")).document["offsets"]
    assert [row["offset"] for row in rows] == [5, 5, 2, 2]


async def test_what_cannot_be_sought(api: Api) -> None:
    (await api.post(f"{G}/seek", {"to": "earliest"})).problem("unknown_group")
    (await api.post(f"{G}/seek", {"to": "earliest", "topics": [{"topic": "no"}]})).problem("unknown_topic")
    beyond = {"topic": "t", "partitions": [4]}
    (await api.post(f"{G}/seek", {"to": "earliest", "topics": [beyond]})).problem("unknown_partition")
    shifted = {"to": "shift", "value": 1, "topics": [{"topic": "t"}]}
    (await api.post(f"{G}/seek", shifted)).problem("invalid_request")
    made = await api.post(f"{G}/seek", {"to": "latest", "topics": [{"topic": "t", "partitions": [1]}]})
    assert [one["new_offset"] for one in made.document["offsets"]] == [10]
    await join(api)
    (await api.post(f"{G}/seek", {"to": "earliest"})).problem("group_not_empty")
    (await api.call("DELETE", G)).problem("group_not_empty")


async def test_groups_are_deleted(api: Api) -> None:
    await api.post(f"{G}/offsets", {"offsets": [{"topic": "t", "partition": 0, "offset": 1}]})
    assert (await api.call("DELETE", G)).status == 204
    (await api.call("DELETE", G)).problem("unknown_group")
    (await api.get(G)).problem("unknown_group")
    (await api.get(f"{G}/offsets")).problem("unknown_group")


@pytest.mark.parametrize(
    "asked",
    [
        {"topics": []},
        {"topics": ["t"], "assignor": "mine"},
        {"topics": ["t"], "session_timeout_ms": 1},
        {"pattern": "("},
        {"topics": ["t"], "unknown": 1},
        {"topics": ["t"] * 257},
        {"topics": ["t"], "instance_id": "x" * 256},
    ],
)
async def test_bad_joins_are_refused_and_change_nothing_s11(api: Api, asked: dict[str, Any]) -> None:
    (await api.post(f"{G}/members", asked)).problem("invalid_request")
    assert (await api.get("/v1/groups")).document == {"groups": []}


async def test_bad_names_are_refused_s11(api: Api) -> None:
    (await api.post(f"/v1/groups/{'x' * 256}/members", {"topics": ["t"]})).problem("invalid_request")
    (await api.post("/v1/groups/%07/members", {"topics": ["t"]})).problem("invalid_request")
    (await api.call("DELETE", f"{G}/members/m")).problem("invalid_request")
    (await api.call("DELETE", f"{G}/members/m?incarnation=-1")).problem("invalid_request")


async def test_no_request_is_too_strange_for_the_quorum_s11(api: Api, broker: FakeBroker) -> None:
    """Duplicate, unowned and impossible partitions are refused, or have no effect."""
    member = await join(api)
    topic_id = (await beat(api, member))["assigned"][0]["topic_id"]
    strange = [{"topic_id": topic_id, "partitions": [0, 0, 9]}, {"topic_id": "00" * 16, "partitions": [1]}]
    member = await beat(api, member, generation=2**62, released=strange)
    assert numbers(member["assigned"]) == [0, 1, 2, 3]
    beyond = f"{G}/members/{member['member_id']}?incarnation={2**63 - 1}"
    (await api.call("DELETE", beyond)).problem("invalid_request")
    (await api.post(f"{G}/members", {"topics": ["t"], "member_id": "\x07"})).problem("invalid_request")
    raw = b'{"topics": ["t"], "client_id": "\\ud800"}'
    (await api.post(f"{G}/members", raw)).problem("invalid_json")
    assert len(broker.groups.groups.by_id["g"].members) == 1


async def test_a_node_that_is_behind_catches_up_before_it_tells_of_an_assignment(api: Api, broker: FakeBroker) -> None:
    """Otherwise a member that asks another node would resume partitions that it has released."""
    member = await join(api)
    caught_up: list[int] = []
    broker.unseen.append(lambda: caught_up.append(1))
    member = await beat(api, member, generation=member["generation"])
    assert caught_up == []
    await beat(api, member, generation=broker.view.index + 1)
    assert caught_up == [1]


async def test_a_commit_that_names_a_topic_is_of_the_one_that_has_the_name_by_now(api: Api, broker: FakeBroker) -> None:
    """S7, S8: the topic was deleted and created again, and this node's view is stale."""
    asked = {"offsets": [{"topic": "t", "partition": 0, "offset": 7}]}
    created: list[str] = []
    broker.unseen.append(lambda: created.append(broker.create_again("t").topic_id.hex()))
    assert (await api.post(f"{G}/offsets", asked)).status == 204
    (row,) = (await api.get(f"{G}/offsets")).document["offsets"]
    assert ([row["topic_id"]], row["offset"]) == (created, 7)
    broker.quorum_answers = False
    (await api.post(f"{G}/offsets", asked)).problem("quorum_unavailable")
