"""A node's own proposals: sent to the leader wherever it is, retried where that is safe, until their outcome is
known.

A proposal waits until a leader is known and reachable, is passed to the engine or sent to the leader, and ends when
the state machine's answer arrives. If an attempt is lost (the leader changed, a link broke, no answer came), the same
bytes are sent again: they carry a session, by which the state machine gives a retry its first answer, or are harmless
to repeat. At its deadline a proposal ends as *refused* if no attempt can have reached a log, and otherwise as
*unknown*; never as failed.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from metadata.commands.envelope import decode_result
from metadata.commands.results import Refused
from raftlog.errors import RemoteProtocolError
from raftlog.model import NO_BROKER, BrokerId

from .limits import QuorumLimits
from .port import Fate, Outcome
from .protocol import Propose, Proposed

Done: TypeAlias = Callable[[Outcome], None]

ANSWER_AFTER = 1.0
"""Seconds after which an unanswered forwarded proposal is sent again."""

RETRY_AFTER = 0.02
"""Seconds before a refused or lost proposal is retried: leaders do not change faster."""

LOOKED_AT_MAX = 1_000
"""The most proposals processed in one call: all are due again when the leader changes, and there may be ten
thousand."""


class _Pending(msgspec.Struct):
    envelope: bytes
    urgent: bool
    deadline: float
    done: Done
    where: BrokerId = NO_BROKER
    """The node that has it and has not answered; `NO_BROKER` while it waits here."""
    due: float = 0.0
    """When to send it, or send it again."""
    perhaps: bool = False
    """Whether an attempt may have reached a log."""
    detail: str = "no leader of the quorum is known or reachable"


class Proposals:
    """The proposals of one node. Every `done` is called exactly once, from `pump` or `finish`."""

    def __init__(
        self,
        node_id: BrokerId,
        first_id: int,
        submit: Callable[[bytes, bool, Done], None],
        send: Callable[[BrokerId, Propose], None],
    ) -> None:
        """`first_id` is the first request id. `submit(envelope, urgent, done)` passes a proposal to this node's
        engine, `send` to a peer."""
        self._node_id = node_id
        self._submit = submit
        self._send = send
        self._pending: dict[int, _Pending] = {}
        self._fresh: list[int] = []
        """The ids that were not processed yet."""
        self._due: list[tuple[float, int]] = []
        """A heap of (due time, request id); obsolete entries are detected when they come up."""
        self._way: tuple[BrokerId, bool] = (NO_BROKER, False)
        """The leader, and whether it was reachable, at the last `pump`."""
        self._next_id = first_id
        self._sequences: OrderedDict[int, int] = OrderedDict()
        """Request id → session sequence, of the proposals that have one, oldest first."""
        self.size_bytes = 0
        """The total size of all envelopes in bytes."""
        self._ended: list[tuple[Done, Outcome]] = []

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def oldest_sequence(self) -> int | None:
        """The first undecided sequence of this node's session, or None if all are decided."""
        return next(iter(self._sequences.values()), None)

    def have_room(self, size: int, sequence: int | None, limits: QuorumLimits, *, urgent: bool) -> bool:
        """Return whether another proposal fits, within the limits of the queue and of the distinguishable session
        sequences."""
        if sequence is not None and sequence - (self.oldest_sequence or sequence) >= limits.span_max:
            return False
        return limits.have_room(len(self._pending), self.size_bytes + size, urgent=urgent)

    def add(self, envelope: bytes, *, urgent: bool, deadline: float, done: Done, sequence: int | None = None) -> None:
        """Start a proposal; `sequence` is its session's, if it has one."""
        self.size_bytes += len(envelope)
        if sequence is not None:
            self._sequences[self._next_id] = sequence
        self._pending[self._next_id] = _Pending(envelope, urgent, deadline, done)
        self._fresh.append(self._next_id)
        heapq.heappush(self._due, (deadline, self._next_id))
        self._next_id += 1

    def refuse(self, done: Done, detail: str) -> None:
        """Refuse a proposal that was not started."""
        self._ended.append((done, Outcome(Fate.REFUSED, detail=detail)))

    @property
    def next_due(self) -> float:
        """When `pump` has something to do even without any input."""
        if self._fresh or self._ended:
            return -math.inf
        return self._due[0][0] if self._due else math.inf

    @property
    def hurries(self) -> bool:
        """Whether `pump` left something that is due already."""
        return bool(self._fresh)

    def pump(self, now: float, leader: BrokerId, reachable: bool) -> None:
        """Send the proposals that are due, and end those past their deadline. `reachable`: whether this node can send
        to the leader."""
        fresh, self._fresh = self._fresh, []
        if self._way != (leader, reachable):
            # Waiting proposals may be sent now, and those at another leader are lost.
            self._way = (leader, reachable)
            fresh = list(self._pending)
        while self._due and self._due[0][0] <= now:
            fresh.append(heapq.heappop(self._due)[1])
        if len(fresh) > LOOKED_AT_MAX:
            fresh, self._fresh = fresh[:LOOKED_AT_MAX], fresh[LOOKED_AT_MAX:]
        for request_id in fresh:
            pending = self._pending.get(request_id)
            if pending is not None:
                self._look_at(request_id, pending, now, leader, reachable)

    def _look_at(self, request_id: int, pending: _Pending, now: float, leader: BrokerId, reachable: bool) -> None:
        if now >= pending.deadline:
            self._expire(request_id, pending)
            return
        lost = pending.where not in (NO_BROKER, leader) or (pending.where == leader and not reachable)
        unanswered = pending.where not in (NO_BROKER, self._node_id) and now >= pending.due
        if pending.where != self._node_id and (lost or unanswered):
            pending.where = NO_BROKER
            pending.due = now
        if pending.where == NO_BROKER and now >= pending.due and leader != NO_BROKER and reachable:
            self._try(request_id, pending, now, leader)

    def _try(self, request_id: int, pending: _Pending, now: float, leader: BrokerId) -> None:
        pending.where = leader
        if leader == self._node_id:
            self._submit(pending.envelope, pending.urgent, lambda outcome: self._answered(request_id, outcome, now))
        else:
            pending.perhaps = True
            self._look_again(request_id, pending, now + ANSWER_AFTER)
            self._send(leader, Propose(request_id, pending.envelope, pending.urgent))

    def on_proposed(self, peer: BrokerId, answer: Proposed, now: float) -> None:
        """Process a peer's answer. Raises `RemoteProtocolError` for an invalid one."""
        pending = self._pending.get(answer.request_id)
        fate = Fate(answer.fate)
        if fate is Fate.APPLIED:
            result = decode_result(answer.result)
            if answer.index < 0:
                raise RemoteProtocolError("an applied proposal has no index")
            self._answered(answer.request_id, Outcome(fate, answer.index, result), now)
        elif pending is not None and pending.where == peer:
            self._answered(answer.request_id, Outcome(fate, detail=answer.detail), now)

    def _answered(self, request_id: int, outcome: Outcome, now: float) -> None:
        pending = self._pending.get(request_id)
        if pending is None:
            return
        if outcome.fate is Fate.APPLIED:
            self._remove(request_id)
            self._ended.append((pending.done, _as_known(outcome)))
            return
        pending.perhaps = pending.perhaps or outcome.fate is Fate.UNKNOWN
        pending.where = NO_BROKER
        self._look_again(request_id, pending, now + RETRY_AFTER)
        pending.detail = outcome.detail or pending.detail

    def _remove(self, request_id: int) -> None:
        self.size_bytes -= len(self._pending.pop(request_id).envelope)
        self._sequences.pop(request_id, None)

    def _look_again(self, request_id: int, pending: _Pending, due: float) -> None:
        pending.due = due
        heapq.heappush(self._due, (due, request_id))

    def _expire(self, request_id: int, pending: _Pending) -> None:
        self._remove(request_id)
        may_be = pending.perhaps or pending.where == self._node_id
        fate = Fate.UNKNOWN if may_be else Fate.REFUSED
        self._ended.append((pending.done, Outcome(fate, detail=f"no outcome in time: {pending.detail}")))

    def finish(self) -> None:
        """Call the callbacks of the proposals that ended."""
        while self._ended:
            ended, self._ended = self._ended, []
            for done, outcome in ended:
                done(outcome)

    def close(self) -> None:
        """End all proposals: the node stops, and no further outcome will be known."""
        for request_id, pending in list(self._pending.items()):
            pending.detail = "the node stops"
            self._expire(request_id, pending)
        self.finish()


def _as_known(outcome: Outcome) -> Outcome:
    """Return the outcome, as unknown if the state machine no longer knows whether a late retry was carried out."""
    result = outcome.result
    if isinstance(result, Refused) and result.code == "outcome_unknown":
        return Outcome(Fate.UNKNOWN, detail=result.detail)
    return outcome
