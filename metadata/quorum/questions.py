"""What a node asks without changing anything: read barriers, and the leader's view of the quorum.

Barriers that are asked for together share one entry of the log: those who wait while one is under way get the next,
since its place in the log must be after their question. For the same reason an entry answers only those who asked
before it was proposed, however late its outcome comes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from raftlog.model import QuorumStatus

from .port import Fate, Outcome
from .proposals import Done


class Barriers:
    """Linearizable reads of this node that wait for their index."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._under_way)

    def __init__(self, propose: Callable[[float, Done], None]) -> None:
        """`propose(deadline, done)` brings a `NoOp` to the log."""
        self._propose = propose
        self._waiting: list[tuple[float, Done]] = []
        self._under_way: list[tuple[float, Done]] = []
        self.next_due = math.inf
        """When `pump` has something to do without any news."""

    def ask(self, deadline: float, done: Done) -> None:
        """`done` is called once, by the deadline."""
        self._waiting.append((deadline, done))
        self.next_due = -math.inf

    def pump(self, now: float) -> None:
        """Begin the next entry, and end what waited too long."""
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
        """The node stops."""
        self.pump(float("inf"))


class StatusQuestions:
    """Questions to the leader about the quorum, each answered once: by the leader, or by this node in its place."""

    def __init__(self, first_id: int) -> None:
        self._next_id = first_id
        self._waiting: dict[int, tuple[float, Callable[[QuorumStatus], None]]] = {}

    def __bool__(self) -> bool:
        """Some are not answered."""
        return bool(self._waiting)

    def ask(self, deadline: float, done: Callable[[QuorumStatus], None]) -> int:
        """Returns the question's id."""
        self._next_id += 1
        self._waiting[self._next_id] = (deadline, done)
        return self._next_id

    def answer(self, request_id: int, status: QuorumStatus) -> None:
        """The leader says."""
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None:
            waiting[1](status)

    def end_overdue(self, now: float, own: Callable[[], QuorumStatus]) -> None:
        """Answer what waited too long with what this node knows."""
        if not self._waiting:
            return
        for request_id, (deadline, _) in list(self._waiting.items()):
            if now >= deadline:
                self.answer(request_id, own())
