"""pysyncobj's consensus core with everything unsafe in it overridden.

pysyncobj keeps the election timer and candidacy, the counting of commits (only entries of the leader's own term
count), the command queue with its callbacks, and check-quorum. Overridden are the messages to other voters, the
handling of their answers, storage, and the moment at which entries are applied.

The class is called `_SyncObj` on purpose: Python mangles `self.__x` in it to `_SyncObj__x`, which is the name of
pysyncobj's own private `__x`. Its state and private methods therefore have the same names here as in pysyncobj, and a
method `__x` below overrides pysyncobj's. `pysyncobj_engine.py` refuses to start if the source of any of them differs
from the one that this was written against. A subclass with any other name must not exist: it would lose the mangling.
Attributes are set before pysyncobj's constructor runs, because the constructor may call overridden methods.

Before a voter campaigns it asks for pre-votes (`election.py`). A node that its own log does not name as a voter never
campaigns, and a vote counts only if the log names its sender (`membership.py`). A node that forgot what it had
promised neither campaigns nor votes (S9). A leader that is to be replaced resigns: it notifies the voters, which then
need not wait for a timer, and does not campaign in that election.

The voters are those of the log's latest configuration, from the moment it is appended; pysyncobj's own membership
changes are forbidden. Every connected non-voter is an observer: it receives committed entries and counts toward no
majority.

pysyncobj also has its own code to write dumps, load them and change its membership; calling any of it is a bug of
ours. It searches all attributes for replicated methods, twice for each object, and finds none here. Its tick polls an
empty socket set, releasing the GIL each time; the poller is replaced.
"""

from __future__ import annotations

import math
import queue
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from pysyncobj.config import SyncObjConf
from pysyncobj.node import Node
from pysyncobj.syncobj import _COMMAND_TYPE, _RAFT_STATE, SyncObj
from pysyncobj.transport import Transport

from metadata.journal.journal import Journal
from metadata.journal.snapshot_file import Snapshot
from metadata.voters.configuration import CONFIGURATION, Configuration, encode_entry, is_single_step
from raftlog.errors import Contradiction, InvariantViolation, RemoteProtocolError, ResourceShortage

from . import messages
from .election import Patience, PreVotes
from .engine import Committed, InstalledSnapshot, Lost
from .follower import Accepted, Rejected, accept, check, compare
from .forgotten import Forgotten
from .membership import Membership
from .messages import (
    MAX_TERM_LEAP,
    Append,
    AppendReply,
    PreVote,
    PreVoteReply,
    RequestVote,
    Resign,
    SnapshotChunk,
    SnapshotReply,
    Vote,
)
from .pysyncobj_ports import NothingToPoll, Waiting, node_of
from .replication import Replication
from .snapshot_transfer import IncomingSnapshot

RESIGNED_ELECTIONS = 2.0
"""How long a leader that resigned does not campaign, in longest election timeouts."""

LINK_LOST_HEARTBEATS = 1.5
"""The longest delay between the loss of the link to the leader and the request for pre-votes, in heartbeat
intervals."""

APPLY_MAX = 2048
"""The most entries applied in one tick; the rest waits for the next."""

CLAIM_SECONDS = 10.0
"""The seconds after a process first agreed with a leader in which it believes an unproven peer's claim that this node
forgot what it acknowledged: a leader makes it in its first append to a node that came back."""

REGULAR = bytes([_COMMAND_TYPE.REGULAR])
NO_OP = bytes([_COMMAND_TYPE.NO_OP])
KINDS = (REGULAR, NO_OP, CONFIGURATION)
assert bytes([_COMMAND_TYPE.MEMBERSHIP]) == CONFIGURATION


@dataclass(frozen=True, slots=True)
class EngineChecks:
    """The checks of peers' messages beyond those of the messages themselves; by default there are none."""

    command: Callable[[bytes], None] = lambda command: None
    """Raises `RemoteProtocolError` for a leader's command that no node could apply: it does not enter this log."""
    snapshots: bool = False
    """Whether a leader's snapshot is installed only when the caller has read its state (`take_received`)."""
    peers_are_proven: bool = True
    """Whether certificates prove who the peers are; if not, less is believed."""


