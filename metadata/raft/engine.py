"""The small interface behind which consensus lives.

`Engine` is one voter's consensus core, sans-I/O: messages and time go in, a `Ready` comes out: entries are durable (the
engine's journal was synced) before a `Ready`'s messages and results may leave, and that order is data: whoever holds a
`Ready` may send what is in it, and nobody holds one earlier.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from metadata.voters.changes import QuorumFacts
from metadata.voters.configuration import Configuration
from raftlog.model import BrokerId, DirectoryId, Endpoint, QuorumStatus


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
