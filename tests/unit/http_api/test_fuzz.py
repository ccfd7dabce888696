"""Whatever the bytes are: parsers answer or refuse, and raise nothing else."""

from __future__ import annotations

import contextlib

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from http_api.records.pack import Target, pack
from http_api.records.page import PageEncoder, PageOptions, native_rows, page, weight
from http_api.records.parse import RecordOptions, parse_json, parse_ndjson, parse_text
from http_api.routes.transactions import _parse_commit
from http_api.service.transactions import check_request
from http_api.web.bodies import Inflater, decode_json, decode_message
from raftlog.api.topics import AlterTopic, CreateTopic
from raftlog.api.transactions import AbortTransactions, InitializeProducer, OpenBlock
from raftlog.errors import InvalidRequest, RaftlogError
from raftlog.json_values import FORMATS
from raftlog.model import TopicId, TopicRecord
from raftlog.records.batch import encode
from raftlog.wire import FetchRequest, ProducePartition, ProduceRequest, decode_request
from raftlog.wire import encode as encode_message

TARGET = Target(TopicRecord(TopicId(bytes(16)), "t", 3, 1), 4096, None, 0)
OPTIONS = PageOptions(100, 100_000, native_rows(FORMATS["auto"], FORMATS["json"]), lines=False)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just({"base64": "AA=="}),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(["value", "key", "timestamp", "headers", "partition", "base64", "x"])
records = st.lists(st.one_of(values, st.dictionaries(names, values, max_size=5)), max_size=5)


@st.composite
def damaged(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """Bytes that were once good: some changed, cut out or put in."""
    data = bytearray(draw(whole))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 4))] = draw(st.binary(max_size=4))
    return bytes(data)


json_bodies = damaged(records.map(lambda each: msgspec.json.encode({"records": each})))
line_bodies = damaged(records.map(lambda each: b"\n".join(map(msgspec.json.encode, each))))


@given(st.one_of(st.binary(max_size=200), json_bodies, line_bodies))
def test_bodies_of_records(body: bytes) -> None:
    for parse in (parse_json, parse_ndjson, lambda text: parse_text(text, RecordOptions())):
        with contextlib.suppress(InvalidRequest):
            columns = parse(body)
            lengths = {
                len(columns.values),
                len(columns.keys),
                len(columns.headers),
                len(columns.partitions),
                len(columns.timestamps_ms),
            }
            assert lengths == {len(columns)}
            packed = pack(columns, TARGET, 1)
            assert sum(len(batch.records) for batch in packed) == len(columns)


@given(st.one_of(st.binary(max_size=100), damaged(values.map(msgspec.json.encode))))
def test_bodies_of_topics(body: bytes) -> None:
    for model in (CreateTopic, AlterTopic):
        with contextlib.suppress(InvalidRequest):
            decode_json(body, model)


@given(st.binary(max_size=200), st.sampled_from(["gzip", "deflate"]))
def test_compressed_bodies(body: bytes, encoding: str) -> None:
    with contextlib.suppress(InvalidRequest):
        inflater = Inflater(body, encoding, 10_000)
        while not inflater.ended:
            inflater.read(100)


COMMIT = msgspec.json.encode(
    {
        "transactions": [
            {
                "producer_id": 7,
                "producer_epoch": 3,
                "topics": [{"topic_id": "0" * 32, "end_offsets": [[0, 12], [1, 5]]}],
            }
        ],
        "group_offsets": [
            {"group": "g", "ranges": [{"topic_id": "0" * 32, "partition": 0, "start": -1, "end": 9}], "generation": 4}
        ],
        "positions": [{"name": "p", "current": -1, "new": 3}],
        "block": "b",
        "visible_within_ms": 5,
    }
)


@given(st.one_of(st.binary(max_size=100), damaged(st.just(COMMIT)), damaged(values.map(msgspec.json.encode))))
def test_bodies_of_transactions(body: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        wanted = _parse_commit(body)
        check_request(wanted)
        assert wanted.outputs or wanted.positions or wanted.block
        assert decode_request(b"".join(encode_message(wanted)))[0] == wanted  # type: ignore[arg-type]
    for model in (InitializeProducer, OpenBlock, AbortTransactions):
        with contextlib.suppress(InvalidRequest):
            decode_json(body, model)


MESSAGE = b"".join(
    encode_message(ProduceRequest(1, -1, 5, [ProducePartition(bytes(16), 0, 3)]), [b"abc"])  # type: ignore[arg-type]
)


@given(st.one_of(st.binary(max_size=100), damaged(st.just(MESSAGE))))
def test_messages(body: bytes) -> None:
    for kind in (ProduceRequest, FetchRequest):
        with contextlib.suppress(InvalidRequest):
            decode_message(body, kind)  # type: ignore[type-var]


STORED = encode([b'{"a":1}', b"\xff"], keys=[b"k", None], base_offset=5, base_timestamp_ms=1) + encode(
    [b"v"], headers=[[("h", b"x")]], base_offset=7, base_timestamp_ms=1
)


@given(st.one_of(st.binary(max_size=200), damaged(st.just(STORED))), st.integers(0, 10))
def test_stored_batches(stored: bytes, offset: int) -> None:
    assert weight(stored) >= 0
    with contextlib.suppress(RaftlogError):
        found = page(stored, offset, OPTIONS)
        assert found.next_offset >= offset
        encoder = PageEncoder(found, OPTIONS, head=b"[", tail=b"]")
        pieces = [encoder.next()]
        while not encoder.ended:
            pieces.append(encoder.next())
        msgspec.json.decode(b"".join(pieces))
