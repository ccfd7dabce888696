"""Streams of JSON objects are cut in the same places however they arrive."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_api.records.json_stream import ObjectSplitter
from raftlog.errors import InvalidRequest

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), JSON, max_size=4)
GAPS = st.text(" \t\r\n", max_size=3)


def cut(stream: bytes, sizes: list[int]) -> list[bytes]:
    """Return the objects of a stream that arrives in pieces of these sizes, again and again."""
    splitter = ObjectSplitter(1 << 20)
    found: list[bytes] = []
    position = turn = 0
    while position < len(stream):
        size = sizes[turn % len(sizes)]
        found += splitter.feed(stream[position : position + size])
        position, turn = position + size, turn + 1
        if splitter.fault is not None:
            break
    splitter.end()
    if splitter.fault is not None:
        raise splitter.fault
    return found


@given(st.lists(st.tuples(OBJECTS, GAPS, st.booleans()), max_size=6), st.lists(st.integers(1, 40), min_size=1))
def test_objects_are_found_whatever_stands_between_them(written: list[Any], sizes: list[int]) -> None:
    stream = b"".join(
        json.dumps(one, ensure_ascii=escaped, indent=2 if escaped else None).encode(errors="replace") + gap.encode()
        for one, gap, escaped in written
    )
    found = cut(stream, sizes)
    assert [json.loads(text) for text in found] == [
        json.loads(json.dumps(one, ensure_ascii=escaped).encode(errors="replace")) for one, _, escaped in written
    ]
    assert cut(stream, [len(stream) or 1]) == found


@pytest.mark.parametrize("stream", [b"[]", b"1", b'"a"', b"{} x", b"{},{}", b"}", b"nul"])
def test_anything_else_is_refused(stream: bytes) -> None:
    with pytest.raises(InvalidRequest) as refused:
        cut(stream, [1])
    assert refused.value.code == "invalid_json"


@pytest.mark.parametrize("stream", [b"{", b'{"a": "}', b'{"a": "\\', b'{"a": "\\"}'])
def test_an_object_that_is_not_complete_is_refused_at_the_end(stream: bytes) -> None:
    with pytest.raises(InvalidRequest, match="ends inside a record"):
        cut(stream, [3])


def test_brackets_that_do_not_match_are_left_to_the_decoder() -> None:
    assert cut(b'{"a": [}} {}', [4]) == [b'{"a": [}}', b"{}"]


def test_an_object_may_have_a_bounded_size() -> None:
    splitter = ObjectSplitter(100)
    assert splitter.feed(b'{"a": "' + b"x" * 80) == []
    assert splitter.feed(b"x" * 20) == []
    assert splitter.fault is not None and splitter.fault.code == "batch_too_large"


def test_what_came_before_a_fault_is_returned() -> None:
    splitter = ObjectSplitter(100)
    assert splitter.feed(b'{"a": 1}{} nonsense') == [b'{"a": 1}', b"{}"]
    assert splitter.fault is not None and "nonsense" in splitter.fault.detail


@pytest.mark.parametrize("filler", [b"x", b'\\"', b"\\\\", b"[", b" "])
def test_a_long_string_in_many_pieces_costs_no_more_than_its_bytes_and_pieces(filler: bytes) -> None:
    """Text that could match in many ways is tried in one."""
    splitter = ObjectSplitter(1 << 22)
    splitter.feed(b'{"a": "')
    begun = time.process_time()
    for _ in range(16):
        assert splitter.feed(filler * (65_536 // len(filler))) == []
    assert splitter.feed(b'"}') != []
    assert time.process_time() - begun < 5
