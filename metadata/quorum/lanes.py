"""The entrance to this node's engine: urgent proposals first, and the outcome of each back to its proposer.

Registrations, fences, elections and ISR changes go before all other waiting proposals, so that a burst of topic
creations or offset commits does not delay a failover. Both lanes are drained in every tick, the second one up to a
bound.
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
"""The most non-urgent proposals that enter the log in one tick..."""

OTHERS_BYTES_PER_TICK = 1024 * 1024
"""...and the bytes after which no other one does."""


def is_urgent(command: Command) -> bool:
    """Return whether the command goes before other waiting proposals."""
    return isinstance(
        command,
        AlterIsr | ElectLeaders | FenceBroker | UnfenceBroker | RegisterBroker | ReportLoss | RenewLeadership | NoOp,
    )


class Lanes:
    """The two queues in front of one engine, and the callbacks of the proposals that went through them."""

    def __init__(self, propose: Callable[[bytes, int], None]) -> None:
        """`propose(command, token)` is the engine's."""
        self._propose = propose
        self._urgent: deque[tuple[bytes, Callable[[Outcome], None]]] = deque()
        self._others: deque[tuple[bytes, Callable[[Outcome], None]]] = deque()
        self._waiting: dict[int, Callable[[Outcome], None]] = {}
        """Token → callback of each proposal in the engine."""
        self._next_token = 1

    @property
    def waiting(self) -> int:
        """The number of proposals handed to the engine that have no outcome yet."""
        return len(self._waiting)

    def __bool__(self) -> bool:
        """Return whether any proposal waits to enter the engine."""
        return bool(self._urgent or self._others)

    def submit(self, envelope: bytes, urgent: bool, done: Callable[[Outcome], None]) -> None:
        """Queue a proposal. `done` is called once, or never if the node stops first."""
        (self._urgent if urgent else self._others).append((envelope, done))

    def drain(self) -> None:
        """Pass the queued proposals to the engine, within the bounds of a tick."""
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
        """Return a token for an entry that the caller passes to the engine itself; `done` gets its outcome."""
        token = self._next_token
        self._next_token += 1
        self._waiting[token] = done
        return token

    def lost(self, lost: Lost) -> None:
        """End a proposal that will not be decided here."""
        detail = "this node does not lead the quorum" if lost.certain else "this node no longer leads the quorum"
        fate = Fate.REFUSED if lost.certain else Fate.UNKNOWN
        self._waiting.pop(lost.token)(Outcome(fate, detail=detail))

    def applied(self, applied: Committed | InstalledSnapshot, result: CommandResult | None) -> None:
        """Notify the proposer of an applied entry if it was proposed here."""
        if isinstance(applied, Committed) and applied.token is not None:
            self._waiting.pop(applied.token)(Outcome(Fate.APPLIED, applied.index, result))
