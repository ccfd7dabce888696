"""pysyncobj's consensus core with everything unsafe in it overridden.

pysyncobj keeps: the election timer and candidacy, counting commits (only entries of the leader's own term count), the
queue of commands and the routing of their callbacks, check-quorum. Ours is what it says to other voters, what it does
with their answers, what it stores, and when it applies.

The class is called `_SyncObj` on purpose: Python mangles `self.__x` in it to `_SyncObj__x`, which is the name of
pysyncobj's own private `__x`. So its state and its private methods are named here as they are named there, and a
method `__x` below overrides pysyncobj's. `pysyncobj_engine.py` refuses to start when any of them is not the source
that this was written against. Subclasses must not be made of this class: the mangling would be lost.

Attributes are set before pysyncobj's constructor, which looks at every attribute of the object; for the same reason
there are no properties here.

What is *not* here: messages' shapes (`quorum_messages.py`), what to send next (`quorum_progress.py`), who may campaign
(`quorum_election.py`), chunks (`quorum_snapshot.py`), bytes on disk (`journal*.py`).
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from typing import Any, Final

from pysyncobj.config import SyncObjConf
from pysyncobj.node import Node
from pysyncobj.syncobj import _COMMAND_TYPE, _RAFT_STATE, SyncObj
from pysyncobj.transport import Transport

from raftlog.config import majority
from raftlog.errors import InvariantViolation, RemoteProtocolError

from . import quorum_messages as messages
from .engine import Committed, InstalledSnapshot, Lost
from .journal import Journal
from .journal_snapshot import Snapshot
from .quorum_election import Patience, PreVotes
from .quorum_follower import Accepted, accept
from .quorum_messages import Append, AppendReply, PreVote, PreVoteReply, RequestVote, SnapshotChunk, SnapshotReply, Vote
from .quorum_replication import Replication
from .quorum_snapshot import IncomingSnapshot

APPLY_MAX = 2048
"""Entries applied in one tick: what is left waits for the next."""

LINK_LOST_HEARTBEATS = 1.5
"""Within so many heartbeat intervals of losing the link to the leader a voter asks for pre-votes."""

REGULAR = bytes([_COMMAND_TYPE.REGULAR])
NO_OP = bytes([_COMMAND_TYPE.NO_OP])


class Waiting:
    """pysyncobj's callback of one proposal: remembers whose it is, and hears of its refusal."""

    __slots__ = ("lost", "token")

    def __init__(self, token: int, lost: list[Lost]) -> None:
        self.token = token
        self.lost = lost

    def __call__(self, result: object, reason: int) -> None:
        """pysyncobj reports that the command was not appended."""
        self.lost.append(Lost(self.token, certain=True))


