"""Where a member begins in partitions that it was just given; and telling its program of them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

from raftlog.client.cluster.api import HttpApi
from raftlog.client.consuming.offsets import find_offsets
from raftlog.client.consuming.reader import Start, parse_start, query_timestamp
from raftlog.errors import InvalidRequest
from raftlog.model import EARLIEST
from raftlog.wire import TIMESTAMP_EARLIEST, TIMESTAMP_LATEST

from .api import GroupOffsetInfo, GroupPartition

GONE = ("unknown_topic", "unknown_partition")
"""Of a topic that was deleted: the group will say so."""

RebalanceCallback: TypeAlias = Callable[[list[GroupPartition]], Awaitable[None] | None]


async def find_starts(
    api: HttpApi, partitions: Sequence[GroupPartition], known: Mapping[GroupPartition, GroupOffsetInfo], reset: str
) -> dict[GroupPartition, int]:
    """At the committed offsets; where there is none, as `reset` says. Partitions of a topic that was deleted since they
    were assigned have no start: the group will take them away. Raises `InvalidRequest` (`offset_out_of_range`) where
    `reset` is `"error"`."""
    starts: dict[GroupPartition, int] = {}
    without: dict[str, list[GroupPartition]] = {}
    for partition in partitions:
        committed = known[partition].offset if partition in known else None
        if committed is not None:
            starts[partition] = committed
        elif reset == "error":
            detail = f"the group has committed nothing in {partition}, and auto_offset_reset is error"
            raise InvalidRequest("offset_out_of_range", detail)
        else:
            without.setdefault(partition.topic_id, []).append(partition)
    time = TIMESTAMP_EARLIEST if reset == EARLIEST else TIMESTAMP_LATEST
    for topic_id, found in without.items():
        try:
            offsets = await find_offsets(api, bytes.fromhex(topic_id), [(one.partition, time) for one in found])
        except InvalidRequest as error:
            if error.code not in GONE:
                raise
            continue
        starts.update({one: offsets[one.partition] for one in found})
    return starts


async def find_start(api: HttpApi, partition: GroupPartition, start: Start) -> int:
    """The offset that it means. Raises `InvalidRequest`, or `RetriableError` where nobody tells."""
    place = parse_start(start)
    if isinstance(place, int):
        return place
    queries = [(partition.partition, query_timestamp(place))]
    return (await find_offsets(api, bytes.fromhex(partition.topic_id), queries))[partition.partition]


async def call_back(callback: RebalanceCallback | None, partitions: Sequence[GroupPartition]) -> None:
    """With these, sorted; a coroutine is awaited."""
    if callback is not None:
        told = callback(sorted(partitions))
        if inspect.isawaitable(told):
            await told
