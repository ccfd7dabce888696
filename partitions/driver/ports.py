"""What a driver is given: the broker around it, and who listens to it.

All of these are small protocols, so that a test or the simulator brings its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from partitions.files.damage import LogDamaged
from partitions.files.disk_room import DiskRoom
from partitions.log.log import PartitionLog
from partitions.replica.effects import Answer, Fate, FetchedBatch, IsrProposal, Matched, ReportStable, Subscribe
from raftlog.model import BrokerId, BrokerRecord, Incarnation, LeaderEpoch, TopicPartition
from raftlog.ports import Clock, Logger, Worker
from raftlog.system.cluster_clock import ClusterClock
from raftlog.transactions import TransactionKey, TransactionVerdicts

Driver = TypeVar("Driver")
"""`PartitionDriver`, which knows this module; here only its owners' callbacks are given one."""
AnyDriver = TypeVar("AnyDriver", contravariant=True)


class Waiter(Protocol):
    """A long poll that waits for a partition."""

    def on_readable(self) -> None:
        """Consumers may read more, or this replica no longer serves them: look again, soon."""
        ...


class Subscriber(Protocol):
    """A follower's subscription at this leader. What it is told is acted on soon, never at once."""

    def on_answer(self, answer: Answer) -> None: ...

    def on_grown(self) -> None:
        """There is more to push."""
        ...

    def on_marks(self) -> None:
        """High watermark or log start moved."""
        ...


class FollowingReplica(Protocol):
    """A replica as the links to its leader see it."""

    name: str
    topic_partition: TopicPartition
    log: PartitionLog

    def on_link_opened(self) -> None:
        """The leader, in the incarnation that the record names, can be asked."""
        ...

    def on_link_lost(self) -> None: ...

    def on_answer(self, leader_epoch: LeaderEpoch, answer: Answer) -> None:
        """Raises `RemoteProtocolError`."""
        ...

    def on_pushed(self, leader_epoch: LeaderEpoch, batches: list[FetchedBatch], marks: Matched) -> None:
        """Batches whose CRC was checked. Raises `RemoteProtocolError`, and then appended nothing."""
        ...

    def on_corrupt_push(self) -> None: ...


class LeaderLinks(Protocol):
    """The links to the brokers that lead what this broker follows."""

    def follow(self, replica: FollowingReplica, leader: BrokerId, incarnation: Incarnation) -> None:
        """From now on this replica follows that leader, in place of any before."""
        ...

    def unfollow(self, replica: FollowingReplica) -> None: ...

    def subscribe(self, replica: FollowingReplica, subscribe: Subscribe) -> None: ...

    def unsubscribe(self, replica: FollowingReplica) -> None: ...

    def report(self, replica: FollowingReplica, report: ReportStable) -> None: ...


class Writer(Protocol):
    """Group commit (`log_writer.LogWriter`)."""

    def dirty(self, log: PartitionLog, on_stable: Callable[[], None]) -> None:
        """The log has work for the disk; `on_stable` is called after each job of it, however it went."""
        ...


@dataclass(frozen=True, slots=True)
class TransactionPorts:
    """Where leaders learn what was decided of transactions, and whom they tell what became of that. Neither callback
    may call back before it returns; what they are told is told again by the next leader, where it still counts."""

    verdicts: TransactionVerdicts | None = None
    """None: there are no transactions, and none are begun."""
    markers_written: Callable[[TopicPartition, Sequence[TransactionKey]], None] = lambda tp, keys: None
    """What these commits say of the partition is below its high watermark, or there is nothing to be said any more."""
    overdue: Callable[[TopicPartition, Sequence[TransactionKey]], None] = lambda tp, keys: None
    """Open for longer than they may be, by this leader's clock. Told again every ten seconds."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a driver did that was to look at its open transactions."""

    transactions: int
    """So many were asked about."""
    more: bool
    """It is to look again at once."""


class Looks(Protocol[AnyDriver]):
    """Who has drivers look at their open transactions."""

    @property
    def ports(self) -> TransactionPorts: ...

    def want(self, driver: AnyDriver) -> None:
        """Something is open here, and may have been decided: `look_at_transactions` soon."""
        ...

    def watch(self, driver: AnyDriver) -> None:
        """Something is open here: this driver is to hear of news."""
        ...


@dataclass(slots=True)
class Surroundings(Generic[Driver]):
    """What all drivers of a broker share."""

    node_id: BrokerId
    incarnation: Incarnation
    clock: Clock
    cluster_clock: ClusterClock
    writer: Writer
    worker: Worker
    logger: Logger
    brokers: Mapping[BrokerId, BrokerRecord]
    """The view's, kept up to date by its owner."""
    links: LeaderLinks
    propose_isr: Callable[[IsrProposal, Callable[[Fate], None]], None]
    wants_tick: Callable[[Driver], None]
    """This driver may wait for time to pass."""
    transactions: Looks[Driver]
    offline: Callable[[TopicPartition, str], None]
    lag_max: float
    """Seconds."""
    broken: Callable[[Driver, BaseException, LeaderEpoch | None], None]
    """An exception that nobody foresaw left this driver in doubt; it is closed, and led in this epoch, if any."""
    room: DiskRoom = field(default_factory=lambda: DiskRoom(0))
    """On the disk of all of them."""
    damaged: Callable[[Driver, LogDamaged], bool] = lambda driver, error: False
    """Damage was found in this driver's log; True: it is dealt with, and the log lives on."""
