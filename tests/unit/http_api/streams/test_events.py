"""The forms of an event."""

from __future__ import annotations

import json

from http_api.streams.events import HEARTBEAT, JOINED, end, json_line, records, server_sent, stuck
from raftlog.errors import RetriableError
from raftlog.model import TopicId

TOPIC = TopicId(bytes(16))


def test_a_server_sent_event_has_its_cursor_as_id_and_one_line_of_data() -> None:
    members = records("t", TOPIC, 3, 8, 9, b'[{"value":"a\\nb"}]')
    event = server_sent("records", "abc", members)
    head, data = event.decode().split("\ndata: ")
    assert head == "event: records\nid: abc"
    assert data.endswith("\n\n") and data.count("\n") == 2
    assert json.loads(data) == {
        "topic": "t",
        "topic_id": "00" * 16,
        "partition": 3,
        "next_offset": 8,
        "high_watermark": 9,
        "records": [{"value": "a\nb"}],
    }


def test_a_heartbeat_moves_the_cursor_of_a_browser_and_wakes_no_listener() -> None:
    assert server_sent(HEARTBEAT, "abc", b"{}") == b"id: abc\n\n"
    assert json.loads(json_line(HEARTBEAT, "abc", b"{}")) == {"type": "heartbeat", "cursor": "abc"}


def test_a_line_has_type_and_cursor_beside_its_members() -> None:
    line = json_line(JOINED, "abc", b'{"topic":"t"}')
    assert line.count(b"\n") == 1
    assert json.loads(line) == {"type": "joined", "cursor": "abc", "topic": "t"}


def test_errors_say_whether_a_retry_may_succeed() -> None:
    error = RetriableError("shutting_down", "the node is shutting down")
    assert json.loads(end(error)) == {
        "code": "shutting_down", "detail": "the node is shutting down", "retriable": True
    }  # fmt: skip
    assert json.loads(end(None))["code"] == "complete"
    assert json.loads(stuck("t", TOPIC, 1, error))["partition"] == 1
