"""Decisions of the leader about adding or removing a voter, one voter at a time.

Each guard refuses with an error code of its own and changes nothing:

* *One step at a time* (`quorum_change_in_progress`): the latest configuration must be committed, and so must an entry
  of the leader's own term. Without the second condition, two leaders that each append one step to the same
  configuration can end with disjoint majorities (the flaw of the first published rule, Raft mailing list, July 2015).
* *The majority must be reachable* (`quorum_majority_at_risk`): a majority of the voters after the step has answered
  this leader within an election timeout. Otherwise neither the step nor anything after it could commit.
* *A new voter has caught up* (`voter_not_caught_up`): it is connected as an observer, answers, and lacks at most
  `CATCH_UP_ENTRIES` committed entries. Otherwise a cluster that needs its vote would have to wait until it has copied
  the log.
* *No answer depends on an entry that may still be truncated* (`AskAgain`): a step that is in the log but not
  committed is neither done nor undone. A retry waits until it is decided.
* *Silence counts only after every voter could have answered* (`AskAgain`): a leader younger than an election timeout
  may not have had an answer from every voter yet. It carries out what is safe with the voters that have answered, and
  refuses nothing.
* *The leader does not remove itself*: it resigns first, and the next leader removes it. A leader is therefore always
  a voter and counts itself correctly.

Only an odd number of voters is worth having, but the way from one odd number to the next passes through an even one.
The guards check what is safe, not what is good; the answer says how many failures the voters then survive.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from raftlog.config import majority

from .configuration import MAX_VOTERS, Configuration, Voter

CATCH_UP_ENTRIES = 64
"""The most committed entries that a new voter may lack: fewer than arrive between two of its answers on a busy
cluster."""


class Action(enum.Enum):
    """The kind of change."""

    ADD = "add"
    REMOVE = "remove"


class VoterChange(msgspec.Struct, frozen=True):
    """The addition or removal of one voter."""

    action: Action
    node_id: int


class ObserverState(msgspec.Struct, frozen=True):
    """The leader's knowledge of a node that follows the log without being a voter."""

    voter: Voter
    """The entry that a configuration would hold for it: its disk and address."""
    match: int
    """The last index up to which its log is known to agree, durably."""
    answering: bool
    """Whether it answered this leader within an election timeout."""


class QuorumFacts(msgspec.Struct, frozen=True):
    """The leader's knowledge at the moment of the decision."""

    leader: Voter
    may_change: bool
    """Whether this node leads and no other change is in progress: the first guard."""
    configuration: Configuration
    pinned: Configuration
    """The same voters, with every directory id that the leader can vouch for."""
    answering: frozenset[int]
    """The voters, including the leader, that answered within an election timeout and are on the disks that they vote
    with."""
    observers: Mapping[int, ObserverState]
    commit_index: int
    forgetful: frozenset[int] = frozenset()
    """The nodes that have reported losing entries that they had acknowledged."""
    young: bool = False
    """Whether this leadership is younger than an election timeout, so that a voter may be up without having answered
    yet."""


class NextConfiguration(msgspec.Struct, frozen=True):
    """The configuration to append."""

    configuration: Configuration


class Unchanged(msgspec.Struct, frozen=True):
    """The change is in effect already."""


class ResignFirst(msgspec.Struct, frozen=True):
    """The leader itself is the voter to remove."""

    configuration: Configuration


class ChangeRefused(msgspec.Struct, frozen=True):
    """A refusal; nothing was changed. `code` is a key of `raftlog.errors.CODES`."""

    code: str
    detail: str


class AskAgain(msgspec.Struct, frozen=True):
    """No definite answer is possible yet; nothing was changed. The caller retries."""

    detail: str


Decision = NextConfiguration | Unchanged | ResignFirst | ChangeRefused | AskAgain


