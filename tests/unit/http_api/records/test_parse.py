"""Bodies of produce requests → columns: accepted bodies, and errors that name the invalid record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_api.records import parse as records_in
from http_api.records.parse import (
    RecordColumns,
    RecordOptions,
    line_slices,
    parse_json,
    parse_ndjson,
    parse_octets,
    parse_text,
)
from raftlog.errors import InvalidRequest

DEEP = b"[" * 50_000 + b"]" * 50_000


def as_json(records: list[Any]) -> bytes:
    return msgspec.json.encode({"records": records})


def as_lines(records: list[Any]) -> bytes:
    return b"".join(msgspec.json.encode(record) + b"\n" for record in records)


BOTH = [(parse_json, as_json), (parse_ndjson, as_lines)]
Parse = Callable[[bytes], RecordColumns]
Write = Callable[[list[Any]], bytes]


@pytest.mark.parametrize(("parse", "write"), BOTH)
def test_a_record_has_value_key_timestamp_headers_and_partition(parse: Parse, write: Write) -> None:
    columns = parse(
        write(
            [
                {"value": "one"},
                {"value": None, "key": "k", "timestamp": 0, "headers": {"a": "x", "b": None}, "partition": 3},
                {
                    "value": {"n": 1},
                    "key": {"base64": "/w=="},
                    "timestamp": 2**63 - 1,
                    "headers": [{"key": "a", "value": 1}, {"key": "a", "value": {"base64": "AA=="}}, {"key": "c"}],
                },
                {"value": 5, "key": None, "timestamp": None, "headers": None, "partition": None},
                {"value": [], "headers": []},
            ]
        )
    )
    assert columns.values == [b"one", None, b'{"n":1}', b"5", b"[]"]
    assert columns.keys == [None, b"k", b"\xff", None, None]
    assert columns.timestamps_ms == [None, 0, 2**63 - 1, None, None]
    assert [list(headers) for headers in columns.headers] == [
        [],
        [("a", b"x"), ("b", None)],
        [("a", b"1"), ("a", b"\x00"), ("c", None)],
        [],
        [],
    ]
    assert columns.partitions == [None, 3, None, None, None]


@pytest.mark.parametrize(
    ("record", "code", "named"),
    [
        (b'{"key":"k"}', "invalid_request", "value"),
        (b'{"value":1,"vlaue":1}', "invalid_request", "vlaue"),
        (b'{"value":1,"key":{"base64":"?"}}', "invalid_request", "key of record 2"),
        (b'{"value":1,"timestamp":-1}', "timestamp_out_of_range", "record 2"),
        (b'{"value":1,"timestamp":9223372036854775808}', "timestamp_out_of_range", "record 2"),
        (b'{"value":1,"timestamp":123456789012345678901234567890}', "timestamp_out_of_range", "record 2"),
        (b'{"value":1,"timestamp":1.5}', "invalid_request", "timestamp"),
        (b'{"value":1,"timestamp":"now"}', "invalid_request", "timestamp"),
        (b'{"value":1,"partition":"0"}', "invalid_request", "partition"),
        (b'{"value":1,"headers":[{"value":1}]}', "invalid_request", "headers"),
        (b'{"value":1,"headers":{"h":{"base64":7}}}', "invalid_request", "header 'h' of record 2"),
        (b'{"value":"\xff"}', "invalid_json", "value of record 2"),
        (b'{"value":["\xff"]}', "invalid_json", "value of record 2"),
        (b'{"value":1,}', "invalid_json", ""),
        (b'{"value":"\x01"}', "invalid_json", ""),
        (b'{"value":"\\ud800"}', "invalid_json", ""),
        (b'{"value":NaN}', "invalid_json", ""),
        (b'{"value":' + DEEP + b"}", "invalid_json", "nested too deeply"),
        (b"[1]", "invalid_request", ""),
        (b"7", "invalid_request", ""),
    ],
)
def test_a_faulty_record_is_named(record: bytes, code: str, named: str) -> None:
    good = b'{"value":"fine"}'
    for body, parse, where in (
        (b'{"records":[' + b",".join([good, good, record]) + b"]}", parse_json, "records[2]"),
        (b"\n".join([good, good, record]), parse_ndjson, "line 3"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            parse(body)
        assert caught.value.code == code, caught.value
        assert named in caught.value.detail
        if not named and code == "invalid_request":
            assert where in caught.value.detail


@pytest.mark.parametrize("value", [b'{"base64":%b}', b"%b"])
def test_json_may_be_too_deep_for_a_second_look_only(value: bytes) -> None:
    """The interpreter counts calls and brackets together, so what one decoder accepted may be too deep for the next."""
    for depth in range(900, 1010):
        record = b'{"value":' + value % (b"[" * depth + b"]" * depth) + b"}"
        for parse, body in ((parse_json, b'{"records":[' + record + b"]}"), (parse_ndjson, record)):
            try:
                assert parse(body).values[0] is not None
            except InvalidRequest as error:
                assert "too deep" in error.detail or "Expected `bytes`" in error.detail


def test_an_error_far_down_is_named_by_its_own_number() -> None:
    good = [{"value": "x" * 1000}] * 2000
    with pytest.raises(InvalidRequest, match=r"records\[2000\]"):
        parse_json(as_json([*good, {"values": 1}]))
    with pytest.raises(InvalidRequest, match=r"line 2001\b"):
        parse_ndjson(as_lines([*good, {"values": 1}]))
    with pytest.raises(InvalidRequest, match=r"value of record 2000\b"):
        parse_ndjson(as_lines([*good, {"value": {"base64": 1}}]))


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'{"records":{}}', b'{"records":[]}', b'{"records":[{"value":1}],"x":1}', DEEP]
)
def test_a_json_body_that_is_no_list_of_records_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_json(body)


def test_json_lines_may_have_blank_lines_and_any_line_ending() -> None:
    body = b'\n{"value":1}\r\n\n  \r\n{"value":2}\n{"value":3}'
    assert parse_ndjson(body).values == [b"1", b"2", b"3"]


@pytest.mark.parametrize("body", [b'{"value":1}{"value":2}\n', b'{"value":\n1}\n', b'{"value":1} x\n', b'{"value":1\n'])
def test_json_lines_hold_one_record_each(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="line 1"):
        parse_ndjson(body)


@pytest.mark.parametrize(
    ("body", "values"),
    [
        (b"one", [b"one"]),
        (b"one\n", [b"one"]),
        (b"one\r\ntwo\n", [b"one", b"two"]),
        (b"one\n\nthree", [b"one", b"", b"three"]),
        (b"\n", [b""]),
        ("ünï\n".encode(), ["ünï".encode()]),
        (b"a\rb\n", [b"a\rb"]),
    ],
)
def test_text_is_a_record_a_line(body: bytes, values: list[bytes]) -> None:
    columns = parse_text(body, RecordOptions(b"k", 5, (("h", b"v"),)))
    assert columns.values == values
    assert columns.keys == [b"k"] * len(values)
    assert columns.timestamps_ms == [5] * len(values)
    assert columns.headers == [(("h", b"v"),)] * len(values)


@pytest.mark.parametrize("body", [b"", b"caf\xe9\n"])
def test_text_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_text(body, RecordOptions())


def test_octets_are_one_value_and_may_be_none() -> None:
    assert parse_octets(b"\x00\xff\n", RecordOptions()).values == [b"\x00\xff\n"]
    assert parse_octets(b"", RecordOptions()).values == [b""]


@pytest.mark.parametrize(("parse", "write"), BOTH)
def test_a_request_has_a_bounded_number_of_records(parse: Parse, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_in, "MAX_RECORDS_PER_REQUEST", 10)
    assert len(parse(write([{"value": 1}] * 10))) == 10
    with pytest.raises(InvalidRequest) as caught:
        parse(write([{"value": 1}] * 11))
    assert caught.value.code == "body_too_large"
    with pytest.raises(InvalidRequest):
        parse_text(b"\n" * 11, RecordOptions())


@given(st.binary(max_size=200), st.integers(1, 30))
def test_slices_join_to_the_body_and_end_with_lines(body: bytes, size: int) -> None:
    slices = list(line_slices(body, size))
    assert b"".join(slices) == body
    assert all(piece.endswith(b"\n") for piece in slices[:-1])
    assert all(b"\n" not in piece[size - 1 : -1] for piece in slices)


@given(
    st.lists(st.one_of(st.text(max_size=50), st.integers(), st.none()), min_size=1, max_size=50), st.integers(1, 300)
)
def test_slicing_changes_nothing(values: list[Any], size: int) -> None:
    whole = [None if v is None else v.encode() if isinstance(v, str) else str(v).encode() for v in values]
    records = [{"value": value} for value in values]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records_in, "SLICE_BYTES", size)
        assert parse_json(as_json(records)).values == whole
        assert parse_ndjson(as_lines(records)).values == whole
