"""The query of a stream of records."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import msgspec

from http_api.records.page import Rows, native_rows
from http_api.routes.fetch import QUERY as _FETCH_QUERY
from http_api.routes.offsets import isolation_of
from http_api.web.call import Call
from http_api.web.query import MAX_OFFSET, integer, timestamp
from raftlog.errors import InvalidRequest
from raftlog.json_values import FORMATS
from raftlog.model import EARLIEST, LATEST, TopicPartition
from raftlog.patterns import full_matcher
from raftlog.wire import TIMESTAMP_EARLIEST, TIMESTAMP_LATEST

from .cursor import MAX_PARTITIONS, MAX_TOPICS, decode_cursor

TOPIC, OFFSET = "topic", "offset"
QUERY = ("pattern", "start", "cursor", "max_records", "duration_ms", "heartbeat_ms", *_FETCH_QUERY[-3:])
REPEATABLE = (TOPIC, OFFSET)
LAST_EVENT_ID = "Last-Event-ID"
MAX_RECORDS = 2**53
DEFAULT_HEARTBEAT_MS = 15_000
MOST_HEARTBEAT_MS = 60_000
LEAST_HEARTBEAT_MS = 100
MAX_DURATION_MS = 86_400_000
"""A day: clients go on with the cursor."""

_PLACE = re.compile(r"([A-Za-z0-9._-]{1,249})/([0-9]{1,10}):([0-9]{1,19})", re.ASCII)


class Asked(msgspec.Struct, frozen=True):
    """The partitions that a request wants to read, and how."""

    names: frozenset[str]
    matches: Callable[[str], bool] | None
    """Whether the pattern matches a topic's name; None: there is no pattern."""
    start: int
    """A time in ms, `TIMESTAMP_EARLIEST` or `TIMESTAMP_LATEST`."""
    offsets: Mapping[tuple[str, int], int]
    cursor: Mapping[TopicPartition, int] | None
    isolation: int
    formats: tuple[str, str]
    max_records: int
    duration_s: float
    heartbeat_s: float

    def names_topic(self, name: str) -> bool:
        """Return whether the request wants a topic of this name."""
        return name in self.names or (self.matches is not None and self.matches(name))

    @property
    def rows(self) -> Rows:
        """The function that makes the JSON documents of records."""
        return native_rows(*(FORMATS[name] for name in self.formats))


def asked_of(call: Call) -> Asked:
    """Return what the request wants. Raises `InvalidRequest`."""
    query = call.query
    names, pattern = frozenset(query.texts(TOPIC)), query.text("pattern")
    if not names and pattern is None:
        raise InvalidRequest("invalid_request", "name the topics: topic=NAME, several times if need be, or pattern=RE2")
    if len(names) > MAX_TOPICS:
        raise InvalidRequest("invalid_request", f"a stream reads at most {MAX_TOPICS} topics, not {len(names)}")
    given = [text for text in (query.text("cursor"), call.request.headers.get(LAST_EVENT_ID)) if text]
    # A browser's `Last-Event-ID` is newer than the cursor in the address that it began with.
    cursor = decode_cursor(given[-1]) if given else None
    return Asked(
        names,
        None if pattern is None else full_matcher(pattern),
        _start(query.text("start") or LATEST),
        _offsets(query.texts(OFFSET), names),
        cursor,
        isolation_of(call),
        (query.choice("key_format", FORMATS, "auto"), query.choice("value_format", FORMATS, "auto")),
        query.integer("max_records", 1, MAX_RECORDS, MAX_RECORDS),
        query.integer("duration_ms", 1, MAX_DURATION_MS, MAX_DURATION_MS) / 1000,
        query.integer("heartbeat_ms", LEAST_HEARTBEAT_MS, MOST_HEARTBEAT_MS, DEFAULT_HEARTBEAT_MS) / 1000,
    )


def _start(text: str) -> int:
    if text == EARLIEST:
        return TIMESTAMP_EARLIEST
    if text == LATEST:
        return TIMESTAMP_LATEST
    if not text.startswith("@"):
        raise InvalidRequest("invalid_request", f"start must be earliest, latest or @milliseconds, not {text[:64]!r}")
    return timestamp("start", text[1:])


def _offsets(texts: list[str], names: frozenset[str]) -> dict[tuple[str, int], int]:
    if len(texts) > MAX_PARTITIONS:
        raise InvalidRequest("invalid_request", f"a stream reads at most {MAX_PARTITIONS} partitions")
    found: dict[tuple[str, int], int] = {}
    for text in texts:
        match = _PLACE.fullmatch(text)
        if match is None:
            raise InvalidRequest("invalid_request", f"offset must be topic/partition:offset, not {text[:64]!r}")
        place = (match[1], integer("the partition", match[2], 0, 2**31 - 1))
        if match[1] not in names:
            raise InvalidRequest("invalid_request", f"offset names topic {match[1][:64]!r}, which topic= does not")
        found[place] = integer(OFFSET, match[3], 0, MAX_OFFSET)
    return found
