"""Cursors: they are short, give back what they were made of, and anything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_api.streams.cursor import (
    MAX_CURSOR,
    MAX_PARTITIONS,
    MAX_TOPICS,
    UNKNOWN,
    decode_cursor,
    encode_cursor,
)
from raftlog.errors import InvalidRequest
from raftlog.model import TopicId, TopicPartition

OFFSETS = st.integers(UNKNOWN, 2**62)
PARTITIONS = st.builds(TopicPartition, st.binary(min_size=16, max_size=16).map(TopicId), st.integers(0, 2**31 - 1))


@given(st.dictionaries(PARTITIONS, OFFSETS, max_size=20))
def test_a_cursor_gives_back_its_offsets(positions: dict[TopicPartition, int]) -> None:
    assert decode_cursor(encode_cursor(positions)) == positions


@given(st.text(alphabet="ABCDabcd0189-_", max_size=60))
def test_other_text_is_refused_or_is_a_cursor(text: str) -> None:
    try:
        found = decode_cursor(text)
    except InvalidRequest as error:
        assert error.code == "invalid_request"
    else:
        assert encode_cursor(found) == text


def test_the_largest_stream_has_a_cursor_that_fits_into_a_header() -> None:
    a_topic = MAX_PARTITIONS // MAX_TOPICS
    positions = {
        TopicPartition(TopicId(bytes([255 - topic]) * 16), partition): 2**55  # A million a second for a millennium.
        for topic in range(MAX_TOPICS)
        for partition in range(a_topic)
    }
    text = encode_cursor(positions)
    assert len(text) <= MAX_CURSOR
    assert decode_cursor(text) == positions


def test_a_typical_cursor_is_short() -> None:
    positions = {TopicPartition(TopicId(bytes(16)), partition): 1_000_000 + partition for partition in range(6)}
    assert len(encode_cursor(positions)) <= 60


def test_a_shortened_or_changed_cursor_is_refused() -> None:
    text = encode_cursor({TopicPartition(TopicId(b"\x07" * 16), partition): 300 for partition in range(3)})
    for length in range(len(text)):
        with pytest.raises(InvalidRequest):
            decode_cursor(text[:length])
    for wrong in (text + "A", text + "=", "é", " " + text, "B" + text[1:], "A" * (MAX_CURSOR + 1)):
        with pytest.raises(InvalidRequest):
            decode_cursor(wrong)


def test_the_bytes_of_a_cursor_stay_what_they_are() -> None:
    """Clients keep cursors: this one must stay readable."""
    told = "AQFvDOh0bpVMAbVx2XG5-o1bAgADAAE"
    topic = TopicId(bytes.fromhex("6f0ce8746e954c01b571d971b9fa8d5b"))
    assert decode_cursor(told) == {TopicPartition(topic, 0): 2, TopicPartition(topic, 1): 0}
