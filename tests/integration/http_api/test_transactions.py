"""`/v1/transactions` in front of a broker in memory: beginning, ending, retries, listings, bad input."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from http_api.routes import transactions
from http_api.service.transactions import OpenTransaction
from metadata.commands.results import TransactionAnswer
from metadata.commands.transactions import TransactionChange
from raftlog.errors import RetriableError
from raftlog.model import Offset, ProducerEpoch, ProducerId, TopicId, TopicPartition
from raftlog.transactions import TransactionKey
from raftlog.wire import (
    CONTENT_TYPE,
    TRANSACTIONS_PATH,
    AbortRequest,
    CommitRequest,
    InitializeRequest,
    OffsetsRequest,
    OpenBlockRequest,
    Request,
    TransactionOutput,
    TransactionResponse,
    decode_response,
    encode,
)
from tests.support.client.fake_broker import FakeBroker
from tests.support.http.api_client import Answer, Api

pytestmark = pytest.mark.integration

T = "/v1/transactions"
RANGE = {"topic_id": "0" * 32, "partition": 0, "start": -1, "end": 5}


@pytest.fixture
async def broker() -> FakeBroker:
    made = FakeBroker()
    made.add_topic("t", 3)
    return made


def topic_id(broker: FakeBroker) -> str:
    topic = broker.view.topic("t")
    assert topic is not None
    return topic.topic_id.hex()


def key_of(named: dict[str, Any]) -> TransactionKey:
    return TransactionKey(ProducerId(named["producer_id"]), ProducerEpoch(named["producer_epoch"]))


async def begin(api: Api, name: str = "p") -> dict[str, Any]:
    answer = await api.post(f"{T}/initialize", {"transactional_id": name, "timeout_ms": 5000})
    assert answer.status == 200, answer
    key: dict[str, Any] = answer.document
    return key


def output(api: Api, key: dict[str, Any], *end_offsets: tuple[int, int]) -> dict[str, Any]:
    return {**key, "topics": [{"topic_id": topic_id(api.broker), "end_offsets": end_offsets}]}


async def test_a_named_producer_from_begin_to_the_next_transaction_s13(api: Api) -> None:
    first = await begin(api)
    asked = {"transactions": [output(api, first, (0, 10), (2, 4))]}
    ended = await api.post(f"{T}/commit", asked)
    after = {**first, "producer_epoch": first["producer_epoch"] + 1}
    assert (ended.status, ended.document) == (200, {"producers": [after], "visible": False})
    # A retry gets the first answer; an abort is refused.
    assert (await api.post(f"{T}/commit", asked)).document == ended.document
    (await api.post(f"{T}/abort", {"transactions": [first]})).problem("transaction_committed")
    aborted = await api.post(f"{T}/abort", {"transactions": [after]})
    assert [one["producer_epoch"] for one in aborted.document["producers"]] == [after["producer_epoch"] + 1]
    assert (await api.post(f"{T}/abort", {"transactions": [after]})).document == aborted.document
    (await api.post(f"{T}/commit", {"transactions": [output(api, after, (0, 11))]})).problem("transaction_aborted")
    # Another producer begins under the name: the older epochs are fenced, and learn no outcome.
    await begin(api)
    (await api.post(f"{T}/commit", {"transactions": [output(api, after, (0, 11))]})).problem("producer_fenced")


async def test_ids_without_a_name_and_their_block(api: Api) -> None:
    asked = {"count": 3, "name": "spark/q/sink/4", "timeout_ms": 5000}
    block = (await api.post(f"{T}/blocks", asked)).document
    assert block["count"] == 3
    assert (await api.post(f"{T}/blocks", asked)).document == block
    keys = [{"producer_id": block["first_producer_id"] + number, "producer_epoch": 0} for number in range(3)]
    wanted = {"transactions": [output(api, key, (0, 5)) for key in keys[:2]], "block": "spark/q/sink/4"}
    assert (await api.post(f"{T}/commit", wanted)).document == {"producers": [], "visible": False}
    late = {"transactions": [output(api, keys[2], (0, 9))]}
    (await api.post(f"{T}/commit", late)).problem("transaction_aborted")
    again = (await api.post(f"{T}/blocks", asked)).document
    assert again["first_producer_id"] > block["first_producer_id"]
    for _ in range(2):
        assert (await api.call("DELETE", f"{T}/blocks/spark%2Fq%2Fsink%2F4")).status == 204
    assert (await api.post(f"{T}/blocks", asked)).document["first_producer_id"] > again["first_producer_id"]


async def test_positions_and_offsets_move_with_it_or_not_at_all_s13(api: Api, broker: FakeBroker) -> None:
    async def position() -> Any:
        return (await api.get("/v1/positions/q%2F7")).document

    assert await position() == {"name": "q/7", "value": None}
    key = await begin(api)

    def wanted(key: dict[str, Any], start: int, end: int, current: int) -> dict[str, Any]:
        consumed = {"topic_id": topic_id(broker), "partition": 1, "start": start, "end": end}
        return {
            "transactions": [output(api, key, (0, end))],
            "group_offsets": [{"group": "g", "ranges": [consumed]}],
            "positions": [{"name": "q/7", "current": current, "new": end}],
        }

    (key,) = (await api.post(f"{T}/commit", wanted(key, -1, 6, -1))).document["producers"]
    offsets = (await api.get("/v1/groups/g/offsets")).document["offsets"]
    assert [(one["partition"], one["offset"]) for one in offsets] == [(1, 6)]
    assert await position() == {"name": "q/7", "value": 6}
    (await api.post(f"{T}/commit", wanted(key, 5, 9, 6))).problem("offset_moved")
    (key,) = (await api.post(f"{T}/abort", {"transactions": [key]})).document["producers"]
    (await api.post(f"{T}/commit", wanted(key, 6, 6, -1))).problem("position_taken")
    assert await position() == {"name": "q/7", "value": 6}


async def test_a_commit_may_be_waited_for_until_it_is_visible(api: Api, broker: FakeBroker) -> None:
    key = await begin(api)
    asked = {"transactions": [output(api, key, (0, 5))], "visible_within_ms": 20_000}
    waiting = asyncio.create_task(api.post(f"{T}/commit", asked))
    listed: list[Any] = []
    async with asyncio.timeout(10):
        while not listed:
            listed = (await api.get(T)).document["transactions"]
    assert [(one["transactional_id"], one["state"]) for one in listed] == [("p", "PrepareCommit")]
    place = {"topic": "t", "topic_id": topic_id(broker), "partition": 0, "first_offset": None}
    assert listed[0]["partitions"] == [place]
    partition = TopicPartition(broker.view.topics()[0].topic_id, 0)
    broker.transactions.mark(partition, key_of(key))
    answer = await waiting
    assert answer.document["visible"] is True and len(answer.document["producers"]) == 1
    (next_key,) = answer.document["producers"]
    hasty = {"transactions": [output(api, next_key, (0, 6))], "visible_within_ms": 10}
    late = (await api.post(f"{T}/commit", hasty)).document
    assert late["visible"] is False and late["producers"][0]["producer_epoch"] == next_key["producer_epoch"] + 1


async def test_a_commit_that_is_not_visible_in_time_needs_the_quorum_no_more(
    api: Api, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S13: it is committed. If the quorum is lost meanwhile, no answer may claim that it was not."""
    key = await begin(api)
    decide = broker.transactions.change
    decided: list[object] = []

    def once(change: TransactionChange, principal: str) -> TransactionAnswer:
        if decided:
            raise RetriableError("quorum_unavailable", "the metadata quorum cannot decide")
        decided.append(change)
        return decide(change, principal)

    monkeypatch.setattr(broker.transactions, "change", once)
    hasty = {"transactions": [output(api, key, (0, 6))], "visible_within_ms": 10}
    answer = await api.post(f"{T}/commit", hasty)
    assert answer.status == 200 and answer.document["visible"] is False
    assert [one["producer_epoch"] for one in answer.document["producers"]] == [key["producer_epoch"] + 1]


