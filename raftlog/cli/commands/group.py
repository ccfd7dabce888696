"""`raftlog group`: consumer groups, with the columns of Kafka's `kafka-consumer-groups`.

`seek` and `delete` show what they would do and ask for confirmation; `--plan` only shows it. Both need a group without
members: a running consumer would overwrite changed offsets with its next commit.

This module also parses the arguments of `seek`: places, durations, topics.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

import rich_click as click

from raftlog.cli.terminal.options import parse_from
from raftlog.cli.terminal.output import output_option, show, table

if TYPE_CHECKING:
    from raftlog.client import Admin
    from raftlog.client.admin import GroupInfo, GroupMemberInfo, SeekTo, SoughtOffset
    from raftlog.client.groups.api import AssignedTopic, GroupOffsetInfo

_DURATION = re.compile(
    r"P(?:([0-9]{1,9})D)?(?:T(?:([0-9]{1,9})H)?(?:([0-9]{1,9})M)?(?:([0-9]{1,9}(?:\.[0-9]{1,3})?)S)?)?", re.ASCII
)
_TOPIC = re.compile(r"([^:]+)(?::([0-9]{1,10}(?:,[0-9]{1,10})*))?", re.ASCII)


def parse_place(to: str | None, shift_by: int | None, by_duration: str | None) -> tuple[SeekTo, int]:
    """Return what `Admin.seek_group` takes, from exactly one of the three. Raises `click.UsageError`."""
    if sum(given is not None for given in (to, shift_by, by_duration)) != 1:
        raise click.UsageError("give the new position by exactly one of --to, --shift-by and --by-duration")
    if shift_by is not None:
        return "shift", shift_by
    if by_duration is not None:
        return "duration", parse_duration(by_duration)
    place = parse_from(to or "")
    if isinstance(place, int):
        return "offset", place
    if place.startswith("@"):
        return "timestamp", int(place[1:])
    return ("earliest" if place == "earliest" else "latest"), 0


def parse_duration(text: str) -> int:
    """Return an ISO 8601 duration in milliseconds. Years and months are refused, since their length varies.

    Raises `click.UsageError`.
    """
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()) or text.endswith("T"):
        raise click.UsageError(f"{text!r} is not a valid duration: it must look like P1DT2H, PT30M or PT1.5S")
    days, hours, minutes = (int(part or 0) for part in match.groups()[:3])
    return ((days * 24 + hours) * 60 + minutes) * 60_000 + round(float(match[4] or 0) * 1000)


def parse_topics(texts: Sequence[str]) -> dict[str, list[int] | None] | None:
    """Parse arguments `topic` or `topic:0,1`.

    Returns topic → partitions (None: all), or None without arguments. Raises `click.UsageError`.
    """
    found: dict[str, list[int] | None] = {}
    for text in texts:
        match = _TOPIC.fullmatch(text)
        if match is None:
            raise click.UsageError(f"--topic must be TOPIC or TOPIC:0,1,..., not {text!r}")
        if match[1] in found:
            raise click.UsageError(f"topic {match[1]} is named more than once")
        found[match[1]] = None if match[2] is None else [int(number) for number in match[2].split(",")]
    return found or None


T = TypeVar("T")
Isolation: TypeAlias = Literal["read_committed", "read_uncommitted"]

OFFSET_COLUMNS = (
    "GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID",
)  # fmt: skip
WIDE_OFFSET_COLUMNS = ("LOG-START-OFFSET", "INSTANCE-ID", "METADATA")
MEMBER_COLUMNS = ("GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS", "ASSIGNMENT")
WIDE_MEMBER_COLUMNS = ("INSTANCE-ID", "EPOCH", "TARGET", "SUBSCRIPTION")
STATE_COLUMNS = ("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS")
SEEK_COLUMNS = ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "NEW-OFFSET")
WIDE_SEEK_COLUMNS = ("LOG-START-OFFSET", "LOG-END-OFFSET")


isolation_option = click.option(
    "--isolation",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
    help="End of partitions for the group: the last stable offset, or the high watermark.",
)


@click.group()
def group() -> None:
    """Show and change consumer groups and their offsets."""


@group.command("list")
@output_option
@click.pass_obj
def list_groups(bootstrap: str, output: str) -> None:
    """List all groups by name."""
    groups = _with_admin(bootstrap, lambda admin: admin.list_groups())

    def text(wide: bool) -> str:
        columns = ("GROUP", "STATE", "#MEMBERS") + ("ASSIGNMENT-STRATEGY",) * wide
        return table(columns, [(g.group, g.state, g.member_count) + (g.assignor,) * wide for g in groups])

    show(output, groups, text)


@group.command()
@click.argument("name")
@click.option("--members", "what", flag_value="members", help="Show members instead of offsets.")
@click.option("--state", "what", flag_value="state", help="Show state and coordinator instead of offsets.")
@isolation_option
@output_option
@click.pass_obj
def describe(bootstrap: str, name: str, what: str | None, isolation: Isolation, output: str) -> None:
    """Show a group's committed offset, lag and reader of each partition."""

    async def work(admin: Admin) -> tuple[GroupInfo, list[GroupOffsetInfo]]:
        described = await admin.describe_group(name)
        return described, [] if what else await admin.group_offsets(name, isolation)

    described, offsets = _with_admin(bootstrap, work)
    if what == "state":
        row = (name, described.coordinator, described.assignor, described.state, len(described.members))
        show(output, described, lambda wide: table(STATE_COLUMNS, [row]))
    elif what == "members":
        columns = MEMBER_COLUMNS
        show(
            output,
            described.members,
            lambda wide: table(columns + WIDE_MEMBER_COLUMNS * wide, _member_rows(described, wide)),
        )
    else:
        show(
            output,
            offsets,
            lambda wide: table(OFFSET_COLUMNS + WIDE_OFFSET_COLUMNS * wide, _offset_rows(described, offsets, wide)),
        )


