"""Problem documents (RFC 9457): every failure of the API, aiohttp's own included, becomes one.

`type` is `urn:raftlog:problem:` and the stable code, `status` the code's, from the one table `raftlog.errors.CODES`.
Beside RFC 9457's members there are `code`, `retriable`, `applied` (whether the request may have taken effect) and
`request_id`; an `ApiError` adds members of its own. A retriable problem carries `Retry-After`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from aiohttp import web
from multidict import CIMultiDict

from raftlog.api.problems import PartitionError, Problem
from raftlog.errors import CODES, Applied, InvalidRequest, NotLeader, RaftlogError, error_from_code
from raftlog.wire import DeletedPartition, FetchedPartition, FoundOffset, ProducedPartition

PROBLEM_TYPE = "application/problem+json"
CHALLENGES = ('Bearer realm="raftlog"', 'Basic realm="raftlog", charset="UTF-8"')
"""The ways to authenticate (RFC 9110 section 11.6.1, RFC 6750, RFC 7617)."""
RETRY_AFTER_S = 1
"""Seconds; elections and take-overs complete within two."""

_CODE_OF_STATUS = {
    404: "not_found",
    405: "method_not_allowed",
    406: "not_acceptable",
    408: "slow_request",
    413: "body_too_large",
    415: "unsupported_media_type",
}
"""The codes for errors that aiohttp raises. Its other refusals (400, 417, ...) are `invalid_request`."""

PartAnswer = ProducedPartition | FetchedPartition | FoundOffset | DeletedPartition

_encode = msgspec.json.Encoder().encode


class ApiError(RaftlogError):
    """An error with additional members for the problem document, and optional headers."""

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        members: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(code, detail)
        self.members = dict(members or {})
        self.headers = dict(headers or {})


def problem(error: RaftlogError, request_id: str) -> web.Response:
    """Return the answer to a request that failed with `error`."""
    code = CODES[error.code]
    document = Problem(
        type=f"urn:raftlog:problem:{error.code}",
        title=code.title,
        status=code.status,
        detail=error.detail,
        code=error.code,
        retriable=code.retriable,
        applied=code.applied.value,
        request_id=request_id,
        leader=_leader(error),
    )
    members: dict[str, Any] = msgspec.to_builtins(document)
    headers = CIMultiDict({"X-Request-Id": request_id})
    if code.retriable:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if error.code == "unauthenticated":
        headers.extend(("WWW-Authenticate", challenge) for challenge in CHALLENGES)
    if isinstance(error, ApiError):
        members |= error.members
        headers.update(error.headers)
    return web.Response(status=code.status, body=_encode(members), content_type=PROBLEM_TYPE, headers=headers)


def error_of_http(error: web.HTTPException, path: str) -> RaftlogError:
    """Return the `RaftlogError` for a refusal by aiohttp."""
    if error.status >= 500:
        return RaftlogError("internal_error", error.reason)
    code = _CODE_OF_STATUS.get(error.status, "invalid_request")
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        detail = f"{path[:256]} supports {allowed}, not {error.method[:32]}"
        return ApiError(code, detail, headers={"Allow": allowed})
    if code == "not_found":
        return InvalidRequest(code, f"there is no {path[:256]}; the paths are in /openapi.json")
    return InvalidRequest(code, error.reason)


def error_of(answer: PartAnswer) -> RaftlogError | None:
    """Return the error of one part of a request in the broker's answer; None if the part succeeded."""
    return error_from_code(answer.error, answer.detail, answer.leader) if answer.error else None


def error_member(error: RaftlogError) -> PartitionError:
    """Return the error of one part of a request as a member of a larger document."""
    return PartitionError(error.code, error.detail, error.retriable, error.applied.value, _leader(error))


def _leader(error: RaftlogError) -> int | msgspec.UnsetType:
    return error.leader if isinstance(error, NotLeader) and error.leader >= 0 else msgspec.UNSET


def worst(errors: list[RaftlogError]) -> RaftlogError:
    """Return the most important error of several parts: one that no retry can cure, then one with an unknown outcome,
    then the first."""
    return min(errors, key=lambda error: (error.retriable, error.applied is Applied.NO))


def check_parts(name: str, outcomes: Sequence[object], answers: Iterable[PartAnswer]) -> None:
    """Raise a problem with the worst code and the outcomes of all parts if some parts of a request failed. `name`: of
    the parts, also of the problem's member with their outcomes."""
    errors = [error for answer in answers if (error := error_of(answer)) is not None]
    if not errors:
        return
    members: dict[str, Any] = {name: outcomes}
    if len(errors) < len(outcomes) or any(error.applied is Applied.UNKNOWN for error in errors):
        # The worst error alone might state that nothing was applied, which would be false for the other parts.
        members["applied"] = Applied.UNKNOWN.value
    found = worst(errors)
    raise ApiError(found.code, f"{len(errors)} of {len(outcomes)} {name} failed: {found.detail}", members=members)
