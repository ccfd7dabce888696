"""What the rest of the broker sees of the quorum.

`MetadataQuorum` is what a broker programs against: propose a command and learn its outcome, ask for a linearizable
read, see the status. It hides leaders, forwarding, retries and threads. A command's outcome is one of three: *applied*
(with what the state machine answered, which may be a refusal by name), *refused* (certainly not applied), *unknown*
(a timeout or a lost leader: it may still be applied; only commands that are safe to repeat are repeated).

What is *not* here: threads (`quorum_thread.py`), the consensus core (`engine.py`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from raftlog.model import QuorumStatus

from .command_envelope import Command
from .command_results import CommandResult
from .commands import RegisterBroker


class Fate(enum.Enum):
    """The three outcomes of a proposal."""

    APPLIED = "applied"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a proposal ended. `result` is the state machine's answer when the fate is APPLIED, else None."""

    fate: Fate
    index: int = -1
    result: CommandResult | None = None
    detail: str = ""


class MetadataQuorum(Protocol):
    """The quorum as one broker sees it; calls and callbacks are on the broker's own thread."""

    def register(self, command: RegisterBroker, done: Callable[[Outcome], None]) -> None:
        """Take a broker's place in the cluster, and keep it by heartbeats. `done` is called once: applied (whose result
        may be a refusal: then another process holds the name and this one must stop), unknown where this process is
        closing."""
        ...

    def propose(self, command: Command, done: Callable[[Outcome], None], *, timeout: float = 5.0) -> None:
        """Bring a command to the quorum's leader, wherever it is. `done` is called exactly once, within `timeout`
        seconds."""
        ...

    def read_barrier(self, done: Callable[[Outcome], None], *, timeout: float = 5.0) -> None:
        """`done` is called with an index up to which this node's view must have come for a linearizable read (S7)."""
        ...

    def status(self) -> QuorumStatus:
        """As this node knows it now."""
        ...


Propose: TypeAlias = Callable[[Command, Callable[[Outcome], None]], None]
"""`MetadataQuorum.propose`, for whoever needs nothing else of the quorum."""
