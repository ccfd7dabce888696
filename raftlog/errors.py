"""Every error, classified by its origin and by what the caller can do.

There are five kinds:

* `InvariantViolation`: a bug in raftlog. The replica or node that finds it stops and serves nothing more.
* `RemoteProtocolError`: a peer violated the protocol. The connection is dropped, with no other effect. Nothing that a
  peer sends is reported as an `InvariantViolation`: no frame stops a node.
* `InvalidRequest`: the caller asked for something impossible. Nothing was changed (S11).
* `RetriableError`: the environment: a leader moved, a disk is full, a deadline passed. `applied` says whether the
  operation may have taken effect anyway: the outcome of a timeout is *unknown*, never *failed*.
* `DiskDamaged`: a disk lost or changed what it had made durable. The node does not start; the detail says what to do.

`CODES` is the only table from stable code to HTTP status. Codes may be added, never renamed, because programs match on
them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Applied(enum.Enum):
    """Whether the failed operation may have taken effect."""

    NO = "no"
    """It did not: a retry is safe."""
    UNKNOWN = "unknown"
    """It may have: only an idempotent retry is safe."""


@dataclass(frozen=True, slots=True)
class Code:
    """A row of the table: what a program may rely on if it gets this code."""

    status: int
    retriable: bool
    title: str
    """The title of a problem document."""
    applied: Applied = Applied.NO


CODES: dict[str, Code] = {
    # Errors of the caller.
    "invalid_request": Code(400, False, "The request is malformed"),
    "invalid_config": Code(400, False, "A setting is unknown or out of range"),
    "invalid_topic_name": Code(400, False, "The topic name is not allowed"),
    "invalid_json": Code(400, False, "The body is not valid JSON"),
    "corrupt_batch": Code(400, False, "A record batch is corrupt"),
    "timestamp_out_of_range": Code(400, False, "A timestamp is out of range"),
    "invalid_record": Code(400, False, "The topic does not accept the record"),
    "unsupported_version": Code(400, False, "The version is not supported"),
    "unauthenticated": Code(401, False, "The credential is missing or not valid"),
    "authorization_failed": Code(403, False, "No rule allows the request"),
    "origin_not_allowed": Code(403, False, "The origin is not allowed"),
    "cluster_authorization_failed": Code(403, False, "Only nodes of this cluster may do this"),
    "host_not_allowed": Code(421, False, "The host is not one of this node's names"),
    "not_found": Code(404, False, "There is no such path"),
    "unknown_topic": Code(404, False, "There is no such topic"),
    "unknown_partition": Code(404, False, "There is no such partition"),
    "method_not_allowed": Code(405, False, "The path does not support this method"),
    "not_acceptable": Code(406, False, "None of the accepted media types is available"),
    "not_a_voter": Code(404, False, "The node is not a voter of the metadata quorum"),
    "unknown_group": Code(404, False, "There is no such consumer group"),
    "unknown_instance": Code(404, False, "There is no such HTTP consumer"),
    "unknown_user": Code(404, False, "There is no such user"),
    "unknown_token": Code(404, False, "There is no such token"),
    "unknown_member": Code(409, False, "The group has no such member"),
    "member_fenced": Code(409, False, "A newer incarnation of the member has joined the group"),
    "stale_generation": Code(409, False, "The member does not own a partition, or no longer owns it"),
    "lease_lost": Code(409, False, "The lease is over"),
    "group_not_empty": Code(409, False, "The group has members"),
    "topic_exists": Code(409, False, "The topic exists already"),
    "user_exists": Code(409, False, "The user exists already"),
    "user_changed": Code(409, False, "The user was changed meanwhile"),
    "token_exists": Code(409, False, "The token exists already"),
    "already_bootstrapped": Code(409, False, "The cluster has its first administrator already"),
    "reassignment_in_progress": Code(409, False, "The partition is being moved"),
    "no_reassignment_in_progress": Code(409, False, "The partition is not being moved"),
    "quorum_majority_at_risk": Code(409, False, "The metadata quorum would risk its majority"),
    "out_of_order_sequence": Code(409, False, "The producer's sequence number is out of order"),
    "producer_fenced": Code(409, False, "The producer was replaced by a newer one"),
    "unknown_producer_id": Code(409, False, "The producer id is not known"),
    "unknown_transaction": Code(404, False, "There is no such transaction"),
    "transaction_committed": Code(409, False, "The transaction is committed already"),
    "transaction_aborted": Code(409, False, "The transaction is aborted"),
    "quota_exceeded": Code(429, False, "A quota permits no more of this kind"),
    "position_taken": Code(409, False, "The position was published before"),
    "offset_moved": Code(409, False, "The committed offset of the group, or the position, has moved"),
    "log_end_moved": Code(412, False, "The log does not end at the expected offset"),
    "producer_ids_expired": Code(409, False, "The block of the producer id has expired"),
    "transaction_too_large": Code(413, False, "The transaction is too large"),
    "body_too_large": Code(413, False, "The body is too large"),
    "batch_too_large": Code(413, False, "A record or batch is too large for the topic"),
    "unsupported_media_type": Code(415, False, "The media type is not supported"),
    "offset_out_of_range": Code(416, False, "The offset is out of range"),
    "idempotency_key_reused": Code(422, False, "The idempotency key was used with another body"),
    # Errors of the environment: nothing happened, and a retry may succeed.
    "not_leader": Code(503, True, "The partition is led by another broker"),
    "leader_not_available": Code(503, True, "The partition has no leader at the moment"),
    "fenced_leader_epoch": Code(503, True, "The leader epoch is older than the leader's"),
    "unknown_leader_epoch": Code(503, True, "The leader epoch is newer than the broker's"),
    "unknown_fetch_session": Code(503, True, "The broker no longer has the fetch session"),
    "stale_incarnation": Code(503, True, "A broker has restarted since"),
    "stale_partition_epoch": Code(503, True, "The partition has changed since"),
    "not_eligible": Code(503, True, "The replica may not take part at the moment"),
    "not_enough_replicas": Code(503, True, "Too few replicas are in sync"),
    "not_controller": Code(503, True, "The node is not the controller"),
    "not_coordinator": Code(503, True, "The node does not coordinate groups"),
    "stale_group_epoch": Code(503, True, "The group has changed meanwhile"),
    "lease_moved": Code(503, True, "The range was leased to another meanwhile"),
    "instance_moved": Code(503, True, "The HTTP consumer has changed meanwhile"),
    "quorum_unavailable": Code(503, True, "The metadata quorum has no leader at the moment"),
    "quorum_change_in_progress": Code(503, True, "The voters of the metadata quorum are changing"),
    "voter_not_caught_up": Code(503, True, "The node does not follow the metadata log closely enough to vote"),
    "offset_not_available": Code(503, True, "The offset is not known yet"),
    "replica_not_available": Code(503, True, "The replica is not available"),
    "metadata_behind": Code(503, True, "The node's view of the metadata is behind what the caller knows"),
    "overloaded": Code(503, True, "The node is overloaded"),
    "topic_restoring": Code(503, True, "The topic is being restored from a backup"),
    "throttled": Code(429, True, "A quota is used up for the moment"),
    "identity_provider_unavailable": Code(503, True, "The keys of the identity provider could not be read yet"),
    "shutting_down": Code(503, True, "The node is shutting down"),
    "connection_lost": Code(503, True, "The connection to another node was lost"),
    "disk_full": Code(507, True, "The disk is full"),
    "disk_failed": Code(503, True, "The disk failed"),
    "slow_request": Code(408, True, "The request arrived too slowly"),
    # Errors of the environment: the operation may have taken effect.
    "not_enough_replicas_after_append": Code(
        503, True, "Too few replicas were in sync after the append", Applied.UNKNOWN
    ),
    "leadership_lost": Code(503, True, "The leader lost its leadership during the request", Applied.UNKNOWN),
    "request_timed_out": Code(504, True, "The request timed out", Applied.UNKNOWN),
    "outcome_unknown": Code(504, True, "It is not known whether the request took effect", Applied.UNKNOWN),
    # Errors of a peer, and raftlog's own.
    "protocol_error": Code(502, False, "Another node violated the protocol", Applied.UNKNOWN),
    "internal_error": Code(500, False, "A bug in raftlog", Applied.UNKNOWN),
}
"""Stable code → its meaning. The exhaustive test walks this table."""


class RaftlogError(Exception):
    """The base of every error that raftlog raises on purpose. `code` is a key of `CODES`; `detail` is for people."""

    def __init__(self, code: str, detail: str) -> None:
        assert code in CODES, code
        super().__init__(detail)
        self.code = code
        self.detail = detail

    @property
    def status(self) -> int:
        """The HTTP status."""
        return CODES[self.code].status

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later."""
        return CODES[self.code].retriable

    @property
    def applied(self) -> Applied:
        """Whether the operation may have taken effect."""
        return CODES[self.code].applied

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"