async def test_what_is_open_is_listed_and_described(api: Api, broker: FakeBroker) -> None:
    assert (await api.get(T)).document == {"transactions": []}
    key = await begin(api, "a/b")
    empty = (await api.get(f"{T}/a%2Fb")).document
    assert (empty["state"], empty["partitions"], empty["started_ms"]) == ("Empty", [], None)
    partition = TopicPartition(broker.view.topics()[0].topic_id, 2)
    now_ms = api.context.clock_ms()
    broker.transactions.open_now = [OpenTransaction(key_of(key), partition, Offset(3), now_ms - 4000)]
    (listed,) = (await api.get(T)).document["transactions"]
    assert listed == (await api.get(f"{T}/a%2Fb")).document | {"duration_ms": listed["duration_ms"]}
    assert (listed["state"], listed["timeout_ms"], listed["started_ms"]) == ("Ongoing", 5000, now_ms - 4000)
    assert 4000 <= listed["duration_ms"] < 60_000
    assert [(one["partition"], one["first_offset"]) for one in listed["partitions"]] == [(2, 3)]
    await api.post(f"{T}/abort", {"transactions": [key]})
    assert [one["state"] for one in (await api.get(T)).document["transactions"]] == ["PrepareAbort"]
    broker.transactions.open_now = []
    assert (await api.get(f"{T}/a%2Fb")).document["state"] == "CompleteAbort"
    (await api.get(f"{T}/nobody")).problem("unknown_transaction")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("initialize", {}),
        ("initialize", {"transactional_id": ""}),
        ("initialize", {"transactional_id": "x" * 513}),
        ("initialize", {"transactional_id": "\u0007"}),
        ("initialize", {"transactional_id": "p", "timeout_ms": 99}),
        ("blocks", {"count": 0}),
        ("blocks", {"count": 1, "more": 1}),
        ("commit", {}),
        ("commit", {"transactions": [{"producer_id": -1, "producer_epoch": 0}]}),
        ("commit", {"transactions": [{"producer_id": 1, "producer_epoch": 2**15}]}),
        ("commit", {"transactions": [{"producer_id": 1, "producer_epoch": 0, "topics": [{"topic_id": "x"}]}]}),
        ("commit", {"positions": [{"name": "p", "current": 5, "new": 5}]}),
        ("commit", {"group_offsets": [{"group": "g", "ranges": []}]}),
        ("commit", {"group_offsets": [{"group": "g", "ranges": [RANGE]}]}),
        ("commit", {"block": "\u0007"}),
        ("commit", {"block": "b", "visible_within_ms": 30_001}),
        ("abort", {"transactions": []}),
    ],
)
async def test_bad_bodies_change_nothing_s11(api: Api, path: str, body: dict[str, Any]) -> None:
    index = api.broker.view.index
    (await api.post(f"{T}/{path}", body)).problem("invalid_request")
    transactions = api.broker.view.transactions
    assert transactions.is_empty and api.broker.view.index <= index + 1
    await api.is_well()


