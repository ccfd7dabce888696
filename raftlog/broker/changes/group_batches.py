"""Batches of group changes (`batches.py`): ten thousand commits a second in some hundred commands.

The size of a command and the cost of applying it to the image are both bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import msgspec

from metadata.commands.envelope import Command
from metadata.commands.groups import (
    GROUPS_FEATURE_LEVEL,
    MAX_CHANGES,
    MAX_CHANGES_BYTES,
    MAX_OFFSETS,
    ChangeGroups,
    ChangeGroupsAs,
    Commit,
    GroupChange,
    Reset,
)
from metadata.commands.instances import (
    AnyGroupChange,
    ChangeGroupsAndInstances,
    ClaimInstance,
    PutInstance,
    RemoveInstance,
    SubscribeInstance,
)
from metadata.commands.leases import AcknowledgeLease, BeginLeases, RenewLease, TakeLease
from metadata.commands.results import GroupsChanged
from metadata.quorum.port import MetadataQuorum, Outcome
from metadata.records.owners import NO_OWNER
from raftlog.errors import RaftlogError, error_from_code
from raftlog.ports import Clock, Scheduler

from .batches import ChangeBatches, Limits

REBALANCE_WORK = 12
"""Cost of applying a join, a release or targets, in offsets."""
LIMITS = Limits(MAX_CHANGES_BYTES, "invalid_request", MAX_CHANGES_BYTES, MAX_CHANGES, MAX_OFFSETS)


class GroupBatches(ChangeBatches[AnyGroupChange, int]):
    """Batches of group changes. The decision about a change is the index of its log entry."""

    def __init__(
        self,
        quorum: MetadataQuorum,
        when_view_reaches: Callable[[int, Callable[[], None]], None],
        feature_level: Callable[[], int],
        clock: Clock,
        scheduler: Scheduler,
    ) -> None:
        super().__init__(
            quorum,
            when_view_reaches,
            feature_level,
            clock,
            scheduler,
            what="groups",
            needs_level=GROUPS_FEATURE_LEVEL,
            limits=LIMITS,
            decoder=msgspec.msgpack.Decoder(AnyGroupChange),
        )

    def _command(self, changes: tuple[AnyGroupChange, ...]) -> Command:
        of_groups = _of_groups(changes)
        if of_groups is None:
            return ChangeGroupsAndInstances(changes, (NO_OWNER,) * len(changes))
        return ChangeGroups(of_groups)

    def _command_as(self, changes: tuple[AnyGroupChange, ...], principals: tuple[str, ...]) -> Command:
        of_groups = _of_groups(changes)
        return (
            ChangeGroupsAndInstances(changes, principals)
            if of_groups is None
            else ChangeGroupsAs(of_groups, principals)
        )

    def _answers(self, outcome: Outcome, count: int) -> list[int | RaftlogError] | None:
        if not isinstance(outcome.result, GroupsChanged):
            return None
        answers: list[int | RaftlogError] = [outcome.index] * count
        for refused in outcome.result.refusals:
            if refused.position >= count:
                continue  # answers none of these changes
            answers[refused.position] = error_from_code(refused.code, refused.detail)
        return answers

    def _patient(self, change: AnyGroupChange) -> Hashable | None:
        # A member that joins or releases partitions delays others, so only commits wait.
        return (change.group_id, change.member_id) if isinstance(change, Commit) else None

    def _work_of(self, change: AnyGroupChange) -> int:
        return len(change.offsets) if isinstance(change, Commit | Reset) else REBALANCE_WORK


_NEWER = (
    PutInstance | ClaimInstance | SubscribeInstance | RemoveInstance
    | BeginLeases | TakeLease | AcknowledgeLease | RenewLease
)  # fmt: skip


def _of_groups(changes: tuple[AnyGroupChange, ...]) -> tuple[GroupChange, ...] | None:
    """Return the changes if none is about an instance or a lease, which nodes of older versions cannot decode."""
    found = [one for one in changes if not isinstance(one, _NEWER)]
    return tuple(found) if len(found) == len(changes) else None
