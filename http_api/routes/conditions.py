"""The conditions of a produce request: an idempotency key, the expected end of the log, a producer's sequence."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from http_api.records.identities import InTransaction, KeyedRequest, parse_key
from http_api.web.call import Call
from http_api.web.problems import ApiError
from http_api.web.query import MAX_OFFSET, integer
from raftlog.errors import InvalidRequest
from raftlog.idempotency import KEYS_FEATURE_LEVEL, body_sequence
from raftlog.model import FIRST_KEYED_ID, Acks, TopicRecord
from raftlog.wire import ProducedPartition

IDEMPOTENCY_KEY = "Idempotency-Key"
IF_MATCH = "If-Match"
_MAX_EPOCH = 2**15 - 1
_MAX_SEQUENCE = 2**31 - 1
_CONTENT = ("partition", "key", "key_base64", "timestamp", "header")
_CONTENT_HEADERS = (
    "X-Raftlog-Partition", "X-Raftlog-Key", "X-Raftlog-Key-Base64", "X-Raftlog-Timestamp", "X-Raftlog-Header"
)  # fmt: skip


def idempotency_key(call: Call) -> str | None:
    """Return the request's idempotency key, if it has one. Raises `InvalidRequest`."""
    given = call.request.headers.getall(IDEMPOTENCY_KEY, [])
    if len(given) > 1:
        raise InvalidRequest("invalid_request", f"{IDEMPOTENCY_KEY} is given {len(given)} times")
    return parse_key(given[0]) if given else None


def keyed_request(call: Call, topic: TopicRecord, key: str, media_type: str, body: bytes) -> KeyedRequest:
    """Return the identity of a request with a key and this body."""
    options = [call.query.texts(name) for name in _CONTENT]
    options += [call.request.headers.getall(name, []) for name in _CONTENT_HEADERS]
    content = (media_type.encode(), msgspec.json.encode(options), body)
    return KeyedRequest(call.principal, topic.topic_id, key, content)


def sticky_of(key: str, topic: TopicRecord) -> int:
    """Return the partition of records without a key of their own: the same for each retry."""
    return body_sequence(key.encode()) % topic.partition_count


def named_producer(call: Call) -> InTransaction | None:
    """Return the producer that the query names, if it does. Raises `InvalidRequest`."""
    query = call.query
    texts = {name: query.text(name) for name in ("producer_id", "producer_epoch", "sequence")}
    if not any(text is not None for text in texts.values()):
        if query.text("transactional") is not None:
            raise InvalidRequest("invalid_request", "transactional needs producer_id, producer_epoch and sequence")
        return None
    given = {name: text for name, text in texts.items() if text is not None}
    if len(given) < len(texts):
        raise InvalidRequest("invalid_request", "producer_id, producer_epoch and sequence belong together")
    return InTransaction(
        integer("producer_id", given["producer_id"], 0, FIRST_KEYED_ID - 1),
        integer("producer_epoch", given["producer_epoch"], 0, _MAX_EPOCH),
        integer("sequence", given["sequence"], 0, _MAX_SEQUENCE),
        query.choice("transactional", ("true", "false"), "true") == "true",
    )


def expected_end_offset(call: Call) -> int:
    """Return the offset of `If-Match`, or -1. Raises `InvalidRequest`."""
    given = call.request.headers.getall(IF_MATCH, [])
    if not given:
        return -1
    text = given[0].strip()
    if len(given) > 1 or len(text) < 3 or text[0] != '"' or text[-1] != '"':
        raise InvalidRequest(
            "invalid_request", f'{IF_MATCH} must be one offset in quotes, like "42", where the log ends'
        )
    return integer(IF_MATCH, text[1:-1], 0, MAX_OFFSET)


def check_together(call: Call, acks: Acks, key: str | None, producer: InTransaction | None, expected: int) -> None:
    """Raise `InvalidRequest` for conditions that exclude one another, or that need what the cluster has not."""
    if key is not None and producer is not None:
        raise InvalidRequest("invalid_request", f"{IDEMPOTENCY_KEY} and producer_id both name the request's producer")
    if acks is Acks.NONE and (key is not None or producer is not None or expected >= 0):
        raise InvalidRequest("invalid_request", "acks=0 has no answer that could tell the outcome")
    if producer is not None and producer.transactional and acks is not Acks.ALL:
        raise InvalidRequest("invalid_request", "a transaction is written with acks=all")
    level = call.view.feature_level
    if (key is not None or expected >= 0) and level < KEYS_FEATURE_LEVEL:
        raise InvalidRequest(
            "unsupported_version",
            f"{IDEMPOTENCY_KEY} and {IF_MATCH} need feature level {KEYS_FEATURE_LEVEL}, but the cluster is at {level}: "
            "when every node is upgraded, finalize the upgrade (raftlog cluster finalize)",
        )


def check_log_end(answers: Sequence[ProducedPartition]) -> None:
    """Raise `ApiError` (`log_end_moved`) with the present end if the log ended elsewhere."""
    for told in answers:
        if told.error == "log_end_moved":
            members = {"log_end_offset": told.log_end_offset}
            raise ApiError(told.error, told.detail, members=members, headers={"ETag": f'"{told.log_end_offset}"'})
