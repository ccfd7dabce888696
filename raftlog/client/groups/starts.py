"""Start offsets of newly assigned partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raftlog.api.groups import GroupOffsetInfo, GroupPartition
from raftlog.client.cluster.api import HttpApi
from raftlog.client.consuming.offsets import find_offsets
from raftlog.client.consuming.reader import Start, parse_start, query_timestamp
from raftlog.errors import InvalidRequest
from raftlog.model import EARLIEST
from raftlog.wire import TIMESTAMP_EARLIEST, TIMESTAMP_LATEST

GONE = ("unknown_topic", "unknown_partition")
"""Error codes of a topic that was deleted; the group will take its partitions away."""


async def find_starts(
    api: HttpApi, partitions: Sequence[GroupPartition], known: Mapping[GroupPartition, GroupOffsetInfo], reset: str
) -> dict[GroupPartition, int]:
    """Return the committed offsets; without one, the offset that `reset` names.

    Partitions of a topic that was deleted after the assignment have no start: the group will take them away. Raises
    `InvalidRequest` (`offset_out_of_range`) if `reset` is `"error"` and a partition has no committed offset.
    """
    starts: dict[GroupPartition, int] = {}
    without: dict[str, list[GroupPartition]] = {}
    for partition in partitions:
        committed = known[partition].offset if partition in known else None
        if committed is not None:
            starts[partition] = committed
        elif reset == "error":
            detail = (
                f"the group has no committed offset in {partition}, and auto_offset_reset is error: "
                "commit one, or set earliest or latest"
            )
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
    """Return the offset that `start` stands for. Raises `InvalidRequest`, or `RetriableError` if no broker answers."""
    place = parse_start(start)
    if isinstance(place, int):
        return place
    queries = [(partition.partition, query_timestamp(place))]
    return (await find_offsets(api, bytes.fromhex(partition.topic_id), queries))[partition.partition]