async def test_large_and_foreign_bodies_s11(api: Api) -> None:
    (await api.post(f"{T}/commit", b"[" * 3_000_000)).problem("body_too_large")
    (await api.post(f"{T}/commit", b"{}", "text/plain")).problem("unsupported_media_type")
    (await api.get(f"{T}?state=open")).problem("invalid_request")
    many = [{"producer_id": number, "producer_epoch": 0} for number in range(10_001)]
    (await api.post(f"{T}/commit", {"transactions": many})).problem("invalid_request")
    block = (await api.post(f"{T}/blocks", {"count": 2_000})).document["first_producer_id"]
    large = [
        output(api, {"producer_id": block + n, "producer_epoch": 0}, *((p, n) for p in range(3))) for n in range(2_000)
    ]
    body = msgspec.json.encode({"transactions": large})
    assert len(body) > 200_000
    assert (await api.post(f"{T}/commit", body)).status == 200
    await api.is_well()


async def test_what_the_quorum_cannot_decide_now_may_be_asked_for_again(api: Api, broker: FakeBroker) -> None:
    key = await begin(api)
    for code in ("quorum_unavailable", "outcome_unknown"):
        broker.transactions.fail = RetriableError(code, "no leader")
        (await api.post(f"{T}/commit", {"transactions": [output(api, key, (0, 1))]})).problem(code)
    broker.transactions.fail = None
    assert (await api.post(f"{T}/commit", {"transactions": [output(api, key, (0, 1))]})).status == 200
    broker.quorum_answers = False
    for path in (T, f"{T}/p", "/v1/positions/p"):
        (await api.get(path)).problem("quorum_unavailable")


async def test_an_initialisation_that_is_repeated_is_answered_as_the_first(api: Api) -> None:
    asked = {"transactional_id": "app", "attempt": "ab" * 16}
    first = (await api.post(f"{T}/initialize", asked)).document
    assert (await api.post(f"{T}/initialize", asked)).document == first
    other = (await api.post(f"{T}/initialize", {**asked, "attempt": "cd" * 16})).document
    assert other["producer_epoch"] == first["producer_epoch"] + 1
    (await api.post(f"{T}/initialize", asked)).problem("producer_fenced")
    (await api.post(f"{T}/initialize", {"transactional_id": "app", "after": first})).problem("producer_fenced")
    anew = (await api.post(f"{T}/initialize", {"transactional_id": "app", "after": other})).document
    assert anew["producer_epoch"] == other["producer_epoch"] + 1
    for bad in ("ab", "AB" * 16, "ab" * 17, "x" * 32):
        (await api.post(f"{T}/initialize", {**asked, "attempt": bad})).problem("invalid_request")


