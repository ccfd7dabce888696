"""Requests to change the voters: sent to the leader wherever it is, retried where that is safe, until their outcome
is known.

`VoterChanges` keeps the requests of this node. A request waits until a leader is known and reachable, and is sent to
it. If that leader resigns or an attempt is lost, the request is retried. Repeating a step is harmless: a voter is
added once, with one disk, and a removed one is not there any more. But a retry may be answered that the change is in
effect already, which after an unanswered attempt means that it was done. Each attempt has an id of its own: an answer
that the step was done counts for any attempt, a refusal only for the last one.

`VoterChangeQueue` is the leader's side: it decides (`metadata/voters/changes.py`), appends, and answers when the step
is committed. It also pins the disks of voters that no configuration names yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from metadata.raft.engine import Engine
from metadata.voters.changes import (
    Action,
    AskAgain,
    ChangeRefused,
    NextConfiguration,
    ResignFirst,
    Unchanged,
    VoterChange,
    decide,
    decide_pin,
)
from raftlog.model import NO_BROKER, BrokerId

from .lanes import Lanes
from .port import Fate, Outcome
from .protocol import ChangeVoters, VotersChanged

REQUESTS_MAX = 64
"""The most undecided requests of one node, or of all peers at this node: people make them."""

ASKED_AGAIN_AFTER = 2.0
"""Seconds after which an unanswered request is retried."""

RETRY_AFTER = 0.1
"""Seconds before a lost request is retried, and between two attempts to pin disks."""

EndOutcome = Callable[[VotersChanged], None]


class _Request(msgspec.Struct, eq=False):
    change: VoterChange
    plan: bool
    deadline: float
    done: EndOutcome
    attempts: list[int] = []
    """The ids of its attempts: few, since each waits for an answer, a pause, or another leader."""
    where: BrokerId = NO_BROKER
    """The leader that has the last attempt and has not answered."""
    due: float = float("-inf")
    perhaps: bool = False
    """Whether an unanswered attempt may have carried out the change."""
    detail: str = "no leader of the quorum is known or reachable"


class VoterChanges:
    """The requests of one node. Every `done` is called exactly once."""

    def __init__(self, first_id: int, ask: Callable[[BrokerId, ChangeVoters, EndOutcome], None]) -> None:
        """`ask(leader, request, told)` sends a request to the leader, which may be this node.

        If this node leads, `told` is called; other leaders' answers come through `on_answer`.
        """
        self._next_id = first_id
        self._ask = ask
        self._now = 0.0
        self._waiting: list[_Request] = []
        self._asked: dict[int, _Request] = {}
        """The request of each attempt, by the attempt's id."""
        self.next_due = math.inf
        """When `pump` has something to do even without any input."""

    def add(self, change: VoterChange, *, plan: bool, deadline: float, done: EndOutcome) -> None:
        """Start a request."""
        if len(self._waiting) >= REQUESTS_MAX:
            done(_refused(self._next_id, "overloaded", "too many changes of the quorum are undecided: retry later"))
        else:
            self._waiting.append(_Request(change, plan, deadline, done))
            self.next_due = -math.inf

    def pump(self, now: float, leader: BrokerId, reachable: bool) -> None:
        """Send the requests that are due, and end those past their deadline."""
        self._now = now
        for request in list(self._waiting):
            if now >= request.deadline:
                self._expire(request)
                continue
            if request.where != NO_BROKER and (request.where != leader or not reachable or now >= request.due):
                request.where = NO_BROKER
                request.perhaps = True
                request.due = now
            if request.where == NO_BROKER and now >= request.due and leader != NO_BROKER and reachable:
                self._attempt(request, leader)
        # A request that is due but was not sent waits for a leader; the change of leader triggers the next `pump`.
        dates = ((its.deadline, its.due if its.due > now else math.inf) for its in self._waiting)
        self.next_due = min(map(min, dates), default=math.inf)

    def _attempt(self, request: _Request, leader: BrokerId) -> None:
        self._next_id += 1
        request.attempts.append(self._next_id)
        self._asked[self._next_id] = request
        request.where = leader
        request.due = self._now + ASKED_AGAIN_AFTER
        change = request.change
        asked = ChangeVoters(self._next_id, change.action.value, change.node_id, request.plan)
        self._ask(leader, asked, self.on_answer)

    def on_answer(self, answer: VotersChanged) -> None:
        """Process a leader's answer."""
        request = self._asked.get(answer.request_id)
        if request is None:
            return
        is_last = answer.request_id == request.attempts[-1]
        if answer.verdict in ("again", "unknown"):
            request.perhaps = request.perhaps or answer.verdict == "unknown"
            request.detail = answer.detail or request.detail
            if is_last:
                request.where = NO_BROKER
                request.due = self._now + RETRY_AFTER
                self.next_due = -math.inf
            return
        if answer.verdict == "refused" and not is_last:
            return  # by an earlier leader; a later attempt may have carried it out
        if answer.code == "not_a_voter" and request.perhaps:
            answer = replace(answer, verdict="applied", code="")
        self._end(request, answer)

    def _end(self, request: _Request, answer: VotersChanged) -> None:
        self._waiting.remove(request)
        for attempt in request.attempts:
            del self._asked[attempt]
        request.done(answer)

    def _expire(self, request: _Request) -> None:
        may_be = not request.plan and (request.perhaps or request.where != NO_BROKER)
        code = "outcome_unknown" if may_be else "quorum_unavailable"
        self._end(request, _refused(self._next_id, code, f"no outcome in time: {request.detail}"))

    def close(self) -> None:
        """End all requests: the node stops."""
        for request in list(self._waiting):
            request.detail = "the node stops"
            self._expire(request)