class InvariantViolation(RaftlogError):
    """A bug in raftlog was detected. Log lines that report it begin with `INVARIANT`."""

    def __init__(self, detail: str) -> None:
        super().__init__("internal_error", detail)


class Unforeseen(InvariantViolation):
    """An exception that raftlog does not raise on purpose. The unfinished work is discarded and restarted from the
    state on disk."""


class RemoteProtocolError(RaftlogError):
    """A peer sent bytes that the protocol forbids."""

    def __init__(self, detail: str) -> None:
        super().__init__("protocol_error", detail)


class Contradiction(RemoteProtocolError):
    """A peer's frame contradicts what this node knows for certain: one of the two is wrong, or the frame is forged.

    As after any breach the connection is dropped and the frame is not followed. The node's health reports it as well,
    because no correct peer sends such a frame.
    """


class InvalidRequest(RaftlogError):
    """The request cannot be carried out, now or later. Nothing was changed."""


class ClientClosed(InvalidRequest):
    """The program has closed the client object that it calls. A retry is useless: create a new object."""

    def __init__(self, detail: str) -> None:
        super().__init__("shutting_down", detail)

    @property
    def retriable(self) -> bool:
        """False: a closed object stays closed."""
        return False


class CorruptBatch(InvalidRequest):
    """Bytes that should be a record batch and are not a valid one."""

    def __init__(self, detail: str) -> None:
        super().__init__("corrupt_batch", detail)


