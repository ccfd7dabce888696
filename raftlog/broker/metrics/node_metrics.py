"""All numbers of a node: for `/metrics`, and as a small sample for plots."""

from __future__ import annotations

from http_api.service.metrics import NodeSample
from metadata.quorum.port import MetadataQuorum
from raftlog.broker.wiring import Broker
from raftlog.config import MetricsConfig
from raftlog.metrics import catalogue as names
from raftlog.metrics.measure import Family
from raftlog.ports import Logger, Scheduler
from raftlog.version import __version__

from .cluster import ClusterNumbers
from .groups import GroupLags
from .partitions import PartitionNumbers, Steps
from .process import ProcessNumbers, ProcessSources
from .series import Series


class NodeMetrics:
    """The implementation of `http_api.service.metrics.MetricsService`. All calls are made on the broker's loop."""

    def __init__(
        self,
        broker: Broker,
        quorum: MetadataQuorum,
        scheduler: Scheduler,
        logger: Logger,
        config: MetricsConfig,
        sources: ProcessSources,
    ) -> None:
        self._broker = broker
        self._sources = sources
        self._series = Series(config.max_series, by_topic=config.partitions == "topic")
        manager, view, clock = broker.manager, broker.view, broker.clock
        self._partitions = PartitionNumbers(manager, view, clock, self._series)
        self._groups = GroupLags(manager, view, clock, scheduler, logger, self._series, config.max_series)
        self._cluster = ClusterNumbers(broker, quorum)
        self._process = ProcessNumbers(sources)

    def start(self) -> None:
        """Begin to sample what lags in seconds need, until `close`."""
        self._groups.start()

    def close(self) -> None:
        """Stop."""
        self._groups.close()

    def collect(self) -> Steps:
        """Yield every family, and None after each few items. One collection at a time."""
        identity = self._broker.identity
        labels = (__version__, identity.cluster_id, str(identity.node_id))
        yield Family(names.BUILD, [(labels, 1)])
        yield Family.of(names.START_NUMBER, identity.start_number)
        drivers = self._broker.manager.drivers
        traffic = self._broker.manager.traffic
        topics = [topic.name for topic_id in traffic if (topic := self._broker.view.topic_by_id(topic_id)) is not None]
        self._series.begin(len(drivers), topics)
        yield None
        yield from self._cluster.collect()
        yield from self._process.collect()
        yield from self._partitions.collect()
        yield from self._groups.collect()
        yield Family.of(names.SERIES_JOINED, self._series.joined + self._groups.joined)

    def sample(self) -> NodeSample:
        """Return the main numbers now. Counts of lags are those of the last collection."""
        traffic = self._broker.manager.traffic.values()
        requests = self._sources.requests.by_kind.values()
        stalls = self._sources.stalls
        tally = self._broker.view.tally
        return NodeSample(
            at_ms=self._broker.clock.wall_ms(),
            appended_records=sum(one.appended_records for one in traffic),
            appended_bytes=sum(one.appended_bytes for one in traffic),
            replicated_bytes=sum(one.replicated_bytes for one in traffic),
            fetched_bytes=sum(one.fetched_bytes for one in traffic),
            requests=sum(one.successes + one.errors for one in requests),
            request_errors=sum(one.errors for one in requests),
            fsyncs=(synced := self._sources.sync_seconds.state()).count,
            fsync_seconds=synced.total,
            leaders=self._partitions.leaders,
            offline_partitions=len(tally.without_leader),
            under_min_isr_partitions=len(tally.below_minimum),
            under_replicated_partitions=self._cluster.under_replicated,
            replication_lag_records=self._partitions.replication_records,
            group_lag_records=self._groups.records,
            disk_free_bytes=self._sources.room.free,
            loop_stalls=0 if stalls is None else stalls.report().stalls,
        )
