"""Problem documents (RFC 9457): every failure of the API, aiohttp's own included, becomes one.

`type` is `urn:raftlog:problem:` and the stable code, `status` the code's, from the one table `raftlog.errors.CODES`.
Beside RFC 9457's members there are `code`, `retriable`, `applied` (whether the request may have taken effect) and
`request_id`; an `ApiError` adds members of its own. A retriable problem carries `Retry-After`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web

from raftlog.errors import CODES, Applied, InvalidRequest, NotLeader, RaftlogError

PROBLEM_TYPE = "application/problem+json"
RETRY_AFTER_S = 1
"""Seconds; elections and take-overs complete within two."""

TITLES: dict[str, str] = {
    "invalid_request": "The request is malformed",
    "invalid_config": "A setting is unknown or out of range",
    "invalid_topic_name": "The topic name is not allowed",
    "invalid_json": "The body is not valid JSON",
    "corrupt_batch": "A record batch is corrupt",
    "timestamp_out_of_range": "A timestamp is out of range",
    "invalid_record": "A record is not what its topic takes",
    "unsupported_version": "The version is not supported",
    "origin_not_allowed": "The origin is not allowed",
    "cluster_authorization_failed": "Only nodes of this cluster may do this",
    "host_not_allowed": "The host is not one of this node's names",
    "not_found": "There is no such path",
    "unknown_topic": "There is no such topic",
    "unknown_partition": "There is no such partition",
    "method_not_allowed": "The path does not know this method",
    "not_acceptable": "None of the accepted media types can be given",
    "not_a_voter": "The node is no voter of the metadata quorum",
    "unknown_group": "There is no such consumer group",
    "unknown_member": "The group has no such member",
    "member_fenced": "A later life of the member has joined the group",
    "stale_generation": "A partition is not, or no longer, the member's",
    "group_not_empty": "The group has members",
    "not_coordinator": "The node does not coordinate groups",
    "stale_group_epoch": "The group has changed meanwhile",
    "topic_exists": "The topic exists",
    "reassignment_in_progress": "The partition is being moved",
    "no_reassignment_in_progress": "The partition is not being moved",
    "quorum_majority_at_risk": "The metadata quorum would lack its majority",
    "out_of_order_sequence": "The producer's sequence number is out of order",
    "producer_fenced": "The producer was replaced by a newer one",
    "unknown_producer_id": "The producer id is not known",
    "unknown_transaction": "There is no such transaction",
    "transaction_committed": "The transaction is committed",
    "transaction_aborted": "The transaction is aborted",
    "position_taken": "The position was published before",
    "offset_moved": "The group has moved on from the offset where the transaction began",
    "producer_ids_expired": "The producer id is of a block that has expired",
    "transaction_too_large": "The transaction is too large",
    "body_too_large": "The body is too large",
    "batch_too_large": "A record or batch is too large for the topic",
    "unsupported_media_type": "The media type is not supported",
    "offset_out_of_range": "The offset is out of range",
    "idempotency_key_reused": "The idempotency key was used with another body",
    "not_leader": "The partition is led by another broker",
    "leader_not_available": "The partition has no leader at the moment",
    "fenced_leader_epoch": "The leader epoch is older than the leader's",
    "unknown_leader_epoch": "The leader epoch is newer than the broker's",
    "unknown_fetch_session": "The broker does not know the fetch session any more",
    "stale_incarnation": "A broker has been restarted since",
    "stale_partition_epoch": "The partition has changed since",
    "not_eligible": "The replica may not take part at the moment",
    "not_enough_replicas": "Too few replicas are in sync",
    "not_controller": "The node is not the controller",
    "quorum_unavailable": "The metadata quorum has no leader at the moment",
    "quorum_change_in_progress": "The metadata quorum is changing",
    "voter_not_caught_up": "The node does not follow the metadata log closely enough to vote",
    "offset_not_available": "The offset is not known yet",
    "metadata_behind": "The node's view of the metadata is behind what the caller knows",
    "replica_not_available": "The replica is not available",
    "overloaded": "The node is overloaded",
    "shutting_down": "The node is shutting down",
    "connection_lost": "The connection to another node was lost",
    "disk_full": "The disk is full",
    "disk_failed": "The disk failed",
    "slow_request": "The request came too slowly",
    "not_enough_replicas_after_append": "Too few replicas were in sync after the append",
    "leadership_lost": "The leader lost its leadership while the request was under way",
    "request_timed_out": "The request timed out",
    "outcome_unknown": "It is not known whether the request took effect",
    "protocol_error": "Another node broke the protocol",
    "internal_error": "A fault of raftlog",
}

_CODE_OF_STATUS = {
    404: "not_found",
    405: "method_not_allowed",
    406: "not_acceptable",
    408: "slow_request",
    413: "body_too_large",
    415: "unsupported_media_type",
}
"""The codes for errors that aiohttp raises. Its other refusals (400, 417, ...) are `invalid_request`."""

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
    document: dict[str, Any] = {
        "type": f"urn:raftlog:problem:{error.code}",
        "title": TITLES[error.code],
        "status": code.status,
        "detail": error.detail,
        "code": error.code,
        "retriable": code.retriable,
        "applied": code.applied.value,
        "request_id": request_id,
    }
    headers = {"X-Request-Id": request_id}
    if code.retriable:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if isinstance(error, NotLeader) and error.leader >= 0:
        document["leader"] = error.leader
    if isinstance(error, ApiError):
        document.update(error.members)
        headers.update(error.headers)
    return web.Response(status=code.status, body=_encode(document), content_type=PROBLEM_TYPE, headers=headers)


def error_of_http(error: web.HTTPException, path: str) -> RaftlogError:
    """Return the `RaftlogError` for a refusal by aiohttp."""
    if error.status >= 500:
        return RaftlogError("internal_error", error.reason)
    code = _CODE_OF_STATUS.get(error.status, "invalid_request")
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        detail = f"{path[:256]} takes {allowed}, not {error.method[:32]}"
        return ApiError(code, detail, headers={"Allow": allowed})
    if code == "not_found":
        return InvalidRequest(code, f"there is no {path[:256]}; the paths are in /openapi.json")
    return InvalidRequest(code, error.reason)


def error_member(error: RaftlogError) -> dict[str, Any]:
    """Return the error of one part of a request as a member of a larger document."""
    members: dict[str, Any] = {
        "code": error.code,
        "detail": error.detail,
        "retriable": error.retriable,
        "applied": error.applied.value,
    }
    if isinstance(error, NotLeader) and error.leader >= 0:
        members["leader"] = error.leader
    return members


def worst(errors: list[RaftlogError]) -> RaftlogError:
    """Return the most important error of several parts: one that no retry can cure, then one with an unknown outcome,
    then the first."""
    return min(errors, key=lambda error: (error.retriable, error.applied is Applied.NO))


def partly(errors: list[RaftlogError], parts: int) -> dict[str, Any]:
    """Return the problem document's members for a request of which some of its `parts` failed with `errors`. The worst
    error alone might state that nothing was applied, which would be false for the other parts."""
    certain = len(errors) == parts and all(error.applied is Applied.NO for error in errors)
    return {} if certain else {"applied": Applied.UNKNOWN.value}
