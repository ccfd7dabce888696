"""`raftlog topic`: create, list, describe, change and delete topics, with the column names of Kafka's tools.

This module also holds the plan of `raftlog topic delete-records`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

import msgspec
import rich_click as click

from raftlog.cli.terminal.options import parse_settings
from raftlog.cli.terminal.output import fields, output_option, show, table
from raftlog.config import MAX_PARTITIONS_PER_TOPIC
from raftlog.errors import InvalidRequest

if TYPE_CHECKING:
    from raftlog.client import Admin
    from raftlog.client.cluster.metadata import TopicDescription

T = TypeVar("T")

CONCURRENT_REQUESTS = 8

PARTITION_COLUMNS = ("Topic", "Partition", "Leader", "Replicas", "Isr")
WIDE_PARTITION_COLUMNS = ("LeaderEpoch", "PartitionEpoch", "CommitSet", "NotEligible", "MinIsr")


class Deletion(msgspec.Struct, frozen=True):
    """The outcome of deleting a topic. `deleted` is False if it did not exist."""

    name: str
    deleted: bool

    def __str__(self) -> str:
        return f"Deleted topic {self.name}." if self.deleted else f"There is no topic {self.name}."


@click.group()
def topic() -> None:
    """Create, list, describe, change and delete topics."""


@topic.command()
@click.argument("name")
@click.option("--partitions", default=1, show_default=True, type=click.IntRange(1, MAX_PARTITIONS_PER_TOPIC))
@click.option(
    "--replication-factor", type=click.IntRange(1), help="Replicas of each partition (default: the cluster chooses)."
)
@click.option("--config", "configs", multiple=True, metavar="NAME=VALUE", help="Setting of the topic; repeatable.")
@click.option("--if-not-exists", is_flag=True, help="Succeed without a change if the topic exists.")
@output_option
@click.pass_obj
def create(
    bootstrap: str,
    name: str,
    partitions: int,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    output: str,
) -> None:
    """Create a topic."""
    settings = parse_settings(configs)

    async def work(admin: Admin) -> tuple[bool, TopicDescription]:
        try:
            return True, await admin.create_topic(name, partitions, replication_factor, settings)
        except InvalidRequest as error:
            if error.code != "topic_exists" or not if_not_exists:
                raise
            return False, await admin.describe_topic(name)

    created, description = _with_admin(bootstrap, work)
    done = f"Created topic {name}." if created else f"Topic {name} exists."
    show(output, description, lambda wide: f"{done}\n{_describe_text([description], wide)}" if wide else done)


@topic.command("list")
@output_option
@click.pass_obj
def list_topics(bootstrap: str, output: str) -> None:
    """List all topics by name."""
    topics = _with_admin(bootstrap, lambda admin: admin.list_topics())

    def text(wide: bool) -> str:
        columns = ("Topic", "PartitionCount", "ReplicationFactor") + ("TopicId",) * wide
        rows = [(t.name, t.partition_count, t.replication_factor) + (t.id,) * wide for t in topics]
        return table(columns, rows)

    show(output, topics, text)


@topic.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@output_option
@click.pass_obj
def describe(bootstrap: str, names: tuple[str, ...], output: str) -> None:
    """Show topics with their partitions (default: all topics)."""

    async def work(admin: Admin) -> list[TopicDescription]:
        wanted = list(dict.fromkeys(names)) or [summary.name for summary in await admin.list_topics()]
        limit = asyncio.Semaphore(CONCURRENT_REQUESTS)

        async def one(name: str) -> TopicDescription:
            async with limit:
                return await admin.describe_topic(name)

        return await asyncio.gather(*map(one, wanted))

    descriptions = _with_admin(bootstrap, work)
    show(output, descriptions, lambda wide: _describe_text(descriptions, wide))


@topic.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
@click.option("--if-exists", is_flag=True, help="Succeed if the topic does not exist.")
@output_option
@click.pass_obj
def delete(bootstrap: str, names: tuple[str, ...], yes: bool, if_exists: bool, output: str) -> None:
    """Delete topics with all their records."""
    wanted = list(dict.fromkeys(names))
    if not yes:
        click.confirm(f"Delete {', '.join(wanted)} with all records?", abort=True, err=True)

    done: list[Deletion] = []

    async def work(admin: Admin) -> None:
        for name in wanted:
            deleted = True
            try:
                await admin.delete_topic(name)
            except InvalidRequest as error:
                if error.code != "unknown_topic" or not if_exists:
                    raise
                deleted = False
            done.append(Deletion(name, deleted))

    try:
        _with_admin(bootstrap, work)
    finally:
        # This also shows what was done before a failure.
        show(output, done, lambda wide: "\n".join(map(str, done)))


@topic.command()
@click.argument("name")
@click.option("--set", "assign", multiple=True, metavar="NAME=VALUE", help="Change a setting; repeatable.")
@click.option("--unset", "remove", multiple=True, metavar="NAME", help="Reset a setting to its default; repeatable.")
@click.option("--partitions", type=click.IntRange(1, MAX_PARTITIONS_PER_TOPIC), help="New total number of partitions.")
@output_option
@click.pass_obj
def alter(
    bootstrap: str, name: str, assign: tuple[str, ...], remove: tuple[str, ...], partitions: int | None, output: str
) -> None:
    """Change a topic's settings or add partitions (after which keys map to other partitions)."""
    settings = parse_settings(assign)
    if not settings and not remove and partitions is None:
        raise click.UsageError("nothing to change: give --set, --unset or --partitions")
    both = sorted(set(settings).intersection(remove))
    if both:
        raise click.UsageError(f"both --set and --unset for {', '.join(both)}")

    async def work(admin: Admin) -> TopicDescription:
        description = None
        if settings or remove:
            description = await admin.alter_topic(name, settings, list(dict.fromkeys(remove)))
        if partitions is not None:
            description = await admin.add_partitions(name, partitions)
        assert description is not None, "there was something to change"
        return description

    description = _with_admin(bootstrap, work)
    show(output, description, lambda wide: f"Altered topic {name}.\n{_describe_text([description], wide)}")


