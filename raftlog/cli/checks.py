"""What commands that carry records look at first, so that they fail at once where nothing can be done."""

from __future__ import annotations

from collections.abc import Iterable

from raftlog.errors import InvalidRequest


async def check_partitions(bootstrap: str, topic: str, partitions: Iterable[int]) -> None:
    """Raises `InvalidRequest` (`unknown_topic`, `unknown_partition`), or `RetriableError` within seconds where no node
    answers (producers and consumers keep trying for longer)."""
    from raftlog.client import Admin

    async with Admin(bootstrap) as admin:
        count = (await admin.describe_topic(topic)).partition_count
    for partition in partitions:
        if partition >= count:
            there = "only partition 0" if count == 1 else f"partitions 0 to {count - 1}"
            raise InvalidRequest("unknown_partition", f"topic {topic} has {there}, not {partition}")
