"""A topic with records that expire within seconds: data on a full disk that the product may delete by itself.

When a foreign file has filled a disk, space returns only where retention deletes something. These records provide that:
an ordinary client writes them, on every node, to a topic beside those that the run checks. The checked topics keep all
of their records and are judged as always.

    topic_id = await write(cluster.bootstrap, room_needed(volume))
    assert stored(cluster.data_folder(node), topic_id) >= room_needed(volume)
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from raftlog.client.admin import Admin
from raftlog.client.producer import Producer
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError

from .health import NotWell, until_written
from .power_loss import Volume

TOPIC = "expendable"
PARTITIONS = 3
RETENTION_SECONDS = 20
"""Longer than `WRITE_SECONDS`, so that all records still exist when the disk is filled."""
CONFIGS = {
    "segment.bytes": str(1024 * 1024),
    "retention.ms": str(RETENTION_SECONDS * 1000),
    "retention.bytes": "-1",
}
WRITE_SECONDS = 15.0
VALUE = bytes(64 * 1024)
VALUES_AT_ONCE = 16
SLACK_BYTES = 8 * 1024 * 1024
"""Allowance for the active segments, which retention keeps, and for what the other topics write meanwhile."""
SHARE_OF_DISK = 8
"""One eighth of the disk: a sixteenth for a node's ballast, and a twentieth plus a quarter of that, above which its
leaders accept batches (`docs/storage-faults.md`).
"""
TAKES_NOTHING_BELOW = 20
"""If less than this part of its disk is free, a twentieth, a node accepts no batches from clients."""
SHORT = "short of room"
"""Phrase in the health problem of a node that accepts no batches."""
POLL_SECONDS = 0.5


def room_needed(volume: Volume) -> int:
    """Return the bytes that must at least become free on a full disk before its node accepts batches again."""
    return size(volume) // SHARE_OF_DISK + SLACK_BYTES


def size(volume: Volume) -> int:
    """Return the size of the file system in bytes."""
    found = os.statvfs(volume.path)
    return found.f_blocks * found.f_frsize


def free(volume: Volume) -> int:
    """Return the free bytes of the file system."""
    found = os.statvfs(volume.path)
    return found.f_bavail * found.f_frsize


async def write(bootstrap: Sequence[str], total: int) -> str:
    """Write `total` bytes to every node and return the topic's id; the topic is created if it does not exist.

    Raises `RaftlogError`, also if the writing takes longer than `WRITE_SECONDS`.
    """
    try:
        async with asyncio.timeout(WRITE_SECONDS), Admin(bootstrap) as admin, Producer(bootstrap) as producer:
            topic_id = await _topic(admin, len(bootstrap))
            each = -(-total // len(VALUE) // PARTITIONS)
            await asyncio.gather(*(_write(producer, partition, each) for partition in range(PARTITIONS)))
    except TimeoutError:
        raise RetriableError(
            "request_timed_out", f"{total} bytes of topic {TOPIC} were not written within {WRITE_SECONDS:g} s"
        ) from None
    return topic_id


async def _topic(admin: Admin, replicas: int) -> str:
    try:
        return (await admin.create_topic(TOPIC, PARTITIONS, replicas, CONFIGS)).id
    except InvalidRequest as error:
        if error.code != "topic_exists":
            raise
    return (await admin.describe_topic(TOPIC)).id


async def _write(producer: Producer, partition: int, count: int) -> None:
    for begin in range(0, count, VALUES_AT_ONCE):
        values = [VALUE] * min(VALUES_AT_ONCE, count - begin)
        await asyncio.gather(*await producer.send_many(TOPIC, values, partition=partition))


def stored(data_folder: Path, topic_id: str) -> int:
    """Return the bytes of a topic's segments in a node's data folder."""
    sizes = []
    for segment in data_folder.glob(f"partitions/{topic_id}-*/*.log"):
        try:
            sizes.append(segment.stat().st_size)
        except FileNotFoundError:  # Retention deleted it meanwhile.
            continue
    return sum(sizes)


async def until_room(bootstrap: Sequence[str], disks: Mapping[int, Volume], within: float) -> None:
    """Wait until these nodes have recovered from full disks.

    That is: their disks have space, every partition of the topic accepts a record, which these nodes replicate in sync,
    and no node is short of room. Raises `NotWell`, which says what is missing.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while True:
        missing = _full(disks) or await _missing(bootstrap, disks, max(deadline - loop.time(), POLL_SECONDS))
        if not missing:
            return
        if loop.time() >= deadline:
            raise NotWell(f"not within {within:.0f} s: {missing}")
        await asyncio.sleep(POLL_SECONDS)


def _full(disks: Mapping[int, Volume]) -> str:
    """Return a problem if a disk is still full: its node may not have noticed yet and report that all is well."""
    for node, volume in disks.items():
        left = free(volume)
        if left * TAKES_NOTHING_BELOW < size(volume):
            return f"retention has freed too little space: {left} bytes of node {node}'s disk are free"
    return ""


async def _missing(bootstrap: Sequence[str], nodes: Iterable[int], left: float) -> str:
    try:
        async with asyncio.timeout(left), Admin(bootstrap) as admin:
            problems = [problem for problem in (await admin.health()).problems if SHORT in problem]
            if problems:
                return problems[0]
            await until_written(bootstrap, [TOPIC], left)
            for one in (await admin.describe_topic(TOPIC)).partitions:
                behind = sorted(set(nodes) & set(one.replicas) - set(one.isr))
                if behind:
                    return f"nodes {behind} are not in sync in {TOPIC}/{one.partition}"
    except (RaftlogError, NotWell) as error:
        return str(error)
    except TimeoutError:
        return "no node answered in time"
    return ""