def decide(facts: QuorumFacts, change: VoterChange) -> Decision:
    """Return what the leader does about a requested change."""
    decided = _add(facts, change.node_id) if change.action is Action.ADD else _remove(facts, change.node_id)
    is_so = isinstance(decided, Unchanged) or (isinstance(decided, ChangeRefused) and decided.code == "not_a_voter")
    if is_so and not facts.may_change:
        return AskAgain("the change is in the leader's log, but not committed yet")
    if isinstance(decided, ChangeRefused):
        return AskAgain(decided.detail) if facts.young else decided
    if isinstance(decided, NextConfiguration | ResignFirst) and not facts.may_change:
        return ChangeRefused(
            "quorum_change_in_progress",
            "another change of the quorum, or the election of its leader, is still in progress: retry in a moment",
        )
    return decided


def decide_pin(facts: QuorumFacts) -> Configuration | None:
    """Return the configuration that pins the disks of voters which the leader has met and no configuration names yet.

    Return None if there is nothing to pin, or if no change is allowed at the moment.
    """
    if not facts.may_change:
        return None
    news = set(facts.pinned.voters) - set(facts.configuration.voters)
    return facts.pinned if any(voter.node_id != facts.leader.node_id for voter in news) else None


def failures_survived(voters: int) -> int:
    """Return how many of `voters` voters may fail at once."""
    return voters - majority(voters)


def _add(facts: QuorumFacts, node_id: int) -> Decision:
    known = facts.pinned.voter(node_id)
    if known is not None:
        if node_id in facts.answering or not known.pinned:
            return Unchanged()
        return ChangeRefused(
            "invalid_request",
            f"node {node_id} is a voter already, but does not answer with the disk that it votes with; if that disk is "
            f"lost, remove the voter first (raftlog quorum remove {node_id})",
        )
    if len(facts.configuration.voters) >= MAX_VOTERS:
        return ChangeRefused("invalid_request", f"the quorum already has {MAX_VOTERS} voters, the maximum")
    if node_id in facts.forgetful:
        return ChangeRefused(
            "invalid_request",
            f"node {node_id} forgot entries of the metadata log that it had acknowledged, so its disk cannot be "
            "trusted: prepare the node again on a good disk (raftlog server init --observer)",
        )
    observer = facts.observers.get(node_id)
    if observer is None or not observer.answering:
        return ChangeRefused(
            "voter_not_caught_up",
            f"node {node_id} does not follow the metadata log: prepare it with `raftlog server init --observer`, "
            "start it, and retry when it runs",
        )
    lag = facts.commit_index - observer.match
    if lag > CATCH_UP_ENTRIES:
        return ChangeRefused(
            "voter_not_caught_up",
            f"node {node_id} lacks {lag} entries of the metadata log: retry when it has caught up",
        )
    after = facts.pinned.with_voter(observer.voter)
    return _with_majority(after, facts.answering | {node_id})


def _remove(facts: QuorumFacts, node_id: int) -> Decision:
    if facts.configuration.voter(node_id) is None:
        voters = ", ".join(map(str, facts.configuration.node_ids))
        return ChangeRefused("not_a_voter", f"node {node_id} is not among the voters {voters}")
    if len(facts.configuration.voters) == 1:
        return ChangeRefused("quorum_majority_at_risk", f"node {node_id} is the only voter: add another one first")
    decided = _with_majority(facts.pinned.without(node_id), facts.answering)
    if isinstance(decided, NextConfiguration) and node_id == facts.leader.node_id:
        return ResignFirst(decided.configuration)
    return decided


def _with_majority(after: Configuration, answering: frozenset[int]) -> NextConfiguration | ChangeRefused:
    there = sorted(answering & set(after.node_ids))
    needed = majority(len(after.voters))
    if len(there) >= needed:
        return NextConfiguration(after)
    silent = ", ".join(str(voter) for voter in after.node_ids if voter not in there)
    return ChangeRefused(
        "quorum_majority_at_risk",
        f"of the {len(after.voters)} voters after this change {needed} must be up, and {len(there)} are: bring back "
        f"{silent} first",
    )
