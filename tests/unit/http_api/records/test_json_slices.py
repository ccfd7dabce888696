"""JSON lists cut into lists: whatever is in the records, the slices hold the same, and no fault gets lost between."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_api.records.json_slices import NotSliced, list_slices
from http_api.records.parse import RecordOptions, parse_json, parse_ndjson, parse_text
from http_api.web.limits import MAX_RECORD_JSON_BYTES, MAX_RECORDS_PER_REQUEST, SLICE_BYTES
from raftlog.errors import InvalidRequest

TRICKY = st.sampled_from(["},", "}", '{"a":', "]}", '"', "\\", "[", ",", '},{"value":1}'])
VALUES = st.recursive(
    st.none() | st.integers() | TRICKY,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TRICKY, inner, max_size=3),
    max_leaves=12,
)


def sliced(body: bytes, slice_bytes: int) -> list[Any]:
    pieces = [msgspec.json.decode(piece) for piece in list_slices(body, slice_bytes)]
    if len(pieces) > 1 and not pieces[-1]:
        raise NotSliced(b"")  # As the caller sees it: a comma, and nothing after it.
    return [one for piece in pieces for one in piece]


@given(records=st.lists(VALUES, max_size=12), size=st.integers(1, 60), indent=st.sampled_from([0, 2]))
def test_slices_hold_what_the_list_holds(records: list[Any], size: int, indent: int) -> None:
    body = msgspec.json.format(msgspec.json.encode({"records": records}), indent=indent)
    assert sliced(body, size) == records


@given(
    records=st.lists(st.builds(lambda value: {"value": value}, VALUES), min_size=1, max_size=6),
    size=st.integers(1, 60),
    place=st.floats(0, 1),
    change=st.sampled_from([b"", b",", b"}", b"]", b'"', b"},", b"{"]),
)
def test_a_body_that_is_no_json_is_never_taken(records: list[Any], size: int, place: float, change: bytes) -> None:
    whole = msgspec.json.encode({"records": records})
    at = int(place * len(whole))
    body = whole[:at] + change + whole[at + 1 :]
    try:
        expected = msgspec.json.decode(body)["records"]
    except (msgspec.DecodeError, KeyError, TypeError):
        with pytest.raises((InvalidRequest, NotSliced)):
            sliced(body, size)
    else:
        if isinstance(expected, list):
            assert sliced(body, size) == expected


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"records":[{"value":1},]}', "invalid_json"),
        (b'{"records":[' + b'{"value":1},' * 40_000 + b"]}", "invalid_json"),
        (b'{"records":[' + b'{"value":1},' * 40_000 + b'{"value":1}],"x":[]}', "invalid_request"),
        (b'{"records":[{"value":1}],"x":[]}', "invalid_request"),
        (b'{"records":[{"value":1}],"records":[{"value":2}]}', "invalid_json"),
        (b'{"records":[' + b"1," * (8 << 19) + b"1]}", "invalid_request"),
        (b'{"records":[{"value":[' + b"1," * (8 << 19) + b"1]}]}", "batch_too_large"),
        (b'{"records":[{"value":1},{"value":"' + b"x" * (5 << 20) + b'"},{"value":3}]}', "batch_too_large"),
        (b'{"records":[{"value":1},{"value":' + b"{}," * (2 << 20) + b"1}]}", "invalid_json"),
    ],
)
def test_faults_of_large_bodies(body: bytes, code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_json(body)
    assert caught.value.code == code, caught.value


def test_too_many_records_are_refused_before_all_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    most = MAX_RECORDS_PER_REQUEST
    assert len(parse_json(b'{"records":[' + b",".join([b'{"value":1}'] * most) + b"]}")) == most
    with pytest.raises(InvalidRequest, match=f"at most {most} records"):
        parse_json(b'{"records":[' + b'{"value":1},' * (most + 40_000) + b"not seen]}")


def test_an_unusual_way_to_write_it_is_taken() -> None:
    body = b'{"\\u0072ecords"' + b" " * 1000 + b':[{"value":1}' + b" " * 1000 + b',{"value":2}]' + b"\n" * 1000 + b"}"
    assert parse_json(body).values == [b"1", b"2"]


def test_a_line_that_no_batch_can_take_is_named() -> None:
    lines = b'{"value":1}\n' * 30_000
    with pytest.raises(InvalidRequest, match="line 30001 has more") as caught:
        parse_ndjson(lines + b'{"value":"' + b"x" * (MAX_RECORD_JSON_BYTES + SLICE_BYTES) + b'"}\n' + lines)
    assert caught.value.code == "batch_too_large"
    with pytest.raises(InvalidRequest, match="line 30001 has more") as caught:
        parse_text(lines + b"x" * (2 << 20) + b"\n", RecordOptions())
    assert caught.value.code == "batch_too_large"
