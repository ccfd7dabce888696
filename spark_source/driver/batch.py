"""Planning of a batch query: its ranges are fixed before any task starts.

It ends where the logs end at planning time, so a query that is planned again may read more.
"""

from __future__ import annotations

from spark_source.connections import Connections
from spark_source.reading import losses
from spark_source.reading.filters import Restrictions
from spark_source.reading.log_bounds import Picture
from spark_source.reading.offsets import PartitionRange
from spark_source.reading.options import SourceOptions
from spark_source.reading.splitting import split
from spark_source.reading.starting import TimeQuery

from .cluster import Cluster
from .latest import LatestBounds
from .subscription import as_read, check_all_there, end_of, report, start_of


def plan(options: SourceOptions, restrictions: Restrictions) -> list[PartitionRange]:
    """Return one range per task. Raises a `RaftlogError`; `DataLoss` if the options name offsets outside the log."""
    connections = Connections(options.cluster)
    try:
        ranges = connections.run(lambda: _ranges(connections, options, restrictions))
    finally:
        connections.close()
    return split(ranges, options.min_partitions, options.max_records_per_partition)


async def _ranges(connections: Connections, options: SourceOptions, restrictions: Restrictions) -> list[PartitionRange]:
    cluster = Cluster(connections.api, options)
    latest = LatestBounds(cluster, options.request_timeout_ms / 1000)
    try:
        picture = await latest.picture(fresh=True)
    finally:
        await latest.close()
    check_all_there(options, picture)
    starts = await start_of(cluster, options, picture)
    ends = await end_of(cluster, options, picture)
    chosen = restrictions.choose(picture)
    since = await _since(cluster, chosen, restrictions)
    found = []
    for name, topic in sorted(chosen.items()):
        for partition in sorted(topic.partitions):
            one = PartitionRange(name, topic.topic_id, partition, starts[name][partition], ends[name][partition])
            one = restrictions.cut(one)
            found.append(one._replace(start=max(one.start, since.get((name, partition), one.start))))
    readable, lost = losses.readable([one for one in found if one.size], picture)
    report(options, lost)
    return readable


async def _since(cluster: Cluster, chosen: Picture, restrictions: Restrictions) -> dict[tuple[str, int], int]:
    """Return (topic, partition) → the offset below which all records are too early."""
    since_ms = restrictions.since_ms
    if since_ms is None:
        return {}
    queries = [TimeQuery(name, partition, since_ms) for name, topic in chosen.items() for partition in topic.partitions]
    found = await cluster.times(as_read(chosen), queries)
    return {
        (one.topic, one.partition): chosen[one.topic].partitions[one.partition].end if offset < 0 else offset
        for one, offset in found.items()
    }
