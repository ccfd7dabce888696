"""The way into this node's engine: urgent proposals first, and each one's outcome back to whoever brought it.

Registrations, fences, elections and ISR changes go before what else waits, so that a burst of topic creations (or, one
day, of offset commits) does not hold up a failover. Both lanes are drained every tick, the second one by a bounded
number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from metadata.commands.cluster import AlterIsr, ElectLeaders, FenceBroker, NoOp, RegisterBroker, UnfenceBroker
from metadata.commands.envelope import Command
from metadata.commands.replicas import RenewLeadership, ReportLoss
from metadata.commands.results import CommandResult
from metadata.raft.engine import Committed, InstalledSnapshot, Lost

from .port import Fate, Outcome

OTHERS_PER_TICK = 500
"""Proposals that are not urgent and enter the log in one tick..."""

OTHERS_BYTES_PER_TICK = 1024 * 1024
"""...and how many bytes they may have, the last one apart."""


def is_urgent(command: Command) -> bool:
    """Whether it goes before what else waits."""
    return isinstance(
        command,
        AlterIsr | ElectLeaders | FenceBroker | UnfenceBroker | RegisterBroker | ReportLoss | RenewLeadership | NoOp,
    )


class Lanes:
    """Two queues in front of one engine, and the outcomes of what went through them."""

    def __init__(self, propose: Callable[[bytes, int], None]) -> None:
        """`propose(command, token)`: the engine's."""
        self._propose = propose
        self._urgent: deque[tuple[bytes, Callable[[Outcome], None]]] = deque()
        self._others: deque[tuple[bytes, Callable[[Outcome], None]]] = deque()
        self._waiting: dict[int, Callable[[Outcome], None]] = {}
        """By token: in the engine."""
        self._next_token = 1

    def __bool__(self) -> bool:
        """Something waits to enter the engine."""
        return bool(self._urgent or self._others)

    def submit(self, envelope: bytes, urgent: bool, done: Callable[[Outcome], None]) -> None:
        """Queue a proposal. `done` is called once, or never where the node stops first."""
        (self._urgent if urgent else self._others).append((envelope, done))

    def drain(self) -> None:
        """Hand over what is due."""
        while self._urgent:
            self._enter(*self._urgent.popleft())
        size = 0
        for _ in range(min(OTHERS_PER_TICK, len(self._others))):
            envelope, done = self._others.popleft()
            self._enter(envelope, done)
            size += len(envelope)
            if size >= OTHERS_BYTES_PER_TICK:
                break

    def _enter(self, envelope: bytes, done: Callable[[Outcome], None]) -> None:
        self._propose(envelope, self.expect(done))

    def expect(self, done: Callable[[Outcome], None]) -> int:
        """A token for what its caller hands to the engine by itself; `done` gets its outcome."""
        token = self._next_token
        self._next_token += 1
        self._waiting[token] = done
        return token

    def lost(self, lost: Lost) -> None:
        """A proposal gets no answer here."""
        detail = "this node does not lead the quorum" if lost.certain else "this node no longer leads the quorum"
        fate = Fate.REFUSED if lost.certain else Fate.UNKNOWN
        self._waiting.pop(lost.token)(Outcome(fate, detail=detail))

    def applied(self, applied: Committed | InstalledSnapshot, result: CommandResult | None) -> None:
        """An entry was applied; if it was proposed here, its proposer hears of it."""
        if isinstance(applied, Committed) and applied.token is not None:
            self._waiting.pop(applied.token)(Outcome(Fate.APPLIED, applied.index, result))
