"""pysyncobj's consensus core with everything unsafe in it overridden.

pysyncobj keeps: the election timer and candidacy, counting commits (only entries of the leader's own term count), the
queue of commands and the routing of their callbacks, check-quorum. Ours is what it says to other voters, what it does
with their answers, what it stores, and when it applies.

The class is called `_SyncObj` on purpose: Python mangles `self.__x` in it to `_SyncObj__x`, which is the name of
pysyncobj's own private `__x`. So its state and its private methods are named here as they are named there, and a
method `__x` below overrides pysyncobj's. `pysyncobj_engine.py` refuses to start when any of them is not the source
that this was written against. A subclass of any other name must not be made: the mangling would be lost. Attributes are
set before pysyncobj's constructor, which may call what is overridden.

Before its candidacy a voter asks for pre-votes (`election.py`); a node that its own log does not name as a voter
never campaigns, and a vote counts only from a node that the log names (`membership.py`). A node that forgot what
it had promised neither campaigns nor votes (S9). A leader that is to go resigns: it tells the voters, who then need not
sit out a timer, and stays away from that election.

Membership is what the log's latest configuration says, from its append on; pysyncobj's own way of changing it is
forbidden. Whoever is connected and no voter is an observer: it is sent what is committed, and counts nowhere.

pysyncobj also has ways of its own to write dumps, to load them, and to change its membership: calling one is a bug of
ours. It looks through all its attributes for methods that callers replicate, twice for each object; there are none. And
it asks the system for news of sockets in every tick, of which it has none, which lets go of the interpreter's lock each
time.
"""

from __future__ import annotations

import math
import queue
from collections.abc import Callable, Iterable
from typing import Any, Final

from pysyncobj.config import SyncObjConf
from pysyncobj.node import Node
from pysyncobj.syncobj import _COMMAND_TYPE, _RAFT_STATE, SyncObj
from pysyncobj.transport import Transport

from metadata.journal.journal import Journal
from metadata.journal.snapshot_file import Snapshot
from metadata.voters.configuration import CONFIGURATION, Configuration, encode_entry, is_single_step
from raftlog.errors import InvariantViolation, RemoteProtocolError, ResourceShortage

from . import messages
from .election import Patience, PreVotes
from .engine import Committed, InstalledSnapshot, Lost
from .follower import Accepted, accept, check
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
"""So many of the longest election timeouts a leader that resigned does not campaign."""

LINK_LOST_HEARTBEATS = 1.5
"""Within so many heartbeat intervals of losing the link to the leader a voter asks for pre-votes."""

APPLY_MAX = 2048
"""Entries applied in one tick: what is left waits for the next."""

REGULAR = bytes([_COMMAND_TYPE.REGULAR])
NO_OP = bytes([_COMMAND_TYPE.NO_OP])
KINDS = (REGULAR, NO_OP, CONFIGURATION)
assert bytes([_COMMAND_TYPE.MEMBERSHIP]) == CONFIGURATION


