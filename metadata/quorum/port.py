"""The metadata quorum as the rest of a broker sees it: its one interface, and the outcomes of a proposal.

A broker programs against `MetadataQuorum`: it proposes a command and learns the outcome, requests a linearizable
read, or reads the status. The interface hides leaders, forwarding, retries and threads. A command has one of three
outcomes: *applied* (with the answer of the state machine, which may be a refusal with an error code), *refused*
(certainly not applied), or *unknown* (a timeout or a lost leader: it may still be applied; only commands that are
safe to repeat are repeated).

`metadata/quorum_thread/thread.py` implements it for a broker process.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Protocol, TypeAlias

import msgspec

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


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of a proposal. `result` is the state machine's answer if the fate is APPLIED, else None."""

    fate: Fate
    index: int = -1
    result: CommandResult | None = None
    detail: str = ""


class MetadataQuorum(Protocol):
    """The quorum as one broker sees it. Calls and callbacks are on the broker's own thread."""

    def register(self, command: RegisterBroker, done: Callable[[Outcome], None]) -> None:
        """Register a broker and keep it registered by heartbeats.

        `done` is called once: with applied (if the result is a refusal, another process holds the id and this one
        must stop), or with unknown if this process is closing.
        """
        ...

    def propose(self, command: Command, done: Callable[[Outcome], None], *, timeout: float = 5.0) -> None:
        """Propose a command to the quorum's leader, wherever it is. `done` is called exactly once, within `timeout`
        seconds."""
        ...

    def read_barrier(self, done: Callable[[Outcome], None], *, timeout: float = 5.0) -> None:
        """Call `done` with the index that this node's view must reach for a linearizable read (S7)."""
        ...

    def leader_status(self, done: Callable[[QuorumStatus], None], *, timeout: float = 1.0) -> None:
        """Call `done` with the leader's status, or with this node's if the leader does not answer in time."""
        ...

    def stop_broker(self, done: Callable[[bool], None], *, timeout: float = 5.0) -> None:
        """Announce an orderly stop of this broker.

        `done(True)` is called when it is fenced and so leads nothing any more, `done(False)` if that did not happen
        in time.
        """
        ...

    def change_voters(
        self, change: VoterChange, done: Callable[[VotersChanged], None], *, plan: bool = False, timeout: float = 10.0
    ) -> None:
        """Request that the leader add or remove one voter, or with `plan` only report the result.

        `done` is called once, within `timeout` seconds.
        """
        ...

    def status(self) -> QuorumStatus:
        """Return the status as this node knows it now."""
        ...


Propose: TypeAlias = Callable[[Command, Callable[[Outcome], None]], None]
"""`MetadataQuorum.propose`, for callers that need nothing else of the quorum."""
