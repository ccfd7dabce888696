"""The API over HTTP/2: the same routes at the API's own port and at the data listener, for any client of the protocol.
S11, S12."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from http_api.web import delivery, middleware
from http_api.web.limits import Limits
from metadata.view import QuotaLimits
from raftlog.http2.limits import DEFAULT_WINDOW
from raftlog.records.batch import Record, RecordBatch, encode
from raftlog.wire import CONTENT_TYPE
from tests.support.client.fake_broker import CLUSTER_ID, FakeBroker
from tests.support.client.secured_broker import SecuredBroker
from tests.support.clusters.certificates import self_signed
from tests.support.http.api_client import PATIENCE_S, Api, eventually, running_api, running_listener
from tests.support.http.http2_client import Http2Client, Stream, StreamLost, http2_client
from tests.support.http.http2_peer import raw_frame

pytestmark = pytest.mark.integration

RECORDS = "/v1/topics/t/records"
PAGE = "/v1/topics/t/partitions/0/records"
POLL = f"{PAGE}?offset=latest&max_wait_ms=60000"
V3_RECORDS = f"/v3/clusters/{CLUSTER_ID}/topics/t/records"
JSON = {"content-type": "application/json"}
OCTETS = {"content-type": "application/octet-stream"}
DOORS = ("API", "data listener")
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def broker(**topic: Any) -> FakeBroker:
    made = FakeBroker()
    made.add_topic("t", 1, **topic)
    return made


class Both:
    """A running API with the port of the door that a test uses, and a client at it."""

    def __init__(self, api: Api, port: int, client: Http2Client) -> None:
        self.api = api
        self.port = port
        self.client = client

    @property
    def stored(self) -> list[Record]:
        return [record for batch in self.api.broker.log("t", 0).batches for record in RecordBatch(batch).records()]

    async def rests(self) -> None:
        """Wait until no request is in progress, and check that the API works."""
        await eventually(lambda: self.api.context.requests_under_way == 0)
        await self.api.is_well()


@asynccontextmanager
async def door(
    name: str, made: FakeBroker, *, settings: dict[SettingCodes, int] | None = None, **options: Any
) -> AsyncIterator[Both]:
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(running_api(made, **options))
        port = api.port if name == "API" else await stack.enter_async_context(running_listener(api))
        client = await stack.enter_async_context(http2_client(port, settings=settings))
        yield Both(api, port, client)


@pytest_asyncio.fixture(params=DOORS)
async def both(request: pytest.FixtureRequest) -> AsyncIterator[Both]:
    async with door(request.param, broker()) as made:
        yield made


async def curl(*arguments: str, body: bytes | None = None) -> tuple[str, bytes]:
    """Return the version and status that curl tells, and the answer's body."""
    process = await asyncio.create_subprocess_exec(
        "curl", "--silent", "--show-error", "--max-time", "20", "--write-out", "%{stderr}%{http_version} %{http_code}",
        *arguments, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, told = await process.communicate(body)
    assert process.returncode == 0, told
    return told.decode(), out


# --- Clients ---------------------------------------------------------------------------------------------------------


@needs_curl
async def test_curl_writes_and_reads_with_prior_knowledge(both: Both) -> None:
    url = f"http://127.0.0.1:{both.port}"
    prior = "--http2-prior-knowledge"
    told, answer = await curl(
        prior, "--json", "@-", f"{url}{RECORDS}", body=b'{"records": [{"key": "k", "value": "v"}]}'
    )
    assert told == "2 200" and msgspec.json.decode(answer)["record_count"] == 1
    told, answer = await curl(prior, f"{url}{PAGE}")
    assert told == "2 200" and msgspec.json.decode(answer)["records"][0]["value"] == "v"
    told, answer = await curl(prior, "--head", f"{url}/v1/health")
    assert told == "2 200" and b"server: raftlog" in answer
    assert (await curl(prior, f"{url}/nothing"))[0] == "2 404"
    large = b"x" * 1_000_000
    told, _ = await curl(
        prior, "--data-binary", "@-", "-H", "Content-Type: application/octet-stream", "-H", "Expect: 100-continue",
        f"{url}{RECORDS}", body=large,
    )  # fmt: skip
    assert told == "2 200" and bytes(both.stored[-1].value or b"") == large


async def test_one_connection_of_httpx_serves_many_requests(both: Both) -> None:
    async with httpx.AsyncClient(http1=False, http2=True, base_url=f"http://127.0.0.1:{both.port}") as client:
        posts = [client.post(RECORDS, json={"records": [{"value": str(i)}]}) for i in range(200)]
        answers = await asyncio.gather(*posts)
        assert {(answer.http_version, answer.status_code) for answer in answers} == {("HTTP/2", 200)}
        page = (await client.get(PAGE, headers={"accept-encoding": "gzip"})).json()
    assert sorted(int(record["value"]) for record in page["records"]) == list(range(200))
    await both.rests()


@pytest.fixture
def contexts(tmp_path: Path) -> tuple[ssl.SSLContext, Path]:
    certificate, key = self_signed("127.0.0.1")
    (tmp_path / "cert.pem").write_bytes(certificate)
    (tmp_path / "key.pem").write_bytes(key)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    server.set_alpn_protocols(["h2", "http/1.1"])
    return server, tmp_path / "cert.pem"


@needs_curl
async def test_tls_agrees_on_the_version_by_alpn(contexts: tuple[ssl.SSLContext, Path]) -> None:
    server, trusted = contexts
    client_ssl = ssl.create_default_context(cafile=str(trusted))
    async with running_api(broker(), ssl_context=server, client_ssl=client_ssl) as api:
        url = f"https://127.0.0.1:{api.port}/v1/topics/t"
        for version, option in (("2", "--http2"), ("1.1", "--http1.1")):
            told, answer = await curl("--cacert", str(trusted), option, url)
            assert (told, msgspec.json.decode(answer)["name"]) == (f"{version} 200", "t")
        offers_both = ssl.create_default_context(cafile=str(trusted))
        async with httpx.AsyncClient(http2=True, verify=offers_both) as client:
            answers = await asyncio.gather(*(client.get(url) for _ in range(20)))
        assert {answer.http_version for answer in answers} == {"HTTP/2"}
        assert (await api.get("/v1/topics/t")).status == 200, "aiohttp's client speaks HTTP/1.1"
        await eventually(lambda: api.connections == 1)


async def test_http1_and_http2_share_the_apis_port() -> None:
    async with door("API", broker()) as both:
        assert (await both.client.request("GET", "/v1/topics/t")).status == 200
        assert (await both.api.get("/v1/topics/t")).status == 200
        answer = await both.api.raw(b"PRI * HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer.startswith(b"HTTP/1."), "almost a preface"
    async with running_api(broker(), limits=Limits(keepalive_timeout_s=0.2)) as api:
        assert await api.raw(b"PRI") == b"", "the beginning of a preface, and nothing more"


async def test_a_preface_in_pieces_is_one() -> None:
    async with running_api(broker()) as api:
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + raw_frame(4, 0, 0)
        for at in range(len(preface)):
            writer.write(preface[at : at + 1])
            await writer.drain()
            await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_S):
            head = await reader.readexactly(9)
        assert head[3] == 4, "SETTINGS"
        writer.transport.abort()


async def test_raw_requests_of_the_client_protocol_are_told_from_its_streams(both: Both) -> None:
    answer = await both.client.request("POST", "/v1/fetch", {"content-type": CONTENT_TYPE}, b"no message")
    answer.problem("invalid_request")


# --- Streams ---------------------------------------------------------------------------------------------------------


async def line(stream: Stream) -> Any:
    return msgspec.json.decode(await stream.read())


async def test_records_and_their_answers_flow_both_ways(both: Both) -> None:
    stream = await both.client.begin("POST", V3_RECORDS, JSON)
    for number in range(5):
        await stream.send(msgspec.json.encode({"value": {"type": "JSON", "data": number}}) + b"\n")
        assert (await line(stream))["offset"] == number, "answered before the next one is sent"
    await stream.send(b"", end=True)
    assert (await stream.answer()).status == 200
    await both.rests()


async def test_a_reset_ends_a_long_poll(both: Both) -> None:
    poll = await both.client.begin("GET", POLL, end=True)
    await eventually(lambda: both.api.broker.fetches_waiting == 1)
    assert (await both.client.request("GET", "/v1/topics")).status == 200, "others go on beside it"
    await poll.reset()
    await eventually(lambda: both.api.broker.fetches_waiting == 0)
    await both.rests()


async def test_a_lost_connection_ends_its_requests() -> None:
    async with running_api(broker()) as api, running_listener(api) as port:
        for one in (api.port, port):
            async with http2_client(one) as client:
                for _ in range(3):
                    await client.begin("GET", POLL, end=True)
                await eventually(lambda: api.broker.fetches_waiting == 3)
            await eventually(lambda: api.broker.fetches_waiting == 0)
        await api.is_well()


async def test_a_reset_while_the_body_arrives_appends_nothing(both: Both) -> None:
    stream = await both.client.begin("POST", RECORDS, JSON)
    await stream.send(b'{"records": [{"value": "half')
    await eventually(lambda: both.api.context.held_bytes > 0)
    await stream.reset()
    await both.rests()
    assert both.stored == []


async def test_a_write_is_completed_although_its_stream_is_reset(both: Both) -> None:
    both.api.broker.hang.clear()
    stream = await both.client.begin("POST", RECORDS, JSON)
    await stream.send(b'{"records": [{"value": "sent"}]}', end=True)
    await eventually(lambda: len(both.api.broker.produced) == 1)
    await stream.reset()
    both.api.broker.hang.set()
    await both.rests()
    await eventually(lambda: len(both.stored) == 1)


@pytest.mark.parametrize("name", DOORS)
async def test_small_windows_carry_large_contents(name: str) -> None:
    small = {SettingCodes.INITIAL_WINDOW_SIZE: 1_000}
    async with door(name, broker(), settings=small) as both:
        value = bytes(range(256)) * 2_000
        answer = await both.client.request("POST", RECORDS, OCTETS, value)
        assert answer.status == 200
        answer = await both.client.request("GET", PAGE, {"accept": "application/octet-stream"})
        assert answer.status in (200, 406)
        answer = await both.client.request("GET", PAGE)
        assert len(answer.body) > len(value)
        await both.rests()


async def test_an_answer_that_nobody_reads_waits_and_holds_up_no_other(both: Both) -> None:
    for _ in range(4):
        both.api.broker.append("t", encode([b"x" * 900_000], base_timestamp_ms=1))
    unread = await both.client.begin("GET", f"{PAGE}?max_bytes=16777216", end=True)
    await unread.head()
    for _ in range(20):
        assert (await both.client.request("GET", "/v1/topics")).status == 200
    assert both.api.context.requests_under_way == 1
    assert len((await unread.answer()).body) > 3_600_000
    await both.rests()


@pytest.mark.parametrize("name", DOORS)
async def test_a_reader_that_stops_loses_its_stream_but_not_its_connection(name: str) -> None:
    made = broker()
    for _ in range(4):
        made.append("t", encode([b"x" * 900_000], base_timestamp_ms=1))
    async with door(name, made, limits=Limits(write_timeout_s=0.3, write_min_bytes_per_s=1 << 30)) as both:
        unread = await both.client.begin("GET", f"{PAGE}?max_bytes=16777216", end=True)
        await unread.head()
        await eventually(lambda: unread.lost is not None)
        assert (await both.client.request("GET", "/v1/topics")).status == 200
        await both.rests()


async def test_the_interim_answer_comes_when_the_body_is_wanted(both: Both) -> None:
    stream = await both.client.begin("POST", RECORDS, {**JSON, "expect": "100-continue"})
    await eventually(lambda: stream.interim == [100])
    await stream.send(b'{"records": [{"value": 1}]}', end=True)
    assert (await stream.answer()).status == 200
    refused = await both.client.begin("POST", "/v1/topics/missing/records", {**JSON, "expect": "100-continue"})
    assert (await refused.head(), refused.interim) == (404, [])
    await both.rests()


# --- Bounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOORS)
async def test_bodies_are_bounded(name: str) -> None:
    async with door(name, broker(), limits=Limits(max_body_bytes=200_000, linger_s=0.2)) as both:
        announced = await both.client.begin("POST", RECORDS, {**OCTETS, "content-length": "200001"})
        (await announced.answer()).problem("body_too_large")
        with pytest.raises(StreamLost) as lost:
            await announced.send(b"x" * 200_000)
            while True:
                await both.client.changed()
                await announced.send(b"x")
        assert lost.value.code == ErrorCodes.NO_ERROR, "the rest was discarded for a while"
        (await both.client.request("POST", RECORDS, OCTETS, b"x" * 200_001)).problem("body_too_large")
        assert (await both.client.request("POST", RECORDS, OCTETS, b"x" * 200_000)).status == 200
        await both.rests()


@pytest.mark.parametrize("name", DOORS)
async def test_a_body_that_trickles_is_refused(name: str) -> None:
    async with door(name, broker(), limits=Limits(body_timeout_s=0.2, body_min_bytes_per_s=1 << 20)) as both:
        stream = await both.client.begin("POST", RECORDS, OCTETS)
        await stream.send(b"x")
        (await stream.answer()).problem("slow_request")
        await stream.reset()
        await both.rests()
        assert both.stored == []


async def test_streams_beyond_the_limit_are_refused_one_by_one(both: Both) -> None:
    polls = [await both.client.begin("GET", POLL, end=True) for _ in range(both.client.most_streams)]
    await eventually(lambda: both.api.broker.fetches_waiting == len(polls))
    both.client.h2.remote_settings.acknowledge()
    both.client.h2.remote_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = 2**20
    both.client.h2.remote_settings.acknowledge()
    one_more = await both.client.begin("GET", "/v1/topics", end=True)
    with pytest.raises(StreamLost) as lost:
        await one_more.answer()
    assert lost.value.code == ErrorCodes.REFUSED_STREAM
    for poll in polls:
        await poll.reset()
    assert (await both.client.request("GET", "/v1/topics")).status == 200
    await both.rests()


@pytest.mark.parametrize("name", DOORS)
async def test_requests_in_progress_are_bounded_over_all_connections(name: str) -> None:
    async with door(name, broker(), limits=Limits(max_concurrent_requests=2)) as both:
        polls = [await both.client.begin("GET", POLL, end=True) for _ in range(2)]
        await eventually(lambda: both.api.broker.fetches_waiting == 2)
        (await both.client.request("GET", "/v1/topics")).problem("overloaded")
        assert (await both.client.request("GET", "/v1/health")).status == 200
        for poll in polls:
            await poll.reset()
        await both.rests()


@pytest.mark.parametrize("name", DOORS)
async def test_the_end_of_the_api_ends_long_polls_and_lets_writes_finish(name: str) -> None:
    made = broker()
    async with door(name, made) as both:
        poll = await both.client.begin("GET", POLL, end=True)
        made.hang.clear()
        write = await both.client.begin("POST", RECORDS, JSON)
        await write.send(b'{"records": [{"value": "last"}]}', end=True)
        await eventually(lambda: made.fetches_waiting == 1 and len(made.produced) == 1)
        closing = asyncio.ensure_future(both.api.runner.cleanup())
        (await poll.answer()).problem("shutting_down")
        made.hang.set()
        assert (await write.answer()).status == 200
        await closing
    assert made.appended("t") == 1


# --- Callers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOORS)
async def test_a_stranger_may_send_a_window_and_has_no_more_time_than_others_s12(name: str) -> None:
    made = SecuredBroker()
    made.add_topic("t")
    async with door(name, made, limits=Limits(linger_s=0.2)) as both:
        stream = await both.client.begin("POST", RECORDS, {**OCTETS, "content-length": "1000000"})
        (await stream.answer()).problem("unauthenticated")
        with pytest.raises(StreamLost) as lost:
            await stream.send(b"x" * 1_000_000)
        assert lost.value.code == ErrorCodes.NO_ERROR
        assert both.client.h2.local_settings.initial_window_size == DEFAULT_WINDOW
        assert both.api.context.held_bytes == 0 and made.produced == []
        await eventually(lambda: both.api.context.requests_under_way == 0)


@pytest.mark.parametrize("name", DOORS)
async def test_a_caller_over_its_quota_is_told_to_wait(name: str) -> None:
    made = SecuredBroker()
    made.add_topic("t")
    alice = await made.user("alice", superuser=True)
    await made.security.put_quota("User:alice", QuotaLimits(bytes_in_per_second=1_000))
    async with door(name, made) as both:
        assert (await both.client.request("POST", RECORDS, {**OCTETS, **alice}, b"x" * 20_000)).status == 200
        answer = await both.client.request("POST", RECORDS, {**OCTETS, **alice}, b"x")
        answer.problem("throttled")
        assert int(answer.headers["Retry-After"]) > 0


@pytest.mark.parametrize("name", DOORS)
async def test_connections_of_a_caller_are_counted_and_released(name: str) -> None:
    made = SecuredBroker()
    made.add_topic("t")
    alice = await made.user("alice", superuser=True)
    await made.security.put_quota("User:alice", QuotaLimits(connections=1))
    async with door(name, made) as both:
        for _ in range(3):
            assert (await both.client.request("GET", "/v1/topics", alice)).status == 200
        async with http2_client(both.port) as second:
            (await second.request("GET", "/v1/topics", alice)).problem("throttled")
            await eventually(lambda: second.goaway is not None)
        assert (await both.client.request("GET", "/v1/topics", alice)).status == 200


@pytest.mark.parametrize("name", DOORS)
async def test_a_connection_of_strangers_alone_is_closed_in_time(name: str) -> None:
    made = SecuredBroker()
    async with running_api(made, limits=Limits(stranger_timeout_s=0.3)) as api:
        if name == "API":
            async with http2_client(api.port) as client:
                (await client.request("GET", "/v1/topics")).problem("unauthenticated")
                await eventually(lambda: client.closed)
            return
        async with running_listener(api) as port, http2_client(port) as client:
            (await client.request("GET", "/v1/topics")).problem("unauthenticated")
            assert (await client.request("GET", "/v1/topics", await made.user("alice", superuser=True))).status == 200


# --- Delivery --------------------------------------------------------------------------------------------------------


class Asked:
    """A request whose answer is on its way, for `is_delivered`."""

    def __init__(self, transport: Any) -> None:
        self.transport = transport
        self.protocol = self
        self.acknowledged_at_end = False


async def test_a_busy_connection_is_asked_whether_an_answer_has_arrived(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []
    monkeypatch.setattr(delivery, "unacknowledged", lambda descriptor: 1)  # other answers are always on their way
    check = middleware.check_sender

    def checked(request: Any, context: Any) -> None:
        found.append(request.transport)
        check(request, context)

    monkeypatch.setattr(middleware, "check_sender", checked)
    assert (await both.client.request("GET", "/v1/topics")).status == 200
    asked: Any = Asked(found[0])
    assert await delivery.is_delivered(asked), "the answer to a PING"
    async with http2_client(both.port) as other:
        assert (await other.request("GET", "/v1/topics")).status == 200
        dead = found[-1]
    await eventually(dead.is_closing)
    asked = Asked(dead)
    assert not await delivery.is_delivered(asked)


# --- Bad peers -------------------------------------------------------------------------------------------------------


PSEUDO = {":method": "GET", ":scheme": "http", ":authority": "localhost", ":path": "/v1/topics"}
MALFORMED: dict[str, tuple[dict[str, str], list[tuple[str, str]]]] = {
    "two hosts": (PSEUDO, [("host", "evil.example")]),
    "a foreign host": ({**PSEUDO, ":authority": "evil.example"}, []),
    "a space in the path": ({**PSEUDO, ":path": "/v1/topics HTTP/1.1"}, []),
    "no slash": ({**PSEUDO, ":path": "v1/topics"}, []),
    "an absolute path": ({**PSEUDO, ":path": "http://localhost/v1/topics"}, []),
    "a strange method": ({**PSEUDO, ":method": "GET /"}, []),
    "bytes above ASCII": ({**PSEUDO, ":path": "/v1/t\u00f6pics"}, []),
    "a long path": ({**PSEUDO, ":path": "/" + "x" * 9_000}, []),
    "a strange length": (PSEUDO, [("content-length", "+1")]),
    "many fields": (PSEUDO, [(f"x-{number}", "1") for number in range(100)]),
}


@pytest.mark.parametrize("what", MALFORMED)
async def test_a_malformed_request_gets_a_clear_error_s11(both: Both, what: str) -> None:
    pseudo, fields = MALFORMED[what]
    stream = await both.client.begin("GET", "/", fields, end="length" not in what, pseudo=pseudo)
    if what in ("two hosts", "a strange length"):
        with pytest.raises(StreamLost) as lost:
            await stream.answer()
        assert lost.value.code == ErrorCodes.PROTOCOL_ERROR
    else:
        answer = await stream.answer()
        assert msgspec.json.decode(answer.body)["code"] in ("invalid_request", "host_not_allowed")
        assert answer.status in (400, 403, 421), answer
    await both.rests()


async def test_more_content_than_announced_resets_the_stream(both: Both) -> None:
    stream = await both.client.begin("POST", RECORDS, {**OCTETS, "content-length": "3"})
    await stream.send(b"four")
    with pytest.raises(StreamLost) as lost:
        await stream.answer()
    assert lost.value.code == ErrorCodes.PROTOCOL_ERROR
    short = await both.client.begin("POST", RECORDS, {**OCTETS, "content-length": "5"})
    await short.send(b"four", end=True)
    with pytest.raises(StreamLost) as lost:
        await short.answer()
    assert lost.value.code == ErrorCodes.PROTOCOL_ERROR
    await both.rests()
    assert both.stored == []


async def test_a_client_that_ignores_its_window_is_disconnected(both: Both) -> None:
    stream = await both.client.begin("GET", POLL)  # which reads no content
    flood = b"".join(raw_frame(0, 0, stream.id, bytes(16_384)) for _ in range(200))
    await both.client.raw(flood)
    await eventually(lambda: both.client.closed)
    assert both.client.goaway == ErrorCodes.FLOW_CONTROL_ERROR
    await both.rests()


async def test_rapid_resets_end_the_connection_and_leave_nothing_behind(both: Both) -> None:
    try:
        for _ in range(5_000):
            stream = await both.client.begin("GET", POLL, end=True)
            await stream.reset()
            both.client.streams.pop(stream.id)
    except ConnectionError:
        pass
    await eventually(lambda: both.client.closed)
    assert both.client.goaway == ErrorCodes.ENHANCE_YOUR_CALM
    await eventually(lambda: both.api.broker.fetches_waiting == 0)
    await both.rests()


FRAMES = {
    "DATA on a stream that is idle": raw_frame(0, 0, 99, b"x"),
    "HEADERS that are no HPACK": raw_frame(1, 5, 101, b"\xff\xff\xff\xff\xff\xff"),
    "CONTINUATION alone": raw_frame(9, 4, 1, b"x"),
    "PUSH_PROMISE": raw_frame(5, 4, 1, b"\x00\x00\x00\x02"),
    "SETTINGS of a wrong size": raw_frame(4, 0, 0, b"x"),
    "WINDOW_UPDATE of zero": raw_frame(8, 0, 0, bytes(4)),
    "a frame beyond all bounds": raw_frame(1, 4, 1, bytes(60_000)),
}


@pytest.mark.parametrize("what", FRAMES)
async def test_hostile_frames_end_their_connection_alone(both: Both, what: str) -> None:
    async with http2_client(both.port) as other:
        poll = await other.begin("GET", POLL, end=True)
        await eventually(lambda: both.api.broker.fetches_waiting == 1)
        await both.client.raw(FRAMES[what])
        await eventually(lambda: both.client.closed)
        assert both.client.goaway not in (None, 0)
        assert (await other.request("GET", "/v1/topics")).status == 200
        await poll.reset()
    await both.rests()
