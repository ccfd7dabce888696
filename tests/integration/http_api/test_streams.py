"""Streams of records over a socket: every form, what joins and leaves, resuming, rights, readers that do not read."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
import pytest_asyncio

from http_api.streams import record_stream
from http_api.streams.stream import PAGES
from http_api.web.limits import Limits
from metadata.view import TopicRemoved
from raftlog.records.batch import encode, encode_control
from raftlog.security.acls import AclFilter, Operation, ResourceType
from tests.support.client.fake_broker import FakeBroker
from tests.support.client.secured_broker import SecuredBroker
from tests.support.http.api_client import PATIENCE_S, Api, eventually, running_api
from tests.support.security.rules import allow

pytestmark = pytest.mark.integration

NDJSON = {"Accept": "application/x-ndjson"}


@pytest_asyncio.fixture(params=["memory", "file"])
async def api(request: pytest.FixtureRequest) -> AsyncIterator[Api]:
    broker = FakeBroker(request.param)
    broker.add_topic("t", 2)
    async with running_api(broker) as running:
        yield running


class Reader:
    """The events of one stream of JSON lines."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.cursor = ""

    async def next(self) -> Any:
        """Return the next event that is no heartbeat."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                line = await self.response.content.readuntil(b"\n")
                assert line, "the stream has ended"
                event = json.loads(line)
                self.cursor = event["cursor"]
                if event["type"] != "heartbeat":
                    return event

    async def of(self, kind: str) -> Any:
        """Return the next event, which must be of this type."""
        event = await self.next()
        assert event["type"] == kind, event
        return event

    async def values(self, count: int) -> list[tuple[str, int, Any]]:
        """Return topic, partition and value of the next records."""
        found: list[tuple[str, int, Any]] = []
        while len(found) < count:
            event = await self.of("records")
            found += [(event["topic"], event["partition"], one["value"]) for one in event["records"]]
        return found

    async def ended(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            assert await self.response.content.read() == b""


@asynccontextmanager
async def reading(api: Api, query: str, **headers: str) -> AsyncIterator[Reader]:
    async with api.session.get(f"/v1/stream?{query}", headers={**NDJSON, **headers}) as response:
        assert response.status == 200, await response.text()
        assert response.headers["Content-Type"] == "application/x-ndjson"
        yield Reader(response)


def put(broker: FakeBroker, topic: str, *values: bytes, partition: int = 0) -> None:
    broker.append(topic, encode(list(values), base_timestamp_ms=1000), partition)


async def test_records_of_all_partitions_come_as_they_are_written(api: Api) -> None:
    put(api.broker, "t", b"a", b"b")
    async with reading(api, "topic=t&start=earliest") as one:
        joined = await one.of("joined")
        assert (joined["topic"], joined["partitions"]) == ("t", [[0, 0], [1, 0]])
        assert await one.values(2) == [("t", 0, "a"), ("t", 0, "b")]
        put(api.broker, "t", b'{"n": 1}', partition=1)
        event = await one.of("records")
        assert event["partition"] == 1 and event["next_offset"] == event["high_watermark"] == 1
        assert event["records"] == [{"offset": 0, "timestamp": 1000, "key": None, "value": {"n": 1}, "headers": []}]
    await eventually(lambda: api.context.streams == 0)
    await api.is_well()


async def test_a_stream_begins_at_the_end_a_time_or_an_offset(api: Api) -> None:
    for number in range(3):
        batch = encode([b"%d" % number], base_timestamp_ms=1000 * (number + 1))
        api.broker.append("t", batch)
    async with reading(api, "topic=t") as one:
        assert (await one.of("joined"))["partitions"] == [[0, 3], [1, 0]]
        put(api.broker, "t", b"new")
        assert await one.values(1) == [("t", 0, "new")]
    async with reading(api, "topic=t&start=@2000") as one:
        assert (await one.of("joined"))["partitions"] == [[0, 1], [1, 0]]
        assert await one.values(3) == [("t", 0, "1"), ("t", 0, "2"), ("t", 0, "new")]
    async with reading(api, "topic=t&offset=t/0:2") as one:
        assert (await one.of("joined"))["partitions"] == [[0, 2]]
        assert (await one.of("joined"))["partitions"] == [[1, 0]]
        assert await one.values(2) == [("t", 0, "2"), ("t", 0, "new")]


async def test_a_stream_resumes_behind_any_of_its_events(api: Api) -> None:
    for value in (b"a", b"b", b"c"):
        put(api.broker, "t", value)
        put(api.broker, "t", value.upper(), partition=1)
    expected = {("t", 0, one) for one in "abc"} | {("t", 1, one) for one in "ABC"}
    cursors = []
    async with reading(api, "topic=t&start=earliest") as one:
        await one.of("joined")
        got: list[set[tuple[str, int, Any]]] = [set()]
        cursors.append(one.cursor)
        while got[-1] != expected:
            got.append(got[-1] | set(await one.values(1)))
            cursors.append(one.cursor)
    for had, cursor in zip(got, cursors, strict=True):
        query = f"topic=t&max_records={max(1, 6 - len(had))}&duration_ms=300"
        async with reading(api, query, **{"Last-Event-ID": cursor}) as one:
            await one.of("joined")
            rest = set(await one.values(6 - len(had)))
            assert not rest & had and rest | had == expected, "nothing is skipped or comes twice"
            assert (await one.of("end"))["code"] == "complete"
            await one.ended()


async def test_markers_and_offsets_below_the_log_move_the_cursor(api: Api) -> None:
    put(api.broker, "t", b"a", b"b")
    api.broker.append("t", encode_control(1, [(1, 0, 2)], base_timestamp_ms=5))
    async with reading(api, "topic=t&offset=t/0:1&heartbeat_ms=100") as one:
        await one.of("joined")
        await one.of("joined")
        assert await one.values(1) == [("t", 0, "b")]
        cursor = one.cursor
    api.broker.log("t").log_start_offset = 3
    async with reading(api, "topic=t&offset=t/0:1") as one:
        await one.of("joined")
        events = [await one.next(), await one.next()]
        (moved,) = [event for event in events if event["type"] == "moved"]
        assert (moved["partition"], moved["offset"], moved["next_offset"]) == (0, 1, 3)
    async with reading(api, "topic=t&duration_ms=200", **{"Last-Event-ID": cursor}) as one:
        await one.of("joined")
        assert (await one.of("end"))["code"] == "complete", "the marker had moved the cursor"


async def test_partitions_topics_and_second_lives_join_at_their_first_record(api: Api) -> None:
    broker = api.broker
    put(broker, "t", b"old")
    async with reading(api, "topic=t&pattern=log-.*") as one:
        first = await one.of("joined")
        assert first["partitions"] == [[0, 1], [1, 0]]
        broker.grow("t", 3)
        put(broker, "t", b"third", partition=2)
        assert (await one.of("joined"))["partitions"] == [[2, 0]]
        assert await one.values(1) == [("t", 2, "third")]

        broker.add_topic("other")
        broker.add_topic("log-1")
        put(broker, "log-1", b"logged")
        assert (await one.of("joined"))["topic"] == "log-1"
        assert await one.values(1) == [("log-1", 0, "logged")]

        broker.create_again("t")
        put(broker, "t", b"again")
        left = await one.of("left")
        assert (left["topic"], left["topic_id"]) == ("t", first["topic_id"])
        again = await one.of("joined")
        assert again["topic"] == "t" and again["topic_id"] != first["topic_id"] and again["partitions"] == [[0, 0]]
        assert await one.values(1) == [("t", 0, "again")]


async def test_a_cursor_of_a_deleted_topic_never_fits_another_of_its_name(api: Api) -> None:
    put(api.broker, "t", b"a", b"b")
    async with reading(api, "topic=t&start=earliest") as one:
        old = (await one.of("joined"))["topic_id"]
        await one.values(2)
        cursor = one.cursor
    api.broker.create_again("t")
    put(api.broker, "t", b"x", b"y", b"z")
    async with reading(api, f"topic=t&cursor={cursor}") as one:
        left = await one.of("left")
        assert (left["topic"], left["topic_id"]) == (None, old)
        assert (await one.of("joined"))["partitions"] == [[0, 0]]
        assert [value for _, _, value in await one.values(3)] == ["x", "y", "z"]
    topic = api.broker.view.topic("t")
    assert topic is not None
    api.broker._event(TopicRemoved(topic.topic_id, "t"))
    async with reading(api, f"topic=t&cursor={cursor}") as one:
        await one.of("left")
        api.broker.add_topic("t")
        put(api.broker, "t", b"third life")
        await one.of("joined")
        assert (await one.values(1))[0][2] == "third life"


async def test_server_sent_events_as_a_browser_reads_them(api: Api) -> None:
    put(api.broker, "t", b"a")
    async with api.session.get("/v1/stream?topic=t&start=earliest&max_records=1") as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        assert response.headers["Cache-Control"] == "no-store"
        text = (await response.read()).decode()
    head, *found = text.strip().split("\n\n")
    assert head == "retry: 1000"
    events = [dict(line.split(": ", 1) for line in one.split("\n")) for one in found]
    assert [one["event"] for one in events] == ["joined", "records", "end"]
    assert json.loads(events[1]["data"])["records"][0]["value"] == "a"
    assert events[1]["id"] == events[2]["id"] != events[0]["id"]


async def test_a_web_socket_has_the_same_events(api: Api) -> None:
    put(api.broker, "t", b"a")
    url = f"ws://127.0.0.1:{api.port}/v1/stream?topic=t&start=earliest"
    async with api.session.ws_connect(url, compress=15) as socket_:
        assert not socket_.compress, "compression costs memory for each reader"
        assert (await socket_.receive_json(timeout=PATIENCE_S))["type"] == "joined"
        event = await socket_.receive_json(timeout=PATIENCE_S)
        assert event["type"] == "records" and event["records"][0]["value"] == "a"
        await socket_.ping()
        put(api.broker, "t", b"b")
        event = await socket_.receive_json(timeout=PATIENCE_S)
        assert event["records"][0]["value"] == "b"
        cursor = event["cursor"]
    await eventually(lambda: api.context.streams == 0)
    async with api.session.ws_connect(f"{url}&cursor={cursor}&max_records=1") as socket_:
        assert (await socket_.receive_json(timeout=PATIENCE_S))["type"] == "joined"
        put(api.broker, "t", b"c")
        assert (await socket_.receive_json(timeout=PATIENCE_S))["records"][0]["value"] == "c"
        assert (await socket_.receive_json(timeout=PATIENCE_S))["type"] == "end"
        assert (await socket_.receive(timeout=PATIENCE_S)).type is aiohttp.WSMsgType.CLOSE
        assert socket_.close_code == aiohttp.WSCloseCode.OK
    for size in (1, 2_000):
        async with api.session.ws_connect(url) as socket_:
            await socket_.send_bytes(bytes(size))
            while (await socket_.receive(timeout=PATIENCE_S)).type is aiohttp.WSMsgType.TEXT:
                pass
            assert socket_.close_code in (aiohttp.WSCloseCode.UNSUPPORTED_DATA, aiohttp.WSCloseCode.MESSAGE_TOO_BIG)
    await eventually(lambda: api.context.streams == 0)
    await api.is_well()


@pytest.mark.parametrize(
    "head",
    [
        b"Upgrade: websocket\r\nConnection: Upgrade\r\n",
        b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 99\r\nSec-WebSocket-Key: x\r\n",
        b"Upgrade: websocket\r\n",
    ],
)
async def test_a_broken_handshake_is_refused(api: Api, head: bytes) -> None:
    request = b"GET /v1/stream?topic=t HTTP/1.1\r\nHost: localhost\r\n%bConnection: close\r\n\r\n" % head
    answer = await api.raw(request)
    assert answer.startswith(b"HTTP/1.1 400 ") and b"invalid_request" in answer
    await api.is_well()


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("", "invalid_request"),
        ("topic=absent", "unknown_topic"),
        ("pattern=(", "invalid_request"),
        ("topic=t&start=yesterday", "invalid_request"),
        ("topic=t&start=@-1", "timestamp_out_of_range"),
        ("topic=t&offset=t/0", "invalid_request"),
        ("topic=t&offset=u/0:1", "invalid_request"),
        ("topic=t&offset=t/2:1", "unknown_partition"),
        ("topic=t&cursor=AAAA", "invalid_request"),
        ("topic=t&max_records=0", "invalid_request"),
        ("topic=t&heartbeat_ms=1", "invalid_request"),
        ("topic=t&isolation=none", "invalid_request"),
        ("topic=t&value_format=xml", "invalid_request"),
        ("topic=t&other=1", "invalid_request"),
        ("&".join(f"topic=t{number}" for number in range(65)), "invalid_request"),
        ("topic=wide", "invalid_request"),
    ],
)
async def test_bad_queries_are_refused(api: Api, query: str, code: str) -> None:
    api.broker.add_topic("wide", 513)
    (await api.get(f"/v1/stream?{query}")).problem(code)
    (await api.get("/v1/stream?topic=t", headers={"Accept": "image/png"})).problem("not_acceptable")
    await api.is_well()


async def test_a_pattern_takes_what_matches_wholly(api: Api) -> None:
    api.broker.add_topic("tt")
    async with reading(api, f"pattern={quote('t|x')}&duration_ms=100") as one:
        assert (await one.of("joined"))["topic"] == "t"
        await one.of("end")


async def test_a_partition_that_fails_holds_up_no_other(api: Api) -> None:
    broker = api.broker
    broker.partition_errors[0] = "internal_error"
    async with reading(api, "topic=t&offset=t/0:0&offset=t/1:0") as one:
        await one.of("joined")
        stuck = await one.of("stuck")
        assert (stuck["partition"], stuck["code"]) == (0, "internal_error")
        put(broker, "t", b"fine", partition=1)
        assert await one.values(1) == [("t", 1, "fine")]
    broker.partition_errors[0] = "leader_not_available"
    put(broker, "t", b"later")
    async with reading(api, "topic=t&offset=t/0:0&offset=t/1:0") as one:
        await one.of("joined")
        assert await one.values(1) == [("t", 1, "fine")]
        del broker.partition_errors[0]
        assert await one.values(1) == [("t", 0, "later")]


async def test_a_heartbeat_comes_when_nothing_else_does(api: Api) -> None:
    async with api.session.get("/v1/stream?topic=t&heartbeat_ms=100", headers=NDJSON) as response:
        async with asyncio.timeout(PATIENCE_S):
            kinds = [json.loads(await response.content.readuntil(b"\n"))["type"] for _ in range(3)]
    assert kinds == ["joined", "heartbeat", "heartbeat"]


async def test_large_records_come_in_pieces_and_are_not_held(api: Api) -> None:
    values = [b"x" * 1000] * 900
    put(api.broker, "t", *values)
    async with reading(api, "topic=t&start=earliest") as one:
        await one.of("joined")
        first = await one.of("records")
        assert 0 < len(first["records"]) < 900
        found = len(first["records"]) + len(await one.values(900 - len(first["records"])))
        assert found == 900
        await eventually(lambda: api.context.held_bytes == 0)


async def test_records_that_arrive_while_a_stream_pauses_come_together(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_stream, "PAUSE_PER_STREAM_S", 0.5)
    async with reading(api, "topic=t") as one:
        await one.of("joined")
        put(api.broker, "t", b"a")
        assert await one.values(1) == [("t", 0, "a")]
        for value in (b"b", b"c", b"d"):
            put(api.broker, "t", value)
        event = await one.of("records")
        assert [record["value"] for record in event["records"]] == ["b", "c", "d"]


async def test_readers_at_the_end_of_a_log_share_what_is_encoded(api: Api) -> None:
    async with reading(api, "topic=t") as one, reading(api, "topic=t") as two, reading(api, "topic=t") as three:
        for reader in (one, two, three):
            await reader.of("joined")
        put(api.broker, "t", b"a")
        assert [await reader.values(1) for reader in (one, two, three)] == [[("t", 0, "a")]] * 3
        assert api.runner.app[PAGES].hits == 2


async def test_the_end_of_the_node_is_told_and_waited_for() -> None:
    broker = FakeBroker()
    broker.add_topic("t")
    async with running_api(broker) as api:
        url = f"ws://127.0.0.1:{api.port}/v1/stream?topic=t"
        async with reading(api, "topic=t") as one, api.session.ws_connect(url) as two:
            await one.of("joined")
            await two.receive_json(timeout=PATIENCE_S)
            stopping = asyncio.ensure_future(api.runner.cleanup())
            assert (await one.of("end"))["code"] == "shutting_down"
            await one.ended()
            assert (await two.receive_json(timeout=PATIENCE_S))["code"] == "shutting_down"
            assert (await two.receive(timeout=PATIENCE_S)).type is aiohttp.WSMsgType.CLOSE
            assert two.close_code == aiohttp.WSCloseCode.GOING_AWAY
            await stopping


async def test_streams_are_bounded_and_do_not_count_as_requests() -> None:
    broker = FakeBroker()
    broker.add_topic("t")
    limits = Limits(max_streams=3, max_streams_of_caller=2, max_concurrent_requests=2, max_requests_of_caller=1)
    async with running_api(broker, limits=limits) as api:
        async with reading(api, "topic=t") as one, reading(api, "topic=t") as two:
            await one.of("joined")
            await two.of("joined")
            assert api.context.requests_under_way == 0
            assert "\nraftlog_http_streams 2" in (await api.get("/metrics")).body.decode()
            (await api.get("/v1/stream?topic=t")).problem("overloaded")
            assert (await api.get("/v1/topics/t")).status == 200
        await eventually(lambda: api.context.streams == 0)
        async with reading(api, "topic=t") as one:
            await one.of("joined")


async def test_a_reader_that_does_not_read_is_cut_and_holds_up_nobody() -> None:
    broker = FakeBroker()
    broker.add_topic("t")
    for _ in range(30):
        put(broker, "t", *[b"x" * 1000] * 500)
    limits = Limits(write_timeout_s=0.3, write_min_bytes_per_s=10_000_000)
    async with running_api(broker, limits=limits) as api:
        with socket.socket() as stopped:
            stopped.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stopped.setblocking(False)
            await asyncio.get_running_loop().sock_connect(stopped, ("127.0.0.1", api.port))
            stopped.send(b"GET /v1/stream?topic=t&start=earliest HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await eventually(lambda: api.context.streams == 1)
            async with reading(api, "topic=t") as one:
                await one.of("joined")
                put(broker, "t", b"a")
                assert await one.values(1) == [("t", 0, "a")]
            await eventually(lambda: api.context.streams == 0)
        await api.is_well()


async def test_a_stream_ends_with_its_credential_or_a_right_s12() -> None:
    broker = SecuredBroker()
    broker.add_topic("t")
    broker.add_topic("secret")
    await broker.allow(allow(Operation.READ, ResourceType.TOPIC, "t"))
    async with running_api(broker) as api:
        alice = await broker.user("alice")
        (await api.get("/v1/stream?topic=secret", headers=alice)).problem("authorization_failed")
        (await api.get("/v1/stream?topic=absent", headers=alice)).problem("authorization_failed")
        async with reading(api, "pattern=.*", **alice) as one:
            assert (await one.of("joined"))["topic"] == "t"
            put(broker, "secret", b"hidden")
            put(broker, "t", b"shown")
            assert await one.values(1) == [("t", 0, "shown")]
            await broker.allow(allow(Operation.READ, ResourceType.TOPIC, "secret"))
            assert (await one.of("joined"))["topic"] == "secret"
            assert await one.values(1) == [("secret", 0, "hidden")]
            await broker.security.remove_rules(AclFilter(), dry_run=False)
            put(broker, "t", b"not any more")
            assert (await one.of("end"))["code"] == "authorization_failed"
            await one.ended()
        await broker.allow(allow(Operation.READ, ResourceType.TOPIC, "t"))
        async with reading(api, "topic=t", **alice) as one:
            await one.of("joined")
            await broker.security.remove_user("alice")
            assert (await one.of("end"))["code"] == "unauthenticated"
            await one.ended()
        await eventually(lambda: api.context.streams == 0)


async def test_a_foreign_page_gets_no_web_socket(api: Api) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await api.session.ws_connect(f"ws://127.0.0.1:{api.port}/v1/stream?topic=t", origin="https://evil.example")
    assert refused.value.status == 403
