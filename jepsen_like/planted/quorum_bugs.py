"""Bugs of the consensus engine, a few lines each: behaviour of plain pysyncobj, and mistakes that Raft's paper warns
of.

Private names of the engine are spelled as Python mangles them (`_SyncObj__x`).
"""

from __future__ import annotations

from typing import Any

from metadata.journal.journal import Journal
from metadata.raft import pysyncobj_node as pysyncobj_core
from metadata.raft.engine import Ready
from metadata.raft.follower import Accepted, Rejected
from metadata.raft.membership import Membership
from metadata.raft.messages import Append, SnapshotChunk, Vote
from metadata.raft.pysyncobj_engine import PySyncObjEngine
from metadata.raft.pysyncobj_node import _SyncObj
from metadata.raft.pysyncobj_ports import PysyncobjJournal

from .patches import Patch, Planted, original

_tick = original(PySyncObjEngine, "tick")
_accept = original(pysyncobj_core, "accept")
_on_snapshot_chunk = original(_SyncObj, "_on_snapshot_chunk")
_STOCK = next(kind for kind in _SyncObj.__mro__ if kind.__module__ == "pysyncobj.syncobj")
_stock_set_state = original(_STOCK, "_SyncObj__setState")

CANDIDATE, LEADER = 1, 2
"""pysyncobj's numbers for a voter's states."""


def _ready_before_sync(engine: Any) -> Ready:
    ready = Ready(engine._outbox.take(), engine._core.applied, list(engine._core.lost))
    engine._core.applied = []
    engine._core.lost.clear()
    return ready


def _sync_then_tick(engine: Any, now: float) -> None:
    engine.journal.sync()
    _tick(engine, now)


def _accept_and_cut(journal: Journal, commit_index: int, message: Append) -> Accepted | Rejected:
    """Cut everything after the entry before the leader's, even without a conflict."""
    if message.entries and journal.term_at(message.prev_index) == message.prev_term:
        if journal.base_index < message.prev_index + 1 <= journal.last_index:
            journal.truncate_from(message.prev_index + 1)
        index = message.prev_index
        for entry in message.entries:
            index += 1
            journal.append(entry.command, index, entry.term)
        return Accepted(index)
    return _accept(journal, commit_index, message)  # type: ignore[no-any-return]


def _accept_as_whole(journal: Journal, commit_index: int, message: Append) -> Accepted | Rejected:
    """Acknowledge the whole log, of which only a part was compared."""
    answer: Accepted | Rejected = _accept(journal, commit_index, message)
    return Accepted(journal.last_index) if isinstance(answer, Accepted) else answer


def _chunk_commits(core: Any, node: Any, message: SnapshotChunk) -> None:
    if message.term >= core._SyncObj__raftCurrentTerm:
        index = min(message.index, core.journal.last_index)
        core._SyncObj__raftCommitIndex = max(core._SyncObj__raftCommitIndex, index)
    _on_snapshot_chunk(core, node, message)


def _answer_of_any_term(core: Any, node: Any, term: int) -> bool:
    if core._step_down_if_behind(term):
        return False
    return core.replication is not None and node.id in core.replication.progress


def _count_votes(core: Any, node: Any, message: Vote) -> None:
    """Count two copies of one vote as two votes."""
    if core._step_down_if_behind(message.term) or message.term < core._SyncObj__raftCurrentTerm:
        return
    if core._SyncObj__raftState == CANDIDATE and message.granted and core.membership.counts(node.id):
        core._SyncObj__votesCount += 1
        if core._SyncObj__votesCount >= core.membership.votes_needed:
            core._SyncObj__onBecomeLeader()


def _any_log_will_do(core: Any, last_index: int, last_term: int) -> bool:
    return True


def _entries_of_this_term(core: Any, index: int, number: int) -> list[tuple[bytes, int, int]]:
    """Make pysyncobj's check of the entry's term, before it commits, always succeed."""
    position = index - core.journal.base_index
    found = core.journal.entries[position : position + number]
    return [(command, at, core._SyncObj__raftCurrentTerm) for command, at, _ in found]


