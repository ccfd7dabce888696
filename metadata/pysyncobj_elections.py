"""pysyncobj's elections with what is unsafe in them overridden: who campaigns, who gets a vote, when to step down.

pysyncobj keeps the timer and the candidacy. Before it, a voter asks for pre-votes (`quorum_election.py`); a node that
its own log does not name as a voter never campaigns, and a vote counts only from whom the log names
(`quorum_membership.py`). A node that forgot what it had promised neither campaigns nor votes (S9).

A leader that is to go resigns: it tells the voters, who then need not sit out a timer, and stays away from that
election.

The class has pysyncobj's name, so that its private names are pysyncobj's (see `pysyncobj_core.py`, which makes it
whole). What is *not* here: the log.
"""

from __future__ import annotations

from collections.abc import Callable

from pysyncobj.node import Node
from pysyncobj.syncobj import _RAFT_STATE
from pysyncobj.transport import Transport

from raftlog.errors import InvariantViolation, RemoteProtocolError

from . import pysyncobj_stripped
from . import quorum_messages as messages
from .journal import Journal
from .pysyncobj_outbox import node_of
from .quorum_election import Patience, PreVotes
from .quorum_forgotten import Forgotten
from .quorum_membership import Membership
from .quorum_messages import PreVote, PreVoteReply, RequestVote, Resign, Vote
from .quorum_snapshot import IncomingSnapshot

RESIGNED_ELECTIONS = 2.0
"""So many of the longest election timeouts a leader that resigned does not campaign."""

LINK_LOST_HEARTBEATS = 1.5
"""Within so many heartbeat intervals of losing the link to the leader a voter asks for pre-votes."""


class _SyncObj(pysyncobj_stripped._SyncObj):
    """The part of a node that elects."""

    journal: Journal
    membership: Membership
    _transport: Transport
    _now: Callable[[], float]
    _heartbeat: float
    _patience: Patience
    _pre_votes: PreVotes
    _incoming: IncomingSnapshot
    _votes: set[int]
    _forgotten: Forgotten

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
            last_index, last_term = self.journal.last_index, self.journal.last_term
            claim = self.membership.claim
            self._tell_all(PreVote(self.__raftCurrentTerm + 1, number, last_index, last_term, claim))
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
