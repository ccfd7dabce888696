"""Changing the voters, one at a time: what the leader decides when it is asked to add or remove one.

The guards, each of which refuses by name and changes nothing:

* *One step at a time* (`quorum_change_in_progress`): the latest configuration must be committed, and an entry of the
  leader's own term. Without the second, two leaders that each append one step to the same configuration can end with
  majorities that share nobody (the flaw of the first published rule, Raft mailing list, July 2015).
* *The majority must be there* (`quorum_majority_at_risk`): of the voters after the step, a majority answered this
  leader within an election timeout. Otherwise the step could not even commit, and nothing after it.
* *A new voter has caught up* (`voter_not_caught_up`): it is here as an observer, answers, and lacks at most
  `CATCH_UP_ENTRIES` of what is committed. Otherwise a cluster that needs its vote would wait for its copying.
* *Nothing is said of what may yet be cut away* (`AskAgain`): a step that is in the log already, and not committed, is
  neither done nor undone. Whoever asks for it again waits for its end.
* *Silence counts only once somebody could have spoken* (`AskAgain`): a leader younger than an election timeout has
  not heard everybody yet. It carries out what is safe with those it heard, and refuses nothing.
* *The leader does not remove itself*: it resigns first, and the next leader removes it. So a leader is always a voter
  and counts itself rightly.

Only a whole number of voters that tolerates failures is worth having, but every step passes through an even one; the
guards look at what is safe, not at what is good, and the answer says how many failures the voters survive then.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from raftlog.config import majority

from .configuration import MAX_VOTERS, Configuration, Voter

CATCH_UP_ENTRIES = 64
"""What a new voter may lack: less than arrives between two of its answers on a busy cluster."""


class Action(enum.Enum):
    """What is asked for."""

    ADD = "add"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class VoterChange:
    """One voter more, or one less."""

    action: Action
    node_id: int


@dataclass(frozen=True, slots=True)
class ObserverState:
    """A node that follows the log without being a voter, as the leader knows it."""

    voter: Voter
    """What it would be named as: its disk and its address."""
    match: int
    """Its log agrees, durably, up to here."""
    answering: bool
    """It answered this leader within an election timeout."""


@dataclass(frozen=True, slots=True)
class QuorumFacts:
    """What the leader knows when it decides."""

    leader: Voter
    may_change: bool
    """This node leads, and nothing is under way: see the first guard."""
    configuration: Configuration
    pinned: Configuration
    """The same voters, with every disk that the leader can vouch for."""
    answering: frozenset[int]
    """Voters, the leader among them, that answered within an election timeout and are on the disks they vote with."""
    observers: Mapping[int, ObserverState]
    commit_index: int
    forgetful: frozenset[int] = frozenset()
    """Nodes that lack what they had acknowledged, by their own word."""
    young: bool = False
    """This leadership is younger than an election timeout: who did not answer yet may be there all the same."""


@dataclass(frozen=True, slots=True)
class NextConfiguration:
    """To be appended."""

    configuration: Configuration


@dataclass(frozen=True, slots=True)
class Unchanged:
    """It is so already."""


@dataclass(frozen=True, slots=True)
class ResignFirst:
    """The leader itself is to be removed."""

    configuration: Configuration


@dataclass(frozen=True, slots=True)
class ChangeRefused:
    """Nothing was changed. `code` is a key of `raftlog.errors.CODES`."""

    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class AskAgain:
    """Nothing was changed, and nothing can be said for certain yet."""

    detail: str


Decision = NextConfiguration | Unchanged | ResignFirst | ChangeRefused | AskAgain


def decide(facts: QuorumFacts, change: VoterChange) -> Decision:
    """What the leader does about a change that it is asked for."""
    decided = _add(facts, change.node_id) if change.action is Action.ADD else _remove(facts, change.node_id)
    is_so = isinstance(decided, Unchanged) or (isinstance(decided, ChangeRefused) and decided.code == "not_a_voter")
    if is_so and not facts.may_change:
        return AskAgain("it is so in the log, which the voters have not agreed to yet")
    if isinstance(decided, ChangeRefused):
        return AskAgain(decided.detail) if facts.young else decided
    if isinstance(decided, NextConfiguration | ResignFirst) and not facts.may_change:
        return ChangeRefused(
            "quorum_change_in_progress",
            "another change of the quorum, or the election of its leader, is not settled yet: ask again in a moment",
        )
    return decided


def decide_pin(facts: QuorumFacts) -> Configuration | None:
    """The configuration that writes down the disks of voters that the leader has met and nobody wrote down yet; None
    where there is nothing to write, or it is not the moment."""
    if not facts.may_change:
        return None
    news = set(facts.pinned.voters) - set(facts.configuration.voters)
    return facts.pinned if any(voter.node_id != facts.leader.node_id for voter in news) else None


def failures_survived(voters: int) -> int:
    """How many of so many voters may fail at once."""
    return voters - majority(voters)


def _add(facts: QuorumFacts, node_id: int) -> Decision:
    known = facts.pinned.voter(node_id)
    if known is not None:
        if node_id in facts.answering or not known.pinned:
            return Unchanged()
        return ChangeRefused(
            "invalid_request",
            f"node {node_id} is a voter already. It is not heard of with the disk that it votes with; if that disk is "
            f"lost, remove the voter first (raftlog quorum remove {node_id})",
        )
    if len(facts.configuration.voters) >= MAX_VOTERS:
        return ChangeRefused("invalid_request", f"the quorum has {MAX_VOTERS} voters, which is the most")
    if node_id in facts.forgetful:
        return ChangeRefused(
            "invalid_request",
            f"node {node_id} forgot entries of the metadata log that it had acknowledged, so its disk is not to be "
            "trusted: prepare it anew on a good one (raftlog server init --observer)",
        )
    observer = facts.observers.get(node_id)
    if observer is None or not observer.answering:
        return ChangeRefused(
            "voter_not_caught_up",
            f"node {node_id} does not follow the metadata log: start it, prepared with `raftlog server init "
            "--observer`, and ask again when it runs",
        )
    lag = facts.commit_index - observer.match
    if lag > CATCH_UP_ENTRIES:
        return ChangeRefused(
            "voter_not_caught_up",
            f"node {node_id} lacks {lag} entries of the metadata log: ask again when it has caught up",
        )
    after = facts.pinned.with_voter(observer.voter)
    return _with_majority(after, facts.answering | {node_id})


def _remove(facts: QuorumFacts, node_id: int) -> Decision:
    if facts.configuration.voter(node_id) is None:
        voters = ", ".join(map(str, facts.configuration.node_ids))
        return ChangeRefused("not_a_voter", f"node {node_id} is none of the voters {voters}")
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
        f"of the {len(after.voters)} voters after this change {needed} must be there, and {len(there)} are: bring back "
        f"{silent} first",
    )
