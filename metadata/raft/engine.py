"""The small interface to consensus.

`Engine` is the consensus core of one node, sans-I/O: messages and time go in, a `Ready` comes out. Entries are
durable (the engine has synced its journal) before the messages and results of a `Ready` may leave. That order is
enforced by data: the holder of a `Ready` may send what is in it, and no caller holds one earlier.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import msgspec

from metadata.voters.changes import QuorumFacts
from metadata.voters.configuration import Configuration
from raftlog.model import BrokerId, DirectoryId, Endpoint, QuorumStatus


class Committed(msgspec.Struct, frozen=True):
    """A committed entry to apply now. `token` is set if this node proposed it."""

    index: int
    term: int
    command: bytes
    token: int | None = None


class InstalledSnapshot(msgspec.Struct, frozen=True):
    """The state that replaces the log's prefix up to `index`."""

    index: int
    term: int
    state: bytes


class Lost(msgspec.Struct, frozen=True):
    """A proposal of this node that will not be decided here: certainly not appended, or of unknown outcome."""

    token: int
    certain: bool


class Ready(msgspec.Struct):
    """The results that may leave the engine now that the journal is synced."""

    messages: list[tuple[BrokerId, bytes]] = []
    applied: list[Committed | InstalledSnapshot] = []
    lost: list[Lost] = []

    def __bool__(self) -> bool:
        return bool(self.messages or self.applied or self.lost)


class VoterFacts(NamedTuple):
    """A voter's Raft state between two calls."""

    term: int
    vote: int | None
    leads: bool
    commit_index: int
    applied_index: int
    last_index: int
    last_term: int
    base_index: int
    dirty: bool
    """Whether anything is staged that was not synced."""


class Engine(Protocol):
    """The consensus core of one node. Single-threaded; after every call the caller takes the `Ready`."""

    def propose(self, command: bytes, token: int) -> None:
        """Append a command if this node leads; otherwise a `Lost(token, certain=True)` follows."""
        ...

    def step(self, sender: BrokerId, message: bytes) -> bool:
        """Process a message from another voter or an observer. Raises `RemoteProtocolError`.

        Returns whether the message leaves anything to do: a tick and its `Ready`.
        """
        ...

    def tick(self, now: float) -> None:
        """Advance time, in monotonic seconds.

        The caller ticks after any other call except a `step` that returned False, and soon after `next_due`.
        """
        ...

    def peer_connected(self, peer: BrokerId) -> None: ...

    def peer_disconnected(self, peer: BrokerId) -> None: ...

    def meet(self, peer: BrokerId, directory_id: DirectoryId, endpoint: Endpoint | None) -> None:
        """Record that the peer is connected, on this disk, and the address at which it can be dialed."""
        ...

    def forget(self, peer: BrokerId) -> None:
        """Record that the peer is gone. A voter's disk is remembered."""
        ...

    def ready(self) -> Ready:
        """Sync the journal, then return what became due. If it raises `DiskFailed`, the node must stop."""
        ...

    def hold_back(self, held_back: bool) -> None:
        """Set whether committed entries are kept back because the state machine is busy."""
        ...

    def compact(self, state: bytes, applied_index: int) -> Iterator[None]:
        """Keep `state`, the state machine after `applied_index`, as the snapshot and drop the log before it, one
        slice at a time.

        Any other call is allowed between two slices, except another `compact`.
        """
        ...

    @property
    def journal_bytes(self) -> int:
        """The size of the journal in bytes; a compaction shrinks it."""
        ...

    def status(self) -> QuorumStatus: ...

    @property
    def configuration(self) -> Configuration:
        """The latest configuration in this node's log."""
        ...

    @property
    def base_configuration(self) -> Configuration:
        """The configuration at the beginning of this node's log. It is committed, whatever happens to later ones."""
        ...

    def facts(self) -> QuorumFacts:
        """Return the facts by which a leader decides about a change of voters."""
        ...

    def append_configuration(self, configuration: Configuration, token: int) -> None:
        """Append a configuration as the leader; it takes effect at once.

        Raises `InvariantViolation` unless the `facts` allow the change and it is a single step.
        """
        ...

    def resign(self) -> None:
        """Stop leading, in favour of the voter that is elected next."""
        ...

    @property
    def is_leader(self) -> bool:
        """Whether this node leads and has applied everything that was committed before its term."""
        ...

    @property
    def leader(self) -> BrokerId:
        """The presumed leader, or `NO_BROKER`."""
        ...

    @property
    def term(self) -> int: ...

    @property
    def next_heartbeat(self) -> float:
        """When this leader's next heartbeat is due, in the seconds of `tick`; infinite if this node does not lead."""
        ...

    @property
    def next_due(self) -> float:
        """When time alone, in the seconds of `tick`, gives the next tick something to do."""
        ...

    def close(self) -> None: ...
