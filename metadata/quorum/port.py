"""The metadata quorum as the rest of a broker sees it: the one port to it, and how a proposal may end.

A broker programs against `MetadataQuorum`: it proposes a command and learns the outcome, asks for a linearizable read,
reads the status. The port hides leaders, forwarding, retries and threads. A command's outcome is one of three:
*applied* (with the answer of the state machine, which may be a refusal by name), *refused* (certainly not applied),
*unknown* (a timeout or a lost leader: it may still be applied; only commands that are safe to repeat are repeated).

`metadata/quorum_thread/thread.py` implements it for a broker process.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from metadata.commands.cluster import RegisterBroker
from metadata.commands.envelope import Command
from metadata.commands.results import CommandResult
from metadata.voters.changes import VoterChange
from raftlog.model import QuorumStatus

from .protocol import VotersChanged


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

    def leader_status(self, done: Callable[[QuorumStatus], None], *, timeout: float = 1.0) -> None:
        """Give `done` the status as the leader sees it, or as this node does if the leader does not answer in time."""
        ...

    def stop_broker(self, done: Callable[[bool], None], *, timeout: float = 5.0) -> None:
        """Announce an orderly stop of this broker. `done(True)` when it is fenced, so leads nothing any more;
        `done(False)` if that did not happen in time."""
        ...

    def change_voters(
        self, change: VoterChange, done: Callable[[VotersChanged], None], *, plan: bool = False, timeout: float = 10.0
    ) -> None:
        """Have the leader add or remove one voter, or with `plan` only report the result. `done` is called once, within
        `timeout` seconds."""
        ...

    def status(self) -> QuorumStatus:
        """As this node knows it now."""
        ...


Propose: TypeAlias = Callable[[Command, Callable[[Outcome], None]], None]
"""`MetadataQuorum.propose`, for whoever needs nothing else of the quorum."""