async def test_positions_are_listed_and_removed_where_they_stand(api: Api) -> None:
    moved = [{"name": f"q/{number}", "current": -1, "new": number} for number in range(3)]
    assert (await api.post(f"{T}/commit", {"positions": moved})).status == 200
    listed = (await api.get("/v1/positions?prefix=q%2F")).document
    assert listed == {"positions": [{"name": f"q/{n}", "value": n} for n in range(3)], "more": False}
    assert (await api.get("/v1/positions?prefix=none")).document == {"positions": [], "more": False}
    (await api.call("DELETE", "/v1/positions/q%2F2")).problem("invalid_request")
    (await api.call("DELETE", "/v1/positions/q%2F2?value=-1")).problem("invalid_request")
    (await api.call("DELETE", "/v1/positions/q%2F2?value=1")).problem("offset_moved")
    for _ in range(2):
        assert (await api.call("DELETE", "/v1/positions/q%2F2?value=2")).status == 204
    assert [one["name"] for one in (await api.get("/v1/positions")).document["positions"]] == ["q/0", "q/1"]


async def test_a_long_list_of_positions_is_compressed_for_those_who_take_it(api: Api) -> None:
    many = [{"name": f"many/{n}", "current": -1, "new": n} for n in range(100)]
    assert (await api.post(f"{T}/commit", {"positions": many})).status == 200
    packed = await api.get("/v1/positions?prefix=many", headers={"Accept-Encoding": "gzip"})
    assert packed.headers["Content-Encoding"] == "gzip" and len(packed.document["positions"]) == 100


async def test_what_is_told_of_large_transactions_is_bounded(
    api: Api, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "MAX_PLACES", 2)
    monkeypatch.setattr(transactions, "MAX_LISTED", 2)
    monkeypatch.setattr(transactions, "PLACES_PER_TURN", 1)
    keys = [await begin(api, f"app-{number}") for number in range(3)]
    for key in keys:
        assert (
            await api.post(f"{T}/commit", {"transactions": [output(api, key, (0, 5), (1, 5), (2, 5))]})
        ).status == 200
    listed = (await api.get(T)).document["transactions"]
    assert [len(one["partitions"]) for one in listed] == [2, 2]
    assert len((await api.get(f"{T}/app-2")).document["partitions"]) == 2


# --- Messages of the client protocol ---------------------------------------------------------------------------------


async def send(api: Api, request: Request) -> Answer:
    body = b"".join(map(bytes, encode(request)))  # type: ignore[arg-type]
    return await api.post(TRANSACTIONS_PATH, body, CONTENT_TYPE)


async def test_a_client_without_a_data_connection_sends_messages_s13(api: Api) -> None:
    async def ask(request: Request) -> TransactionResponse:
        answer = await send(api, request)
        assert (answer.status, answer.headers["Content-Type"]) == (200, CONTENT_TYPE)
        response = decode_response(answer.body)[0]
        assert isinstance(response, TransactionResponse) and response.correlation_id == request.correlation_id
        return response

    (first,) = (await ask(InitializeRequest(5, "p", 60_000))).keys
    block = await ask(OpenBlockRequest(6, "", 3, 60_000))
    assert block.count == 3 and block.keys[0].producer_id > first.producer_id
    place = TopicPartition(TopicId(bytes.fromhex(topic_id(api.broker))), 0)
    commit = CommitRequest(7, (TransactionOutput.of(first, {place: Offset(5)}),))
    (second,) = (await ask(commit)).keys
    assert (await ask(commit)).keys == (second,)
    late = await ask(msgspec.structs.replace(commit, visible_within_ms=20))
    assert late.keys == (second,) and not late.visible
    assert len((await ask(AbortRequest(8, (second,)))).keys) == 1
    (await send(api, AbortRequest(9, (first,)))).problem("producer_fenced")


async def test_only_messages_about_transactions_are_taken_s11(api: Api) -> None:
    (await send(api, OffsetsRequest(1, []))).problem("invalid_request")
    (await api.post(TRANSACTIONS_PATH, b"\0\0\0\1\xc1", CONTENT_TYPE)).problem("invalid_request")
    (await api.post(TRANSACTIONS_PATH, {}, "application/json")).problem("unsupported_media_type")
    (await api.post(TRANSACTIONS_PATH, bytes(3 << 20), CONTENT_TYPE)).problem("body_too_large")
    (await api.get(TRANSACTIONS_PATH)).problem("method_not_allowed")
