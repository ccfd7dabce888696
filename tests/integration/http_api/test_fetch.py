"""Reading over a socket: records as JSON and JSON lines, offsets of every kind, waiting, bounds, formats."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from http_api.records import page as records_out
from http_api.routes import fetch
from raftlog.errors import RetriableError
from raftlog.ports import Part
from raftlog.records.batch import Codec, encode, encode_control
from raftlog.wire import FetchRequest, FetchResponse
from tests.support.client.fake_broker import FakeBroker
from tests.support.http.api_client import Api, eventually, running_api

pytestmark = pytest.mark.integration

READ = "/v1/topics/t/partitions/0/records"


@pytest_asyncio.fixture(params=["memory", "file", "no descriptor"])
async def api(request: pytest.FixtureRequest) -> AsyncIterator[Api]:
    broker = FakeBroker(request.param)
    broker.add_topic("t", 2)
    async with running_api(broker) as running:
        yield running


def fill(api: Api, *batches: list[bytes | None], **options: Any) -> None:
    for number, values in enumerate(batches):
        api.broker.append("t", encode(values, base_timestamp_ms=1000 * (number + 1), **options))


async def read(api: Api, query: str = "") -> Any:
    answer = await api.get(READ + query)
    assert answer.status == 200, answer
    return answer.document


def values(document: Any) -> list[Any]:
    return [record["value"] for record in document["records"]]


async def test_records_from_every_kind_of_offset(api: Api) -> None:
    fill(api, [b"a", b"b"], [b"c"], [b"d", b"e"])
    assert values(await read(api)) == list("abcde")
    assert values(await read(api, "?offset=earliest")) == list("abcde")
    for offset in range(5):
        found = await read(api, f"?offset={offset}")
        assert values(found) == list("abcde")[offset:]
        assert [record["offset"] for record in found["records"]] == list(range(offset, 5))
    assert values(await read(api, "?offset=latest")) == []
    assert values(await read(api, "?offset=5")) == []
    assert values(await read(api, "?offset=@1001")) == list("cde")
    assert values(await read(api, "?offset=@3000")) == list("de")
    late = await read(api, "?offset=@99999999")
    assert (values(late), late["next_offset"]) == ([], 5)


async def test_a_page_tells_where_to_read_on_in_body_and_headers(api: Api) -> None:
    fill(api, [b"a", b"b", b"c"])
    answer = await api.get(READ + "?max_records=2")
    assert {name: value for name, value in answer.document.items() if name != "records"} == {
        "topic": "t",
        "partition": 0,
        "next_offset": 2,
        "high_watermark": 3,
        "last_stable_offset": 3,
        "log_start_offset": 0,
        "leader_epoch": 3,
    }
    assert answer.headers["X-Raftlog-Next-Offset"] == "2"
    assert answer.headers["X-Raftlog-High-Watermark"] == "3"
    assert answer.headers["X-Raftlog-Last-Stable-Offset"] == "3"
    assert answer.headers["X-Raftlog-Log-Start-Offset"] == "0"
    assert answer.headers["X-Raftlog-Leader-Epoch"] == "3"
    assert (await read(api, "?offset=2"))["next_offset"] == 3


async def test_json_lines(api: Api) -> None:
    fill(api, [b'{"a":\n1}', b"two"])
    answer = await api.get(READ, headers={"Accept": "application/x-ndjson"})
    assert answer.headers["Content-Type"] == "application/x-ndjson"
    lines = [msgspec.json.decode(line) for line in answer.body.splitlines()]
    assert [line["value"] for line in lines] == [{"a": 1}, "two"]
    assert answer.headers["X-Raftlog-Next-Offset"] == "2"


async def test_a_batch_that_begins_below_the_offset_and_control_batches_are_invisible(api: Api) -> None:
    fill(api, [b"a", b"b"])
    api.broker.append("t", encode_control(1, [(1, 0, 2)], base_timestamp_ms=5))
    fill(api, [b"d"])
    found = await read(api, "?offset=1")
    assert [(record["offset"], record["value"]) for record in found["records"]] == [(1, "b"), (3, "d")]
    only_control = await read(api, "?offset=2&max_records=1")
    assert [record["offset"] for record in only_control["records"]] == [3]


async def test_formats_of_keys_and_values(api: Api) -> None:
    api.broker.append(
        "t", encode([b'{"a":1}'], keys=[b"[2]"], headers=[[("h", b"{}"), ("n", None)]], base_timestamp_ms=1)
    )
    seen = {}
    for how in ("auto", "text", "json", "base64"):
        (record,) = (await read(api, f"?value_format={how}"))["records"]
        seen[how] = record["value"]
        assert record["key"] == [2]
        assert record["headers"][1] == {"key": "n", "value": None}
    assert seen == {"auto": {"a": 1}, "text": '{"a":1}', "json": {"a": 1}, "base64": {"base64": "eyJhIjoxfQ=="}}
    (record,) = (await read(api, "?key_format=text&value_format=text"))["records"]
    assert (record["key"], record["headers"][0]) == ("[2]", {"key": "h", "value": "{}"})


async def test_what_was_read_can_be_written_back(api: Api) -> None:
    original: list[bytes | None] = [b"text", None, b"\xff\x00", b'{"base64":"QQ=="}', b"{}", b""]
    api.broker.append("t", encode(original, keys=original, headers=[[("h", v)] for v in original], base_timestamp_ms=7))
    for how in ("auto", "text", "base64"):
        found = await read(api, f"?max_records=6&value_format={how}&key_format={how}")
        again = [
            {name: record[name] for name in ("key", "value", "headers", "timestamp")} for record in found["records"]
        ]
        posted = await api.post("/v1/topics/t/records?partition=1", {"records": again})
        first = posted.document["batches"][0]["base_offset"]
        copied = await api.get(
            f"/v1/topics/t/partitions/1/records?offset={first}&value_format=base64&key_format=base64"
        )
        assert [{**r, "offset": 0} for r in copied.document["records"]] == [
            {**r, "offset": 0} for r in (await read(api, "?value_format=base64&key_format=base64"))["records"]
        ]


async def test_a_long_poll_is_answered_when_records_come(api: Api) -> None:
    waiting = asyncio.create_task(read(api, "?offset=latest&max_wait_ms=60000"))
    await eventually(lambda: api.broker.fetches_waiting == 1)
    fill(api, [b"news"])
    assert values(await waiting) == ["news"]


async def test_a_long_poll_ends_when_time_is_up(api: Api) -> None:
    fill(api, [b"a"])
    assert values(await read(api, "?offset=1&max_wait_ms=20")) == []
    assert values(await read(api, "?offset=0&max_wait_ms=20&min_bytes=1000000")) == ["a"]


async def test_a_long_poll_is_cancelled_when_its_client_leaves(api: Api) -> None:
    waiting = asyncio.create_task(read(api, "?offset=latest&max_wait_ms=60000"))
    await eventually(lambda: api.broker.fetches_waiting == 1)
    waiting.cancel()
    await eventually(lambda: api.broker.fetches_cancelled == 1)
    await api.is_well()


async def test_bounds_on_records_and_bytes(api: Api) -> None:
    fill(api, [b"x" * 1000] * 10)
    assert len(values(await read(api, "?max_records=4"))) == 4
    assert len(values(await read(api, "?max_bytes=2500"))) == 2
    assert len(values(await read(api, "?max_bytes=1"))) == 1
    assert (await read(api, "?max_bytes=2500&offset=3"))["next_offset"] == 5


@pytest.mark.parametrize("codec", [Codec.ZSTD, Codec.GZIP])
async def test_a_page_too_large_for_the_loop_is_made_in_a_thread(
    api: Api, codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()

    def noted(*arguments: Any) -> Any:
        threads.add(threading.get_ident())
        return records_out.page(*arguments)

    monkeypatch.setattr(fetch, "page", noted)
    thousands: list[bytes | None] = [b"%0100d" % number for number in range(4000)]
    fill(api, thousands, thousands, thousands, codec=codec)
    answer = await api.get(READ + "?max_bytes=16777216", headers={"Accept-Encoding": "identity"})
    assert len(values(answer.document)) == 10_000
    assert answer.document["next_offset"] == 10_000
    assert threads and threading.get_ident() not in threads


async def test_large_answers_are_compressed_for_those_who_ask(api: Api) -> None:
    fill(api, [b"x" * 100] * 1000)
    plain = await api.get(READ, headers={"Accept-Encoding": "identity"})
    assert "Content-Encoding" not in plain.headers
    async with api.session.get(READ, headers={"Accept-Encoding": "gzip"}, auto_decompress=False) as response:
        body = await response.read()
        assert response.headers["Content-Encoding"] == "gzip"
    assert len(body) < len(plain.body) / 10
    assert gzip.decompress(body) == plain.body


@pytest.mark.parametrize(
    "query",
    [
        "offset=-1",
        "offset=soon",
        "offset=",
        "offset=1.5",
        "offset=9223372036854775807",
        "offset=@",
        "offset=@x",
        "max_bytes=0",
        "max_bytes=16777217",
        "max_bytes=1e3",
        "min_bytes=-1",
        "max_wait_ms=60001",
        "max_records=0",
        "max_records=100001",
        "isolation=dirty",
        "value_format=xml",
        "key_format=",
        "max_byte=1",
        "offset=1&offset=2",
    ],
)
async def test_a_query_out_of_range_is_refused_by_name(api: Api, query: str) -> None:
    told = (await api.get(f"{READ}?{query}")).problem("invalid_request")
    assert query.partition("=")[0] in told["detail"]


async def test_times_out_of_range(api: Api) -> None:
    for time in ("@-1", "@9223372036854775808"):
        (await api.get(READ, params={"offset": time})).problem("timestamp_out_of_range")


async def test_an_offset_that_is_not_there_is_told_with_those_that_are(api: Api) -> None:
    fill(api, [b"a", b"b"])
    told = (await api.get(READ + "?offset=3")).problem("offset_out_of_range")
    assert (told["log_start_offset"], told["high_watermark"]) == (0, 2)


async def test_failures_of_the_broker(api: Api) -> None:
    api.broker.partition_errors[0] = "leader_not_available"
    (await api.get(READ + "?offset=0")).problem("leader_not_available")
    (await api.get(READ)).problem("leader_not_available")
    api.broker.fail["fetch"] = RetriableError("overloaded", "later")
    (await api.get("/v1/topics/t/partitions/1/records?offset=0")).problem("overloaded")


async def test_a_broker_that_does_not_answer_in_time_is_told_as_a_timeout(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(request: FetchRequest) -> tuple[FetchResponse, list[Part]]:
        await asyncio.Event().wait()
        raise AssertionError("nobody wakes it")

    monkeypatch.setattr(fetch, "GRACE_S", 0.05)
    monkeypatch.setattr(api.broker, "fetch", silent)
    (await api.get(READ + "?offset=0&max_wait_ms=0")).problem("request_timed_out")
    assert not api.context.polls


async def test_bytes_that_come_with_a_failure_are_given_back(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(api, [b"a"])
    broker_fetch = api.broker.fetch

    async def failing(request: FetchRequest) -> Any:
        answer, parts = await broker_fetch(request)
        failed = msgspec.structs.replace(answer.partitions[0], error="leadership_lost", detail="meanwhile")
        return FetchResponse(answer.correlation_id, [failed]), parts

    monkeypatch.setattr(api.broker, "fetch", failing)
    (await api.get(READ + "?offset=0")).problem("leadership_lost")
    assert api.broker.regions_held == 0


async def test_a_corrupt_batch_is_an_error_of_ours_and_what_is_before_it_is_read(api: Api) -> None:
    fill(api, [b"good"], [b"bad"])
    log = api.broker.log("t")
    log.batches[1] = log.batches[1][:-1] + b"!"
    assert values(await read(api)) == ["good"]
    (await api.get(READ + "?offset=1")).problem("internal_error")


async def test_nothing_that_can_be_given(api: Api) -> None:
    (await api.get(READ, headers={"Accept": "text/html"})).problem("not_acceptable")