def _step_down_in_silence(core: Any, state: int) -> None:
    led = core._SyncObj__raftState == LEADER
    _stock_set_state(core, state)
    if led and state != LEADER:
        core.replication = None
        core._restart_election_timer()
        core._SyncObj__commandsWaitingCommit.clear()


def _trust_everybody(membership: Any, peer: int) -> bool:
    """Trust a voter with another disk as the one that it was..."""
    return False


def _is_voter_by_number(membership: Any) -> bool:
    """...by others and by itself."""
    return membership.configuration.voter(membership._identity.node_id) is not None


def _store_nothing(face: Any, term: int, vote: int | None) -> None:
    """Keep term and vote in memory only."""
    face._journal.term = term
    face._journal.vote = -1 if vote is None else vote


ENGINE_BUGS = (
    Planted(
        "acknowledged_before_fsync",
        "messages and results are sent before the journal is synced, which the next tick does",
        "PySyncObjEngine.ready syncs first",
        (Patch(PySyncObjEngine, "ready", _ready_before_sync), Patch(PySyncObjEngine, "tick", _sync_then_tick)),
    ),
    Planted(
        "term_and_vote_not_stored",
        "a voter that restarts may vote again in the same term (pysyncobj without a journal, and before 0.3.16)",
        "PysyncobjJournal.setCurrentTerm stages them in the journal",
        (Patch(PysyncobjJournal, "setCurrentTerm", _store_nothing),),
    ),
    Planted(
        "truncates_without_conflict",
        "a late or repeated append removes the entries after it (pysyncobj 0.3.17)",
        "quorum_follower.accept cuts only at an entry of another term",
        (Patch(pysyncobj_core, "accept", _accept_and_cut),),
    ),
    Planted(
        "answers_for_the_whole_log",
        "a follower acknowledges, and commits, entries that were never compared with the leader's",
        "quorum_follower.accept acknowledges only what the message proved",
        (Patch(pysyncobj_core, "accept", _accept_as_whole),),
    ),
    Planted(
        "snapshot_chunk_commits",
        "a piece of a snapshot moves the commit index over a log that was not compared (pysyncobj 0.3.17)",
        "_SyncObj._on_snapshot_chunk commits only complete snapshots",
        (Patch(_SyncObj, "_on_snapshot_chunk", _chunk_commits),),
    ),
    Planted(
        "answer_of_any_term_counts",
        "an acknowledgement of an earlier leadership counts in this one (pysyncobj 0.3.17)",
        "_SyncObj._is_answer_of requires exactly the current term",
        (Patch(_SyncObj, "_is_answer_of", _answer_of_any_term),),
    ),
    Planted(
        "votes_are_counted_not_remembered",
        "a vote that arrives twice counts twice (pysyncobj 0.3.17)",
        "_SyncObj._on_vote keeps a set of voters",
        (Patch(_SyncObj, "_on_vote", _count_votes),),
    ),
    Planted(
        "any_log_may_lead",
        "a voter gives its vote without comparing logs (Raft, 5.4.1)",
        "_SyncObj._log_is_current",
        (Patch(_SyncObj, "_log_is_current", _any_log_will_do),),
    ),
    Planted(
        "commits_older_terms_by_counting",
        "a leader commits an entry of an earlier term by its copies (Raft, figure 8; pysyncobj before 0.3.12)",
        "pysyncobj checks the entry's term",
        (Patch(_SyncObj, "_SyncObj__getEntries", _entries_of_this_term),),
    ),
    Planted(
        "deposed_leader_tells_nobody",
        "a proposer gets no answer from a leader that is deposed (pysyncobj 0.3.17)",
        "_SyncObj.__setState reports each as lost",
        (Patch(_SyncObj, "_SyncObj__setState", _step_down_in_silence),),
    ),
    Planted(
        "lost_disk_is_not_noticed",
        "a voter with an empty disk votes and acknowledges as before (pysyncobj 0.3.17)",
        "Membership counts only the disk that the log names",
        (
            Patch(Membership, "is_distrusted", _trust_everybody),
            Patch(Membership, "is_voter", property(_is_voter_by_number)),
        ),
    ),
)
