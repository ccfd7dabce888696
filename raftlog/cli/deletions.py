"""What `raftlog topic delete-records` was asked for, and what it would do.

What is *not* here: the deletion (`Admin.delete_records`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec
import rich_click as click

from raftlog.errors import InvalidRequest

from .output import table

if TYPE_CHECKING:
    from raftlog.client import Admin

Before: TypeAlias = dict[int, "int | Literal['latest']"]

_BOUND = re.compile(r"([0-9]{1,10})=([0-9]{1,19}|latest)", re.ASCII)


class PlannedDeletion(msgspec.Struct, frozen=True):
    """One partition: offsets in `[log_start_offset, before)` would go."""

    partition: int
    log_start_offset: int
    before: int
    high_watermark: int
    records: int
    """Offsets, to be exact: where a log was compacted there are fewer records."""


def parse_bounds(bounds: Sequence[str]) -> Before:
    """`PARTITION=OFFSET` or `PARTITION=latest`, each partition once. Raises `click.UsageError`."""
    found: Before = {}
    for text in bounds:
        match = _BOUND.fullmatch(text)
        if match is None:
            raise click.UsageError(f"--before is PARTITION=OFFSET or PARTITION=latest, not {text!r}")
        partition, offset = int(match[1]), match[2]
        if partition in found:
            raise click.UsageError(f"partition {partition} has two bounds")
        found[partition] = "latest" if offset == "latest" else int(offset)
    return found


async def plan_deletions(admin: Admin, name: str, before: Mapping[int, int | str]) -> tuple[str, list[PlannedDeletion]]:
    """The topic's id, and what would be deleted now. Raises as `Admin.delete_records` would, and deletes nothing."""
    topic_id, planned = (await admin.describe_topic(name)).id, []
    for partition, offset in before.items():
        held = await admin.offsets(name, partition, topic_id=topic_id)
        bound = held.latest if isinstance(offset, str) else offset
        if bound > held.latest:
            detail = f"cannot delete before {bound} in {name}/{partition}: it holds [{held.earliest}, {held.latest}]"
            raise InvalidRequest("offset_out_of_range", detail)
        going = max(0, bound - held.earliest)
        planned.append(PlannedDeletion(partition, held.earliest, bound, held.latest, going))
    return topic_id, planned


def deletions_table(name: str, planned: Sequence[PlannedDeletion]) -> str:
    """The plan, for people."""
    columns = ("Topic", "Partition", "LogStartOffset", "Before", "HighWatermark", "Offsets")
    rows = [(name, one.partition, one.log_start_offset, one.before, one.high_watermark, one.records) for one in planned]
    return table(columns, rows)