@group.command()
@click.argument("name")
@click.option(
    "--to",
    metavar="PLACE",
    help="New position: earliest, latest, an offset, @MILLISECONDS or @2026-01-31T12:00:00Z (default zone: UTC).",
)
@click.option("--shift-by", type=int, help="Shift by N offsets (negative: backwards).")
@click.option("--by-duration", metavar="PnDTnHnMnS", help="New position: this ISO 8601 duration before now.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:0,1,...]",
    help="Restrict to this topic or its partitions; repeatable (default: all committed offsets).",
)
@click.option("--plan", is_flag=True, help="Show the new offsets without changing anything.")
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
@isolation_option
@output_option
@click.pass_obj
def seek(
    bootstrap: str,
    name: str,
    to: str | None,
    shift_by: int | None,
    by_duration: str | None,
    topics: tuple[str, ...],
    plan: bool,
    yes: bool,
    isolation: Isolation,
    output: str,
) -> None:
    """Change a group's committed offsets. The group must have no members.

    The change is exactly what was shown: it is refused if the group has committed other offsets meanwhile.
    """
    place, value = parse_place(to, shift_by, by_duration)
    named = parse_topics(topics)
    planned = _with_admin(
        bootstrap, lambda admin: admin.seek_group(name, place, value, named, plan=True, isolation=isolation)
    )
    if not plan:
        if not yes:
            click.echo(_seek_table(name, planned, wide=False), err=True)
            click.confirm(f"Change the offsets of group {name} in {len(planned)} partitions?", abort=True, err=True)
        shown = planned
        planned = _with_admin(bootstrap, lambda admin: admin.seek_group_as_planned(name, shown, isolation))
    show(output, planned, lambda wide: _seek_table(name, planned, wide=wide))


@group.command()
@click.argument("name")
@click.option("--plan", is_flag=True, help="Show what would be deleted, without deleting it.")
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
@output_option
@click.pass_obj
def delete(bootstrap: str, name: str, plan: bool, yes: bool, output: str) -> None:
    """Delete a group and its offsets. The group must have no members."""

    async def look(admin: Admin) -> tuple[GroupInfo, list[GroupOffsetInfo]]:
        return await admin.describe_group(name), await admin.group_offsets(name)

    described, offsets = _with_admin(bootstrap, look)
    columns = OFFSET_COLUMNS
    if not plan:
        if not yes:
            click.confirm(f"Delete group {name} with {len(offsets)} committed offsets?", abort=True, err=True)
        _with_admin(bootstrap, lambda admin: admin.delete_group(name))

    def text(wide: bool) -> str:
        rows = table(columns, _offset_rows(described, offsets, False))
        return rows if plan else f"Deleted group {name}."

    show(output, offsets, text)


def _with_admin(bootstrap: str, work: Callable[[Admin], Awaitable[T]]) -> T:
    from raftlog.client import Admin

    async def run() -> T:
        async with Admin(bootstrap) as admin:
            return await work(admin)

    return asyncio.run(run())


def _offset_rows(described: GroupInfo, offsets: Sequence[GroupOffsetInfo], wide: bool) -> Iterable[Sequence[object]]:
    members = {member.member_id: member for member in described.members}
    for one in offsets:
        member = members.get(one.member_id or "")
        who = (member.member_id, member.host, member.client_id) if member is not None else ("-", "-", "-")
        current, end, lag = (_dash(number) for number in (one.offset, one.log_end_offset, one.lag))
        row = (described.group, one.topic, one.partition, current, end, lag, *who)
        instance = member.instance_id if member is not None else ""
        yield row + (_dash(one.log_start_offset), instance, one.metadata) * wide


def _member_rows(described: GroupInfo, wide: bool) -> Iterable[Sequence[object]]:
    for member in described.members:
        count = sum(len(one.partitions) for one in member.assigned)
        row = (described.group, member.member_id, member.host, member.client_id, count, _partitions(member.assigned))
        yield row + (member.instance_id, member.generation, _partitions(member.target), _subscription(member)) * wide


def _subscription(member: GroupMemberInfo) -> list[str]:
    return [*member.topics, *([f"/{member.pattern}/"] if member.pattern else [])]


def _partitions(assigned: Sequence[AssignedTopic]) -> list[str]:
    """Format partitions like Kafka's tools: `topic:0,1`."""
    return [f"{one.topic}:{','.join(map(str, one.partitions))}" for one in assigned]


def _seek_table(name: str, planned: Sequence[SoughtOffset], *, wide: bool) -> str:
    rows = [
        (name, one.topic, one.partition, _dash(one.offset), one.new_offset)
        + (one.log_start_offset, one.log_end_offset) * wide
        for one in planned
    ]
    return table(SEEK_COLUMNS + WIDE_SEEK_COLUMNS * wide, rows)


def _dash(number: int | None) -> object:
    """Show a missing number like Kafka's tools."""
    return "-" if number is None else number
