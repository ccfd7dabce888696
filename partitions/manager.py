"""All replicas of one broker: topic partition → driver, fed by the metadata view, called by the broker.

Callbacks on one thread, with all services passed to the constructor, so the simulator runs it unchanged. A broker acts
on no partition before its view includes its own registration (`on_registered`): older records describe an earlier
process. From then on every partition whose record names this broker as a replica has a driver here, as soon as its log
is open.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from partitions.driver.driver import PartitionDriver
from partitions.driver.ports import DriverPorts, TransactionPorts
from partitions.driver.requests import DeleteDone, Produced
from partitions.driver.traffic import TopicTraffic
from partitions.fetch.doubts import CatchUp
from partitions.fetch.long_polls import Cancellable, LongPolls
from partitions.fetch.offsets import not_found, search_offset
from partitions.fetch.session import FetchSession, SessionDone
from partitions.files.disk_room import DiskRoom
from partitions.log.writer import LogWriter
from partitions.opening.folders import OpenedReplica
from partitions.opening.log_manager import MOVED_SECONDS, LogManager
from partitions.producers.state import DEFAULT_BOUNDS, ProducerBounds
from partitions.replica.effects import Fate, IsrProposal
from partitions.replication.client import Dialer, ReplicationClient
from partitions.replication.message_queue import PeerFault
from partitions.replication.server import ReplicationServer
from partitions.upkeep.compactor import Compactor
from partitions.upkeep.repair import ReplicaRepairs, ReportLoss
from partitions.upkeep.resets import ReplicaResets
from partitions.upkeep.ticks import ReplicaTicks
from partitions.upkeep.transaction_checks import TransactionChecks
from raftlog.config import MAX_PRODUCE_TIMEOUT_MS, MIB, TimingConfig
from raftlog.errors import RaftlogError, RemoteProtocolError, RetriableError
from raftlog.model import NO_INCARNATION, Acks, BrokerId, Incarnation, Offset, ReplicaReport, TopicId, TopicPartition
from raftlog.ports import Buffer, Clock, Disk, LinkHandler, Logger, Part, Random, Scheduler, Worker
from raftlog.slices import in_turns
from raftlog.system.cluster_clock import ClusterClock
from raftlog.wire import FetchedPartition, FetchPartition, FoundOffset, SessionFetchRequest

from .view import MetadataChange, PartitionView, TopicRemoved, Touched, consequences

__all__ = ["Cancellable", "Dialer", "MetadataChange", "PartitionManager", "Produced", "TopicRemoved"]


class PartitionManager:
    """All replicas of one broker. `propose_isr` sends a proposal to the quorum, and calls back once with its fate."""

    def __init__(
        self,
        *,
        node_id: BrokerId,
        cluster_id: str,
        disk: Disk,
        clock: Clock,
        cluster_clock: ClusterClock,
        scheduler: Scheduler,
        worker: Worker,
        log_worker: Worker,
        random: Random,
        dialer: Dialer,
        propose_isr: Callable[[IsrProposal, Callable[[Fate], None]], None],
        logger: Logger,
        timing: TimingConfig,
        retention_check_ms: int = 30_000,
        fetch_cache_bytes: int = 64 * MIB,
        producer_bounds: ProducerBounds = DEFAULT_BOUNDS,
        on_replica_offline: Callable[[TopicPartition, str], None],
        report_loss: ReportLoss | None,
        transactions: TransactionPorts,
        catch_up: CatchUp,
        on_peer_fault: PeerFault | None = None,
    ) -> None:
        """`log_worker` writes and fsyncs, so that no read of a cold file delays an acknowledgement; `worker` does the
        rest. `on_replica_offline` is called for a replica taken out of service, and if it is elected. `cluster_clock`
        stamps records and judges their age; `catch_up` confirms leaders to readers. `on_peer_fault`: log if None."""
        self._node_id = node_id
        self._clock, self._cluster_clock, self._random = clock, cluster_clock, random
        self._scheduler, self._worker, self._propose_isr = scheduler, worker, propose_isr
        self._logger, self._timing = logger, timing
        self._retention_seconds = retention_check_ms / 1000
        self._view = PartitionView()
        self._registered = NO_INCARNATION
        self._active = self._closing = False
        self._drivers: dict[TopicPartition, PartitionDriver] = {}
        self._ticks = ReplicaTicks(scheduler, clock)
        self.writer = LogWriter(log_worker, scheduler, clock)
        self.room, self.traffic = DiskRoom(0), {}
        self.logs = LogManager(
            disk, scheduler, worker, self.writer, logger, self._place_late, fetch_cache_bytes, producer_bounds
        )
        self.repairs = ReplicaRepairs(
            self._drivers, scheduler, worker, logger, self.logs, report_loss, self._place_late, on_replica_offline
        )
        self.resets = ReplicaResets(node_id, clock, logger, self.logs, self._drivers, self._ticks, on_replica_offline)
        drivers = self._drivers
        self.compactor = Compactor(scheduler, worker, self.writer, cluster_clock, logger, lambda: [*drivers.values()])
        self.fetches = LongPolls(self, clock, scheduler, worker, catch_up)
        self.transactions = TransactionChecks(transactions, scheduler, self._drivers)
        self._server = ReplicationServer(
            node_id=node_id,
            cluster_id=cluster_id,
            brokers=self._view.brokers,
            drivers=self,
            own_incarnation=self._active_incarnation,
            clock=clock,
            scheduler=scheduler,
            worker=worker,
            on_fault=on_peer_fault or self._log_fault,
        )
        self._client = ReplicationClient(
            node_id=node_id,
            cluster_id=cluster_id,
            own_incarnation=self._active_incarnation,
            dialer=dialer,
            scheduler=scheduler,
            on_fault=on_peer_fault or self._log_fault,
        )

    def _log_fault(self, peer: BrokerId, error: RemoteProtocolError) -> None:
        self._logger.warning("replication link dropped", peer=peer, detail=error.detail)

    room: DiskRoom
    """The room on the disk, without a reserve by default. To set a reserve, replace it before `load`."""
    traffic: dict[TopicId, TopicTraffic]
    """The counts of each topic that has had a replica here."""
    on_new_replica: Callable[[], None] = staticmethod(lambda: None)
    """Called for each replica that comes into service. To be set before `load`."""

    # --- The life of a broker ---

    def load(self, *, clean_shutdown: bool) -> list[ReplicaReport]:
        """Recover and open every replica found on disk, and return the reports for this process's registration.

        Blocks; called once, before anything else. Raises `DiskFailed` or `DiskFull`.
        """
        return self.logs.load(clean_shutdown=clean_shutdown)

    def on_registered(self, incarnation: Incarnation) -> None:
        """Begin: the quorum registered this process as this incarnation."""
        deque(self.begin_in_steps(incarnation), maxlen=0)

    def begin_in_steps(self, incarnation: Incarnation) -> Iterator[None]:
        """Begin in slices; no other metadata may be passed in before it has ended."""
        self._registered = incarnation
        yield from self._begin()

    def on_metadata(self, changes: Sequence[MetadataChange]) -> None:
        """Apply changes of the view, in the order of the quorum's log."""
        deque(self.follow(changes), maxlen=0)

    def follow(self, changes: Sequence[MetadataChange]) -> Iterator[None]:
        """Apply changes in slices; no other metadata may be passed in before it has ended."""
        touched = self._view.apply(changes)
        if not self._closing:
            if touched.moves:
                self._server.on_moves(self._view.throttle, self._view.leaders_of_added())
            yield from self._act(touched) if self._active else self._begin()

    def close(self, done: Callable[[bool], None], *, clean: bool = True) -> None:
        """Stop: answer every waiting request, close links, write out and close logs.

        `done(True)` means that everything is on disk, so that a clean-shutdown marker would be true.
        """
        self._closing = True
        self.compactor.close()
        self.fetches.close()
        self._server.close()
        self._client.close()
        offline = any(driver.replica.offline for driver in self._drivers.values())
        self._close_drivers(RetriableError("shutting_down", "the broker is stopping"))
        self.logs.close(lambda all_closed: done(all_closed and clean and not offline), clean=clean)

    @property
    def incarnation(self) -> Incarnation:
        """This process's own incarnation; `NO_INCARNATION` before it is registered."""
        return self._registered

    @property
    def active(self) -> bool:
        """Whether the view includes this broker's registration, and no later one of its id."""
        return self._active

    @property
    def accepted(self) -> LinkHandler:
        """The handler of replication links that followers dialed; the hello names the peer."""
        return self._server

    @property
    def dialed(self) -> LinkHandler:
        """The handler of replication links that the `Dialer` opened; `link.peer` is the broker that it dialed."""
        return self._client

    # --- Requests ---

    def produce(
        self,
        topic_partition: TopicPartition,
        batch: Buffer,
        acks: Acks,
        done: Callable[[Produced | RaftlogError], None],
        *,
        timeout_ms: int | None = None,
        resent: bool = False,
        restored: bool = False,
        expected_end_offset: int = -1,
    ) -> None:
        """Append one batch; its bytes must not change from now on. `resent`: an earlier attempt may have been appended.
        `restored`: it is from a backup and keeps its offset. `expected_end_offset`: the offset that it must get,
        otherwise it is refused with `LogEndMoved`; -1: any.

        `done` is called exactly once, perhaps before this returns: with the answer that `acks` requires, or with an
        error, whose `applied` says whether the batch may have been appended. After `timeout_ms` (default
        `timing.produce_timeout_ms`), to within a tick, it gets `request_timed_out`.
        """
        driver = self._drivers.get(topic_partition)
        config = self._view.config(topic_partition.topic_id)
        if driver is None or config is None:
            done(self.missing(topic_partition))
            return
        timeout = self._timing.produce_timeout_ms if timeout_ms is None else min(timeout_ms, MAX_PRODUCE_TIMEOUT_MS)
        driver.produce(
            batch,
            config,
            acks,
            done,
            self._clock.monotonic() + timeout / 1000,
            resent=resent,
            restored=restored,
            expected_end_offset=expected_end_offset,
        )

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
        """Begin a long poll, answered once, perhaps before this returns, in the requested order.

        It is answered as soon as `min_bytes` are available, a partition failed or moved, or the wait has ended. Errors
        are per partition. The parts are the body; their receiver sends or releases every region. `isolation` 1 ends at
        the last stable offset, and the answers have the aborted ranges (S13).
        """
        wait_ms = 0 if self._closing else max_wait_ms
        return self.fetches.fetch(
            partitions, done, min_bytes=min_bytes, max_bytes=max_bytes, max_wait_ms=wait_ms, isolation=isolation
        )

    def find_offset(
        self, tp: TopicPartition, timestamp_ms: int, done: Callable[[FoundOffset], None], *, isolation: int = 0
    ) -> None:
        """Find the latest offset (`wire.TIMESTAMP_LATEST`), the earliest, or the first at or after a time."""
        driver = self._drivers.get(tp)
        if driver is None:
            done(not_found(tp, self.missing(tp)))
        else:
            search_offset(driver, timestamp_ms, self._worker, done, isolation=isolation)

    def fetch_session(
        self, current: FetchSession | None, request: SessionFetchRequest, done: SessionDone
    ) -> FetchSession:
        """Poll a fetch session (`FetchSessions.fetch`)."""
        return self.fetches.sessions.fetch(current, request, done)

    def close_session(self, session: FetchSession | None) -> None:
        """Close a session whose stream is gone."""
        self.fetches.sessions.close_session(session)

    def delete_records(self, tp: TopicPartition, before: Offset, done: DeleteDone, timeout_ms: int) -> None:
        """Delete records (`PartitionDriver.delete_records`)."""
        driver = self._drivers.get(tp)
        if driver is None:
            done(self.missing(tp))
        else:
            driver.delete_records(before, done, timeout_ms)

    def on_transactions(self, touched: Iterable[TopicPartition] | None) -> None:
        """Record decisions about transactions: open ones are checked soon.

        Of the touched partitions (None: all), so are the commits that the quorum waits for. An abort need not name any.
        """
        self.transactions.news(touched)

    # --- Lookups of replicas ---

    @property
    def drivers(self) -> Mapping[TopicPartition, PartitionDriver]:
        """All replicas in service, read-only."""
        return MappingProxyType(self._drivers)

    def replica_count(self) -> int:
        """Return the number of replicas whose logs are open, or will be soon."""
        return len(self._drivers) + self.logs.count()

    def driver(self, topic_partition: TopicPartition) -> PartitionDriver | None:
        return self._drivers.get(topic_partition)

    def missing(self, topic_partition: TopicPartition) -> RaftlogError:
        """Return the error for a partition without a driver."""
        if not self._active:
            return RetriableError(
                "leader_not_available", "this broker is not registered in the cluster yet, or no longer"
            )
        return self._view.missing(topic_partition, self._node_id)

    def refusal(self, topic_partition: TopicPartition) -> str:
        """Return a follower's error code for a partition without a driver; empty if there may be one soon."""
        return "replica_not_available" if self.logs.failure(topic_partition) else ""

    # --- Following the view ---

    def _active_incarnation(self) -> Incarnation | None:
        return self._registered if self._active else None

    def _begin(self) -> Iterator[None]:
        """Begin to act on the whole view, if it includes this broker's own registration."""
        own = self._view.brokers.get(self._node_id)
        if self._active or self._closing or own is None or own.incarnation != self._registered:
            return
        self._active = True
        yield from self._while_serving(self.logs.losses_are_reported())
        yield from self._while_serving(partial(self.place, tp) for tp in self._view.all_sorted())
        self._begun()

    def _begun(self) -> None:
        if self._closing:
            return
        self.logs.set_strays_aside(self._view.partitions)
        self._server.on_view(self._drivers)
        self.compactor.start()
        # Spread over time, so that nodes that start together do not delete at the same moment.
        self._scheduler.call_later(self._retention_seconds * self._random.uniform(0.5, 1.0), self._retain)

    def _act(self, touched: Touched) -> Iterator[None]:
        own = self._view.brokers[self._node_id]
        if own.incarnation != self._registered:
            self._logger.error("superseded", own=self._registered, registered=own.incarnation)
            self._active = False
            self._close_drivers(RetriableError("leadership_lost", "another process runs under this broker's name"))
            return
        steps = consequences(
            touched, self._view, self._drivers, configure=self.configure, remove=self.remove, place=self.place
        )
        yield from self._while_serving(steps)
        self._server.on_view(touched.partitions)

    def _while_serving(self, steps: Iterable[Callable[[], None]]) -> Iterator[None]:
        for step in steps:
            if self._closing or not self._active:
                return
            step()
            yield

    def place(self, tp: TopicPartition) -> None:
        """Make the replica fit the partition's record."""
        record, config = self._view.partitions.get(tp), self._view.config(tp.topic_id)
        if record is None or config is None or self._node_id not in record.replicas:
            self.remove(tp, "not_leader" if record else "unknown_topic")
            return
        driver = self._drivers.get(tp)
        if driver is None:
            opened = self.logs.take(tp, config)
            if opened is None:
                return
            driver = self._drivers[tp] = self._new_driver(opened)
            self.on_new_replica()
        if not self.repairs.holds(driver) and not self.resets.bars(record):
            driver.on_record(record)
            in_sync = self._node_id in record.isr and self._node_id not in record.not_eligible
            if in_sync and driver.replica.follower is not None:
                self.logs.in_sync(tp)

    def _new_driver(self, opened: OpenedReplica) -> PartitionDriver:
        tp = opened.topic_partition
        surroundings = DriverPorts(
            node_id=self._node_id,
            incarnation=self._registered,
            clock=self._clock,
            cluster_clock=self._cluster_clock,
            writer=self.writer,
            worker=self._worker,
            logger=self._logger,
            brokers=self._view.brokers,
            links=self._client,
            propose_isr=self._propose_isr,
            wants_tick=self._ticks.want,
            transactions=self.transactions,
            offline=self.repairs.on_offline,
            damaged=self.repairs.on_damage,
            broken=self.resets.on_broken,
            lag_max=self._timing.replica_lag_max_ms / 1000,
            room=self.room,
            traffic=self.traffic.setdefault(tp.topic_id, TopicTraffic()),
        )
        return PartitionDriver(tp, self._view.name(tp), opened.log, opened.producers, surroundings)

    def configure(self, tp: TopicPartition) -> None:
        config = self._view.config(tp.topic_id)
        if config is not None and tp in self._drivers:
            self._drivers[tp].configure(config)

    def remove(self, tp: TopicPartition, code: str) -> None:
        self.resets.forget(tp)
        keep = 0.0 if code == "unknown_topic" else MOVED_SECONDS
        if code == "unknown_topic":
            self.traffic.pop(tp.topic_id, None)
        driver = self._drivers.pop(tp, None)
        if driver is not None:
            self._ticks.drop(driver)
            driver.close(RetriableError("leadership_lost", f"{driver.name} is no longer a replica here: {code}"))
            self.logs.remove(tp, driver.log, keep_seconds=keep)
        elif self._active:
            self.logs.remove(tp, None, keep_seconds=keep)

    def cannot_lead(self, tp: TopicPartition) -> bool:
        """Whether this broker's replica could not exercise a leadership now."""
        driver = self._drivers.get(tp)
        if self.resets.is_barred(tp):
            return True
        return bool(driver.replica.offline if driver is not None else self.logs.failure(tp))

    def waits_for_epoch(self, tp: TopicPartition) -> bool:
        """Whether the replica is in service again, and would lead in a later leader epoch."""
        driver = self._drivers.get(tp)
        return driver is not None and not driver.replica.offline and self.resets.is_barred(tp)

    def _place_late(self, tp: TopicPartition) -> None:
        """Place a replica whose log was opened or failed to, was removed, or whose records were held back."""
        if self._active and not self._closing:
            self.place(tp)
            self._server.on_replica(tp)

    def _close_drivers(self, error: RaftlogError) -> None:
        drivers = list(self._drivers.values())
        self._drivers.clear()
        self._ticks.clear()
        for driver in drivers:
            driver.close(error)
            self.logs.put_back(driver.topic_partition, driver.log)

    # --- Time ---

    def _retain(self) -> None:
        if self._closing or not self._active:
            return
        self._scheduler.call_later(self._retention_seconds, self._retain)
        now_ms = self._cluster_clock.expiry_ms()
        if now_ms is None:
            self._logger.warning(f"retention by time is paused: {self._cluster_clock.doubt()}")
        in_turns(self._scheduler, list(self._drivers.values()), lambda driver: driver.retain(now_ms))

    # --- For people and for tests ---

    def status(self) -> list[str]:
        """Return one line for each replica, sorted, then one for each link."""
        lines = [str(driver) for _, driver in sorted(self._drivers.items())]
        return lines + self.logs.status() + self._client.status() + self._server.status()

    def out_of_service(self) -> list[str]:
        """Return one line for each replica that this broker has and cannot serve until its next start."""
        found = [(tp, driver.replica.offline) for tp, driver in self._drivers.items() if driver.replica.offline]
        for tp, why in self.logs.failures():
            record = self._view.partitions.get(tp)
            if record is not None and self._node_id in record.replicas:
                found.append((tp, why))
        return [f"{self._view.name(tp)} is offline: {why}" for tp, why in sorted(found)]

    def hindered(self) -> list[str]:
        """Return one line for each replica that takes no writes now: a full disk, no memory or no descriptors."""
        found = ((tp, driver) for tp, driver in self._drivers.items() if driver.log.hindered is not None)
        return [
            f"{driver.name} is not written for now: {driver.log.hindered.detail}"
            for _, driver in sorted(found, key=lambda one: one[0])
            if driver.log.hindered is not None
        ]

    def check_invariants(self) -> None:
        """Raise `InvariantViolation` if an invariant between two events does not hold."""
        for driver in self._drivers.values():
            driver.check_invariants()
