"""Bugs of consumer groups: of what the quorum decides, and of what a member believes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from metadata.commands.groups import Commit
from metadata.image import groups as image
from metadata.records.groups import MemberRecord
from raftlog.client.groups.member import Member
from raftlog.model import TopicPartition

from .patches import GROUPS, Patch, Planted, original

_commit = original(image, "_commit")
_lost = original(Member, "lost")
_not_its_own = original(image, "not_its_own")

NEWEST = 2**62


def _commits_of_any_generation(state: Any, commit: Commit, named: Any) -> Any:
    """Who owns a partition now may commit what it read when it owned it before."""
    newest = Commit(commit.group_id, commit.member_id, commit.incarnation, NEWEST, commit.now_ms, commit.offsets)
    return _not_its_own(state, newest, named)


def _commits_of_any_life(state: Any, commit: Commit, named: Any) -> Any:
    """A member is known by its name alone."""
    group = state.groups.by_id.get(commit.group_id)
    member = group.members.get(commit.member_id) if group is not None else None
    incarnation = commit.incarnation if member is None else member.incarnation
    present = Commit(commit.group_id, commit.member_id, incarnation, NEWEST, commit.now_ms, commit.offsets)
    return _not_its_own(state, present, named)


def _commits_whatever_was_committed(state: Any, commit: Commit, index: int) -> Any:
    """What comes last is what is committed."""
    refused = _commit(state, commit, index)
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
    """Everybody gets its whole target, whoever still reads it."""
    owner_to_be = {partition: name for name, member in members.items() for partition in member.target}
    for name, member in members.items():
        kept = {p: granted for p, granted in member.owned.items() if owner_to_be.get(p, name) == name}
        gained = {p: index for p in member.target if p not in kept}
        if kept != member.owned or gained:
            members[name] = replace(member, owned={**kept, **gained}, generation=index)
    return members


def _keeps_what_it_had(self: Any) -> None:
    """Who was removed joins again and goes on where it was, whatever others have done meanwhile."""
    session = self.session
    _lost(self)
    self.session = session


GROUP_BUGS = (
    Planted(
        "commit_of_an_older_generation",
        "a commit that was on its way over two rebalances is carried out",
        "not_its_own: a partition was granted by the generation that a commit names",
        (Patch(image, "not_its_own", _commits_of_any_generation),),
        GROUPS,
    ),
    Planted(
        "commit_of_an_older_life",
        "a member that was removed, and joined again, has its old commits carried out",
        "not_its_own: a commit names the incarnation of its member",
        (Patch(image, "not_its_own", _commits_of_any_life),),
        GROUPS,
    ),
    Planted(
        "offset_lowered_by_a_late_commit",
        "a late copy of a commit moves a committed offset back",
        "_commit: a lower offset than the committed one changes nothing",
        (Patch(image, "_commit", _commits_whatever_was_committed),),
        GROUPS,
    ),
    Planted(
        "granted_before_it_was_given_up",
        "a partition is given to another member while its owner still reads it",
        "_granted: only what nobody owns becomes somebody's own",
        (Patch(image, "_granted", _granted_at_once),),
        GROUPS,
    ),
    Planted(
        "lost_and_read_on",
        "a member that was removed keeps its positions",
        "Member.lost: a session has ended, and everything read in it",
        (Patch(Member, "lost", _keeps_what_it_had),),
        GROUPS,
    ),
)
