"""Bugs of voter changes: mistakes that Raft's dissertation (4.1 to 4.4), and the correction of its first rule,
warn of.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from metadata.raft import follower as quorum_follower
from metadata.raft import pysyncobj_engine
from metadata.raft import pysyncobj_node as pysyncobj_core
from metadata.raft.membership import Membership
from metadata.raft.pysyncobj_engine import PySyncObjEngine
from metadata.raft.pysyncobj_node import _SyncObj
from metadata.voters import changes as quorum_changes
from metadata.voters.changes import Decision, NextConfiguration, ObserverState, QuorumFacts
from metadata.voters.configuration import Configuration

from .patches import Patch, Planted, original

_add = original(quorum_changes, "_add")
_facts = original(PySyncObjEngine, "facts")
_refresh = original(Membership, "refresh")


def _whoever_leads_may_change(core: Any) -> bool:
    """Let a leader change the voters at any time, even during another change."""
    return bool(core.leads_and_is_current())


def _facts_of_other_disks(engine: Any) -> QuorumFacts:
    """Take a voter that returns with another disk for a node that has caught up with it..."""
    facts: QuorumFacts = _facts(engine)
    others = {}
    for voter in facts.configuration.node_ids:
        met = engine.membership.as_voter(voter)
        if met is not None and engine.membership.is_distrusted(voter):
            others[int(voter)] = ObserverState(met, facts.commit_index, answering=True)
    return replace(facts, observers={**facts.observers, **others})


def _swap_the_disk(facts: QuorumFacts, node_id: int) -> Decision:
    """...and name it with that disk in one step."""
    known = facts.pinned.voter(node_id)
    present = facts.observers.get(node_id)
    if known is not None and present is not None and present.voter.directory_id != known.directory_id:
        return NextConfiguration(facts.pinned.without(node_id).with_voter(present.voter))
    return _add(facts, node_id)  # type: ignore[no-any-return]


def _any_step_will_do(old: Configuration, new: Configuration) -> bool:
    return True


def _no_configuration(configuration: Configuration) -> bytes:
    """Leave the voters out of snapshots: a node that installs one continues with the initial voters."""
    return b""


def _refresh_forwards(membership: Any) -> bool:
    """Keep a configuration in effect that was cut from the log."""
    if membership._journal.configurations[-1][0] < membership.index:
        return False
    return bool(_refresh(membership))


VOTERS_BUGS = (
    Planted(
        "changes_overtake_one_another",
        "a change of voters begins before the previous one is committed: their majorities may not overlap",
        "_SyncObj.may_change waits for the latest configuration's commit",
        (Patch(_SyncObj, "may_change", _whoever_leads_may_change),),
    ),
    Planted(
        "disk_swapped_in_one_step",
        "a voter's other disk takes its place in one step: two majorities may share only the forgetful voter",
        "quorum_changes._add refuses it, and so does is_single_step when a configuration is appended",
        (
            Patch(PySyncObjEngine, "facts", _facts_of_other_disks),
            Patch(quorum_changes, "_add", _swap_the_disk),
            Patch(pysyncobj_core, "is_single_step", _any_step_will_do),
            Patch(quorum_follower, "is_single_step", _any_step_will_do),
        ),
    ),
    Planted(
        "configuration_is_not_in_snapshots",
        "a node that installs a snapshot counts with the initial voters",
        "PySyncObjEngine.compact keeps the configuration with the state",
        (Patch(pysyncobj_engine, "encode_configuration", _no_configuration),),
    ),
    Planted(
        "cut_configuration_stays",
        "a change of voters that another leader cut stays in effect where it was appended",
        "Membership.refresh takes the latest configuration in the log",
        (Patch(Membership, "refresh", _refresh_forwards),),
    ),
)