class VoterChangeQueue:
    """The leader's side of voter changes; idle on every other node."""

    def __init__(self, engine: Engine, lanes: Lanes) -> None:
        self._engine = engine
        self._lanes = lanes
        self._open = 0
        """The number of appended steps that are not decided yet."""
        self._pinned_at = float("-inf")

    def answer(self, asked: ChangeVoters, told: EndOutcome) -> None:
        """Decide a request; `told` is called once, now or when the step is decided."""
        if not self._engine.is_leader:
            told(VotersChanged(asked.request_id, "again", detail="the receiving node does not lead the quorum"))
            return
        if self._open >= REQUESTS_MAX:
            told(_refused(asked.request_id, "overloaded", "too many changes of the quorum are undecided: retry later"))
            return
        facts = self._engine.facts()
        before = facts.configuration.node_ids
        match decide(facts, VoterChange(Action(asked.action), asked.node_id)):
            case AskAgain(detail):
                told(VotersChanged(asked.request_id, "again", detail=detail[:1024]))
            case ChangeRefused(code, detail):
                told(_refused(asked.request_id, code, detail, before))
            case Unchanged():
                told(VotersChanged(asked.request_id, "applied", -1, before, before))
            case NextConfiguration(next_one) | ResignFirst(next_one) if asked.plan:
                told(VotersChanged(asked.request_id, "planned", -1, before, next_one.node_ids))
            case ResignFirst():
                self._engine.resign()
                told(VotersChanged(asked.request_id, "again", detail=f"node {asked.node_id} led and has resigned"))
            case NextConfiguration(next_one):
                self._open += 1
                settled = self._settled(VotersChanged(asked.request_id, "applied", -1, before, next_one.node_ids), told)
                self._engine.append_configuration(next_one, self._lanes.expect(settled))

    def _settled(self, answer: VotersChanged, told: EndOutcome) -> Callable[[Outcome], None]:
        def settled(outcome: Outcome) -> None:
            self._open -= 1
            if outcome.fate is Fate.APPLIED:
                told(replace(answer, index=outcome.index))
            else:
                verdict = "again" if outcome.fate is Fate.REFUSED else "unknown"
                told(VotersChanged(answer.request_id, verdict, detail=outcome.detail))

        return settled

    def pin(self, now: float) -> None:
        """Append a configuration that names the disks of voters which this leader has met, if that is allowed now."""
        if not self._engine.is_leader or now < self._pinned_at + RETRY_AFTER:
            return
        self._pinned_at = now
        if self._engine.configuration.is_pinned:
            return
        configuration = decide_pin(self._engine.facts())
        if configuration is not None:
            # If it is lost with the leadership, the next leader appends it again.
            self._engine.append_configuration(configuration, self._lanes.expect(lambda outcome: None))


def _refused(request_id: int, code: str, detail: str, before: tuple[BrokerId, ...] = ()) -> VotersChanged:
    return VotersChanged(request_id, "refused", -1, before, before, code, detail[:1024])
