"""Every error, classified by whose fault it is and by what the caller can do.

There are five kinds:

* `InvariantViolation`: a bug in raftlog. The replica or node that finds it stops and serves nothing more.
* `RemoteProtocolError`: a peer violated the protocol. The connection is dropped, with no other effect.
* `InvalidRequest`: the caller asked for something impossible. Nothing was changed (S11).
* `RetriableError`: the environment: a leader moved, a disk is full, a deadline passed. `applied` tells whether the
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
    applied: Applied = Applied.NO


CODES: dict[str, Code] = {
    # Errors of the caller.
    "invalid_request": Code(400, False),
    "invalid_config": Code(400, False),
    "invalid_topic_name": Code(400, False),
    "invalid_json": Code(400, False),
    "corrupt_batch": Code(400, False),
    "timestamp_out_of_range": Code(400, False),
    "invalid_record": Code(400, False),
    "unsupported_version": Code(400, False),
    "origin_not_allowed": Code(403, False),
    "cluster_authorization_failed": Code(403, False),
    "host_not_allowed": Code(421, False),
    "not_found": Code(404, False),
    "unknown_topic": Code(404, False),
    "unknown_partition": Code(404, False),
    "method_not_allowed": Code(405, False),
    "not_acceptable": Code(406, False),
    "not_a_voter": Code(404, False),
    "unknown_group": Code(404, False),
    "unknown_member": Code(409, False),
    "member_fenced": Code(409, False),
    "stale_generation": Code(409, False),
    "group_not_empty": Code(409, False),
    "topic_exists": Code(409, False),
    "reassignment_in_progress": Code(409, False),
    "no_reassignment_in_progress": Code(409, False),
    "quorum_majority_at_risk": Code(409, False),
    "out_of_order_sequence": Code(409, False),
    "producer_fenced": Code(409, False),
    "unknown_producer_id": Code(409, False),
    "unknown_transaction": Code(404, False),
    "transaction_committed": Code(409, False),
    "transaction_aborted": Code(409, False),
    "position_taken": Code(409, False),
    "offset_moved": Code(409, False),
    "producer_ids_expired": Code(409, False),
    "transaction_too_large": Code(413, False),
    "body_too_large": Code(413, False),
    "batch_too_large": Code(413, False),
    "unsupported_media_type": Code(415, False),
    "offset_out_of_range": Code(416, False),
    "idempotency_key_reused": Code(422, False),
    # Errors of the environment: nothing happened, and a retry may succeed.
    "not_leader": Code(503, True),
    "leader_not_available": Code(503, True),
    "fenced_leader_epoch": Code(503, True),
    "unknown_leader_epoch": Code(503, True),
    "unknown_fetch_session": Code(503, True),
    "stale_incarnation": Code(503, True),
    "stale_partition_epoch": Code(503, True),
    "not_eligible": Code(503, True),
    "not_enough_replicas": Code(503, True),
    "not_controller": Code(503, True),
    "not_coordinator": Code(503, True),
    "stale_group_epoch": Code(503, True),
    "quorum_unavailable": Code(503, True),
    "quorum_change_in_progress": Code(503, True),
    "voter_not_caught_up": Code(503, True),
    "offset_not_available": Code(503, True),
    "replica_not_available": Code(503, True),
    "metadata_behind": Code(503, True),
    "overloaded": Code(503, True),
    "shutting_down": Code(503, True),
    "connection_lost": Code(503, True),
    "disk_full": Code(507, True),
    "disk_failed": Code(503, True),
    "slow_request": Code(408, True),
    # Errors of the environment: the operation may have taken effect.
    "not_enough_replicas_after_append": Code(503, True, Applied.UNKNOWN),
    "leadership_lost": Code(503, True, Applied.UNKNOWN),
    "request_timed_out": Code(504, True, Applied.UNKNOWN),
    "outcome_unknown": Code(504, True, Applied.UNKNOWN),
    # Errors of a peer, and raftlog's own.
    "protocol_error": Code(502, False, Applied.UNKNOWN),
    "internal_error": Code(500, False, Applied.UNKNOWN),
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
    """An exception that raftlog does not raise on purpose. The half-done work is discarded and restarted from what is
    on disk."""


class RemoteProtocolError(RaftlogError):
    """A peer sent bytes that the protocol forbids."""

    def __init__(self, detail: str) -> None:
        super().__init__("protocol_error", detail)


class InvalidRequest(RaftlogError):
    """The request cannot be carried out, now or later. Nothing was changed."""


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
