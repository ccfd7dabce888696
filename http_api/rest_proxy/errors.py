"""Errors as the REST Proxy's clients know them: `{"error_code": ..., "message": ...}`.

An error code is the HTTP status, or that and two more digits where the status alone would not say which of several
things is wrong. The numbers are Confluent's, which Karapace and Redpanda share.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from aiohttp import web
from multidict import CIMultiDict

from http_api.web.problems import CHALLENGES, RETRY_AFTER_S, ApiError
from raftlog import json_values as codec
from raftlog.errors import CODES, Applied, RaftlogError

KAFKA_ERROR = 50002
RETRIABLE_KAFKA_ERROR = 50003

_CODES: dict[str, tuple[int, int]] = {
    "unauthenticated": (401, 40101),
    "authorization_failed": (403, 40301),
    "cluster_authorization_failed": (403, 40301),
    "unknown_topic": (404, 40401),
    "unknown_partition": (404, 40402),
    "unknown_group": (404, 40405),
    "unknown_instance": (404, 40403),
    "stale_generation": (409, 40903),
    "member_fenced": (409, 40903),
    "unknown_member": (409, 40903),
    "group_not_empty": (409, 40903),
    "instance_moved": (503, RETRIABLE_KAFKA_ERROR),
    "invalid_config": (400, 40002),
    "invalid_topic_name": (400, 40002),
    "topic_exists": (400, 40002),
    "offset_out_of_range": (400, 40002),
    "timestamp_out_of_range": (400, 40002),
    "invalid_record": (400, 40002),
    "invalid_request": (422, 422),
    "throttled": (429, 429),
    "quota_exceeded": (429, 429),
}
"""raftlog's code → HTTP status and error code. Others: the status is both, or one of Kafka's two for the failures of a
cluster."""


V3_CODES: dict[str, tuple[int, int]] = {
    "unknown_topic": (404, 40403),
    "unknown_partition": (404, 40403),
    "invalid_request": (400, 400),
    "invalid_config": (400, 40002),
}
"""The numbers that are others in version 3."""
_NO_CODES: dict[str, tuple[int, int]] = {}


class RestError(msgspec.Struct, frozen=True):
    """The body of an error."""

    error_code: int
    message: str


class RestRefusal(ApiError):
    """An error that only this API knows, with its own status and error code."""

    def __init__(self, status: int, error_code: int, message: str) -> None:
        super().__init__("invalid_request", message)
        self.http_status = status
        self.error_code = error_code


def status_and_code(error: RaftlogError, codes: Mapping[str, tuple[int, int]] = _NO_CODES) -> tuple[int, int]:
    """Return the HTTP status and the error code of an error; `codes`: those that differ in the version."""
    if isinstance(error, RestRefusal):
        return error.http_status, error.error_code
    known = codes.get(error.code) or _CODES.get(error.code)
    if known is not None:
        return known
    row = CODES[error.code]
    if row.status < 500:
        return row.status, row.status
    return row.status, error_code_of_record(error)


def error_code_of_record(error: RaftlogError) -> int:
    """Return the error code of a record that was not appended, or perhaps not: a client may send it again only if it
    was certainly not."""
    known = _CODES.get(error.code)
    if known is not None:
        return known[1] if known[0] in (401, 403) else KAFKA_ERROR
    row = CODES[error.code]
    return RETRIABLE_KAFKA_ERROR if row.retriable and row.applied is Applied.NO else KAFKA_ERROR


def rest_error(
    error: RaftlogError, request_id: str, media_type: str, codes: Mapping[str, tuple[int, int]] = _NO_CODES
) -> web.Response:
    """Return the answer to a request that failed with `error`."""
    status, error_code = status_and_code(error, codes)
    headers = CIMultiDict({"X-Request-Id": request_id})
    if CODES[error.code].retriable:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if error.code == "unauthenticated":
        headers.extend(("WWW-Authenticate", challenge) for challenge in CHALLENGES)
    if isinstance(error, ApiError):
        headers.update(error.headers)
    body = codec.encode(RestError(error_code, error.detail))
    return web.Response(status=status, body=body, content_type=media_type, headers=headers)
