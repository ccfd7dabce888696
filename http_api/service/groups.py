"""The broker's port for consumer groups.

`raftlog/broker/changes/groups.py` implements it. The state of groups is read from the view (`view.groups`), after
`catch_up` where the answer must be linearizable (S7).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from raftlog import wire
from raftlog.errors import InvalidRequest
from raftlog.model import TopicPartition
from raftlog.ports import Answer

MAX_NAME_LENGTH = 255


def check_name(what: str, name: str) -> str:
    """Return the name of a group or member. Raises `InvalidRequest`."""
    if not 0 < len(name) <= MAX_NAME_LENGTH or not name.isprintable():
        raise InvalidRequest(
            "invalid_request", f"the name of {what} must have 1 to {MAX_NAME_LENGTH} printable characters"
        )
    return name


class GroupService(Protocol):
    """When `answer` gets a result, the change is decided and visible in the view. It completes whatever becomes of its
    caller.

    `answer` gets an `InvalidRequest` if the change is refused, or a `RetriableError` (`outcome_unknown`,
    `quorum_unavailable`, `overloaded`). `principal`: the one to which a group belongs that the request makes
    (`AccessService.principal_of`).
    """

    def join(
        self,
        request: wire.JoinGroupRequest,
        client_host: str,
        answer: Answer[wire.MembershipResponse],
        principal: str = "",
    ) -> None: ...

    def heartbeat(self, request: wire.MemberHeartbeatRequest, answer: Answer[wire.MembershipResponse]) -> None:
        """Decide the releases, renew the member's session with the coordinator, and answer its present assignment.

        The errors include `unknown_member`, `member_fenced`, and `not_coordinator` if no coordinator answers.
        """

    def leave(self, request: wire.LeaveGroupRequest, answer: Answer[int]) -> None: ...

    def commit(
        self, request: wire.CommitOffsetsRequest, answer: Answer[int], *, decoded: bool = False, principal: str = ""
    ) -> None:
        """Commit all of these offsets or none; no offset is lowered.

        Without a member id the group must have no members. `decoded`: the request was decoded from a message, so all
        of its fields are within their bounds.
        """

    def reset(
        self,
        group_id: str,
        epoch: int,
        offsets: Sequence[wire.OffsetToCommit],
        expected: Sequence[int],
        answer: Answer[int],
        principal: str = "",
    ) -> None:
        """Set all of these offsets or none, lower or higher.

        The group must have no members and be at `epoch` (-1: must not exist), and its committed offset in each
        partition must equal `expected` (-1: none).
        """

    def delete(self, group_id: str, answer: Answer[int]) -> None: ...

    def delete_offsets(self, group_id: str, partitions: Sequence[TopicPartition], answer: Answer[int]) -> None:
        """Delete the group's offsets in these partitions, all or none. No member may have one of them."""
