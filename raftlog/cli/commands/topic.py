"""`raftlog topic`: create, list, describe, change and delete topics, with the column names of Kafka's tools.

This module also holds the plan of `raftlog topic delete-records`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import msgspec
import rich_click as click

from raftlog.cli.records.sizes import Replica, sizes_by, sizes_text
from raftlog.cli.terminal.command import command, option
from raftlog.cli.terminal.confirm import confirm
from raftlog.cli.terminal.exit_codes import EXIT_UNHEALTHY
from raftlog.cli.terminal.options import (
    COUNT,
    PARTITION_COUNT,
    AnyTopics,
    Isolation,
    Name,
    PlanDeletion,
    ReplicationFactor,
    Topic,
    Topics,
    Yes,
    parse_settings,
    parse_time,
)
from raftlog.cli.terminal.output import Output, counted, dash, fields, listing, show
from raftlog.errors import InvalidRequest

if TYPE_CHECKING:
    from raftlog.api.topics import TopicDescription
    from raftlog.sync import Admin

CONCURRENT_REQUESTS = 8


class OffsetsOfPartition(msgspec.Struct, frozen=True):
    """The offsets of a partition: `[earliest, latest)`. None if it did not answer."""

    topic: str
    partition: int
    earliest: int | None
    latest: int | None
    offsets: int | None
    """Number of offsets; a compacted log has fewer records."""
    error: str | None


class TopicOffset(msgspec.Struct, frozen=True):
    """One offset of a partition; None if it has no record that late."""

    topic: str
    partition: int
    offset: int | None
    timestamp_ms: int | None
    error: str | None


class Deletion(msgspec.Struct, frozen=True):
    """The outcome of deleting a topic. `deleted` is False if it did not exist."""

    name: str
    deleted: bool

    def __str__(self) -> str:
        return f"Deleted topic {self.name}." if self.deleted else f"There is no topic {self.name}."


@click.group()
def topic() -> None:
    """Create, list, describe, change and delete topics."""


@command(topic)
def create(
    admin: Admin,
    name: Name,
    partitions: Annotated[int, PARTITION_COUNT, "Number of partitions."] = 1,
    replication_factor: ReplicationFactor = None,
    config: Annotated[
        tuple[str, ...], option("Setting, such as retention.ms=7d; repeatable.", metavar="NAME=VALUE")
    ] = (),
    if_not_exists: Annotated[bool, "Succeed without a change if the topic exists."] = False,
    output: Output = "table",
) -> None:
    """Create a topic.

    Examples:
        raftlog topic create orders --partitions 6 --config retention.ms=7d --config retention.bytes=2GiB
        raftlog topic create orders --if-not-exists
    """
    settings = parse_settings(config)
    try:
        description = admin.create_topic(name, partitions, replication_factor, settings)
        done = f"Created topic {name}."
    except InvalidRequest as error:
        if error.code != "topic_exists" or not if_not_exists:
            raise
        description = admin.describe_topic(name)
        done = f"Topic {name} exists."
    show(output, description, lambda wide: f"{done}\n{_description(description, wide)}" if wide else done)


@command(topic, "list")
def list_topics(admin: Admin, output: Output = "table") -> None:
    """List all topics by name.

    Examples:
        raftlog topic list
    """
    topics = admin.list_topics()
    rows = [(t.name, t.partition_count, t.replication_factor, t.id) for t in topics]
    show(output, topics, listing(("Topic", "PartitionCount", "ReplicationFactor"), rows, ("TopicId",)))


@command(topic)
def describe(admin: Admin, topics: AnyTopics = (), output: Output = "table") -> None:
    """Show topics with their partitions (default: all topics).

    Examples:
        raftlog topic describe
        raftlog topic describe orders -o wide
    """
    wanted = list(dict.fromkeys(topics)) or [summary.name for summary in admin.list_topics()]
    with ThreadPoolExecutor(CONCURRENT_REQUESTS) as threads:
        descriptions = list(threads.map(admin.describe_topic, wanted))
    show(output, descriptions, lambda wide: "\n\n".join(_description(one, wide) for one in descriptions))


@command(topic)
def delete(
    admin: Admin,
    topics: Topics,
    yes: Yes = False,
    if_exists: Annotated[bool, "Succeed if the topic does not exist."] = False,
    output: Output = "table",
) -> None:
    """Delete topics with all their records.

    Examples:
        raftlog topic delete orders
    """
    wanted = list(dict.fromkeys(topics))
    if not yes:
        confirm(f"Delete {', '.join(wanted)} with all records?")
    done: list[Deletion] = []
    try:
        for name in wanted:
            deleted = True
            try:
                admin.delete_topic(name)
            except InvalidRequest as error:
                if error.code != "unknown_topic" or not if_exists:
                    raise
                deleted = False
            done.append(Deletion(name, deleted))
    finally:
        # This also shows what was done before a failure.
        show(output, done, lambda wide: "\n".join(map(str, done)))


@command(topic)
def alter(
    admin: Admin,
    name: Topic,
    assign: Annotated[tuple[str, ...], option("Change a setting; repeatable.", "--set", metavar="NAME=VALUE")] = (),
    unset: Annotated[tuple[str, ...], option("Reset a setting to its default; repeatable.", metavar="NAME")] = (),
    partitions: Annotated[int | None, PARTITION_COUNT, "New total number of partitions."] = None,
    output: Output = "table",
) -> None:
    """Change a topic's settings or add partitions (after which keys map to other partitions).

    Examples:
        raftlog topic alter orders --set retention.ms=30d --unset flush
        raftlog topic alter orders --partitions 12
    """
    settings = parse_settings(assign)
    if not settings and not unset and partitions is None:
        raise click.UsageError("nothing to change: give --set, --unset or --partitions")
    both = sorted(set(settings).intersection(unset))
    if both:
        raise click.UsageError(f"both --set and --unset for {', '.join(both)}")
    description = None
    if settings or unset:
        description = admin.alter_topic(name, settings, list(dict.fromkeys(unset)))
    if partitions is not None:
        description = admin.add_partitions(name, partitions)
    assert description is not None, "there was something to change"
    altered = description
    show(output, altered, lambda wide: f"Altered topic {name}.\n{_description(altered, wide)}")


@command(topic, "delete-records")
def delete_records(
    admin: Admin,
    name: Topic,
    before: Annotated[
        tuple[str, ...],
        option(
            "Delete records below this offset; PARTITION=latest: all that consumers may read. Repeatable.",
            metavar="PARTITION=OFFSET",
        ),
    ],
    plan: PlanDeletion = False,
    yes: Yes = False,
    output: Output = "table",
) -> None:
    """Delete the oldest records of partitions permanently.

    Examples:
        raftlog topic delete-records orders --before 0=1200 --before 1=latest --plan
    """
    topic_id, planned = plan_deletions(admin, name, parse_bounds(before))
    if plan:
        columns = ("Topic", "Partition", "LogStartOffset", "Before", "HighWatermark", "Offsets")
        show(output, planned, listing(columns, [(name, *msgspec.structs.astuple(one)) for one in planned]))
        return
    if not yes:
        total = sum(one.records for one in planned)
        confirm(f"Delete {counted(total, 'offset')} of topic {name}, {counted(len(planned), 'partition')}?")
    # Delete what was shown and confirmed: no later records, and no other topic of that name.
    deleted = admin.delete_records(name, {one.partition: one.before for one in planned}, topic_id=topic_id)
    rows = [(name, one.partition, one.log_start_offset) for one in deleted]
    show(output, deleted, listing(("Topic", "Partition", "LogStartOffset"), rows))


@command(topic)
def offsets(
    admin: Admin,
    topics: AnyTopics = (),
    at: Annotated[
        str | None,
        option(
            "Show one offset: earliest, latest, or that of a time (@MILLISECONDS, ISO 8601, 2h for that long ago).",
            metavar="earliest|latest|TIME",
        ),
    ] = None,
    partition: Annotated[tuple[int, ...], COUNT, "Only this partition; repeatable."] = (),
    isolation: Annotated[Isolation, "Where a partition ends: its last stable offset, or its high watermark."] = (
        "read_committed"
    ),
    output: Output = "table",
) -> int:
    """Show the first offset, the end, or the offset at a time, of each partition (default: of all topics).

    Exit code 10: a partition did not answer.

    Examples:
        raftlog topic offsets orders
        raftlog topic offsets orders --at 2h
        raftlog topic offsets orders --at 2026-01-31T12:00:00Z --partition 0
    """
    wanted = list(dict.fromkeys(topics)) or [one.name for one in admin.list_topics()]
    some = list(partition) or None
    if at is None:
        ranges = [row for name in wanted for row in _ranges(admin, name, some, isolation)]
        rows = [
            (r.topic, r.partition, dash(r.earliest), dash(r.latest), dash(r.offsets), r.error or "-") for r in ranges
        ]
        failed = any(one.error for one in ranges)
        columns = ("Topic", "Partition", "Earliest", "Latest", "Offsets") + ("Error",) * failed
        show(output, ranges, listing(columns, rows))
        return EXIT_UNHEALTHY if failed else 0
    moment = _moment(at)
    found = [
        TopicOffset(
            name, one.partition, one.offset, one.timestamp_ms, one.error.detail if one.error is not None else None
        )
        for name in wanted
        for one in admin.list_offsets(name, moment, some, isolation=isolation)
    ]
    failed = any(one.error for one in found)
    columns = ("Topic", "Partition", "Offset", "TimestampMs") + ("Error",) * failed
    lines = [(o.topic, o.partition, dash(o.offset), dash(o.timestamp_ms), o.error or "-") for o in found]
    show(output, found, listing(columns, lines))
    return EXIT_UNHEALTHY if failed else 0


@command(topic, "sizes")
def show_sizes(
    admin: Admin,
    topics: AnyTopics = (),
    by: Annotated[Literal["topic", "partition", "broker", "replica"], "What to add up."] = "topic",
    output: Output = "table",
) -> int:
    """Show how many bytes topics take on the disks of brokers (default: all topics).

    Exit code 10: a broker did not answer, so its replicas are missing.

    Examples:
        raftlog topic sizes
        raftlog topic sizes orders --by replica
        raftlog topic sizes --by broker -o json
    """
    held = admin.replicas()
    for name in topics:
        admin.describe_topic(name)
    replicas = [
        Replica(broker, one.topic, one.partition, one.role, one.log_end_offset, one.size_bytes)
        for broker, some in sorted(held.items())
        for one in some
        if not topics or one.topic in topics
    ]
    found = sizes_by(by, replicas)
    show(output, found, lambda wide: sizes_text(by, found))
    silent = sorted({node.id for node in admin.cluster().nodes} - set(held))
    if silent:
        missing = ", ".join(map(str, silent))
        click.echo(f"These brokers did not answer, so their replicas are missing: {missing}", err=True)
    return EXIT_UNHEALTHY if silent else 0


def _ranges(admin: Admin, name: str, some: Sequence[int] | None, isolation: Isolation) -> list[OffsetsOfPartition]:
    firsts = admin.list_offsets(name, "earliest", some, isolation=isolation)
    lasts = admin.list_offsets(name, "latest", some, isolation=isolation)
    found = []
    for first, last in zip(firsts, lasts, strict=True):
        error = first.error or last.error
        count = None if first.offset is None or last.offset is None else last.offset - first.offset
        row = (name, first.partition, first.offset, last.offset, count, error.detail if error is not None else None)
        found.append(OffsetsOfPartition(*row))
    return found


def _moment(at: str) -> Literal["earliest", "latest"] | int:
    """Raises `click.BadParameter`."""
    if at in ("earliest", "latest"):
        return at  # type: ignore[return-value]
    found = parse_time(at)
    if found is None:
        raise click.BadParameter(f"{at!r} is no time: use earliest, latest, @MILLISECONDS, 2026-01-31T12:00:00Z or 2h")
    return found


def _description(description: TopicDescription, wide: bool) -> str:
    given = description.overrides or ()
    summary = {
        "Topic": description.name,
        "TopicId": description.id,
        "PartitionCount": description.partition_count,
        "ReplicationFactor": description.replication_factor,
        # Like Kafka's tools: without the settings that have their default.
        "Configs": {name: value for name, value in description.configs.items() if wide or name in given},
    }
    columns = ("Topic", "Partition", "Leader", "Replicas", "Isr")
    wide_columns = ("LeaderEpoch", "PartitionEpoch", "CommitSet", "NotEligible", "MinIsr")
    rows = []
    for one in description.partitions:
        more = (one.leader_epoch, one.partition_epoch, one.commit_set, one.not_eligible, one.min_insync_replicas)
        rows.append((description.name, one.partition, one.leader, one.replicas, one.isr, *more))
    return f"{fields(summary)}\n{listing(columns, rows, wide_columns)(wide)}"


Before: TypeAlias = dict[int, "int | Literal['latest']"]

_BOUND = re.compile(r"([0-9]{1,10})=([0-9]{1,19}|latest)", re.ASCII)


class PlannedDeletion(msgspec.Struct, frozen=True):
    """A planned deletion in one partition: offsets in `[log_start_offset, before)`."""

    partition: int
    log_start_offset: int
    before: int
    high_watermark: int
    records: int
    """Number of offsets; a compacted log has fewer records."""


def parse_bounds(bounds: Sequence[str]) -> Before:
    """Parse `PARTITION=OFFSET` or `PARTITION=latest`, each partition once. Raises `click.UsageError`."""
    found: Before = {}
    for text in bounds:
        match = _BOUND.fullmatch(text)
        if match is None:
            raise click.UsageError(f"--before must be PARTITION=OFFSET or PARTITION=latest, not {text!r}")
        partition, offset = int(match[1]), match[2]
        if partition in found:
            raise click.UsageError(f"partition {partition} has two bounds")
        found[partition] = "latest" if offset == "latest" else int(offset)
    return found


def plan_deletions(admin: Admin, name: str, before: Mapping[int, int | str]) -> tuple[str, list[PlannedDeletion]]:
    """Return the topic's id, and what would be deleted now. Raises like `Admin.delete_records`, and deletes nothing."""
    topic_id, planned = admin.describe_topic(name).id, []
    for partition, offset in before.items():
        held = admin.offsets(name, partition, topic_id=topic_id)
        bound = held.latest if isinstance(offset, str) else offset
        if bound > held.latest:
            detail = f"cannot delete before {bound} in {name}/{partition}: it holds [{held.earliest}, {held.latest}]"
            raise InvalidRequest("offset_out_of_range", detail)
        going = max(0, bound - held.earliest)
        planned.append(PlannedDeletion(partition, held.earliest, bound, held.latest, going))
    return topic_id, planned
