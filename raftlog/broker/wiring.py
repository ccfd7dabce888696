"""The composition root: one broker's components on ports, and the flow between them.

`metadata` and `partitions` do not know each other. Here a metadata event becomes a change that the partition manager
follows, and an ISR proposal becomes a command. Nothing here depends on asyncio, sockets or threads, so the simulator
runs this class unchanged. The order is fixed: events reach the view first, then the partitions, then the callers that
wait for the answer to a proposal. So an answer never arrives before its effect is visible.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from metadata.commands.cluster import AlterIsr, RegisterBroker
from metadata.commands.envelope import Command
from metadata.commands.fields import IsrMember, PackedReports
from metadata.commands.replicas import ReportLoss
from metadata.commands.results import IsrAltered, Refused, Registered
from metadata.quorum.port import Fate, MetadataQuorum, Outcome
from metadata.records.events import BlockChanged, BlockRemoved, EndsCommitted, ProducerChanged, ProducerRemoved
from metadata.view import (
    BrokerChanged,
    BrokerRemoved,
    ClusterView,
    FeatureLevelChanged,
    GroupChanged,
    GroupRemoved,
    MetadataEvent,
    OffsetsCommitted,
    OffsetsRemoved,
    PartitionChanged,
    ThrottleChanged,
    TimeAdvanced,
    TopicChanged,
    TopicRemoved,
)
from partitions.driver.ports import TransactionPorts
from partitions.fetch.doubts import PATIENCE_SECONDS
from partitions.files.disk_room import DiskRoom
from partitions.manager import Dialer, MetadataChange, PartitionManager
from partitions.manager import TopicRemoved as TopicIsGone
from partitions.producers.state import ProducerBounds
from partitions.replica import effects
from partitions.upkeep.repair import LossAnswer
from partitions.upkeep.room_watch import RoomWatch
from partitions.upkeep.scrubber import Scrubber
from raftlog.broker.changes.offline_leaders import OfflineLeaders
from raftlog.broker.changes.room_reports import RoomReports
from raftlog.broker.changes.transaction_reports import TransactionReports
from raftlog.broker.requests.local import LocalRequests
from raftlog.config import NodeConfig
from raftlog.errors import InvalidRequest, RemoteProtocolError
from raftlog.model import NO_INCARNATION, BrokerId, Endpoint, Incarnation, LeaderEpoch, TopicPartition
from raftlog.ports import Clock, Disk, Logger, Random, Scheduler, Worker
from raftlog.slices import WorkQueue
from raftlog.system.cluster_clock import ClusterClock
from raftlog.version import FEATURE_LEVEL

from .explain.history import ChangeHistory
from .identity import NodeIdentity

EVENTS_PER_STEP = 128
"""Number of events of one log entry that view and partitions process in one step."""


_TRANSACTIONS = (EndsCommitted, BlockChanged, BlockRemoved, ProducerChanged, ProducerRemoved)
"""Events that may decide an open transaction."""


class Broker:
    """One broker on ports. Its input is `on_events`; its state is in `view`, `manager` and `local`."""

    def __init__(
        self,
        identity: NodeIdentity,
        config: NodeConfig,
        *,
        disk: Disk,
        clock: Clock,
        scheduler: Scheduler,
        worker: Worker,
        log_worker: Worker,
        random: Random,
        dialer: Dialer,
        logger: Logger,
        on_fatal: Callable[[BaseException], None],
        on_peer_fault: Callable[[BrokerId, RemoteProtocolError], None] | None = None,
    ) -> None:
        """`on_fatal` is called, at most once a reason, if this process must stop. `on_peer_fault`: log if None."""
        self.identity, self.config, self.clock = identity, config, clock
        self.view = ClusterView()
        self.cluster_clock = ClusterClock(clock)
        self.history = ChangeHistory()
        self.incarnation: Incarnation = NO_INCARNATION
        self._quorum: MetadataQuorum | None = None
        self._logger = logger
        self._on_fatal = on_fatal
        self._following = WorkQueue(scheduler, clock, on_fatal)
        self._followed_index = 0
        """Index of the last log entry that view and partitions have processed."""
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        """A heap of (index that must be processed first, order of the calls, callback)."""
        self._asked = 0
        self._reports = PackedReports.of(())
        self.reports = TransactionReports(identity.node_id, self.view, scheduler, self._propose, self.when_view_reaches)
        self._offline_leaders = self._leaders_out_of_service(scheduler)
        self.room = DiskRoom(config.disk_reserved_bytes)
        self.room_watch = RoomWatch(self.room, disk, scheduler, worker, logger, self._room_reports(scheduler).on_room)
        self.manager = PartitionManager(
            node_id=identity.node_id,
            cluster_id=identity.cluster_id,
            disk=disk,
            clock=clock,
            cluster_clock=self.cluster_clock,
            scheduler=scheduler,
            worker=worker,
            log_worker=log_worker,
            random=random,
            dialer=dialer,
            propose_isr=self._propose_isr,
            logger=logger,
            timing=config.timing,
            retention_check_ms=config.retention_check_ms,
            fetch_cache_bytes=config.fetch_cache_bytes,
            producer_bounds=ProducerBounds(config.producer_state_bytes, config.producer_id_expiration_ms),
            on_replica_offline=self._offline_leaders.on_offline,
            report_loss=self._report_loss,
            transactions=TransactionPorts(self.view.transactions, self.reports.markers_written, self.reports.overdue),
            catch_up=self.catch_up,
            on_peer_fault=on_peer_fault,
        )
        self.manager.room = self.room
        self.local = LocalRequests(self.manager, scheduler)
        self.scrubber = self._new_scrubber(disk, scheduler, worker, random)

    def _new_scrubber(self, disk: Disk, scheduler: Scheduler, worker: Worker, random: Random) -> Scrubber:
        return Scrubber(
            drivers=lambda: self.manager.drivers,
            disk=disk,
            scheduler=scheduler,
            worker=worker,
            random=random,
            logger=self._logger,
            bytes_per_second=self.config.scrub_bytes_per_second,
            interval_seconds=self.config.scrub_interval_ms / 1000,
        )

    def _leaders_out_of_service(self, scheduler: Scheduler) -> OfflineLeaders:
        return OfflineLeaders(
            node_id=self.identity.node_id,
            view=self.view,
            scheduler=scheduler,
            propose=self._propose,
            is_offline=lambda topic_partition: self.manager.cannot_lead(topic_partition),
            waits_for_epoch=lambda topic_partition: self.manager.waits_for_epoch(topic_partition),
            incarnation=lambda: self.incarnation,
            logger=self._logger,
        )

    def load(self) -> None:
        """Open and recover every replica on disk, and collect the reports about them. Blocks.

        Raises `DiskFailed` or `DiskFull`.
        """
        self.room_watch.look_here()
        self._reports = PackedReports.of(self.manager.load(clean_shutdown=self.identity.clean))

    def register(self, quorum: MetadataQuorum, api: Endpoint, data: Endpoint, registered: Callable[[], None]) -> None:
        """Register this broker with these endpoints. `registered` is called when it has its place in the cluster."""
        self._quorum = quorum
        command = RegisterBroker.of(
            self.identity.node_id,
            self.identity.directory_id,
            self.identity.start_number,
            api=api,
            data=data,
            rack=self.config.rack,
            feature_level=FEATURE_LEVEL,
            reports=self._reports,
        )

        def done(outcome: Outcome) -> None:
            if outcome.result is None:
                return  # this process is closing
            if not isinstance(outcome.result, Registered):
                refused = outcome.result.error() if isinstance(outcome.result, Refused) else outcome.result
                self._on_fatal(InvalidRequest("invalid_config", f"the quorum refused this broker: {refused}"))
                return
            self.incarnation = outcome.result.incarnation
            try:
                self._following.add(partial(self._begin, outcome.index, registered))
            except BaseException as error:
                self._on_fatal(error)  # Only this reports a broker that is half registered.
                raise

        quorum.register(command, done)

    def _begin(self, index: int, registered: Callable[[], None]) -> Iterator[None]:
        yield from self.manager.begin_in_steps(self.incarnation)
        self.scrubber.start()
        self.room_watch.start()
        self.when_view_reaches(index, registered)

    # --- What the quorum decided ---

    def on_events(self, index: int, events: Sequence[MetadataEvent]) -> None:
        """Process the events of applied entries up to `index`, in order, and in this turn if they are few."""
        self._following.add(partial(self._take_over, index, events))

    def _take_over(self, index: int, events: Sequence[MetadataEvent]) -> Iterator[None]:
        """Update the view before the partitions, slice by slice; the view is at `index` after the last slice.

        A topic in the view is always complete: its record follows those of its partitions.
        """
        if len(events) <= EVENTS_PER_STEP:
            self.history.note(index, events, self.view, self.cluster_clock.stamp_ms())
            self.view.on_events(index, events)
            yield from self._tell_partitions(events)
        else:
            left = list(reversed(events))
            topics = list[MetadataEvent]()
            del events  # This is the last reference, so that the events are freed slice by slice.
            while left:
                some = left[: -EVENTS_PER_STEP - 1 : -1]
                del left[-EVENTS_PER_STEP:]
                topics += [event for event in some if isinstance(event, TopicChanged)]
                self.history.note(index, some, self.view, self.cluster_clock.stamp_ms())
                self.view.on_events(self.view.index, [event for event in some if not isinstance(event, TopicChanged)])
                yield from self._tell_partitions(some)
            self.view.on_events(index, topics)
        self._followed_index = index
        while self._waiting and self._waiting[0][0] <= index:
            heapq.heappop(self._waiting)[2]()

    def _tell_partitions(self, events: Sequence[MetadataEvent]) -> Iterator[None]:
        for event in events:
            self._take_notice(event)
        changes = [change for event in events for change in _as_change(event)]
        if changes:
            yield from self.manager.follow(changes)
            yield
        if any(isinstance(event, _TRANSACTIONS) for event in events):
            # After the records, so that a partition that is asked to check its transactions already leads, or no longer
            # does.
            committed = [event.ends for event in events if isinstance(event, EndsCommitted)]
            self.manager.on_transactions([topic_partition for ends in committed for topic_partition in ends])

    def when_view_reaches(self, index: int, callback: Callable[[], None]) -> None:
        """Call `callback` when view and partitions have processed everything up to `index`; at once if they have."""
        if index <= self._followed_index:
            callback()
        else:
            self._asked += 1
            heapq.heappush(self._waiting, (index, self._asked, callback))

    def catch_up(self, done: Callable[[bool], None]) -> None:
        """Call `done` when view and partitions have everything that the quorum has decided (S7).

        If the quorum does not answer, `done` is called with False.
        """
        if self._quorum is None:
            done(False)
            return

        def answered(outcome: Outcome) -> None:
            if outcome.fate is Fate.APPLIED:
                self.when_view_reaches(outcome.index, lambda: done(True))
            else:
                done(False)

        self._quorum.read_barrier(answered, timeout=PATIENCE_SECONDS)

    def check_invariants(self) -> None:
        """Check what must hold between any two events. Raises `InvariantViolation`."""
        self.manager.check_invariants()

    # --- Inside ---

    def _room_reports(self, scheduler: Scheduler) -> RoomReports:
        return RoomReports(
            node_id=self.identity.node_id,
            view=self.view,
            room=self.room,
            scheduler=scheduler,
            propose=self._propose,
            incarnation=lambda: self.incarnation,
            give_up_leaderships=self._give_up_leaderships,
        )

    def _give_up_leaderships(self) -> None:
        for topic_partition, driver in self.manager.drivers.items():
            if driver.replica.leader is not None:
                self._offline_leaders.give_up(topic_partition)

    def _take_notice(self, event: MetadataEvent) -> None:
        if isinstance(event, TimeAdvanced):
            self.cluster_clock.learn(event.time)
        if isinstance(event, FeatureLevelChanged) and event.level > FEATURE_LEVEL:
            self._on_fatal(
                InvalidRequest(
                    "unsupported_version",
                    f"the cluster's feature level is {event.level}, but this node supports {FEATURE_LEVEL}: upgrade it",
                )
            )
        if isinstance(event, BrokerRemoved) and event.incarnation == self.incarnation:
            self._on_fatal(
                InvalidRequest("invalid_config", f"broker {event.broker_id} was unregistered by an operator")
            )
        if isinstance(event, BrokerChanged) and event.record.broker_id == self.identity.node_id:
            another = event.record.incarnation > self.incarnation != NO_INCARNATION
            if another:
                self._on_fatal(
                    InvalidRequest(
                        "invalid_config",
                        f"broker {self.identity.node_id} registered again, as incarnation {event.record.incarnation}: "
                        f"this process ({self.incarnation}) is no longer the broker. Was its data folder copied?",
                    )
                )

    def _propose_isr(self, proposal: effects.IsrProposal, done: Callable[[effects.Fate], None]) -> None:
        command = AlterIsr(
            proposal.topic_partition.topic_id,
            proposal.topic_partition.partition,
            proposal.leader,
            proposal.leader_incarnation,
            proposal.leader_epoch,
            proposal.partition_epoch,
            tuple(IsrMember(broker_id, incarnation) for broker_id, incarnation in proposal.isr),
        )

        def answered(outcome: Outcome) -> None:
            if outcome.fate is Fate.APPLIED:
                # An earlier copy of the proposal may have been accepted, so a refusal counts only when the view has
                # come this far.
                accepted = isinstance(outcome.result, IsrAltered)
                fate = effects.Fate.ACCEPTED if accepted else effects.Fate.REFUSED
                self.when_view_reaches(outcome.index, lambda: done(fate))
            else:
                done(effects.Fate.REFUSED if outcome.fate is Fate.REFUSED else effects.Fate.UNKNOWN)

        assert self._quorum is not None, "no partition is led before the registration"
        self._quorum.propose(command, answered)

    def _propose(self, command: Command, done: Callable[[Outcome], None]) -> None:
        assert self._quorum is not None, "no partition is led before the registration"
        self._quorum.propose(command, done)

    def _report_loss(
        self, topic_partition: TopicPartition, leader_epoch: LeaderEpoch, done: Callable[[LossAnswer], None]
    ) -> None:
        command = ReportLoss(
            topic_partition.topic_id,
            topic_partition.partition,
            self.identity.node_id,
            self.incarnation,
            leader_epoch,
        )

        def answered(outcome: Outcome) -> None:
            if outcome.fate is not Fate.APPLIED:
                done(LossAnswer.AGAIN)
            elif isinstance(outcome.result, Refused):
                last = outcome.result.code == "not_eligible"
                done(LossAnswer.LAST_COPY if last else LossAnswer.AGAIN)
            else:
                self.when_view_reaches(outcome.index, lambda: done(LossAnswer.ACCEPTED))

        assert self._quorum is not None, "no replica is in service before the registration"
        self._quorum.propose(command, answered)


def _as_change(event: MetadataEvent) -> list[MetadataChange]:
    """Return a metadata event in the vocabulary of `partitions`."""
    match event:
        case BrokerChanged(broker):
            return [broker]
        case TopicChanged(topic):
            return [topic]
        case PartitionChanged(record):
            return [record]
        case ThrottleChanged(throttle):
            return [throttle]
        case TopicRemoved(topic_id, _):
            return [TopicIsGone(topic_id)]
        case FeatureLevelChanged() | TimeAdvanced() | BrokerRemoved():
            return []  # An unregistered broker has no replica, so no partition needs it again.
        case GroupChanged() | GroupRemoved() | OffsetsCommitted() | OffsetsRemoved():
            return []
        case _:
            return []  # Transactions: leaders look them up in the view.