class RetriableError(RaftlogError):
    """The environment prevented the request; the same request may succeed later."""


class NotLeader(RetriableError):
    """This broker does not lead the partition. `leader` is a hint (-1: no leader is known)."""

    def __init__(self, detail: str, leader: int = -1) -> None:
        super().__init__("not_leader", detail)
        self.leader = leader


class LogEndMoved(InvalidRequest):
    """A batch was not appended, because it would not have got the offset that it must get."""

    def __init__(self, detail: str, log_end_offset: int = -1) -> None:
        super().__init__("log_end_moved", detail)
        self.log_end_offset = log_end_offset


class DiskError(RetriableError):
    """A call to the disk did not succeed."""


class DiskFailed(DiskError):
    """A disk call failed. The replica that gets it goes offline; a failed fsync is never retried."""

    def __init__(self, detail: str) -> None:
        super().__init__("disk_failed", detail)


class DiskHindered(DiskError):
    """The call could not be made at this time: the disk is sound, nothing is lost, and a retry may succeed."""


class DiskFull(DiskHindered):
    """There is no space for the write. Acknowledged data is unaffected."""

    def __init__(self, detail: str) -> None:
        super().__init__("disk_full", detail)


class ResourceShortage(DiskHindered):
    """The process or the machine has run out of file descriptors, threads or memory. The disk is not suspect, so no
    replica goes offline."""

    def __init__(self, detail: str) -> None:
        super().__init__("overloaded", detail)


class DiskDamaged(RaftlogError):
    """Durable data is gone, or differs from what was written. `detail` names the file and says what to do. A retry is
    useless."""

    def __init__(self, detail: str) -> None:
        super().__init__("disk_failed", detail)

    @property
    def retriable(self) -> bool:
        """False: the disk does not repair itself."""
        return False


def error_from_code(code: str, detail: str, leader: int = -1) -> RaftlogError:
    """Return the exception for a code from the wire. An unknown code (of a newer peer) becomes `internal_error`."""
    if code not in CODES:
        return RaftlogError("internal_error", f"{code}: {detail}")
    if code == "not_leader":
        return NotLeader(detail, leader)
    if code == "corrupt_batch":
        return CorruptBatch(detail)
    kind = RetriableError if CODES[code].retriable else InvalidRequest if CODES[code].status < 500 else RaftlogError
    return kind(code, detail)


def is_shortage(error: BaseException) -> bool:
    """Return whether a foreign exception means a temporary lack of memory or threads.

    Resolving a host name takes a thread, for example. A lack of file descriptors is an `OSError` instead.
    """
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "new thread" in str(error))
