"""Recovery of a cluster within a bound: every replica in sync, every partition accepting records (S10)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from raftlog.api.topics import PartitionInfo
from raftlog.client.admin import Admin
from raftlog.client.producer import Producer
from raftlog.errors import RaftlogError

RECOVERY_SECONDS = 60.0
POLL_SECONDS = 0.05
PROBE = b"raftlog-probe"
"""Value of the records that `until_written` writes."""


class NotWell(Exception):
    """The cluster did not recover in time; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """How long the recovery took, in seconds since the call."""

    in_sync_s: float
    """Until every partition had a leader and all of its replicas in sync."""
    written_s: float | None
    """Until a record was acknowledged in every partition; None if no topic was written to."""


async def recover(
    bootstrap: Sequence[str], *, write_to: Sequence[str] = (), within: float = RECOVERY_SECONDS
) -> Recovery:
    """Wait until the cluster has recovered.

    `write_to`: topics to whose partitions a record (`PROBE`) is written, each as soon as it is accepted. Raises
    `NotWell`.
    """
    began = time.monotonic()

    async def measured(work: Awaitable[None]) -> float:
        await work
        return round(time.monotonic() - began, 3)

    # Both are measured from the beginning: a partition accepts records long before all of its replicas are in sync.
    writing = asyncio.create_task(measured(until_written(bootstrap, write_to, within)))
    try:
        in_sync = await measured(until_in_sync(bootstrap, within))
        written = await writing
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
    return Recovery(in_sync, written if write_to else None)


async def until_in_sync(bootstrap: Sequence[str], within: float = RECOVERY_SECONDS) -> None:
    """Wait until every node is alive, the quorum has a leader, and all replicas of every partition are in sync.

    Raises `NotWell`.
    """
    async with Admin(bootstrap) as admin:
        await _until(lambda: _what_is_missing(admin, len(bootstrap)), within)


async def until_written(bootstrap: Sequence[str], topics: Sequence[str], within: float = RECOVERY_SECONDS) -> None:
    """Write a record to every partition of these topics, until it is acknowledged. Raises `NotWell`."""
    if not topics:
        return
    try:
        async with asyncio.timeout(within), Producer(bootstrap) as producer, Admin(bootstrap) as admin:
            for topic in topics:
                count = await _patiently(lambda topic=topic: _partition_count(admin, topic))  # type: ignore[misc]
                await asyncio.gather(*(_write(producer, topic, partition) for partition in range(count)))
    except TimeoutError:
        raise NotWell(f"not every partition of {', '.join(topics)} took a record within {within:.0f} s") from None


async def _partition_count(admin: Admin, topic: str) -> int:
    return (await admin.describe_topic(topic)).partition_count


async def _write(producer: Producer, topic: str, partition: int) -> None:
    async def once() -> bool:
        await producer.send_and_wait(topic, PROBE, partition=partition)
        return True

    await _patiently(once)


async def _patiently(ask: Callable[[], Awaitable[int]]) -> int:
    """Return the answer, retrying while the cluster refuses; the caller bounds the time."""
    while True:
        try:
            return await ask()
        except RaftlogError:
            await asyncio.sleep(POLL_SECONDS)


async def _what_is_missing(admin: Admin, nodes: int) -> str:
    cluster = await admin.cluster()
    alive = [node.id for node in cluster.nodes if not node.fenced]
    if len(alive) < nodes:
        return f"of {nodes} nodes only {alive} are alive"
    if cluster.controller is None or cluster.controller < 0:
        return "the quorum has no leader"
    for topic in await admin.list_topics():
        for one in (await admin.describe_topic(topic.name)).partitions:
            if not _is_well(one):
                return f"{topic.name}/{one.partition} is led by {one.leader} with {one.isr} of {one.replicas} in sync"
    return ""


def _is_well(one: PartitionInfo) -> bool:
    return one.leader is not None and sorted(one.isr) == sorted(one.replicas) and not one.adding_replicas


async def _until(missing: Callable[[], Awaitable[str]], within: float) -> None:
    deadline = time.monotonic() + within
    while True:
        try:
            what = await missing()
        except RaftlogError as error:
            what = str(error)
        if not what:
            return
        if time.monotonic() > deadline:
            raise NotWell(f"not within {within:.0f} s: {what}")
        await asyncio.sleep(POLL_SECONDS)
