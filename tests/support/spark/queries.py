"""Helpers of Spark tests: await the end of a query, collect its notifications, and read the visible records."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from raftlog import Admin, Consumer
from raftlog.cli.nodes.local_cluster import LocalCluster
from raftlog.client import ConsumerRecord
from tests.support.clusters.cluster import PATIENCE_S, POLL_S

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery


def finish(query: StreamingQuery) -> None:
    """Wait for the query's end; it must end by itself, without an error."""
    assert query.awaitTermination(int(PATIENCE_S)), query.status
    assert query.exception() is None


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for a condition, with a timeout."""
    deadline = time.monotonic() + 3 * PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(POLL_S)


@contextlib.contextmanager
def failing() -> Iterator[list[str]]:
    """Wait for the query's error, and return its text on the driver."""
    told: list[str] = []
    with pytest.raises(Exception) as raised:
        yield told
    told.append(str(raised.value))


def until_written(bootstrap: str, topic: str) -> Callable[..., None]:
    """A function for tasks: it returns when the log has records, committed or not, whose values begin with each of the
    given bytes; with a timeout. It may be sent to executors, which have raftlog, but not its tests."""
    patience_s = PATIENCE_S

    def wait(*beginnings: bytes) -> None:
        import time

        from raftlog.sync import Consumer

        missing, deadline = set(beginnings), time.monotonic() + patience_s
        with Consumer(bootstrap, topic, isolation="read_uncommitted", max_wait_ms=50) as consumer:
            while missing:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"nothing was written that begins with {sorted(missing)}")
                for record in consumer.poll(timeout=0.05):
                    missing -= {one for one in missing if (record.value or b"").startswith(one)}

    return wait


def read_committed(cluster: LocalCluster, topic: str) -> list[ConsumerRecord]:
    """Read everything up to the end of the logs, as a `read_committed` reader. At an open transaction it waits, and
    finally fails: none may be left open."""
    return asyncio.run(_read_committed(cluster, topic))


async def _read_committed(cluster: LocalCluster, topic: str) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    async with Admin(cluster.bootstrap) as admin, Consumer(cluster.bootstrap, topic, max_wait_ms=50) as consumer:
        partitions = (await admin.describe_topic(topic)).partition_count
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found += await consumer.poll(timeout=0.05)
                ends, marks = consumer.end_offsets, consumer.high_watermarks
                known = len(ends) == len(marks) == partitions
                if known and ends == marks and not any(consumer.lag.values()):
                    return found


def sink_position(cluster: LocalCluster, query_id: str, sink: str = "sink") -> int | None:
    """The last micro-batch of this query that is published."""

    async def ask() -> int | None:
        async with Admin(cluster.bootstrap) as admin:
            return await admin.position(f"spark/{query_id}/{sink}")

    return asyncio.run(ask())
