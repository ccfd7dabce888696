"""The small interface behind which consensus lives, and what the rest of the broker sees of the quorum.

`Engine` is one voter's consensus core, sans-I/O: messages and time go in, a `Ready` comes out: entries are durable (the
engine's journal was synced) before a `Ready`'s messages and results may leave, and that order is data: whoever holds a
`Ready` may send what is in it, and nobody holds one earlier.

`MetadataQuorum` is what a broker programs against: propose a command and learn its outcome, ask for a linearizable
read, see the status. It hides leaders, forwarding, retries and threads. A command's outcome is one of three: *applied*
(with what the state machine answered, which may be a refusal by name), *refused* (certainly not applied), *unknown*
(a timeout or a lost leader: it may still be applied; only commands that are safe to repeat are repeated).

What is *not* here: pysyncobj (only the `pysyncobj_*.py` know it) and threads (`quorum_thread.py`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from raftlog.model import BrokerId, DirectoryId, Endpoint, QuorumStatus

from .command_envelope import Command
from .command_results import CommandResult
from .commands import RegisterBroker
from .quorum_changes import QuorumFacts
from .quorum_configuration import Configuration


@dataclass(frozen=True, slots=True)
class Committed:
    """An entry that is committed and applies now. `token` is the proposer's, where this node proposed it."""

    index: int
    term: int
    command: bytes
    token: int | None = None


@dataclass(frozen=True, slots=True)
class InstalledSnapshot:
    """The log's prefix up to `index` was replaced by this state."""

    index: int
    term: int
    state: bytes


@dataclass(frozen=True, slots=True)
class Lost:
    """A proposal of this node that will not get an answer here: refused for certain, or of unknown fate."""

    token: int
    certain: bool


@dataclass(slots=True)
class Ready:
    """What may happen now that the journal is synced."""

    messages: list[tuple[BrokerId, bytes]] = field(default_factory=list)
    applied: list[Committed | InstalledSnapshot] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.messages or self.applied or self.lost)


class Engine(Protocol):
    """One node's consensus core. Single-threaded; every call is followed by the caller taking the `Ready`."""

    def propose(self, command: bytes, token: int) -> None:
        """Append a command, if this node leads; otherwise `Lost(token, certain=True)` comes."""
        ...

    def step(self, sender: BrokerId, message: bytes) -> bool:
        """A message from another voter, or from an observer. Raises `RemoteProtocolError`. Returns whether there is
        anything to be done about it: a tick and its `Ready`."""
        ...

    def tick(self, now: float) -> None:
        """Time passed, in monotonic seconds. Called after any other call but a `step` that says no, and soon
        after `next_due`."""
        ...

    def peer_connected(self, peer: BrokerId) -> None: ...

    def peer_disconnected(self, peer: BrokerId) -> None: ...

    def meet(self, peer: BrokerId, directory_id: DirectoryId, endpoint: Endpoint | None) -> None:
        """The peer is there, with this disk, and can be dialed there."""
        ...

    def forget(self, peer: BrokerId) -> None:
        """The peer is gone; where it is a voter, its disk is remembered."""
        ...

    def ready(self) -> Ready:
        """Sync the journal, then hand over what became due. Raises `DiskFailed`: the node must stop."""
        ...

    def hold_back(self, held_back: bool) -> None:
        """Whether committed entries stay in the log for now: whoever applies them has enough."""
        ...

    def compact(self, state: bytes, applied_index: int) -> Iterator[None]:
        """`state` is the state machine after `applied_index`: keep it as the snapshot and drop the log before it, a
        slice at a time. Anything else may be done between two of them, except another `compact`."""
        ...

    @property
    def journal_bytes(self) -> int:
        """Size of the journal: what a compaction would shrink."""
        ...

    def status(self) -> QuorumStatus: ...

    @property
    def configuration(self) -> Configuration:
        """Who votes, by the latest word of this node's log."""
        ...

    @property
    def base_configuration(self) -> Configuration:
        """Who voted where this node's log begins. It was agreed upon, whatever becomes of what follows."""
        ...

    def facts(self) -> QuorumFacts:
        """What a leader decides about a change of voters by."""
        ...

    def append_configuration(self, configuration: Configuration, token: int) -> None:
        """Append it, as the leader; it is in effect from now on. Raises `InvariantViolation` unless `facts` allow it
        and it is a single step."""
        ...

    def resign(self) -> None:
        """Lead no more, in favour of whoever is elected."""
        ...

    @property
    def is_leader(self) -> bool:
        """It leads, and has applied everything that was committed before its term."""
        ...

    @property
    def leader(self) -> BrokerId:
        """Who is thought to lead; `NO_BROKER` when nobody is."""
        ...

    @property
    def term(self) -> int: ...

    @property
    def next_heartbeat(self) -> float:
        """When this leader's next one is due, in the seconds of `tick`; infinite where this node does not lead."""
        ...

    @property
    def next_due(self) -> float:
        """When time alone, in the seconds of `tick`, will give the next tick something to do."""
        ...

    def close(self) -> None: ...


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
