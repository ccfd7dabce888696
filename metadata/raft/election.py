"""Who may campaign, and who may be deposed: pre-votes, a leader's lease on its followers' patience, votes as a set.

A voter whose election timer ran out asks first: *would* you vote for me? Only as many yeses as it needs votes let it
raise its term. A voter says yes only if it has not heard of a leader for the shortest election timeout (a voter that
just started counts its start as such a word), and a leader that still has its majority says no. So a node that is
partly cut off, or comes back, never raises the term of a healthy cluster.

Patience ends early when the link to the leader breaks, as it does when its process dies: the others need not sit out
a timer then. Whoever has lost only its own link is told no by those who have not.

The same patience holds against the real request for votes (Raft dissertation, 4.2.3), which may have been on its way
for long.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .messages import PreVoteReply


@dataclass(slots=True)
class Patience:
    """When this voter last had word of a leader."""

    election_timeout_min: float
    """Seconds."""
    last_word: float
    """When it started, at first."""

    def heard(self, now: float) -> None:
        """A message of the current term's leader came."""
        self.last_word = now

    def ends(self) -> None:
        """The leader cannot be reached any more: there is nothing to wait for."""
        self.last_word = float("-inf")

    def lasts(self, now: float) -> bool:
        """The leader may still be there: nobody else gets a vote."""
        return now < self.last_word + self.election_timeout_min


@dataclass(slots=True)
class PreVotes:
    """This voter's own question, asked again and again until it is answered or a leader is heard."""

    needed: int
    """So many votes, its own among them, make a leader."""
    round: int = 0
    """Number of the question; an answer to an earlier one counts nothing."""
    asked_term: int = -1
    next_question_at: float = 0.0
    _granted: set[int] = field(default_factory=set)

    def is_won(self, term: int) -> bool:
        """Enough voters, this one among them, would vote for it in `term + 1`."""
        return self.asked_term == term + 1 and len(self._granted) + 1 >= self.needed

    def ask(self, term: int, now: float, again_after: float) -> int:
        """Begin the next question; returns its round."""
        self.round += 1
        self.asked_term = term + 1
        self.next_question_at = now + again_after
        self._granted.clear()
        return self.round

    def on_reply(self, voter: int, reply: PreVoteReply) -> None:
        """Count a yes to the present question."""
        if reply.granted and reply.round == self.round and self.asked_term >= 0:
            self._granted.add(voter)

    def forget(self) -> None:
        """A leader was heard, or a term began: nothing asked before counts."""
        self.asked_term = -1
        self.next_question_at = 0.0
        self._granted.clear()
