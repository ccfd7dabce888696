"""`raftlog group`: consumer groups, with the columns of Kafka's `kafka-consumer-groups`.

`seek` and `delete` show what they would do and ask for confirmation; `--plan` only shows it. Both need a group without
members: a running consumer would overwrite changed offsets with its next commit.

This module also parses the arguments of `seek`: places, durations, topics.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias

import rich_click as click

from raftlog.cli.terminal.command import command, option
from raftlog.cli.terminal.confirm import confirm
from raftlog.cli.terminal.options import Group, Isolation, PlanDeletion, Yes, parse_from
from raftlog.cli.terminal.output import Output, Row, counted, dash, listing, show
from raftlog.cli.terminal.units import duration_ms

if TYPE_CHECKING:
    from raftlog.api.groups import AssignedTopic, GroupInfo, GroupMemberInfo, GroupOffsetInfo, SoughtOffset
    from raftlog.client.admin import SeekTo
    from raftlog.sync import Admin

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
    """Return a duration, such as `2h` or ISO 8601, in milliseconds. Raises `click.UsageError`."""
    found = duration_ms(text)
    if found is None:
        raise click.UsageError(f"{text!r} is not a valid duration: it must look like 2h, 1d12h, P1DT2H or PT1.5S")
    return found


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


GroupIsolation: TypeAlias = Annotated[
    Isolation, "Where a partition ends for the group: at the last stable offset, or at the high watermark."
]
OFFSET_COLUMNS = (
    "GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID",
)  # fmt: skip
WIDE_OFFSET_COLUMNS = ("LOG-START-OFFSET", "INSTANCE-ID", "METADATA")
MEMBER_COLUMNS = ("GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS", "ASSIGNMENT")
WIDE_MEMBER_COLUMNS = ("INSTANCE-ID", "EPOCH", "TARGET", "SUBSCRIPTION")
STATE_COLUMNS = ("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS")


@click.group()
def group() -> None:
    """Show and change consumer groups and their offsets."""


@command(group, "list")
def list_groups(admin: Admin, output: Output = "table") -> None:
    """List all groups by name.

    Examples:
        raftlog group list
    """
    groups = admin.list_groups()
    rows = [(one.group, one.state, one.member_count, one.assignor) for one in groups]
    show(output, groups, listing(("GROUP", "STATE", "#MEMBERS"), rows, ("ASSIGNMENT-STRATEGY",)))


@command(group)
def describe(
    admin: Admin,
    name: Group,
    what: Annotated[
        str | None,
        option("Show members instead of offsets.", "--members", flag_value="members"),
        option("Show state and coordinator instead of offsets.", "--state", flag_value="state"),
    ] = None,
    isolation: GroupIsolation = "read_committed",
    output: Output = "table",
) -> None:
    """Show the committed offset, lag and reader of each partition of a group.

    Examples:
        raftlog group describe billing
        raftlog group describe billing --members -o wide
    """
    found = admin.describe_group(name)
    if what == "state":
        row = (name, found.coordinator, found.assignor, found.state, len(found.members))
        show(output, found, listing(STATE_COLUMNS, [row]))
    elif what == "members":
        rows = [_member_row(name, member) for member in found.members]
        show(output, found.members, listing(MEMBER_COLUMNS, rows, WIDE_MEMBER_COLUMNS))
    else:
        offsets = admin.group_offsets(name, isolation)
        show(output, offsets, listing(OFFSET_COLUMNS, list(_offset_rows(found, offsets)), WIDE_OFFSET_COLUMNS))


@command(group)
def seek(
    admin: Admin,
    name: Group,
    to: Annotated[
        str | None,
        option(
            "New position: earliest, latest, an offset, a time (@MILLISECONDS, 2026-01-31T12:00:00Z) or 2h for that "
            "long ago.",
            metavar="PLACE",
        ),
    ] = None,
    shift_by: Annotated[int | None, "Shift by N offsets (negative: backwards)."] = None,
    by_duration: Annotated[
        str | None, option("New position: this long before now, such as 2h, 7d or PT30M.", metavar="DURATION")
    ] = None,
    topic: Annotated[
        tuple[str, ...],
        option(
            "Restrict to this topic or its partitions; repeatable (default: all committed offsets).",
            metavar="TOPIC[:0,1,...]",
        ),
    ] = (),
    plan: Annotated[bool, "Show the new offsets without changing anything."] = False,
    yes: Yes = False,
    isolation: GroupIsolation = "read_committed",
    output: Output = "table",
) -> None:
    """Change a group's committed offsets. The group must have no members.

    The change is exactly what was shown: it is refused if the group has committed other offsets meanwhile.

    Examples:
        raftlog group seek billing --to earliest --plan
        raftlog group seek billing --by-duration 2h --topic orders:0,1
    """
    place, value = parse_place(to, shift_by, by_duration)
    sought = admin.seek_group(name, place, value, parse_topics(topic), plan=True, isolation=isolation)
    if not plan:
        if not yes:
            click.echo(_seek_text(name, sought)(False), err=True)
            confirm(f"Change the offsets of group {name} in {counted(len(sought), 'partition')}?")
        sought = admin.seek_group_as_planned(name, sought, isolation)
    show(output, sought, _seek_text(name, sought))


@command(group)
def delete(admin: Admin, name: Group, plan: PlanDeletion = False, yes: Yes = False, output: Output = "table") -> None:
    """Delete a group and its offsets. The group must have no members.

    Examples:
        raftlog group delete billing --plan
    """
    found, offsets = admin.describe_group(name), admin.group_offsets(name)
    if not plan:
        if not yes:
            confirm(f"Delete group {name} with {counted(len(offsets), 'committed offset')}?")
        admin.delete_group(name)
    text = listing(OFFSET_COLUMNS, list(_offset_rows(found, offsets)))
    show(output, offsets, text if plan else lambda wide: f"Deleted group {name}.")


def _seek_text(group: str, sought: Sequence[SoughtOffset]) -> Callable[[bool], str]:
    rows = [
        (group, one.topic, one.partition, dash(one.offset), one.new_offset, one.log_start_offset, one.log_end_offset)
        for one in sought
    ]
    columns = ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "NEW-OFFSET")
    return listing(columns, rows, ("LOG-START-OFFSET", "LOG-END-OFFSET"))


def _offset_rows(described: GroupInfo, offsets: Sequence[GroupOffsetInfo]) -> Iterable[Row]:
    members = {member.member_id: member for member in described.members}
    for one in offsets:
        member = members.get(one.member_id or "")
        who = (member.member_id, member.host, member.client_id) if member is not None else ("-", "-", "-")
        current, end, lag, start = map(dash, (one.offset, one.log_end_offset, one.lag, one.log_start_offset))
        instance = member.instance_id if member is not None else ""
        yield described.group, one.topic, one.partition, current, end, lag, *who, start, instance, one.metadata


def _member_row(group: str, member: GroupMemberInfo) -> Row:
    count = sum(len(one.partitions) for one in member.assigned)
    subscription = [*member.topics, *([f"/{member.pattern}/"] if member.pattern else [])]
    shown = (group, member.member_id, member.host, member.client_id, count, _partitions(member.assigned))
    return *shown, member.instance_id, member.generation, _partitions(member.target), subscription


def _partitions(assigned: Sequence[AssignedTopic]) -> list[str]:
    """Format partitions like Kafka's tools: `topic:0,1`."""
    return [f"{one.topic}:{','.join(map(str, one.partitions))}" for one in assigned]
