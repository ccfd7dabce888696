"""One node of the metadata quorum, sans-I/O: the engine, the cluster image, the controller, sessions and forwarding.

`QuorumNode` is what production and the simulator run alike. Inputs (a message, a link that opened or closed, a
proposal) are staged; `tick` lets time pass, syncs the journal once for all of them, and only then sends, applies and
answers. So the shell's whole duty is: hand in what arrived, then call `tick`, and call it every 10-20 ms anyway.

Outputs are two callbacks: `send(peer, message)` and `on_events(index, events)`, the latter in the order of the log,
every applied index exactly once, or (after an installed snapshot) the image's difference at the snapshot's index.

Errors: `RemoteProtocolError` from `on_message` means that the peer broke the protocol: drop that link, nothing else
happened. `InvariantViolation`, `DiskFailed` and `DiskFull` from any call mean that the node must stop: it no longer
knows what it promised. They are never retried.

What is *not* here: consensus (`pysyncobj_engine.py`), frames (`quorum_protocol.py`), links and handshakes
(`quorum_links.py`), threads and sockets (`quorum_thread.py`), decisions (`controller.py`) and their rules (`image.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from raftlog.config import TimingConfig
from raftlog.model import BrokerId, DirectoryId, QuorumStatus
from raftlog.ports import Buffer, Clock, Disk, Random

from .commands import Command, RegisterBroker
from .engine import Outcome
from .image import ClusterImage, MetadataEvent

FOLDER = "quorum"
"""Where journal and snapshot lie, below the data folder."""


@dataclass(frozen=True, slots=True)
class QuorumIdentity:
    """Who this node is, as `raftlog server init` wrote it. `voters` is fixed for the life of the cluster."""

    cluster_id: str
    node_id: BrokerId
    directory_id: DirectoryId
    voters: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True)
class QuorumLimits:
    """What bounds memory and disk."""

    snapshot_entries: int = 10_000
    """A snapshot is taken after this many applied entries..."""
    snapshot_bytes: int = 16 * 1024 * 1024
    """...or when the journal has this many bytes."""
    proposals_max: int = 10_000
    """Proposals of this node without an outcome; one more is refused."""


def prepare_quorum(disk: Disk, identity: QuorumIdentity) -> None:
    """Write the empty journal of a first start, durably. `raftlog server init` calls it, before it writes `node.json`;
    nothing else does, so that a lost journal never looks like a first start (S9). Raises `InvalidRequest` where there
    is one already."""
    raise NotImplementedError


class QuorumNode:
    """A voter of the metadata quorum and the broker beside it. Single-threaded."""

    def __init__(
        self,
        identity: QuorumIdentity,
        *,
        disk: Disk,
        clock: Clock,
        random: Random,
        timing: TimingConfig,
        send: Callable[[BrokerId, bytes], None],
        on_events: Callable[[int, Sequence[MetadataEvent]], None],
        limits: QuorumLimits | None = None,
    ) -> None:
        """Opens the journal (blocking). Raises `InvalidRequest` where the folder was never prepared or is another
        node's, `InvariantViolation` where it is damaged, `DiskFailed`. The state found on disk comes through
        `on_events` at the first `tick`."""
        raise NotImplementedError

    def on_connected(self, peer: BrokerId) -> None:
        """Messages can be sent to this peer."""
        raise NotImplementedError

    def on_disconnected(self, peer: BrokerId) -> None:
        """Messages to this peer are lost from now on."""
        raise NotImplementedError

    def on_message(self, peer: BrokerId, message: Buffer) -> None:
        """A message from a peer whose handshake was accepted. Raises `RemoteProtocolError`."""
        raise NotImplementedError

    def tick(self) -> None:
        """Do what is due. Called after every batch of inputs and at least every 20 ms."""
        raise NotImplementedError

    def propose(self, command: Command, done: Callable[[Outcome], None], *, timeout: float = 5.0) -> None:
        """Bring a command to the quorum's leader, wherever it is. `done` is called exactly once, from a later `tick`,
        within `timeout` seconds."""
        raise NotImplementedError

    def read_barrier(self, done: Callable[[Outcome], None], *, timeout: float = 5.0) -> None:
        """`done` gets an index that includes everything acknowledged before this call: a view that has come so far
        answers a linearizable read (S7)."""
        raise NotImplementedError

    def leader_status(self, done: Callable[[QuorumStatus], None], *, timeout: float = 1.0) -> None:
        """The status as the leader sees it; as this node does where the leader does not answer in time."""
        raise NotImplementedError

    def register(self, command: RegisterBroker, done: Callable[[Outcome], None]) -> None:
        """Propose this registration until the state machine answers it, then send the broker's heartbeats. `done` is
        called once: applied (whose result may be a refusal: then another process holds the name and this one must
        stop), never unknown."""
        raise NotImplementedError

    def status(self) -> QuorumStatus:
        """As this node knows it now."""
        raise NotImplementedError

    @property
    def image(self) -> ClusterImage:
        """The state after everything applied so far. Read-only for callers."""
        raise NotImplementedError

    def check_invariants(self) -> None:
        """Assert what must hold between any two calls. Raises `InvariantViolation`."""
        raise NotImplementedError

    def close(self) -> None:
        """Sync and let go of the files; every waiting proposal ends as unknown."""
        raise NotImplementedError
