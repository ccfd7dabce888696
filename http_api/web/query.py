"""Typed query parameters and path segments of a request; unknown, repeated and out-of-range ones are refused by
name."""

from __future__ import annotations

import re
from collections.abc import Collection

from aiohttp import web
from multidict import MultiDict, MultiMapping

from http_api.service.service import BrokerService
from raftlog.errors import InvalidRequest
from raftlog.model import PartitionRecord, TopicPartition, TopicRecord

MAX_INT64 = 2**63 - 1
MAX_OFFSET = 2**62
"""The greatest offset that a fetch request can carry."""
_NO_QUERY: MultiMapping[str] = MultiDict()
TOPIC_ID = "topic_id"
"""The query parameter with the id of the topic in the path."""
_HEXADECIMAL_ID = re.compile(r"[0-9a-fA-F]{32}", re.ASCII)
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,40}", re.ASCII)


class Query:
    """The query of one request."""

    def __init__(
        self, request: web.Request, allowed: Collection[str] = (), *, repeatable: Collection[str] = ()
    ) -> None:
        """Raises `InvalidRequest` for a parameter that is in neither list, or that is in the first and repeated."""
        # Most addresses have no query, and need not be parsed.
        self._query = request.query if "?" in request.raw_path else _NO_QUERY
        for name in self._query:
            if name in repeatable:
                continue
            if name not in allowed:
                known = ", ".join(sorted([*allowed, *repeatable])) or "none"
                raise InvalidRequest("invalid_request", f"unknown query parameter {name[:64]!r}; here can be {known}")
            if len(self._query.getall(name)) > 1:
                raise InvalidRequest("invalid_request", f"query parameter {name} is given twice")

    def text(self, name: str) -> str | None:
        """Return the parameter's text, or None if it is absent."""
        return self._query.get(name)

    def texts(self, name: str) -> list[str]:
        """Return all values of a repeatable parameter."""
        return self._query.getall(name, [])

    def choice(self, name: str, choices: Collection[str], default: str) -> str:
        """Return the parameter, one of `choices`."""
        text = self._query.get(name, default)
        if text not in choices:
            raise InvalidRequest("invalid_request", f"{name} must be {' or '.join(choices)}, not {text[:64]!r}")
        return text

    def integer(self, name: str, low: int, high: int, default: int) -> int:
        """Return the parameter as an integer within `low..high`."""
        text = self._query.get(name)
        return default if text is None else integer(name, text, low, high)

    def timestamp(self, name: str) -> int | None:
        """Return the parameter as milliseconds since 1970. Raises `InvalidRequest("timestamp_out_of_range")`."""
        text = self._query.get(name)
        return None if text is None else timestamp(name, text)


def integer(name: str, text: str, low: int, high: int) -> int:
    """Return `text` as an integer within `low..high`. Raises `InvalidRequest` with its name."""
    if not _WHOLE_NUMBER.fullmatch(text) or not low <= int(text) <= high:
        raise InvalidRequest(
            "invalid_request", f"{name} must be a whole number between {low} and {high}, not {text[:64]!r}"
        )
    return int(text)


def timestamp(name: str, text: str) -> int:
    """Return `text` as milliseconds since 1970. Raises `InvalidRequest`, for a number out of range
    `timestamp_out_of_range`."""
    if not _WHOLE_NUMBER.fullmatch(text):
        raise InvalidRequest("invalid_request", f"{name} must be milliseconds since 1970, not {text[:64]!r}")
    return check_timestamp(name, int(text))


def check_timestamp(name: str, milliseconds: int) -> int:
    """Return `milliseconds` if a record can have that timestamp. Raises `InvalidRequest("timestamp_out_of_range")`."""
    if not 0 <= milliseconds <= MAX_INT64:
        raise InvalidRequest(
            "timestamp_out_of_range", f"{name} must be between 0 and {MAX_INT64} ms since 1970, not {milliseconds}"
        )
    return milliseconds


def topic_of(request: web.Request, service: BrokerService) -> TopicRecord:
    """Return the topic in the path. Raises `InvalidRequest("unknown_topic")`."""
    name = request.match_info["topic"]
    topic = service.view.topic(name)
    if topic is None:
        raise InvalidRequest("unknown_topic", f"there is no topic {name[:249]!r}")
    return topic


def topic_meant(request: web.Request, service: BrokerService) -> TopicRecord:
    """Return the topic in the path; if the query has a `topic_id`, it must match. Raises `InvalidRequest`."""
    topic = topic_of(request, service)
    if is_another(request, topic):
        gone = f"topic {topic.name!r} of the id {request.query[TOPIC_ID][:64]} was deleted; the present one is another"
        raise InvalidRequest("unknown_topic", gone)
    return topic


def is_another(request: web.Request, topic: TopicRecord) -> bool:
    """Return whether the query's `topic_id` belongs to another topic. Raises `InvalidRequest` if it is not an id."""
    given = request.query.get(TOPIC_ID) if "?" in request.raw_path else None
    if given is None:
        return False
    if not _HEXADECIMAL_ID.fullmatch(given):
        raise InvalidRequest("invalid_request", f"{TOPIC_ID} has 32 hexadecimal digits, which {given[:64]!r} has not")
    return bytes.fromhex(given) != topic.topic_id


def partition_of(request: web.Request, service: BrokerService, topic: TopicRecord) -> PartitionRecord:
    """Return the partition in the path. Raises `InvalidRequest("unknown_partition")`."""
    text = request.match_info["partition"]
    number = integer("the partition", text, 0, 2**31 - 1)
    partition = service.view.partition(TopicPartition(topic.topic_id, number))
    if partition is None:
        raise unknown_partition(topic, number)
    return partition


def unknown_partition(topic: TopicRecord, number: int) -> InvalidRequest:
    """Return the error for an unknown partition."""
    return InvalidRequest(
        "unknown_partition", f"topic {topic.name!r} has partitions 0 to {topic.partition_count - 1}, not {number}"
    )