class _SyncObj(SyncObj):  # type: ignore[misc]
    """One voter. Calls are made while the engine's ports are active."""

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
    ) -> None:
        self.journal = journal
        self._forgotten = forgotten
        self.snapshot = snapshot
        self.applied: list[Committed | InstalledSnapshot] = []
        self.lost: list[Lost] = []
        self.held_back = False
        """Committed entries stay in the log for now."""
        self.replication: Replication | None = None
        """While this node leads."""
        self.led_since = float("-inf")
        self._answered: dict[int, float] = {}
        """When each peer last answered this leadership, on its own disk."""
        self.forgetful: set[int] = set()
        """Peers that told this leadership that they forgot what they had acknowledged."""
        self.membership = membership
        self._transport = transport
        self._now = now
        self._heartbeat = heartbeat
        self._save_snapshot: Final = save_snapshot
        self._patience = Patience(configuration.raftMinTimeout, now())
        self._pre_votes = PreVotes(membership.votes_needed)
        self._incoming = IncomingSnapshot()
        self._has_commands = False
        """Commands were handed in, and not looked at since."""
        self.may_commit_more = True
        """Than when this leader counted last."""
        self._votes: set[int] = set()
        """Who gave this candidate a vote in the current term."""
        super().__init__(node, [node_of(int(v)) for v in membership.others], configuration, transport=transport)
        self._poller = NothingToPoll()
        applied = snapshot.index if snapshot is not None else journal.base_index
        self.__raftCommitIndex: int = applied
        self.__raftLastApplied: int = applied
        if not membership.others:
            self.__raftElectionDeadline: float = now()  # nobody else could lead
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
                # They are in the log: another leader may commit them yet.
                self.lost += [Lost(waiting.token, certain=False) for _, waiting in self.__commandsWaitingCommit[index]]
            self.__commandsWaitingCommit.clear()

    def __onBecomeLeader(self) -> None:  # noqa: N802
        tell = lambda peer, message: self._tell(node_of(peer), message)  # noqa: E731
        self.replication = Replication(
            self.__raftCurrentTerm, self.membership.others, self.journal, tell, self.membership.disk_of
        )
        for node in sorted(self.__connectedNodes, key=lambda node: node.id):
            self.replication.track(node.id)
        self.__raftMatchIndex.clear()  # of this leadership only, for observers too
        self._answered.clear()
        self.forgetful.clear()
        self.led_since = self._now()
        self.may_commit_more = True
        super().__onBecomeLeader()

    # --- Messages ---

    def __onMessageReceived(self, node: Node, message: messages.Message) -> None:  # noqa: N802
        if message.term > self.__raftCurrentTerm + MAX_TERM_LEAP:
            raise RemoteProtocolError(
                f"node {node.id} speaks of term {message.term}, here it is {self.__raftCurrentTerm}"
            )
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
        """All are, but for the elections of nodes that are no voters, or came without the disk that they vote with;
        and those too where the candidate was made a voter and this node has not heard of it yet."""
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
        """pysyncobj asks this when the election timer ran out, and campaigns on yes: here, on enough pre-votes."""
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
        """Its log names it, and it knows what it promised."""
        return self.membership.is_voter and not self._forgotten.it_did

    def _draw(self) -> float:
        """From 0 to 1, at random: so that two voters do not act in step."""
        shortest, longest = self.conf.raftMinTimeout, self.conf.raftMaxTimeout
        return float((self.__generateRaftTimeout() - shortest) / (longest - shortest))

    def _believes_in_leader(self) -> bool:
        return bool(self.__raftState == _RAFT_STATE.LEADER) or self._patience.lasts(self._now())

    def _log_is_current(self, last_index: int, last_term: int) -> bool:
        """A candidate's log is at least as complete as this one (Raft, 5.4.1)."""
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
        """Somebody is in a later term: this node follows it there. Returns whether that was so."""
        if term <= self.__raftCurrentTerm:
            return False
        self.__setCurrentTerm(term, None)
        self.__setState(_RAFT_STATE.FOLLOWER)
        self.__raftLeader = None
        return True

    def __setCurrentTerm(self, term: int, vote: int | None) -> None:  # noqa: N802
        if term != self.__raftCurrentTerm:
            self._votes.clear()
            self._pre_votes.forget()
            self._incoming.forget()
        super().__setCurrentTerm(term, vote)

    # --- Leaders come and go ---

    def _follow(self, node: Node, term: int) -> None:
        """A leader of the current term, or of a later one, spoke."""
        if term > self.__raftCurrentTerm:
            self.__setCurrentTerm(term, None)
        elif self.__raftState == _RAFT_STATE.LEADER:
            if node.id in self._votes or not self.membership.counts(node.id):
                # It gave its vote away, or has none: whatever it says, it was not elected.
                raise RemoteProtocolError(
                    f"node {node.id} cannot lead term {term}, which node {self.selfNode.id} leads"
                )
            raise InvariantViolation(f"nodes {self.selfNode.id} and {node.id} both lead term {term}")
        self.__setState(_RAFT_STATE.FOLLOWER)
        self.__raftLeader = node
        self._patience.heard(self._now())
        self._pre_votes.forget()
        self._restart_election_timer()

    def _leader_is_gone(self) -> None:
        """No need to sit out a timer."""
        self._patience.ends()
        soon = self._now() + self._draw() * LINK_LOST_HEARTBEATS * self._heartbeat
        self.__raftElectionDeadline = min(self.__raftElectionDeadline, soon)

    def resign(self) -> None:
        """Lead no more, have the others elect another leader at once, and stay away from that election."""
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
            # The stale leader learns the later term from the answer.
            self._tell(node, AppendReply(self.__raftCurrentTerm, False, message.prev_index, message.prev_index))
            return
        for entry in message.entries:
            if entry.command[:1] not in KINDS:
                raise RemoteProtocolError(f"an entry of kind {entry.command[0]} is none of ours")
        check(self.journal, self.__raftCommitIndex, message, of_voter=self.membership.counts(node.id))
        self._follow(node, message.term)
        answer = accept(self.journal, self.__raftCommitIndex, message)
        self._adopt_configuration()
        if isinstance(answer, Accepted):
            self.__raftCommitIndex = max(self.__raftCommitIndex, min(message.commit_index, answer.index))
            self.__leaderCommitIndex: int = message.commit_index
            self._tell(node, AppendReply(self.__raftCurrentTerm, True, answer.index, 0, self._forgotten.it_did))
            return
        if message.acknowledged_by == self.membership.own_disk:
            # This disk had the entry, durably, when it said so, and nobody takes an entry of the present term away.
            self._forgotten.note(message.prev_index, self.journal.last_index, node.id, message.term)
        forgot = self._forgotten.it_did
        self._tell(node, AppendReply(self.__raftCurrentTerm, False, message.prev_index, answer.hint, forgot))

    def _on_snapshot_chunk(self, node: Node, message: SnapshotChunk) -> None:
        if message.term < self.__raftCurrentTerm:
            self._tell(node, SnapshotReply(self.__raftCurrentTerm, message.index, 0, False))
            return
        self._follow(node, message.term)
        if message.index > self.__raftCommitIndex:
            snapshot = self._incoming.on_chunk(message)
            if snapshot is not None:
                self._install_or_wait(snapshot)
        installed = message.index <= self.__raftCommitIndex
        held = message.size if installed else self._incoming.held_bytes
        forgot = self._forgotten.it_did
        self._tell(node, SnapshotReply(self.__raftCurrentTerm, message.index, held, installed, forgot))

    def _install_or_wait(self, snapshot: Snapshot) -> None:
        """Where descriptors or memory are short, this node is as after a crash in between: with its log, and the former
        snapshot or this one. None of it is held any more, so the leader sends it again."""
        try:
            self._install(snapshot)
        except ResourceShortage:
            if not self.journal.usable:
                raise

    def _install(self, snapshot: Snapshot) -> None:
        """The leader's snapshot is whole: the state machine begins again from it. A log that has the snapshot's last
        entry keeps what follows; any other log has nothing that was committed beyond it."""
        self.journal.sync()  # the term first: no snapshot on disk is of a term that the journal does not know
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
        """The peer is on another disk than before: what it acknowledged on one, the other may lack."""
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
        """What pysyncobj counts commits and its own quorum by: of all peers, of which it asks for voters only. Whoever
        forgot what it had acknowledged gets the log, like an observer (S9)."""
        if self.membership.is_distrusted(node.id):
            return
        self._answered[node.id] = self._now()
        if forgot and node.id not in self.forgetful:
            self.forgetful.add(node.id)
            self._uncount(node)
        if node.id not in self.forgetful:
            self.may_commit_more = self.may_commit_more or match > self.__raftCommitIndex
            self.__raftMatchIndex[node] = match
            self.__lastResponseTime[node] = self._now()

    def answered_since(self, peer: int, moment: float) -> bool:
        """Whether the peer, on its own disk, answered this leadership after that (pysyncobj notes all at first)."""
        return self._answered.get(peer, float("-inf")) > moment

    def oldest_on_its_way(self, moment: float) -> int | None:
        """Where the oldest snapshot ends that is being sent to a peer that answered after that."""
        if self.replication is None:
            return None
        return self.replication.oldest_on_its_way(lambda peer: self.answered_since(peer, moment))

    def _is_answer_of(self, node: Node, term: int) -> bool:
        """Of exactly this term; a later one ends the leadership, an earlier one counts nothing."""
        if self._step_down_if_behind(term) or term != self.__raftCurrentTerm:
            return False
        return self.replication is not None and node.id in self.replication.progress

    def __sendAppendEntries(self) -> None:  # noqa: N802
        """pysyncobj's periodic broadcast: the heartbeat."""
        self.__newAppendEntriesTime = self._now() + self._heartbeat
        self.replicate(heartbeat=True)

    def replicate(self, *, heartbeat: bool = False) -> None:
        """Send what was appended or committed since."""
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
        """The log's latest configuration is in effect, from its append on and until it is cut away."""
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
                # What it acknowledged as an observer, on the disk that it is named with.
                self.__raftMatchIndex[node] = self.replication.progress[node.id].match
                self.__lastResponseTime.setdefault(node, self._now())
                if node.id in self.forgetful:
                    self._uncount(node)

    def append_configuration(self, configuration: Configuration, token: int) -> None:
        """Append what was decided, as the leader. Raises `InvariantViolation` where that may not be."""
        before = self.membership.configuration
        last = self.journal.last_index
        if not self.may_change() or not is_single_step(before, configuration):
            raise InvariantViolation(f"from voters {before} to {configuration} at {last}, in term {self.journal.term}")
        if configuration.voter(self.selfNode.id) is None:
            raise InvariantViolation(f"node {self.selfNode.id} leads and would remove itself")
        self.journal.append(encode_entry(configuration), last + 1, self.__raftCurrentTerm)
        self.__commandsWaitingCommit[last + 1].append((self.__raftCurrentTerm, Waiting(token, self.lost)))
        self._adopt_configuration()

    def may_change(self) -> bool:
        """It leads, an entry of its own term is committed, and so is the latest configuration: one step at a time."""
        return self.leads_and_is_current() and self.membership.index <= self.__raftCommitIndex

    def leads_and_is_current(self) -> bool:
        """It leads, and what was committed before its term is applied here: its first own entry is."""
        return bool(self.__raftState == _RAFT_STATE.LEADER and self.__raftLastApplied >= self.__noopIDx)

    # --- Commands ---

    def propose(self, command: bytes, token: int) -> None:
        """Append a command, if this node leads."""
        if self.__raftState != _RAFT_STATE.LEADER:
            self.lost.append(Lost(token, certain=True))
        else:
            self._has_commands = True
            self._applyCommand(command, Waiting(token, self.lost), _COMMAND_TYPE.REGULAR)

    def _checkCommandsToApply(self) -> None:  # noqa: N802
        """Only a leader's commands go anywhere; forwarding is the node's business."""
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
        """Whether pysyncobj's tick has anything to do. Who leads counts, applies, or beats, and then asks whether it
        still has a majority; who does not campaigns or applies."""
        if self.__raftCommitIndex > self.__raftLastApplied:
            return True
        if self.__raftState == _RAFT_STATE.LEADER:
            return self.may_commit_more or not self.__otherNodes or bool(self._now() > self.__newAppendEntriesTime)
        return bool(self.__raftElectionDeadline < self._now())

    def do_what_is_due(self) -> None:
        """pysyncobj's tick, where there is any need of it."""
        if self.is_due():
            self.may_commit_more = False
            self.doTick(0.0)

    def next_due(self) -> float:
        """When time will."""
        if self.replication is not None:
            return float(self.__newAppendEntriesTime)
        never = self.__raftLeader is None and not self.may_campaign
        return math.inf if never else max(float(self.__raftElectionDeadline), self._pre_votes.next_question_at)

    def __applyLogEntries(self) -> bool:  # noqa: N802
        """Hand out what is committed; whoever applies it cannot fail and go on: an error there stops the node."""
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
        """The bytes that were proposed; empty for what begins a leadership and for a configuration."""
        kind = command[:1]
        if kind not in KINDS:
            raise InvariantViolation(f"an entry of kind {kind!r} is committed")
        return command[1:] if kind == REGULAR else b""

    # --- What must not run here, or would run for nothing ---

    def __dir__(self) -> Iterable[str]:
        """What pysyncobj looks through for replicated methods."""
        return ()

    def __tryLogCompaction(self) -> None:  # noqa: N802
        """The node compacts, when it has a snapshot."""

    def __forbidden(self, *args: object, **kwargs: object) -> Any:
        raise InvariantViolation("pysyncobj does by itself what is overridden here")

    __sendNextNodeIdx = __loadDumpFile = __parseChangeClusterRequest = __forbidden
    __changeCluster = __doChangeCluster = __forbidden
