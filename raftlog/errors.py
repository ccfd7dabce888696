"""Everything that can go wrong, told by whose fault it is and by what the caller can do.

Five kinds, and no sixth:

* `InvariantViolation`: a bug of ours. The replica (or node) that finds it stops; nothing is served from doubt.
* `RemoteProtocolError`: a peer sent what the protocol forbids. The connection is dropped, nothing else happens.
* `InvalidRequest`: the caller asked for something that cannot be. Nothing was changed (S11).
* `RetriableError`: the world: a leader moved, a disk is full, a deadline passed. `applied` tells which of those may
  have happened all the same: a timeout's outcome is *unknown*, never *failed*.
* `DiskDamaged`: a disk lost or changed what it had made durable. The node does not start; the detail says what to do.

`CODES` is the one table from stable code to HTTP status. Codes may be added, never renamed: programs match on them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Applied(enum.Enum):
    """Whether the operation that failed may have taken effect."""

    NO = "no"
    """Certainly not: it is safe to do it again."""
    UNKNOWN = "unknown"
    """Perhaps: only an idempotent retry is safe."""


@dataclass(frozen=True, slots=True)
class Code:
    """A row of the table: what a program may rely on when it sees this code."""

    status: int
    retriable: bool
    applied: Applied = Applied.NO


CODES: dict[str, Code] = {
    # The caller's.
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
    # The world's: nothing happened, try again.
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
    # The world's: it may have happened.
    "not_enough_replicas_after_append": Code(503, True, Applied.UNKNOWN),
    "leadership_lost": Code(503, True, Applied.UNKNOWN),
    "request_timed_out": Code(504, True, Applied.UNKNOWN),
    "outcome_unknown": Code(504, True, Applied.UNKNOWN),
    # A peer's and ours.
    "protocol_error": Code(502, False, Applied.UNKNOWN),
    "internal_error": Code(500, False, Applied.UNKNOWN),
}
"""Stable code → what it means. The exhaustive test walks this table."""


class RaftlogError(Exception):
    """Base of every error that raftlog raises on purpose. `code` is a key of `CODES`; `detail` is for people."""

    def __init__(self, code: str, detail: str) -> None:
        assert code in CODES, code
        super().__init__(detail)
        self.code = code
        self.detail = detail

    @property
    def status(self) -> int:
        """HTTP status."""
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
    """A bug of ours was caught in the act. Log lines that name it begin with `INVARIANT`."""

    def __init__(self, detail: str) -> None:
        super().__init__("internal_error", detail)


class Unforeseen(InvariantViolation):
    """An exception that none of our code raises on purpose. What it left half done is thrown away, and begun anew from
    what is on disk."""


class RemoteProtocolError(RaftlogError):
    """A peer sent bytes that the protocol forbids."""

    def __init__(self, detail: str) -> None:
        super().__init__("protocol_error", detail)


class InvalidRequest(RaftlogError):
    """The caller's request cannot be carried out, now or later. Nothing was changed."""


class CorruptBatch(InvalidRequest):
    """Bytes that claim to be a record batch and are not a valid one."""

    def __init__(self, detail: str) -> None:
        super().__init__("corrupt_batch", detail)


class RetriableError(RaftlogError):
    """The world stood in the way; the same request may succeed later."""


class NotLeader(RetriableError):
    """This broker does not lead the partition. `leader` is a hint (-1: nobody is known to lead)."""

    def __init__(self, detail: str, leader: int = -1) -> None:
        super().__init__("not_leader", detail)
        self.leader = leader


class DiskError(RetriableError):
    """A call of the disk did not do its work."""


class DiskFailed(DiskError):
    """A disk call failed. A replica that sees it goes offline; a failed fsync is never tried again."""

    def __init__(self, detail: str) -> None:
        super().__init__("disk_failed", detail)


class DiskHindered(DiskError):
    """The call could not be made for now: the disk is sound, nothing is lost, and the same call may succeed later."""


class DiskFull(DiskHindered):
    """There is no room for the write; what was acknowledged stays."""

    def __init__(self, detail: str) -> None:
        super().__init__("disk_full", detail)


class ResourceShortage(DiskHindered):
    """The process, or the machine, is out of file descriptors, threads or memory for the moment. It says nothing of the
    disk: no replica goes offline for it."""

    def __init__(self, detail: str) -> None:
        super().__init__("overloaded", detail)


class DiskDamaged(RaftlogError):
    """What a disk had made durable is gone, or is not what was written. `detail` names the file, and says what to do.
    Trying again mends nothing."""

    def __init__(self, detail: str) -> None:
        super().__init__("disk_failed", detail)

    @property
    def retriable(self) -> bool:
        """Never."""
        return False


def error_from_code(code: str, detail: str, leader: int = -1) -> RaftlogError:
    """The exception for a code that came over the wire. An unknown code (a newer peer's) is `internal_error`."""
    if code not in CODES:
        return RaftlogError("internal_error", f"{code}: {detail}")
    if code == "not_leader":
        return NotLeader(detail, leader)
    if code == "corrupt_batch":
        return CorruptBatch(detail)
    kind = RetriableError if CODES[code].retriable else InvalidRequest if CODES[code].status < 500 else RaftlogError
    return kind(code, detail)


def is_shortage(error: BaseException) -> bool:
    """Whether an exception that is not ours says that memory or threads are used up for the moment: resolving a name,
    for one, takes a thread. (Descriptors that are used up are an `OSError`.)"""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "new thread" in str(error))
