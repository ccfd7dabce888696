"""Bugs of consumer groups: in the quorum's decisions, and in a member's assumptions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from metadata.commands.groups import Commit
from metadata.image import groups as image
from metadata.records.groups import MemberRecord
from raftlog.broker.changes.group_answers import offsets_of
from raftlog.broker.changes.groups import Groups
from raftlog.client.groups.member import Member
from raftlog.model import TopicPartition
from raftlog.ports import Answer
from raftlog.wire import GroupOffsetsRequest, GroupOffsetsResponse

from .patches import GROUPS, Patch, Planted, original

_commit = original(image, "_commit")
_lost = original(Member, "lost")
_not_its_own = original(image, "refuse_if_not_owner")

NEWEST = 2**62


def _commits_of_any_generation(state: Any, commit: Commit, named: Any) -> Any:
    """Accept a commit of the current owner for records read in an earlier ownership."""
    newest = Commit(commit.group_id, commit.member_id, commit.incarnation, NEWEST, commit.now_ms, commit.offsets)
    return _not_its_own(state, newest, named)


def _commits_of_any_life(state: Any, commit: Commit, named: Any) -> Any:
    """Identify a member by its name alone."""
    group = state.groups.by_id.get(commit.group_id)
    member = group.members.get(commit.member_id) if group is not None else None
    incarnation = commit.incarnation if member is None else member.incarnation
    present = Commit(commit.group_id, commit.member_id, incarnation, NEWEST, commit.now_ms, commit.offsets)
    return _not_its_own(state, present, named)


def _commits_whatever_was_committed(state: Any, commit: Commit, index: int, principal: str) -> Any:
    """Let the last commit win."""
    refused = _commit(state, commit, index, principal)
    if refused is None:
        state.groups.put_offsets(
            commit.group_id,
            {
                TopicPartition(one.topic_id, one.partition): image._committed(one, commit.now_ms)
                for one in commit.offsets
            },
        )
    return refused


def _granted_at_once(
    members: dict[str, MemberRecord], free: Iterable[TopicPartition], index: int
) -> Mapping[str, MemberRecord]:
    """Grant every member its whole target at once, even if the former owner still reads."""
    owner_to_be = {partition: name for name, member in members.items() for partition in member.target}
    for name, member in members.items():
        kept = {p: granted for p, granted in member.owned.items() if owner_to_be.get(p, name) == name}
        gained = {p: index for p in member.target if p not in kept}
        if kept != member.owned or gained:
            members[name] = msgspec.structs.replace(member, owned={**kept, **gained}, generation=index)
    return members


def _keeps_what_it_had(self: Any) -> None:
    """A removed member joins again and continues where it was, regardless of what others have done."""
    session = self.session
    _lost(self)
    self.session = session


def _reads_its_own_view(self: Any, request: GroupOffsetsRequest, answer: Answer[GroupOffsetsResponse]) -> None:
    """The node answers with the offsets in its view, without catching up with the quorum."""
    found = dict(self._view.groups.offsets(request.group_id))
    answer(offsets_of(self._view, request.correlation_id, found))


GROUP_BUGS = (
    Planted(
        "commit_of_an_older_generation",
        "a commit that was delayed across two rebalances is applied",
        "refuse_if_not_owner: a commit names the generation that granted the partition",
        (Patch(image, "refuse_if_not_owner", _commits_of_any_generation),),
        GROUPS,
    ),
    Planted(
        "commit_of_an_older_life",
        "old commits of a member that was removed and joined again are applied",
        "refuse_if_not_owner: a commit names the incarnation of its member",
        (Patch(image, "refuse_if_not_owner", _commits_of_any_life),),
        GROUPS,
    ),
    Planted(
        "offset_lowered_by_a_late_commit",
        "a late duplicate of a commit moves a committed offset back",
        "_commit: an offset below the committed one has no effect",
        (Patch(image, "_commit", _commits_whatever_was_committed),),
        GROUPS,
    ),
    Planted(
        "granted_before_it_was_given_up",
        "a partition is granted to another member while its owner still reads it",
        "_granted: only partitions without an owner are granted",
        (Patch(image, "_granted", _granted_at_once),),
        GROUPS,
    ),
    Planted(
        "lost_and_read_on",
        "a member that was removed keeps its positions",
        "Member.lost: the end of a session discards everything read in it",
        (Patch(Member, "lost", _keeps_what_it_had),),
        GROUPS,
    ),
    Planted(
        "offsets_of_a_stale_view",
        "a member begins a partition at an offset that its predecessor has left behind",
        "Groups.committed: the view catches up with the quorum before committed offsets are read",
        (Patch(Groups, "committed", _reads_its_own_view),),
        GROUPS,
    ),
)
