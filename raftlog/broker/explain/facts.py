"""The facts about itself that a node gives to another one that explains something.

They travel as msgpack maps, so that a node of another version ignores what it does not know and leaves out what it does
not have: every field has a default. All times are durations in seconds or cluster time in milliseconds, never readings
of a monotonic clock.
"""

from __future__ import annotations

import msgspec

from .history import Change

MAX_EPOCHS = 64
"""The most leader epochs of one replica, the newest ones."""
MAX_OPEN = 50
"""The most open transactions of one replica, the oldest ones."""
MAX_PROBLEMS = 20
MAX_CHANGES = 200
"""The most remembered changes of one partition, the newest ones."""


class FollowerFacts(msgspec.Struct, frozen=True):
    """One follower as the leader knows it."""

    broker: int
    matched: bool = False
    """Whether it has compared its log with this leader's in this epoch and incarnation."""
    stable_end: int = -1
    fetch: int = -1
    caught_up_ago: float = 0.0
    """Seconds since it certainly had everything on disk."""


class OpenFacts(msgspec.Struct, frozen=True):
    """A transaction that is open in a partition which the answering node leads."""

    topic_id: bytes
    partition: int
    producer_id: int
    producer_epoch: int
    first_offset: int
    age: float = -1.0
    """Seconds, as far as this leader knows; -1: it began before this leadership."""


class ReplicaFacts(msgspec.Struct, frozen=True):
    """One replica, by its own node."""

    role: str = "absent"
    offline: str = ""
    """The reason why it is out of service."""
    leader_epoch: int = -1
    log_start: int = 0
    stable_end: int = 0
    log_end: int = 0
    high_watermark: int = 0
    last_stable: int = -1
    """The last stable offset, on a leader that exposes it."""
    size_bytes: int = 0
    epochs: list[tuple[int, int]] = []
    """The newest leader epochs of the log, each with the offset at which it begins."""
    epoch_at: int = -1
    """The leader epoch of the record asked about, if the replica has it."""
    hindered: str = ""
    """The reason why its batches cannot be written now: a full disk, missing descriptors."""
    link: str = ""
    """A follower's progress with its leader: `detached` (no link), `asking`, `truncating`, `streaming`, `waiting`."""
    followers: list[FollowerFacts] = []
    maximal_isr: list[int] = []
    """On the leader: the ISR with every proposal that may have been accepted."""
    open: list[OpenFacts] = []
    open_count: int = 0
    repair: str = ""
    """The repair in progress."""


class WriterFacts(msgspec.Struct, frozen=True):
    """The fsyncs of a node's logs, in seconds."""

    running: float = 0.0
    """The age of the oldest job that is not done."""
    median: float = 0.0
    """The median of the recent jobs."""
    longest: float = 0.0
    count: int = 0
    """The number of recent jobs that these are about."""


class QuorumFacts(msgspec.Struct, frozen=True):
    """The metadata quorum as one node sees it."""

    leader: int = -1
    term: int = 0
    commit: int = 0
    applied: int = 0
    last: int = 0
    voters: list[int] = []
    matched: dict[int, int] = {}
    """On the leader: node → the index up to which its log matches."""
    forgetful: list[int] = []


class NodeFacts(msgspec.Struct, frozen=True):
    """One node."""

    node: int
    incarnation: int = -1
    version: str = ""
    view_index: int = 0
    time_ms: int = 0
    """The cluster time as this node knows it."""
    quorum: QuorumFacts = QuorumFacts()
    disk_free: int = 0
    disk_reserved: int = 0
    short_of_room: bool = False
    writer: WriterFacts = WriterFacts()
    problems: list[str] = []
    """Problems of this node that others cannot see."""
    expired: list[str] = []
    """Its TLS certificates that have expired."""
    replica: ReplicaFacts | None = None
    changes: list[Change] = []
    """The changes of the partition, its brokers and the quorum's leader that this node remembers."""
    open: list[OpenFacts] = []
    """The open transactions of the producer asked about."""


class Unanswered(msgspec.Struct, frozen=True):
    """A node without an answer."""

    node: int
    reason: str
    """The error of the connection, for people."""
    is_certificate: bool = False
    """Whether the TLS handshake failed because of a certificate."""
    reached: bool = False
    """Whether the node was reached, but did not answer this question: it is stuck, or of an older version."""
