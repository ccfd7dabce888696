"""Sizes of replicas, added up by topic, partition or broker, with the lag of each replica as in `kafka-log-dirs`.

This module is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from raftlog.cli.terminal.output import counted, table
from raftlog.quantities import shown_size


class Replica(msgspec.Struct, frozen=True):
    """One replica on one broker."""

    broker: int
    topic: str
    partition: int
    role: str
    log_end_offset: int
    bytes: int
    offset_lag: int = 0
    """Number of offsets that it lacks, relative to the replica with the most."""


class Sizes(msgspec.Struct, frozen=True, omit_defaults=True):
    """A sum over replicas. `topic`, `partition` and `broker` are given if the sum is of one."""

    topic: str | None = None
    partition: int | None = None
    broker: int | None = None
    partitions: int = 0
    replicas: int = 0
    bytes: int = 0


def sizes_by(what: str, replicas: Iterable[Replica]) -> Sequence[Replica | Sizes]:
    """Return the replicas with their lag, or sums by `topic`, `partition` or `broker`, in order."""
    found = sorted(replicas, key=lambda one: (one.topic, one.partition, one.broker))
    if what == "replica":
        ends: dict[tuple[str, int], int] = {}
        for one in found:
            place = (one.topic, one.partition)
            ends[place] = max(ends.get(place, 0), one.log_end_offset)
        return [
            msgspec.structs.replace(one, offset_lag=ends[one.topic, one.partition] - one.log_end_offset)
            for one in found
        ]
    sums: dict[tuple[str | None, int | None, int | None], list[Replica]] = {}
    for one in found:
        key = {
            "topic": (one.topic, None, None),
            "partition": (one.topic, one.partition, None),
            "broker": (None, None, one.broker),
        }[what]
        sums.setdefault(key, []).append(one)
    rows = [
        Sizes(*key, len({(one.topic, one.partition) for one in some}), len(some), sum(one.bytes for one in some))
        for key, some in sums.items()
    ]
    return sorted(rows, key=lambda row: (row.topic or "", row.partition or 0, row.broker or 0))


def sizes_text(what: str, found: Sequence[Replica | Sizes]) -> str:
    """Return the table, and the sum below it."""
    rows: list[tuple[object, ...]] = []
    total = sum(one.bytes for one in found)
    for one in found:
        shown = (one.bytes, shown_size(one.bytes))
        if isinstance(one, Replica):
            rows.append((one.topic, one.partition, one.broker, one.role, one.log_end_offset, one.offset_lag, *shown))
        elif what == "broker":
            rows.append((one.broker, one.partitions, *shown))
        elif what == "partition":
            rows.append((one.topic, one.partition, one.replicas, *shown))
        else:
            rows.append((one.topic, one.partitions, one.replicas, *shown))
    columns = {
        "replica": ("Topic", "Partition", "Broker", "Role", "LogEndOffset", "OffsetLag"),
        "broker": ("Broker", "Replicas"),
        "partition": ("Topic", "Partition", "Replicas"),
        "topic": ("Topic", "Partitions", "Replicas"),
    }[what]
    count = sum(1 if isinstance(one, Replica) else one.replicas for one in found)
    return f"{table((*columns, 'Bytes', 'Size'), rows)}\n\n{counted(count, 'replica')}, {shown_size(total)}."