class _SyncObj(SyncObj):  # type: ignore[misc]
    """The consensus core of one node. Every call happens while the engine's ports are active."""

    def __init__(
        self,
        node: Node,
        membership: Membership,
        configuration: SyncObjConf,
        transport: Transport,
        *,
        heartbeat: float,
        journal: Journal,
        snapshot: Snapshot | None,
        save_snapshot: Callable[[Snapshot], None],
        forgotten: Forgotten,
        now: Callable[[], float],
        checks: EngineChecks,
    ) -> None:
        self.journal = journal
        self._checks = checks
        self._agreed_since = float("inf")
        """When this process first agreed with a leader, or led."""
        self._led_by = (-1, -1)
        """The last term of which this node knows the leader, and that leader."""
        self.received: tuple[Node, Snapshot] | None = None
        """A leader's complete snapshot whose state is not checked yet, and its sender."""
        self._unreadable: Snapshot | None = None
        """The last snapshot whose state could not be read; it is not requested again."""
        self._forgotten = forgotten
        self.snapshot = snapshot
        self.applied: list[Committed | InstalledSnapshot] = []
        self.lost: list[Lost] = []
        self.held_back = False
        """Whether committed entries are kept from being applied for now."""
        self.replication: Replication | None = None
        """The replication state while this node leads; otherwise None."""
        self.led_since = float("-inf")
        self._answered: dict[int, float] = {}
        """When each peer last answered this leadership with its present disk, whether or not that counts."""
        self.forgetful: set[int] = set()
        """Peers that have reported in this leadership that they forgot what they had acknowledged."""
        self.membership = membership
        self._transport = transport
        self._now = now
        self._heartbeat = heartbeat
        self._save_snapshot: Final = save_snapshot
        self._patience = Patience(configuration.raftMinTimeout, now())
        self._pre_votes = PreVotes(membership.votes_needed)
        self.incoming = IncomingSnapshot()
        self._has_commands = False
        """Whether commands were proposed since the queue was last processed."""
        self.may_commit_more = True
        """Whether more entries may be committed than at this leader's last count."""
        self._votes: set[int] = set()
        """The voters that voted for this candidate in the current term."""
        super().__init__(node, [node_of(int(v)) for v in membership.others], configuration, transport=transport)
        self._poller = NothingToPoll()
        applied = snapshot.index if snapshot is not None else journal.base_index
        self.__raftCommitIndex: int = applied
        self.__raftLastApplied: int = applied
        if not membership.others:
            self.__raftElectionDeadline: float = now()  # no other node could lead
        if snapshot is not None:
            self.applied.append(InstalledSnapshot(snapshot.index, snapshot.term, snapshot.state))

    # --- Leading and not ---

    def __setState(self, state: int) -> None:  # noqa: N802
        led = self.__raftState == _RAFT_STATE.LEADER
        super().__setState(state)
        if led and state != _RAFT_STATE.LEADER:
            self.replication = None
            self._restart_election_timer()
            for index in sorted(self.__commandsWaitingCommit):
                # The entries are in the log, and another leader may still commit them.
                self.lost += [Lost(waiting.token, certain=False) for _, waiting in self.__commandsWaitingCommit[index]]
            self.__commandsWaitingCommit.clear()

    def __onBecomeLeader(self) -> None:  # noqa: N802
        tell = lambda peer, message: self._tell(node_of(peer), message)  # noqa: E731
        self.replication = Replication(
            self.__raftCurrentTerm, self.membership.others, self.journal, tell, self.membership.disk_of
        )
        for node in sorted(self.__connectedNodes, key=lambda node: node.id):
            self.replication.track(node.id)
        self.__raftMatchIndex.clear()  # matches are known to this leadership only, for observers too
        self._answered.clear()
        self.forgetful.clear()
        self.led_since = self._now()
        self._led_by = (self.__raftCurrentTerm, self.selfNode.id)
        self._agreed_since = min(self._agreed_since, self.led_since)
        self.may_commit_more = True
        super().__onBecomeLeader()

    # --- Messages ---

    def __onMessageReceived(self, node: Node, message: messages.Message) -> None:  # noqa: N802
        if not self._is_heard(node, message):
            return
        match message:
            case Append():
                self._on_append(node, message)
            case AppendReply():
                self._on_append_reply(node, message)
            case PreVote():
                self._on_pre_vote(node, message)
            case PreVoteReply():
                self._on_pre_vote_reply(node, message)
            case RequestVote():
                self._on_request_vote(node, message)
            case Vote():
                self._on_vote(node, message)
            case SnapshotChunk():
                self._on_snapshot_chunk(node, message)
            case SnapshotReply():
                self._on_snapshot_reply(node, message)
            case Resign():
                self._on_resign(node, message)

    def _is_heard(self, node: Node, message: messages.Message) -> bool:
        """Return whether the message is processed.

        Vote requests from non-voters, and from voters on another disk than the configuration names, are dropped,
        unless the candidate's configuration is newer than this node's: the candidate, or its new disk, may have been
        added by an entry that has not arrived here.
        """
        if isinstance(message, PreVote | RequestVote):
            return self.membership.counts(node.id) or message.configuration_index > self.membership.index
        return True

    def _tell(self, node: Node, message: messages.Message) -> None:
        self._transport.send(node, message)

    def _tell_all(self, message: messages.Message) -> None:
        for voter in self.membership.others:
            self._tell(node_of(int(voter)), message)

    # --- Campaigning and voting ---

    def __connectedToAnyone(self) -> bool:  # noqa: N802
        """Return whether to campaign. pysyncobj asks when the election timer has expired; the answer is yes once
        enough pre-votes are granted."""
        now = self._now()
        if not self.may_campaign:
            if not self._patience.lasts(now):
                self.__raftLeader: Node | None = None
            return False
        if not self.membership.others or self._pre_votes.is_won(self.__raftCurrentTerm):
            self._pre_votes.forget()
            return True
        if now >= self._pre_votes.next_question_at:
            self.__raftLeader = None
            again_after = self._heartbeat * (0.5 + self._draw() / 2)
            number = self._pre_votes.ask(self.__raftCurrentTerm, now, again_after)
            self._tell_all(
                PreVote(
                    term=self.__raftCurrentTerm + 1,
                    round=number,
                    last_index=self.journal.last_index,
                    last_term=self.journal.last_term,
                    configuration_index=self.membership.claim,
                )
            )
        return False

    @property
    def may_campaign(self) -> bool:
        """Whether this node's log names it as a voter and it has not forgotten its promises."""
        return self.membership.is_voter and not self._forgotten.it_did

    def _draw(self) -> float:
        """Return a random number from 0 to 1, which keeps two voters from acting in step."""
        shortest, longest = self.conf.raftMinTimeout, self.conf.raftMaxTimeout
        return float((self.__generateRaftTimeout() - shortest) / (longest - shortest))

    def _believes_in_leader(self) -> bool:
        return bool(self.__raftState == _RAFT_STATE.LEADER) or self._patience.lasts(self._now())

    def _log_is_current(self, last_index: int, last_term: int) -> bool:
        """Return whether a candidate's log is at least as complete as this one (Raft, 5.4.1)."""
        return (last_term, last_index) >= (self.journal.last_term, self.journal.last_index)

    def _on_pre_vote(self, node: Node, message: PreVote) -> None:
        granted = (
            message.term > self.__raftCurrentTerm
            and self._log_is_current(message.last_index, message.last_term)
            and not self._believes_in_leader()
            and not self._forgotten.it_did
        )
        self._tell(node, PreVoteReply(self.__raftCurrentTerm, message.round, granted))

    def _on_pre_vote_reply(self, node: Node, message: PreVoteReply) -> None:
        if not self._step_down_if_behind(message.term) and self.membership.counts(node.id):
            self._pre_votes.on_reply(node.id, message)

    def _on_request_vote(self, node: Node, message: RequestVote) -> None:
        if message.term > self.__raftCurrentTerm:
            if self._believes_in_leader():
                return
            self._step_down_if_behind(message.term)
        granted = (
            message.term == self.__raftCurrentTerm
            and self.__raftState != _RAFT_STATE.LEADER
            and self.__votedForNodeId in (None, node.id)
            and self._log_is_current(message.last_index, message.last_term)
            and not self._forgotten.it_did
        )
        if granted:
            self.__setCurrentTerm(message.term, node.id)
            self._restart_election_timer()
        self._tell(node, Vote(self.__raftCurrentTerm, granted))

    def _on_vote(self, node: Node, message: Vote) -> None:
        if self._step_down_if_behind(message.term) or message.term < self.__raftCurrentTerm:
            return
        if self.__raftState == _RAFT_STATE.CANDIDATE and message.granted and self.membership.counts(node.id):
            self._votes.add(node.id)
            self.__votesCount: int = 1 + len(self._votes)
            if self.__votesCount >= self.membership.votes_needed:
                self.__onBecomeLeader()

    def _restart_election_timer(self) -> None:
        self.__raftElectionDeadline = self._now() + self.__generateRaftTimeout()

    def _step_down_if_behind(self, term: int) -> bool:
        """Enter a later term that a peer is in, as a follower, or a term as near to it as one message may lead
        (`MAX_TERM_LEAP`). Returns whether the term was later.

        A node may enter any later term in which it has not voted: it is as if it had missed the election.
        """
        if term <= self.__raftCurrentTerm:
            return False
        self._enter(min(term, self.__raftCurrentTerm + MAX_TERM_LEAP))
        return True

    def _enter(self, term: int) -> None:
        self.__setCurrentTerm(term, None)
        self.__setState(_RAFT_STATE.FOLLOWER)
        self.__raftLeader = None

    def __setCurrentTerm(self, term: int, vote: int | None) -> None:  # noqa: N802
        if term != self.__raftCurrentTerm:
            self._votes.clear()
            self._pre_votes.forget()
            self.incoming.forget()
        super().__setCurrentTerm(term, vote)

    # --- Leaders come and go ---

    def _follow(self, node: Node, term: int) -> bool:
        """Follow a leader of the current or a later term, from which a message came. Returns False if its term is still
        beyond this node's (`MAX_TERM_LEAP`)."""
        if term > self.__raftCurrentTerm:
            self._step_down_if_behind(term)
            if term > self.__raftCurrentTerm:
                return False
        self._check_claim(node, term)
        self._led_by = (term, node.id)
        self.__setState(_RAFT_STATE.FOLLOWER)
        self.__raftLeader = node
        self._patience.heard(self._now())
        self._pre_votes.forget()
        self._restart_election_timer()
        return True

    def _check_claim(self, node: Node, term: int) -> None:
        """Raise `Contradiction` if another node leads this node's term than the one that claims to.

        Two voters that claim one term are one too many, and either may be the false one. Entries of one term are equal
        if their indexes are, so following both would mix two logs. This node then follows neither, and enters the next
        term, in which neither leads: the voters elect again.
        """
        known, leader = self._led_by
        if known != term or leader == node.id:
            return
        if node.id in self._votes or not self.membership.counts(node.id):
            # It voted for this node, or is not a voter: whatever it claims, it was not elected.
            raise Contradiction(f"node {node.id} cannot lead term {term}, which node {leader} leads")
        self._enter(term + 1)
        raise Contradiction(f"node {node.id} claims to lead term {term}, which node {leader} leads")

    def _leader_is_gone(self) -> None:
        """End the wait for the leader: the election timer expires within a heartbeat or so."""
        self._patience.ends()
        soon = self._now() + self._draw() * LINK_LOST_HEARTBEATS * self._heartbeat
        self.__raftElectionDeadline = min(self.__raftElectionDeadline, soon)

    def resign(self) -> None:
        """Stop leading, let the others elect another leader at once, and stay out of that election."""
        self._tell_all(Resign(self.__raftCurrentTerm))
        self.__setState(_RAFT_STATE.FOLLOWER)
        self.__raftLeader = None
        self.__raftElectionDeadline = self._now() + RESIGNED_ELECTIONS * self.conf.raftMaxTimeout

    def _on_resign(self, node: Node, message: Resign) -> None:
        if message.term == self.__raftCurrentTerm and node == self.__raftLeader:
            self.__raftLeader = None
            self._leader_is_gone()

    # --- Following ---

    def _on_append(self, node: Node, message: Append) -> None:
        if message.term < self.__raftCurrentTerm:
            # The answer shows the stale leader the later term, and says nothing about the logs: its receiver may have
            # been elected in that term since, with another log than it had.
            self._tell(node, AppendReply(self.__raftCurrentTerm, False, 0, 0))
            return
        for entry in message.entries:
            if entry.command[:1] not in KINDS:
                raise RemoteProtocolError(f"unknown kind {entry.command[0]} of entry")
        check(self.journal, self.__raftCommitIndex, message, self._check_new_entry)
        self._check_memory(message)
        if not self._follow(node, message.term):
            return
        answer = accept(self.journal, self.__raftCommitIndex, message)
        self._adopt_configuration()
        if isinstance(answer, Accepted):
            self._agreed_since = min(self._agreed_since, self._now())
            self.__raftCommitIndex = max(self.__raftCommitIndex, min(message.commit_index, answer.index))
            self.__leaderCommitIndex: int = message.commit_index
            self._tell(node, AppendReply(self.__raftCurrentTerm, True, answer.index, 0, self._forgotten.it_did))
            return
        if message.acknowledged_by == self.membership.own_disk:
            # This disk had the entry durably when it acknowledged it, and no leader truncates an entry of the present
            # term.
            self._forgotten.note(message.prev_index, self.journal.last_index, node.id, message.term)
        forgot = self._forgotten.it_did
        self._tell(node, AppendReply(self.__raftCurrentTerm, False, message.prev_index, answer.hint, forgot))

    def _check_new_entry(self, command: bytes) -> None:
        """Check an entry that this log lacks. Raises `RemoteProtocolError` if no node could apply it."""
        if command[:1] == REGULAR:
            self._checks.command(command[1:])

    def _check_memory(self, message: Append) -> None:
        """Raise `Contradiction` if an unproven peer claims that this node's disk forgot an entry, and it cannot have.

        A true claim takes a voter out of the quorum until its folder is prepared again, so a forged one must not be
        believed lightly. A disk loses entries between two processes, and a leader notices at its first append. A true
        leader makes the claim as well if it was sent a forged acknowledgement: in the next term, which this node
        enters, no leader relies on it.
        """
        if self._checks.peers_are_proven or message.acknowledged_by != self.membership.own_disk:
            return
        if self._now() - self._agreed_since < CLAIM_SECONDS:
            return
        if isinstance(compare(self.journal, self.__raftCommitIndex, message), Rejected):
            term = max(message.term, self.__raftCurrentTerm) + 1
            self._enter(min(term, self.__raftCurrentTerm + MAX_TERM_LEAP))
            raise Contradiction(
                f"it claims that this node acknowledged entry {message.prev_index}, but this process began with all "
                f"that its leaders knew of, and its log ends at {self.journal.last_index}"
            )

    def _on_snapshot_chunk(self, node: Node, message: SnapshotChunk) -> None:
        if message.term < self.__raftCurrentTerm:
            self._tell(node, SnapshotReply(self.__raftCurrentTerm, message.index, 0, False))
            return
        if not self._follow(node, message.term):
            return
        if message.index > self.__raftCommitIndex and self.received is None and not self._holds_all_of(message):
            snapshot = self.incoming.on_chunk(message)
            if snapshot is not None and self._checks.snapshots:
                self.received = (node, snapshot)
            elif snapshot is not None:
                self._install_or_wait(snapshot)
        installed = message.index <= self.__raftCommitIndex
        held = message.size if installed or self._holds_all_of(message) else self.incoming.held_bytes
        self._answer_snapshot(node, message.index, held, installed=installed)

    def _answer_snapshot(self, node: Node, index: int, held_bytes: int, *, installed: bool) -> None:
        forgot = self._forgotten.it_did
        self._tell(node, SnapshotReply(self.__raftCurrentTerm, index, held_bytes, installed, forgot))

    def _holds_all_of(self, chunk: SnapshotChunk) -> bool:
        """Return whether all of the chunk's snapshot is here, but its state is still checked, or could not be read."""
        known = (self.received[1] if self.received is not None else None, self._unreadable)
        name = (chunk.index, chunk.last_term, chunk.size, chunk.crc)
        return any((one.index, one.term, len(one.state), one.crc) == name for one in known if one is not None)

    def take_received(self, *, readable: bool) -> None:
        """Install the received snapshot if its state is `readable`; otherwise refuse it for good."""
        assert self.received is not None
        (node, snapshot), self.received = self.received, None
        if not readable:
            self._unreadable = snapshot
        elif snapshot.index > self.__raftCommitIndex:
            self._install_or_wait(snapshot)
            if self.__raftCommitIndex >= snapshot.index:
                self._answer_snapshot(node, snapshot.index, len(snapshot.state), installed=True)

    def _install_or_wait(self, snapshot: Snapshot) -> None:
        """Install the leader's snapshot, or drop it if file descriptors or memory are short.

        After a shortage this node is as after a crash in between: it has its log, and either the former snapshot or
        the new one. The received bytes are gone, so the leader sends the snapshot again.
        """
        try:
            self._install(snapshot)
        except ResourceShortage:
            if not self.journal.usable:
                raise

    def _install(self, snapshot: Snapshot) -> None:
        """Install the leader's complete snapshot; the state machine restarts from it.

        If the log has the snapshot's last entry, it keeps what follows. Any other log holds nothing that was
        committed beyond the snapshot, and is replaced.
        """
        self.journal.sync()  # the term first: a snapshot on disk never has a term that the journal does not know
        self._save_snapshot(snapshot)
        if self.journal.term_at(snapshot.index) != snapshot.term:
            self.journal.reset(snapshot.index, snapshot.term, snapshot.configuration)
            self._adopt_configuration()
        self.snapshot = snapshot
        self.__raftCommitIndex = self.__raftLastApplied = snapshot.index
        self.applied.append(InstalledSnapshot(snapshot.index, snapshot.term, snapshot.state))

    # --- Leading ---

    def _on_append_reply(self, node: Node, message: AppendReply) -> None:
        if self._is_answer_of(node, message.term) and self.replication is not None:
            self._count(node, self.replication.on_append_reply(node.id, message), forgot=message.forgot)

    def _on_snapshot_reply(self, node: Node, message: SnapshotReply) -> None:
        if self._is_answer_of(node, message.term) and self.replication is not None:
            self._count(node, self.replication.on_snapshot_reply(node.id, message), forgot=message.forgot)

    def begin_anew_with(self, node: Node) -> None:
        """Forget what the peer acknowledged: it is on another disk now, which may lack what the former one had."""
        if self.replication is not None:
            if node.id in self.replication.progress:
                self.replication.forget(node.id)
            self._answered.pop(node.id, None)
            self._uncount(node)
            self.forgetful.discard(node.id)

    def _uncount(self, node: Node) -> None:
        self.__raftMatchIndex[node] = 0
        self.__lastResponseTime[node] = float("-inf")

    def _count(self, node: Node, match: int, *, forgot: bool) -> None:
        """Update the match index that pysyncobj uses for commit and check-quorum.

        It is kept for all peers, but pysyncobj reads it for voters only. A peer that forgot acknowledged entries is
        replicated to like an observer, and not counted (S9). It says so in each answer; of a peer that is not proven
        the last answer counts, so that a forged one excludes no voter for longer than a heartbeat. Nor is a voter
        counted on another disk than it votes with.
        """
        self._answered[node.id] = self._now()
        if self.membership.is_distrusted(node.id):
            return
        if forgot and node.id not in self.forgetful:
            self.forgetful.add(node.id)
            self._uncount(node)
        if not (forgot or self._checks.peers_are_proven):
            self.forgetful.discard(node.id)
        if node.id not in self.forgetful:
            self.may_commit_more = self.may_commit_more or match > self.__raftCommitIndex
            self.__raftMatchIndex[node] = match
            self.__lastResponseTime[node] = self._now()

    def answered_since(self, peer: int, moment: float) -> bool:
        """Return whether the peer, with its present disk, answered this leadership after `moment`.

        A distrusted voter answers too: its answers count for no majority, but it is replicated to like an observer.
        pysyncobj's own response times are no evidence: at first it counts every voter as having answered.
        """
        return self._answered.get(peer, float("-inf")) > moment

    def oldest_on_its_way(self, moment: float) -> int | None:
        """Return the last index of the oldest snapshot that is being sent to a peer which answered after `moment`, or
        None."""
        if self.replication is None:
            return None
        return self.replication.oldest_on_its_way(lambda peer: self.answered_since(peer, moment))

    def _is_answer_of(self, node: Node, term: int) -> bool:
        """Return whether an answer of `term` counts: it must be of exactly this term and from a peer that is
        replicated to.

        A later term ends the leadership; an earlier one counts nothing.
        """
        if self._step_down_if_behind(term) or term != self.__raftCurrentTerm:
            return False
        return self.replication is not None and node.id in self.replication.progress

    def __sendAppendEntries(self) -> None:  # noqa: N802
        """Send the heartbeat; pysyncobj calls this periodically."""
        self.__newAppendEntriesTime = self._now() + self._heartbeat
        self.replicate(heartbeat=True)

    def replicate(self, *, heartbeat: bool = False) -> None:
        """Send what was appended or committed since the last call, if this node leads."""
        if self.replication is not None:
            self.replication.send(self.__raftCommitIndex, self.snapshot, heartbeat=heartbeat)

    def __onNodeConnected(self, node: Node) -> None:  # noqa: N802
        super().__onNodeConnected(node)
        if self.replication is not None:
            self.replication.track(node.id)

    def __onNodeDisconnected(self, node: Node) -> None:  # noqa: N802
        super().__onNodeDisconnected(node)
        if self.replication is not None:
            self.replication.on_link_lost(node.id)
        elif node == self.__raftLeader:
            self._leader_is_gone()

    # --- Membership ---

    def _adopt_configuration(self) -> None:
        """Adopt the log's latest configuration, which is in effect from its append until it is truncated."""
        if not self.membership.refresh():
            return
        former = self.__otherNodes
        self.__otherNodes: set[Node] = {node_of(int(voter)) for voter in self.membership.others}
        self.may_commit_more = True
        self._pre_votes.needed = self.membership.votes_needed
        self._pre_votes.forget()
        if self.replication is not None:
            self.replication.set_voters(self.membership.others)
            for node in self.__otherNodes - former:
                # It starts with what it acknowledged as an observer, on the disk that the configuration names.
                self.__raftMatchIndex[node] = self.replication.progress[node.id].match
                self.__lastResponseTime.setdefault(node, self._now())
                if node.id in self.forgetful:
                    self._uncount(node)

    def append_configuration(self, configuration: Configuration, token: int) -> None:
        """Append a configuration as the leader. Raises `InvariantViolation` if the change is not allowed at this
        point."""
        before = self.membership.configuration
        last = self.journal.last_index
        if not self.may_change() or not is_single_step(before, configuration):
            raise InvariantViolation(
                f"from voters {before} to the forbidden {configuration} at {last}, in term {self.journal.term}"
            )
        if configuration.voter(self.selfNode.id) is None:
            raise InvariantViolation(f"node {self.selfNode.id} leads and would remove itself")
        self.journal.append(encode_entry(configuration), last + 1, self.__raftCurrentTerm)
        self.__commandsWaitingCommit[last + 1].append((self.__raftCurrentTerm, Waiting(token, self.lost)))
        self._adopt_configuration()

    def may_change(self) -> bool:
        """Return whether this node may append a configuration.

        It must lead, and an entry of its own term and the latest configuration must be committed: one step at a time.
        """
        return self.leads_and_is_current() and self.membership.index <= self.__raftCommitIndex

    def leads_and_is_current(self) -> bool:
        """Return whether this node leads and has applied everything committed before its term: its own first entry is
        applied."""
        return bool(self.__raftState == _RAFT_STATE.LEADER and self.__raftLastApplied >= self.__noopIDx)

    # --- Commands ---

    def propose(self, command: bytes, token: int) -> None:
        """Append a command if this node leads; otherwise report it as lost."""
        if self.__raftState != _RAFT_STATE.LEADER:
            self.lost.append(Lost(token, certain=True))
        else:
            self._has_commands = True
            self._applyCommand(command, Waiting(token, self.lost), _COMMAND_TYPE.REGULAR)

    def _checkCommandsToApply(self) -> None:  # noqa: N802
        """Append the queued commands if this node leads, and fail them otherwise. Forwarding is the quorum node's
        task."""
        if not self._has_commands:
            return
        self._has_commands = False
        if self.__raftState == _RAFT_STATE.LEADER:
            super()._checkCommandsToApply()
            return
        while True:
            try:
                _, waiting = self.__commandsQueue.get_nowait()
            except queue.Empty:
                return
            waiting(None, 0)

    def is_due(self) -> bool:
        """Return whether pysyncobj's tick has anything to do.

        A leader's tick counts commits, applies entries, or sends heartbeats and then checks that a majority still
        answers. Any other node's tick campaigns or applies entries.
        """
        if self.__raftCommitIndex > self.__raftLastApplied:
            return True
        if self.__raftState == _RAFT_STATE.LEADER:
            return self.may_commit_more or not self.__otherNodes or bool(self._now() > self.__newAppendEntriesTime)
        return bool(self.__raftElectionDeadline < self._now())

    def do_what_is_due(self) -> None:
        """Run pysyncobj's tick if it has anything to do."""
        if self.is_due():
            self.may_commit_more = False
            self.doTick(0.0)

    def next_due(self) -> float:
        """Return the time at which time alone gives the tick something to do; infinite if it never will."""
        if self.replication is not None:
            return float(self.__newAppendEntriesTime)
        never = self.__raftLeader is None and not self.may_campaign
        return math.inf if never else max(float(self.__raftElectionDeadline), self._pre_votes.next_question_at)

    def __applyLogEntries(self) -> bool:  # noqa: N802
        """Hand out committed entries. Applying them cannot fail: an error there stops the node."""
        if self.held_back:
            return False
        first = self.__raftLastApplied + 1
        last = min(self.__raftCommitIndex, self.__raftLastApplied + APPLY_MAX)
        start = first - self.journal.base_index
        for command, index, term in self.journal.entries[start : start + last - first + 1]:
            token = None
            for proposed_term, waiting in self.__commandsWaitingCommit.pop(index, ()):
                if proposed_term == term:
                    token = waiting.token
                else:
                    self.lost.append(Lost(waiting.token, certain=True))
            self.applied.append(Committed(index, term, self.__doApplyCommand(command), token))
            self.__raftLastApplied = index
        return False

    def __doApplyCommand(self, command: bytes) -> bytes:  # noqa: N802
        """Return the proposed bytes; empty for a leadership's first entry and for a configuration."""
        kind = command[:1]
        if kind not in KINDS:
            raise InvariantViolation(f"an entry of kind {kind!r} is committed")
        return command[1:] if kind == REGULAR else b""

    # --- Overridden because it must not run here, or would have no effect ---

    def __dir__(self) -> Iterable[str]:
        """Return nothing: pysyncobj searches this list for replicated methods."""
        return ()

    def __tryLogCompaction(self) -> None:  # noqa: N802
        """Do nothing: the quorum node compacts the log when it has a snapshot."""

    def __forbidden(self, *args: object, **kwargs: object) -> Any:
        raise InvariantViolation("pysyncobj called a method that raftlog forbids")

    __sendNextNodeIdx = __loadDumpFile = __parseChangeClusterRequest = __forbidden
    __changeCluster = __doChangeCluster = __forbidden