@topic.command("delete-records")
@click.argument("name")
@click.option(
    "--before",
    "bounds",
    multiple=True,
    required=True,
    metavar="PARTITION=OFFSET",
    help="Delete records below this offset; PARTITION=latest: all that consumers may read. Repeatable.",
)
@click.option("--plan", is_flag=True, help="Show what would be deleted, without deleting it.")
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
@output_option
@click.pass_obj
def delete_records(bootstrap: str, name: str, bounds: tuple[str, ...], plan: bool, yes: bool, output: str) -> None:
    """Delete the oldest records of partitions permanently."""
    before = parse_bounds(bounds)
    topic_id, planned = _with_admin(bootstrap, lambda admin: plan_deletions(admin, name, before))
    if plan:
        show(output, planned, lambda wide: deletions_table(name, planned))
        return
    if not yes:
        total = sum(one.records for one in planned)
        click.confirm(f"Delete {total} offsets of topic {name}, {len(planned)} partitions?", abort=True, err=True)
    # Delete what was shown and confirmed: no later records, and no other topic of that name.
    agreed = {one.partition: one.before for one in planned}
    deleted = _with_admin(bootstrap, lambda admin: admin.delete_records(name, agreed, topic_id=topic_id))
    columns = ("Topic", "Partition", "LogStartOffset")
    show(output, deleted, lambda wide: table(columns, [(name, one.partition, one.log_start_offset) for one in deleted]))


def _with_admin(bootstrap: str, work: Callable[[Admin], Awaitable[T]]) -> T:
    from raftlog.client import Admin

    async def run() -> T:
        async with Admin(bootstrap) as admin:
            return await work(admin)

    return asyncio.run(run())


def _describe_text(descriptions: Sequence[TopicDescription], wide: bool) -> str:
    return "\n\n".join(_describe_one(description, wide) for description in descriptions)


def _describe_one(description: TopicDescription, wide: bool) -> str:
    summary = {
        "Topic": description.name,
        "TopicId": description.id,
        "PartitionCount": description.partition_count,
        "ReplicationFactor": description.replication_factor,
        "Configs": description.configs if wide else overrides(description),
    }
    columns = PARTITION_COLUMNS + WIDE_PARTITION_COLUMNS * wide
    return f"{fields(summary)}\n{table(columns, _partition_rows(description, wide))}"


def _partition_rows(description: TopicDescription, wide: bool) -> Iterable[Sequence[object]]:
    for info in description.partitions:
        row = (description.name, info.partition, info.leader, info.replicas, info.isr)
        more = (
            info.leader_epoch,
            info.partition_epoch,
            info.commit_set,
            info.not_eligible,
            info.min_insync_replicas,
        )
        yield row + more * wide


def overrides(description: TopicDescription) -> dict[str, str]:
    """Return the settings that were given to the topic, like Kafka's tools, without those that have their default."""
    given = description.overrides or ()
    return {name: value for name, value in description.configs.items() if name in given}


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


async def plan_deletions(admin: Admin, name: str, before: Mapping[int, int | str]) -> tuple[str, list[PlannedDeletion]]:
    """Return the topic's id, and what would be deleted now. Raises like `Admin.delete_records`, and deletes nothing."""
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
    """Return the plan as a table."""
    columns = ("Topic", "Partition", "LogStartOffset", "Before", "HighWatermark", "Offsets")
    rows = [(name, one.partition, one.log_start_offset, one.before, one.high_watermark, one.records) for one in planned]
    return table(columns, rows)
