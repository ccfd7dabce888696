"""The requests of a node that change nothing: read barriers, and the leader's view of the quorum.

Barriers requested together share one log entry. A barrier that is requested while an entry is in flight gets the next
one, because the entry's position must be after the request. For the same reason an entry answers only the barriers
that were requested before it was proposed, however late its outcome arrives.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from raftlog.model import QuorumStatus

from .port import Fate, Outcome
from .proposals import Done


class Barriers:
    """The linearizable reads of this node that wait for their index."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._under_way)

    def __init__(self, propose: Callable[[float, Done], None]) -> None:
        """`propose(deadline, done)` proposes a `NoOp`."""
        self._propose = propose
        self._waiting: list[tuple[float, Done]] = []
        self._under_way: list[tuple[float, Done]] = []
        self.next_due = math.inf
        """When `pump` has something to do even without any input."""

    def ask(self, deadline: float, done: Done) -> None:
        """Request a barrier; `done` is called once, by the deadline."""
        self._waiting.append((deadline, done))
        self.next_due = -math.inf

    def pump(self, now: float) -> None:
        """Propose the next entry, and end the requests that are past their deadline."""
        if now < self.next_due:
            return
        for queue in (self._waiting, self._under_way):
            overdue = [done for deadline, done in queue if now >= deadline]
            queue[:] = [waiter for waiter in queue if now < waiter[0]]
            for done in overdue:
                done(Outcome(Fate.UNKNOWN, detail="the quorum did not answer in time"))
        if self._waiting and not self._under_way:
            self._under_way, self._waiting = self._waiting, []
            askers = self._under_way
            self._propose(max(deadline for deadline, _ in askers), lambda outcome: self._answer(askers, outcome))
        self.next_due = min((deadline for deadline, _ in (*self._waiting, *self._under_way)), default=math.inf)

    def _answer(self, askers: list[tuple[float, Done]], outcome: Outcome) -> None:
        if askers is self._under_way:
            self._under_way = []
            self.next_due = -math.inf
        for _, done in askers:
            done(outcome)

    def close(self) -> None:
        """End all requests: the node stops."""
        self.pump(float("inf"))


class StatusQuestions:
    """The status requests to the leader, each answered once: by the leader, or by this node instead."""

    def __init__(self, first_id: int) -> None:
        self._next_id = first_id
        self._waiting: dict[int, tuple[float, Callable[[QuorumStatus], None]]] = {}

    def __bool__(self) -> bool:
        """Return whether any request is unanswered."""
        return bool(self._waiting)

    def ask(self, deadline: float, done: Callable[[QuorumStatus], None]) -> int:
        """Register a request and return its id."""
        self._next_id += 1
        self._waiting[self._next_id] = (deadline, done)
        return self._next_id

    def answer(self, request_id: int, status: QuorumStatus) -> None:
        """Answer a request with the leader's status."""
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None:
            waiting[1](status)

    def end_overdue(self, now: float, own: Callable[[], QuorumStatus]) -> None:
        """Answer the requests that are past their deadline with this node's own status."""
        if not self._waiting:
            return
        for request_id, (deadline, _) in list(self._waiting.items()):
            if now >= deadline:
                self.answer(request_id, own())
