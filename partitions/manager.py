"""All replicas of one broker: topic partition → driver, fed by the metadata view, asked by the broker.

Callback style, one thread, the world by constructor: the simulator runs this as it is. A broker acts on no partition
before its view includes its own registration (`on_registered`): what is older than that speaks of an earlier life.

What is *not* here: decisions (`replica.py` and below), what a driver does with a log, the frames between brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from raftlog.config import TimingConfig
from raftlog.errors import RaftlogError
from raftlog.model import (
    Acks,
    BrokerId,
    BrokerRecord,
    Incarnation,
    Offset,
    PartitionRecord,
    ReplicaReport,
    TopicId,
    TopicPartition,
    TopicRecord,
)
from raftlog.ports import Buffer, Clock, Disk, LinkHandler, Part, Random, Scheduler, Worker
from raftlog.wire import FetchedPartition, FetchPartition, FoundOffset

from .effects import Fate, IsrProposal


@dataclass(frozen=True, slots=True)
class TopicRemoved:
    """The topic is no more; a later one of the same name has another id."""

    topic_id: TopicId


MetadataChange: TypeAlias = BrokerRecord | TopicRecord | PartitionRecord | TopicRemoved


@dataclass(frozen=True, slots=True)
class Produced:
    """A batch's answer. With `acks=0` it only says that the batch was taken, and nothing of it is certain."""

    base_offset: Offset
    log_append_time_ms: int
    """-1 where the topic keeps the producer's timestamps."""
    log_start_offset: Offset


class Logger(Protocol):
    """Structured log lines; a structlog logger is one."""

    def info(self, event: str, **fields: object) -> object: ...
    def warning(self, event: str, **fields: object) -> object: ...
    def error(self, event: str, **fields: object) -> object: ...


class Dialer(Protocol):
    """Keeps links to other brokers' data listeners open."""

    def connect(self, peer: BrokerId) -> None:
        """Dial this broker, and again after every loss with jitter, until `disconnect`; `PartitionManager.dialed` is
        told. Calling again changes nothing."""
        ...

    def disconnect(self, peer: BrokerId) -> None:
        """Close the link to this broker and dial no more."""
        ...


class Cancellable(Protocol):
    """A waiting fetch."""

    def cancel(self) -> None:
        """Nobody waits for it any more: `done` is not called, regions are released. Harmless afterwards."""
        ...


class PartitionManager:
    """See the module. `propose_isr` brings a proposal to the quorum and calls back, once, with its fate."""

    def __init__(
        self,
        *,
        node_id: BrokerId,
        cluster_id: str,
        disk: Disk,
        clock: Clock,
        scheduler: Scheduler,
        worker: Worker,
        random: Random,
        dialer: Dialer,
        propose_isr: Callable[[IsrProposal, Callable[[Fate], None]], None],
        logger: Logger,
        timing: TimingConfig,
        fsync_threads: int = 2,
        retention_check_ms: int = 30_000,
        on_replica_offline: Callable[[TopicPartition, str], None] | None = None,
    ) -> None:
        """`on_replica_offline` is told when a disk error or a broken invariant took a replica out of service."""
        raise NotImplementedError

    def load(self, *, clean_shutdown: bool) -> list[ReplicaReport]:
        """Open every replica found on disk, recovering it first, and say what was found: the reports of this process's
        registration. Blocks; called once, before anything else. Raises `DiskFailed` or `DiskFull`."""
        raise NotImplementedError

    def on_registered(self, incarnation: Incarnation) -> None:
        """The quorum registered this process as this incarnation."""
        raise NotImplementedError

    def on_metadata(self, changes: Sequence[MetadataChange]) -> None:
        """The view moved on, in the order of the quorum's log."""
        raise NotImplementedError

    def produce(
        self,
        topic_partition: TopicPartition,
        batch: Buffer,
        acks: Acks,
        done: Callable[[Produced | RaftlogError], None],
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Append one batch; its bytes must not change from now on. `done` is called exactly once: with the answer as
        `acks` asks, or with what went wrong (whose `applied` tells whether it may have been appended), at the latest
        after `timeout_ms` (default `timing.produce_timeout_ms`): then with `request_timed_out`."""
        raise NotImplementedError

    def fetch(
        self,
        partitions: Sequence[FetchPartition],
        done: Callable[[list[FetchedPartition], list[Part]], None],
        *,
        min_bytes: int,
        max_bytes: int,
        max_wait_ms: int,
        isolation: int = 0,
    ) -> Cancellable:
        """Long poll: answered once, in the order asked, as soon as `min_bytes` are there, a partition failed or moved,
        or the wait is over. Errors are per partition. The parts are the body; whoever gets them sends or releases
        every region."""
        raise NotImplementedError

    def find_offset(
        self, topic_partition: TopicPartition, timestamp_ms: int, done: Callable[[FoundOffset], None]
    ) -> None:
        """Latest (`wire.TIMESTAMP_LATEST`), earliest, or the first record at or after a time. Errors are in it."""
        raise NotImplementedError

    @property
    def accepted(self) -> LinkHandler:
        """Handler of replication links that followers dialed to us; the hello names the peer."""
        raise NotImplementedError

    @property
    def dialed(self) -> LinkHandler:
        """Handler of replication links that the `Dialer` opened; `link.peer` is whom it meant to reach."""
        raise NotImplementedError

    def status(self) -> list[str]:
        """One aligned line a replica, sorted."""
        raise NotImplementedError

    def check_invariants(self) -> None:
        """Raises `InvariantViolation` for what must not be between any two events."""
        raise NotImplementedError

    def close(self, done: Callable[[bool], None], *, clean: bool = True) -> None:
        """Stop: every waiting request gets its answer, links close, logs are written out and closed. `done(True)`
        means that all of it is on disk, so that a clean-shutdown marker would be true."""
        raise NotImplementedError
