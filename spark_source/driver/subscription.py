"""Resolution of a query's options: the topics they name, and the offsets where the query starts and ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from raftlog.errors import InvalidRequest
from spark_source.reading import losses, planning, starting
from spark_source.reading.log_bounds import Picture
from spark_source.reading.losses import Loss, LossKind
from spark_source.reading.offsets import PartitionRange
from spark_source.reading.options import SourceOptions

from .cluster import Cluster, ReadTopic

logger = logging.getLogger("raftlog.spark")

STALE_NODE_S = 2.0
"""Seconds that a node may be stale: missing or replaced topics are looked up again for this time."""
_PAUSE_S = 0.2


def missing_topics(options: SourceOptions, picture: Picture) -> list[str]:
    """Return the topics that the options name and that do not exist. A pattern may match none."""
    named = options.topics if options.assigned is None else tuple(options.assigned)
    return [name for name in named or () if name not in picture]


def check_all_there(options: SourceOptions, picture: Picture) -> None:
    """Raises `unknown_topic`."""
    missing = missing_topics(options, picture)
    if missing:
        raise InvalidRequest("unknown_topic", f"there is no topic {', '.join(missing[:10])} to read")


async def surely_readable(
    cluster: Cluster, ranges: Sequence[PartitionRange], look: Callable[[], Awaitable[Picture]]
) -> tuple[list[PartitionRange], list[Loss]]:
    """Return the readable parts of these ranges, and the losses that `surely_lost` has confirmed."""
    readable: list[PartitionRange] = []

    async def find() -> list[Loss]:
        nonlocal readable
        readable, lost = losses.readable(ranges, await look())
        return lost

    lost = await surely_lost(cluster, find)
    return readable, lost


async def surely_lost(cluster: Cluster, find: Callable[[], Awaitable[list[Loss]]]) -> list[Loss]:
    """Return the losses that `find` finds. A node that reports a topic as deleted or replaced may be stale, so other
    nodes are asked, too."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + STALE_NODE_S
    while True:
        lost = await find()
        doubtful = any(loss.kind in (LossKind.DELETED, LossKind.RECREATED) for loss in lost)
        if not doubtful or loop.time() >= deadline:
            return lost
        cluster.ask_another()
        await asyncio.sleep(_PAUSE_S)


def as_read(picture: Picture) -> dict[str, ReadTopic]:
    """Return the same topics and partitions as a subscription."""
    return {name: ReadTopic(name, topic.topic_id, tuple(topic.partitions)) for name, topic in picture.items()}


async def start_of(cluster: Cluster, options: SourceOptions, picture: Picture) -> dict[str, dict[int, int]]:
    """Return the start of a query by its options. Raises `DataLoss` for offsets outside the log."""
    positions = await _resolved(cluster, options.starting, picture)
    lost = losses.since(planning.begin(picture, positions), picture)
    for loss in report(options, lost):
        bounds = picture[loss.topic].partitions[loss.partition]
        asked = positions[loss.topic][loss.partition]
        positions[loss.topic][loss.partition] = min(max(asked, bounds.start), bounds.end)
    return positions


async def end_of(cluster: Cluster, options: SourceOptions, picture: Picture) -> dict[str, dict[int, int]]:
    """Return the end of a query by its options, perhaps beyond the log."""
    return await _resolved(cluster, options.ending, picture)


def report(options: SourceOptions, lost: Sequence[Loss]) -> Sequence[Loss]:
    """Raise `DataLoss`, or log the losses that the query skips."""
    if lost and options.fail_on_data_loss:
        raise losses.DataLoss(lost)
    for loss in lost:
        logger.warning("continuing without %s", loss)
    return lost


async def _resolved(cluster: Cluster, where: starting.Where, picture: Picture) -> dict[str, dict[int, int]]:
    queries = starting.time_queries(where, picture)
    times = await cluster.times(as_read(picture), queries) if queries else {}
    return starting.resolve(where, picture, times)
