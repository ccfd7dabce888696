"""Pre-votes and the leader lease of followers.

When a voter's election timer expires, it first asks whether the others *would* vote for it. It raises its term only
if it is granted as many pre-votes as it needs votes. A voter grants one only if it has not heard from a leader for
the shortest election timeout (a voter that just started counts from its start), and a leader that still has its
majority refuses. A node that is partly cut off, or returns, therefore never raises the term of a healthy cluster.

The lease ends early when the link to the leader breaks, as it does when the leader's process dies: the others then
need not wait for a timer. A voter that lost only its own link is refused by those that did not.

The same lease is checked against real vote requests (Raft dissertation, 4.2.3), which may have been in flight for a
long time.
"""

from __future__ import annotations

import msgspec

from .messages import PreVoteReply


class Patience(msgspec.Struct):
    """The time of the last message from a leader."""

    election_timeout_min: float
    """The shortest election timeout in seconds."""
    last_word: float
    """The time of the last message from a leader; initially, the start of the node."""

    def heard(self, now: float) -> None:
        """Record a message from the current term's leader."""
        self.last_word = now

    def ends(self) -> None:
        """End the lease: the leader cannot be reached, so there is nothing to wait for."""
        self.last_word = float("-inf")

    def lasts(self, now: float) -> bool:
        """Return whether the leader may still be up, so that no other node gets a vote."""
        return now < self.last_word + self.election_timeout_min


class PreVotes(msgspec.Struct):
    """This voter's own request for pre-votes, repeated until it is granted or a leader's message arrives."""

    needed: int
    """The number of votes that make a leader, including this voter's own."""
    round: int = 0
    """The number of the request; answers to earlier ones are ignored."""
    asked_term: int = -1
    next_question_at: float = 0.0
    _granted: set[int] = set()

    def is_won(self, term: int) -> bool:
        """Return whether enough voters, including this one, would vote for it in `term + 1`."""
        return self.asked_term == term + 1 and len(self._granted) + 1 >= self.needed

    def ask(self, term: int, now: float, again_after: float) -> int:
        """Start the next request; returns its round."""
        self.round += 1
        self.asked_term = term + 1
        self.next_question_at = now + again_after
        self._granted.clear()
        return self.round

    def on_reply(self, voter: int, reply: PreVoteReply) -> None:
        """Count a pre-vote granted for the present request."""
        if reply.granted and reply.round == self.round and self.asked_term >= 0:
            self._granted.add(voter)

    def forget(self) -> None:
        """Discard all pre-votes: a leader's message arrived, or a term began."""
        self.asked_term = -1
        self.next_question_at = 0.0
        self._granted.clear()