class _SyncObj(SyncObj):  # type: ignore[misc]
    """One voter. Calls are made while the engine's ports are active."""

    def __init__(
        self,
        node: Node,
        peers: Sequence[Node],
        configuration: SyncObjConf,
        transport: Transport,
        *,
        heartbeat: float,
        journal: Journal,
        snapshot: Snapshot | None,
        save_snapshot: Callable[[Snapshot], None],
        now: Callable[[], float],
    ) -> None:
        self.journal: Final = journal
        self.snapshot = snapshot
        self.applied: list[Committed | InstalledSnapshot] = []
        self.lost: list[Lost] = []
        self.replication: Replication | None = None
        """While this node leads."""
        self._peers: Final[dict[int, Node]] = {peer.id: peer for peer in peers}
        self._transport: Final = transport
        self._now: Final = now
        self._heartbeat: Final = heartbeat
        self._save_snapshot: Final = save_snapshot
        self._patience: Final = Patience(configuration.raftMinTimeout, now())
        self._pre_votes: Final = PreVotes(majority(len(peers) + 1))
        self._incoming: Final = IncomingSnapshot()
        self.distrusted: set[int] = set()
        """Voters that come back without the disk they voted with: they follow, and count nowhere."""
        self._votes: set[int] = set()
        """Who gave this candidate a vote in the current term."""
        super().__init__(node, peers, configuration, transport=transport)
        applied = snapshot.index if snapshot is not None else journal.base_index
        self.__raftCommitIndex: int = applied
        self.__raftLastApplied: int = applied
        if not self._peers:
            self.__raftElectionDeadline: float = now()  # nobody else could lead
        if snapshot is not None:
            self.applied.append(InstalledSnapshot(snapshot.index, snapshot.term, snapshot.state))

    # --- Elections ---

    def __connectedToAnyone(self) -> bool:  # noqa: N802
        """pysyncobj asks this when the election timer ran out, and campaigns on yes: here, on a majority's pre-vote."""
        if not self._peers or self._pre_votes.is_won(self.__raftCurrentTerm):
            self._pre_votes.forget()
            return True
        now = self._now()
        if now >= self._pre_votes.next_question_at:
            self.__raftLeader: Node | None = None
            again_after = self._heartbeat * (0.5 + self._draw() / 2)
            number = self._pre_votes.ask(self.__raftCurrentTerm, now, again_after)
            last_index, last_term = self.journal.last_index, self.journal.last_term
            self._tell_all(PreVote(self.__raftCurrentTerm + 1, number, last_index, last_term))
        return False

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
        )
        self._tell(node, PreVoteReply(self.__raftCurrentTerm, message.round, granted))

    def _on_pre_vote_reply(self, node: Node, message: PreVoteReply) -> None:
        if not self._step_down_if_behind(message.term):
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
        )
        if granted:
            self.__setCurrentTerm(message.term, node.id)
            self._restart_election_timer()
        self._tell(node, Vote(self.__raftCurrentTerm, granted))

    def _on_vote(self, node: Node, message: Vote) -> None:
        if self._step_down_if_behind(message.term) or message.term < self.__raftCurrentTerm:
            return
        if self.__raftState == _RAFT_STATE.CANDIDATE and message.granted:
            self._votes.add(node.id)
            self.__votesCount: int = 1 + len(self._votes)
            if self.__votesCount >= majority(len(self._peers) + 1):
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
        tell = lambda peer, message: self._tell(self._peers[peer], message)  # noqa: E731
        self.replication = Replication(self.__raftCurrentTerm, list(self._peers), self.journal, tell)
        super().__onBecomeLeader()

    # --- Messages ---

    def __onMessageReceived(self, node: Node, message: messages.Message) -> None:  # noqa: N802
        if node.id in self.distrusted and not isinstance(message, AppendReply | SnapshotReply):
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

    def _tell(self, node: Node, message: messages.Message) -> None:
        self._transport.send(node, message)

    def _tell_all(self, message: messages.Message) -> None:
        for peer in self._peers.values():
            self._tell(peer, message)

    # --- Following ---

    def _follow(self, node: Node, term: int) -> None:
        """A leader of the current term, or of a later one, spoke."""
        if term > self.__raftCurrentTerm:
            self.__setCurrentTerm(term, None)
        elif self.__raftState == _RAFT_STATE.LEADER:
            raise InvariantViolation(f"nodes {self.selfNode.id} and {node.id} both lead term {term}")
        self.__setState(_RAFT_STATE.FOLLOWER)
        self.__raftLeader = node
        self._patience.heard(self._now())
        self._pre_votes.forget()
        self._restart_election_timer()

    def _on_append(self, node: Node, message: Append) -> None:
        if message.term < self.__raftCurrentTerm:
            # The stale leader learns the later term from the answer.
            self._tell(node, AppendReply(self.__raftCurrentTerm, False, message.prev_index, message.prev_index))
            return
        for entry in message.entries:
            if entry.command[:1] not in (REGULAR, NO_OP):
                raise RemoteProtocolError(f"an entry of kind {entry.command[0]} is none of ours")
        self._follow(node, message.term)
        answer = accept(self.journal, self.__raftCommitIndex, message)
        if isinstance(answer, Accepted):
            self.__raftCommitIndex = max(self.__raftCommitIndex, min(message.commit_index, answer.index))
            self.__leaderCommitIndex: int = message.commit_index
            self._tell(node, AppendReply(self.__raftCurrentTerm, True, answer.index, 0))
        else:
            self._tell(node, AppendReply(self.__raftCurrentTerm, False, message.prev_index, answer.hint))

    def _on_snapshot_chunk(self, node: Node, message: SnapshotChunk) -> None:
        if message.term < self.__raftCurrentTerm:
            self._tell(node, SnapshotReply(self.__raftCurrentTerm, message.index, 0, False))
            return
        self._follow(node, message.term)
        if message.index > self.__raftCommitIndex:
            snapshot = self._incoming.on_chunk(message)
            if snapshot is not None:
                self._install(snapshot)
        installed = message.index <= self.__raftCommitIndex
        held = message.size if installed else self._incoming.held_bytes
        self._tell(node, SnapshotReply(self.__raftCurrentTerm, message.index, held, installed))

    def _install(self, snapshot: Snapshot) -> None:
        """The leader's snapshot is whole: the state machine begins again from it. A log that has the snapshot's last
        entry keeps what follows; any other log has nothing that was committed beyond it."""
        self.journal.sync()  # the term first: no snapshot on disk is of a term that the journal does not know
        self._save_snapshot(snapshot)
        if self.journal.term_at(snapshot.index) != snapshot.term:
            self.journal.reset(snapshot.index, snapshot.term)
        self.snapshot = snapshot
        self.__raftCommitIndex = self.__raftLastApplied = snapshot.index
        self.applied.append(InstalledSnapshot(snapshot.index, snapshot.term, snapshot.state))

    # --- Leading ---

    def _on_append_reply(self, node: Node, message: AppendReply) -> None:
        if self._is_answer(message.term) and self.replication is not None:
            self._count(node, self.replication.on_append_reply(node.id, message))

    def _on_snapshot_reply(self, node: Node, message: SnapshotReply) -> None:
        if self._is_answer(message.term) and self.replication is not None:
            self._count(node, self.replication.on_snapshot_reply(node.id, message))

    def distrust(self, node: Node, distrusted: bool) -> None:
        """Whether the voter is on another disk than it votes with. What it acknowledged on one, the other may lack."""
        changed = distrusted or node.id in self.distrusted
        (self.distrusted.add if distrusted else self.distrusted.discard)(node.id)
        if changed and self.replication is not None:
            self.replication.forget(node.id)
            self.__raftMatchIndex[node] = 0

    def _count(self, node: Node, match: int) -> None:
        """What pysyncobj counts commits and its own quorum by."""
        if node.id not in self.distrusted:
            self.__raftMatchIndex[node] = match
            self.__lastResponseTime[node] = self._now()

    def _is_answer(self, term: int) -> bool:
        """Of exactly this term; a later one ends the leadership, an earlier one counts nothing."""
        behind = self._step_down_if_behind(term)
        return not behind and term == self.__raftCurrentTerm

    def __sendAppendEntries(self) -> None:  # noqa: N802
        """pysyncobj's periodic broadcast: the heartbeat."""
        self.__newAppendEntriesTime = self._now() + self._heartbeat
        self.replicate(heartbeat=True)

    def replicate(self, *, heartbeat: bool = False) -> None:
        """Send what was appended or committed since."""
        if self.replication is not None:
            self.replication.send(self.__raftCommitIndex, self.snapshot, heartbeat=heartbeat)

    def __onNodeDisconnected(self, node: Node) -> None:  # noqa: N802
        super().__onNodeDisconnected(node)
        if self.replication is not None:
            self.replication.on_link_lost(node.id)
        elif node == self.__raftLeader:
            self._patience.ends()
            soon = self._now() + self._draw() * LINK_LOST_HEARTBEATS * self._heartbeat
            self.__raftElectionDeadline = min(self.__raftElectionDeadline, soon)

    def leads_and_is_current(self) -> bool:
        """It leads, and what was committed before its term is applied here: its first own entry is."""
        return bool(self.__raftState == _RAFT_STATE.LEADER and self.__raftLastApplied >= self.__noopIDx)

    # --- Commands ---

    def propose(self, command: bytes, token: int) -> None:
        """Append a command, if this node leads."""
        if self.__raftState != _RAFT_STATE.LEADER:
            self.lost.append(Lost(token, certain=True))
        else:
            self._applyCommand(command, Waiting(token, self.lost), _COMMAND_TYPE.REGULAR)

    def _checkCommandsToApply(self) -> None:  # noqa: N802
        """Only a leader's commands go anywhere; forwarding is the node's business."""
        if self.__raftState == _RAFT_STATE.LEADER:
            super()._checkCommandsToApply()
            return
        while True:
            try:
                _, waiting = self.__commandsQueue.get_nowait()
            except queue.Empty:
                return
            waiting(None, 0)

    def __applyLogEntries(self) -> bool:  # noqa: N802
        """Hand out what is committed; whoever applies it cannot fail and go on: an error there stops the node."""
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
        """The bytes that were proposed; empty for the entry that begins a leadership."""
        kind = command[:1]
        if kind not in (REGULAR, NO_OP):
            raise InvariantViolation(f"an entry of kind {kind!r} is committed")
        return command[1:] if kind == REGULAR else b""

    # --- What pysyncobj would do besides, and must not ---

    def __tryLogCompaction(self) -> None:  # noqa: N802
        """The node compacts, when it has a snapshot."""

    def __forbidden(self, *args: object, **kwargs: object) -> Any:
        raise InvariantViolation("pysyncobj does by itself what is overridden here")

    __sendNextNodeIdx = __loadDumpFile = __parseChangeClusterRequest = __forbidden
    __changeCluster = __doChangeCluster = __forbidden
