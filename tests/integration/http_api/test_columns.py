"""Records as columns: Arrow IPC streams and Parquet files, some columns of some records; and zstd both ways. S3, S11,
S13."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import cramjam
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import pytest_asyncio

from http_api.records.arrow_page import ARROW_TYPE, PARQUET_TYPE
from http_api.web.limits import Limits
from raftlog.records.arrow import SCHEMA
from raftlog.records.batch import encode
from raftlog.records.record_filter import COLUMNS
from tests.support.client.fake_broker import FakeBroker
from tests.support.http.api_client import Answer, Api, running_api

pytestmark = pytest.mark.integration

PAGE = "/v1/topics/t/partitions/0/records"
RECORDS = "/v1/topics/t/records"
FORMATS = (ARROW_TYPE, PARQUET_TYPE)
COUNT = 1_000


@pytest_asyncio.fixture
async def api() -> AsyncIterator[Api]:
    """1,000 records in four batches: key `k0` to `k9`, or none for each tenth record, a millisecond apart."""
    broker = FakeBroker()
    broker.add_topic("t")
    for first in range(0, COUNT, 250):
        numbers = range(first, first + 250)
        broker.append(
            "t",
            encode(
                [b"value %d" % n for n in numbers],
                keys=[b"k%d" % (n % 10) if n % 10 else None for n in numbers],
                timestamps_ms=[1_000_000 + n for n in numbers],
                base_timestamp_ms=0,
                headers=[(("n", b"%d" % n),) if n % 100 == 0 else () for n in numbers],
            ),
        )
    async with running_api(broker) as running:
        yield running


def table(answer: Answer, body: bytes | None = None) -> Any:
    assert answer.status == 200, answer
    content = answer.body if body is None else body
    if answer.headers["Content-Type"] == PARQUET_TYPE:
        return pq.read_table(io.BytesIO(content))
    assert answer.headers["Content-Type"] == ARROW_TYPE
    return pa.ipc.open_stream(content).read_all()


def next_offset(answer: Answer) -> int:
    return int(answer.headers["X-Raftlog-Next-Offset"])


@pytest.mark.parametrize("media_type", FORMATS)
async def test_all_records_with_all_columns(api: Api, media_type: str) -> None:
    answer = await api.get(PAGE, headers={"Accept": media_type})
    found = table(answer)
    assert found.schema.names == SCHEMA.names == list(COLUMNS)
    rows = found.to_pylist()
    assert [row["offset"] for row in rows] == list(range(COUNT)) and next_offset(answer) == COUNT
    assert rows[123]["value"] == b"value 123" and rows[123]["key"] == b"k3" and rows[120]["key"] is None
    assert [(one["key"], one["value"]) for one in rows[200]["headers"]] == [("n", b"200")] and rows[201][
        "headers"
    ] == []
    shown = (await api.get(PAGE)).document["records"]
    assert [row["timestamp"].timestamp() for row in rows[:3]] == [
        pytest.approx(one["timestamp"] / 1000) for one in shown[:3]
    ]


@pytest.mark.parametrize("media_type", FORMATS)
async def test_some_columns_in_the_order_asked_for(api: Api, media_type: str) -> None:
    found = table(await api.get(f"{PAGE}?columns=value,offset", headers={"Accept": media_type}))
    assert found.schema.names == ["value", "offset"] and found.num_rows == COUNT
    assert found.slice(7, 1).to_pylist() == [{"value": b"value 7", "offset": 7}]


FILTERS: dict[str, Any] = {
    "key=k3": lambda n: n % 10 == 3,
    f"key_base64={quote(base64.b64encode(b'k7').decode())}": lambda n: n % 10 == 7,
    "key=k0": lambda n: False,
    "end_offset=300": lambda n: n < 300,
    "offset=251&end_offset=260": lambda n: 251 <= n < 260,
    "start_timestamp=1000990": lambda n: n >= 990,
    "end_timestamp=1000010": lambda n: n < 10,
    "key=k5&offset=100&end_offset=200&start_timestamp=1000150": lambda n: n % 10 == 5 and 150 <= n < 200,
}


@pytest.mark.parametrize("query", FILTERS)
@pytest.mark.parametrize("media_type", FORMATS)
async def test_filters(api: Api, media_type: str, query: str) -> None:
    answer = await api.get(f"{PAGE}?columns=offset&{query}", headers={"Accept": media_type})
    assert table(answer)["offset"].to_pylist() == [n for n in range(COUNT) if FILTERS[query](n)]
    end = int(query.partition("end_offset=")[2].partition("&")[0] or COUNT)
    assert next_offset(answer) == end


async def test_pages_of_a_filter_read_every_record_once(api: Api) -> None:
    offset, found = 0, []
    while offset < COUNT:
        where = f"{PAGE}?columns=offset&key=k4&max_records=130&offset={offset}"
        answer = await api.get(where, headers={"Accept": ARROW_TYPE})
        found += table(answer)["offset"].to_pylist()
        assert next_offset(answer) > offset
        offset = next_offset(answer)
    assert found == [n for n in range(COUNT) if n % 10 == 4]


@pytest.mark.parametrize("media_type", FORMATS)
async def test_no_records_are_a_table_without_rows(api: Api, media_type: str) -> None:
    api.broker.add_topic("empty")
    answer = await api.get("/v1/topics/empty/partitions/0/records?columns=key", headers={"Accept": media_type})
    assert table(answer).num_rows == 0 and table(answer).schema.names == ["key"]


@pytest.mark.parametrize("media_type", FORMATS)
async def test_many_slices_are_one_table(media_type: str) -> None:
    broker = FakeBroker()
    broker.add_topic("t")
    for _ in range(8):
        broker.append("t", encode([os.urandom(10_000) for _ in range(80)], base_timestamp_ms=1))
    async with running_api(broker) as api:
        found = table(await api.get(f"{PAGE}?max_bytes=16777216", headers={"Accept": media_type}))
        assert found["offset"].to_pylist() == list(range(640)) and found["value"].nbytes > 6_400_000


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("columns=offset,nothing", "columns must be some of"),
        ("columns=offset,offset", "columns must be some of"),
        ("columns=", "columns must be some of"),
        ("key=a&key_base64=YQ==", "exclude each other"),
        ("key_base64=!", "not base64"),
        ("end_offset=-1", "end_offset must be"),
        ("start_timestamp=soon", "start_timestamp must be"),
    ],
)
async def test_bad_questions_get_clear_errors_s11(api: Api, query: str, why: str) -> None:
    told = (await api.get(f"{PAGE}?{query}", headers={"Accept": ARROW_TYPE})).problem("invalid_request")
    assert why in told["detail"]


async def test_columns_are_not_for_json(api: Api) -> None:
    told = (await api.get(f"{PAGE}?columns=offset")).problem("invalid_request")
    assert ARROW_TYPE in told["detail"]
    (await api.get(PAGE, headers={"Accept": "text/csv"})).problem("not_acceptable")


async def test_a_cache_keeps_one_answer_for_each_media_type(api: Api) -> None:
    topic_id = (await api.get("/v1/topics/t")).document["id"]
    where = f"{PAGE}?offset=0&max_records=10&topic_id={topic_id}"
    tags = set()
    for media_type in ("application/json", "application/x-ndjson", *FORMATS):
        answer = await api.get(where, headers={"Accept": media_type})
        assert "immutable" in answer.headers["Cache-Control"]
        assert {"Accept", "Accept-Encoding"} <= set(answer.headers["Vary"].split(", "))
        tags.add(answer.headers["ETag"])
        again = await api.get(where, headers={"Accept": media_type, "If-None-Match": answer.headers["ETag"]})
        assert again.status == 304
    assert len(tags) == 4


# --- zstd ------------------------------------------------------------------------------------------------------------


async def test_answers_are_compressed_as_their_client_accepts(api: Api) -> None:
    plain = (await api.get(PAGE, headers={"Accept-Encoding": "identity"})).body
    for accepts, coding in (("zstd", "zstd"), ("gzip, zstd", "zstd"), ("gzip", "gzip"), ("zstd;q=0, gzip", "gzip")):
        answer = await api.get(PAGE, headers={"Accept-Encoding": accepts}, auto_decompress=False)
        assert answer.headers["Content-Encoding"] == coding and answer.headers["Vary"] == "Accept-Encoding"
        assert bytes(getattr(cramjam, coding).decompress(answer.body)) == plain
        assert len(answer.body) < len(plain) / 2
    arrow = {"Accept": ARROW_TYPE, "Accept-Encoding": "zstd"}
    answer = await api.get(PAGE, headers=arrow, auto_decompress=False)
    assert table(answer, bytes(cramjam.zstd.decompress(answer.body))).num_rows == COUNT
    parquet = await api.get(PAGE, headers={"Accept": PARQUET_TYPE, "Accept-Encoding": "zstd"}, auto_decompress=False)
    assert "Content-Encoding" not in parquet.headers, "its columns are compressed already"


async def post(api: Api, body: bytes) -> Answer:
    headers = {"Content-Encoding": "zstd"}
    return await api.post(RECORDS, body, headers=headers)


async def test_bodies_in_zstd_are_taken(api: Api) -> None:
    document = msgspec.json.encode({"records": [{"value": "x" * 1_000}] * 50})
    answer = await post(api, bytes(cramjam.zstd.compress(document)))
    assert answer.status == 200 and answer.document["record_count"] == 50


async def test_a_bomb_is_refused_s11() -> None:
    broker = FakeBroker()
    broker.add_topic("t")
    async with running_api(broker, limits=Limits(max_body_bytes=1_000_000)) as api:
        bomb = bytes(cramjam.zstd.compress(bytes(50_000_000)))
        assert len(bomb) < 50_000
        (await post(api, bomb)).problem("body_too_large")
        silent = cramjam.zstd.Compressor()
        silent.compress(bytes(50_000_000))
        unannounced = bytes(silent.finish())
        assert (await post(api, unannounced)).problem("invalid_request")["detail"].startswith("the zstd body")
        for broken in (b"", b"no frame", bomb[:-3], bomb + b"x", b"\x28\xb5\x2f\xfd" + os.urandom(50)):
            assert (await post(api, broken)).status == 400
        assert broker.appended("t") == 0
        await api.is_well()
