"""The partitions of a stream: where each begins, what joins and leaves, and whose turn it is."""

from __future__ import annotations

from http_api.streams.cursor import UNKNOWN, decode_cursor
from http_api.streams.positions import Left, StreamPositions
from raftlog.model import TopicId, TopicPartition, TopicRecord
from raftlog.wire import TIMESTAMP_EARLIEST, TIMESTAMP_LATEST

A, B, AGAIN = (TopicId(bytes([number]) * 16) for number in (1, 2, 3))


def topic(topic_id: TopicId, name: str, partitions: int = 1) -> TopicRecord:
    return TopicRecord(topic_id, name, partitions, 1)


def at(topic_id: TopicId, partition: int = 0) -> TopicPartition:
    return TopicPartition(topic_id, partition)


def test_a_stream_begins_where_it_was_asked_to() -> None:
    positions = StreamPositions(TIMESTAMP_LATEST, {("a", 1): 70})
    assert positions.match([topic(A, "a", 2), topic(B, "b")]) == []
    assert positions.without_start(0) == [(at(A, 0), TIMESTAMP_LATEST), (at(B), TIMESTAMP_LATEST)]
    assert positions.to_fetch(0) == [(at(A, 1), 70)]
    assert positions.take_joined() == [at(A, 1)]
    assert positions.take_joined() == []
    positions.resume_at(at(A, 0), 12)
    assert positions.position(at(A, 0)) == 12
    assert positions.without_start(0) == [(at(B), TIMESTAMP_LATEST)]


def test_what_joins_later_is_read_from_its_first_record() -> None:
    positions = StreamPositions(TIMESTAMP_LATEST)
    positions.match([topic(A, "a")])
    positions.resume_at(at(A), 100)
    assert positions.match([topic(A, "a", 2), topic(B, "b")]) == []
    assert positions.without_start(0) == [(at(A, 1), TIMESTAMP_EARLIEST), (at(B), TIMESTAMP_EARLIEST)]
    assert positions.position(at(A)) == 100, "a partition keeps its place"


def test_a_topic_that_is_created_again_leaves_and_joins() -> None:
    positions = StreamPositions(TIMESTAMP_LATEST)
    positions.match([topic(A, "a")])
    positions.resume_at(at(A), 100)
    assert positions.match([topic(AGAIN, "a")]) == [Left(A, "a")]
    assert positions.names == ["a"]
    assert positions.without_start(0) == [(at(AGAIN), TIMESTAMP_EARLIEST)]
    assert at(A) not in decode_cursor(positions.cursor())


def test_a_cursor_goes_on_by_topic_id_and_never_mistakes_a_topic() -> None:
    cursor = {at(A, 0): 7, at(A, 1): UNKNOWN, at(B): 9}
    positions = StreamPositions(TIMESTAMP_LATEST, {("a", 0): 1}, cursor)
    assert positions.match([topic(A, "a", 3), topic(AGAIN, "b")]) == [Left(B, None)], "b was created again"
    assert positions.to_fetch(0) == [(at(A, 0), 7)], "the cursor is newer than the offset"
    assert positions.without_start(0) == [
        (at(A, 1), TIMESTAMP_LATEST),
        (at(A, 2), TIMESTAMP_EARLIEST),
        (at(AGAIN), TIMESTAMP_EARLIEST),
    ]
    assert decode_cursor(positions.cursor()) == {
        at(A, 0): 7, at(A, 1): UNKNOWN, at(A, 2): UNKNOWN, at(AGAIN): UNKNOWN
    }  # fmt: skip
    assert positions.match([topic(A, "a", 3)]) == [Left(AGAIN, "b")], "the cursor is looked at once"


def test_every_partition_gets_its_turn() -> None:
    positions = StreamPositions(0, {("a", number): number for number in range(3)})
    positions.match([topic(A, "a", 3)])
    firsts = [positions.to_fetch(0)[0] for _ in range(6)]
    assert sorted(firsts) == sorted([(at(A, number), number) for number in range(3)] * 2)


def test_a_partition_that_failed_rests() -> None:
    positions = StreamPositions(0, {("a", 0): 0})
    positions.match([topic(A, "a", 2)])
    positions.rest(at(A, 0), 5.0)
    positions.rest(at(A, 1), 6.0)
    assert positions.to_fetch(4.9) == [] and positions.without_start(4.9) == []
    assert positions.wakes_at(4.9) == 5.0
    assert positions.to_fetch(5.0) == [(at(A, 0), 0)]
    assert positions.wakes_at(5.5) == 6.0
    assert positions.without_start(6.0) == [(at(A, 1), 0)]
    assert positions.wakes_at(7.0) is None


def test_the_cursor_follows_what_was_sent() -> None:
    positions = StreamPositions(0, {("a", 0): 5})
    positions.match([topic(A, "a")])
    positions.advance(at(A), 8)
    assert decode_cursor(positions.cursor()) == {at(A): 8}
