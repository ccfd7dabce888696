"""The surroundings of a driver, as small protocols: the services of its broker, and its listeners.

Tests and the simulator bring implementations of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from partitions.files.damage import LogDamaged
from partitions.files.disk_room import DiskRoom
from partitions.log.log import PartitionLog
from partitions.replica.effects import Answer, Fate, FetchedBatch, IsrProposal, Matched, ReportStable, Subscribe
from raftlog.model import BrokerId, BrokerRecord, Incarnation, LeaderEpoch, TopicPartition
from raftlog.ports import Clock, Logger, Worker
from raftlog.system.cluster_clock import ClusterClock
from raftlog.transactions import TransactionKey, TransactionVerdicts

from .traffic import TopicTraffic

Driver = TypeVar("Driver")
"""`PartitionDriver`, which imports this module; only its owners' callbacks use the type."""
AnyDriver = TypeVar("AnyDriver", contravariant=True)


class Waiter(Protocol):
    """A long poll that waits for a partition."""

    def on_readable(self) -> None:
        """Schedule another read: consumers may read more, or this replica no longer serves them."""
        ...


class Subscriber(Protocol):
    """A follower's subscription at this leader. Its methods only schedule work."""

    def on_answer(self, answer: Answer) -> None: ...

    def on_grown(self) -> None:
        """There is more to push."""
        ...

    def on_marks(self) -> None:
        """The high watermark or the log start moved."""
        ...


class FollowingReplica(Protocol):
    """A replica as the links to its leader see it."""

    name: str
    topic_partition: TopicPartition
    log: PartitionLog

    def on_link_opened(self) -> None:
        """The link to the leader, in the incarnation that the record names, is open."""
        ...

    def on_link_lost(self) -> None: ...

    def on_answer(self, leader_epoch: LeaderEpoch, answer: Answer) -> None:
        """Apply the leader's answer. Raises `RemoteProtocolError`."""
        ...

    def on_pushed(self, leader_epoch: LeaderEpoch, batches: list[FetchedBatch], marks: Matched) -> None:
        """Append batches whose CRC was checked. Raises `RemoteProtocolError`, and then nothing was appended."""
        ...

    def on_corrupt_push(self) -> None: ...


class LeaderLinks(Protocol):
    """The links to the brokers that lead the partitions followed here."""

    def follow(self, replica: FollowingReplica, leader: BrokerId, incarnation: Incarnation) -> None:
        """Let this replica follow that leader, in place of any previous one."""
        ...

    def unfollow(self, replica: FollowingReplica) -> None: ...

    def subscribe(self, replica: FollowingReplica, subscribe: Subscribe) -> None: ...

    def unsubscribe(self, replica: FollowingReplica) -> None: ...

    def report(self, replica: FollowingReplica, report: ReportStable) -> None: ...


class Writer(Protocol):
    """Group commit (`partitions/log/writer.py`)."""

    def dirty(self, log: PartitionLog, on_stable: Callable[[], None]) -> None:
        """Schedule a job of the log; `on_stable` is called after each job, whatever its outcome."""
        ...


class TransactionPorts(msgspec.Struct, frozen=True):
    """The source of decisions for leaders, and the receivers of their reports.

    Neither callback may call the leader before it returns. A next leader repeats every report that still counts.
    """

    verdicts: TransactionVerdicts
    markers_written: Callable[[TopicPartition, Sequence[TransactionKey]], None]
    """Reports commits whose markers in the partition are below its high watermark, or not needed."""
    overdue: Callable[[TopicPartition, Sequence[TransactionKey]], None]
    """Reports transactions open longer than their timeout, by this leader's clock; again every ten seconds."""


class CheckResult(msgspec.Struct, frozen=True):
    """The result of a driver's check of its open transactions."""

    transactions: int
    """The number of transactions checked."""
    more: bool
    """Whether another check is due at once."""


class Looks(Protocol[AnyDriver]):
    """Schedules the checks of partitions' open transactions."""

    @property
    def ports(self) -> TransactionPorts: ...

    def want(self, driver: AnyDriver) -> None:
        """Schedule `look_at_transactions` soon: an open transaction may have been decided."""
        ...

    def watch(self, driver: AnyDriver) -> None:
        """Notify this driver of news: it has open transactions."""
        ...


class DriverPorts(msgspec.Struct, Generic[Driver]):
    """The services that all drivers of a broker share."""

    node_id: BrokerId
    incarnation: Incarnation
    clock: Clock
    cluster_clock: ClusterClock
    writer: Writer
    worker: Worker
    logger: Logger
    brokers: Mapping[BrokerId, BrokerRecord]
    """The view's brokers, kept up to date by its owner."""
    links: LeaderLinks
    propose_isr: Callable[[IsrProposal, Callable[[Fate], None]], None]
    wants_tick: Callable[[Driver], None]
    """Called when this driver may wait for a timer."""
    transactions: Looks[Driver]
    offline: Callable[[TopicPartition, str], None]
    lag_max: float
    """Seconds."""
    broken: Callable[[Driver, BaseException, LeaderEpoch | None], None]
    """Called after an unforeseen exception; the driver is closed, and led in this epoch, if any."""
    room: DiskRoom = msgspec.field(default_factory=lambda: DiskRoom(0))
    """The room on the disk that all drivers share."""
    traffic: TopicTraffic = msgspec.field(default_factory=TopicTraffic)
    """The counts of the driver's topic."""
    damaged: Callable[[Driver, LogDamaged], bool] = lambda driver, error: False
    """Called when damage is found in this driver's log; True if it is handled, and the log lives on."""
