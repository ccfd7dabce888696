"""`raftlog group`: consumer groups, with the columns of Kafka's `kafka-consumer-groups`.

Changes show what they would do and ask for confirmation; `--plan` only shows it. `seek`, `import` and `delete` need a
group without members: a running consumer would overwrite changed offsets with its next commit.

This module also parses their arguments: places, durations, topics, exported offsets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import rich_click as click

from raftlog.cli.terminal.command import argument, command, option
from raftlog.cli.terminal.confirm import confirm
from raftlog.cli.terminal.nearest import did_you_mean
from raftlog.cli.terminal.options import Group, Isolation, PlanDeletion, Yes, parse_from
from raftlog.cli.terminal.output import Output, Row, counted, dash, listing, show
from raftlog.errors import InvalidRequest
from raftlog.quantities import duration_ms

if TYPE_CHECKING:
    from raftlog.api.groups import AssignedTopic, GroupInfo, GroupMemberInfo, GroupOffsetInfo, SoughtOffset
    from raftlog.client.admin import SeekTo
    from raftlog.sync import Admin

_EXPORTED = re.compile(r"([A-Za-z0-9._-]{1,249}),([0-9]{1,10}),([0-9]{1,19})", re.ASCII)
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


@command(group, "delete-offsets")
def delete_offsets(
    admin: Admin,
    name: Group,
    topic: Annotated[
        tuple[str, ...],
        option("Topic or some of its partitions; repeatable.", metavar="TOPIC[:0,1,...]", required=True),
    ],
    plan: PlanDeletion = False,
    yes: Yes = False,
    output: Output = "table",
) -> None:
    """Delete a group's committed offsets in partitions that no member reads.

    Examples:
        raftlog group delete-offsets billing --topic orders-old --plan
        raftlog group delete-offsets billing --topic orders:0,1
    """
    topics = parse_topics(topic) or {}
    deleted = admin.delete_group_offsets(name, topics, plan=True)
    columns = ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET")
    text = listing(columns, [(name, one.topic, one.partition, one.offset) for one in deleted])
    if not plan:
        if not yes:
            click.echo(text(False), err=True)
            confirm(f"Delete {counted(len(deleted), 'committed offset')} of group {name}?")
        deleted = admin.delete_group_offsets(name, topics)
    done = f"Deleted {counted(len(deleted), 'committed offset')} of group {name}."
    show(output, deleted, text if plan else lambda wide: done)


@command(group, "remove-members")
def remove_members(
    admin: Admin,
    name: Group,
    member: Annotated[
        tuple[str, ...], option("Member id, or instance id of a static member; repeatable.", metavar="ID")
    ] = (),
    all_members: Annotated[bool, option("Remove all members.", "--all")] = False,
    plan: Annotated[bool, "Show what would be removed, without removing it."] = False,
    yes: Yes = False,
    output: Output = "table",
) -> None:
    """Remove members from a group; their partitions move to the others. A consumer that still runs joins again.

    Examples:
        raftlog group remove-members billing --member worker-3
        raftlog group remove-members billing --all --plan
    """
    if bool(member) == all_members:
        raise click.UsageError("name members with --member, or give --all")
    known = admin.describe_group(name).members
    chosen = [one for one in known if all_members or one.member_id in member or (one.instance_id or "-") in member]
    missing = [one for one in member if not any(one in (known.member_id, known.instance_id) for known in chosen)]
    if missing:
        suggestion = did_you_mean(missing[0], [one.instance_id or one.member_id for one in known])
        raise InvalidRequest("unknown_member", f"group {name} has no member {missing[0]!r}.{suggestion}")
    text = listing(MEMBER_COLUMNS, [_member_row(name, one) for one in chosen], WIDE_MEMBER_COLUMNS)
    if not plan and chosen:
        if not yes:
            click.echo(text(False), err=True)
            confirm(f"Remove {counted(len(chosen), 'member')} from group {name}?")
        for one in chosen:
            admin.remove_member(name, one.member_id, one.incarnation)
    done = f"Removed {counted(len(chosen), 'member')} from group {name}."
    show(output, chosen, text if plan else lambda wide: done)


@command(group, "export")
def export_offsets(
    admin: Admin,
    name: Group,
    topic: Annotated[
        tuple[str, ...],
        option("Only this topic or its partitions; repeatable.", metavar="TOPIC[:0,1,...]"),
    ] = (),
) -> None:
    """Write a group's committed offsets to standard output, in the CSV of `kafka-consumer-groups --export`.

    Examples:
        raftlog group export billing > billing.csv
    """
    wanted = parse_topics(topic)
    for one in admin.group_offsets(name):
        some = None if wanted is None else wanted.get(one.topic, [])
        if one.offset is not None and (some is None or one.partition in some):
            click.echo(f"{one.topic},{one.partition},{one.offset}")


@command(group, "import")
def import_offsets(
    admin: Admin,
    name: Group,
    file: Annotated[str, argument(metavar="FILE|-", type=click.Path(exists=True, dir_okay=False, allow_dash=True))],
    plan: Annotated[bool, "Show the new offsets without changing anything."] = False,
    yes: Yes = False,
    isolation: GroupIsolation = "read_committed",
    output: Output = "table",
) -> None:
    """Set a group's committed offsets to those of a file of `topic,partition,offset` lines, which `export` writes.

    The group must have no members; it is created if it does not exist. The change is exactly what was shown.

    Examples:
        raftlog group import billing billing.csv --plan
        raftlog group export billing | raftlog group import billing-copy - --yes
    """
    with click.open_file(file, encoding="utf-8") as lines:
        rows = parse_offsets(lines, "standard input" if file == "-" else file)
    sought = _planned(admin, name, rows)
    if not plan:
        if not yes:
            click.echo(_seek_text(name, sought)(False), err=True)
            confirm(f"Change the offsets of group {name} in {counted(len(sought), 'partition')}?")
        sought = admin.seek_group_as_planned(name, sought, isolation)
    show(output, sought, _seek_text(name, sought))


def parse_offsets(lines: Iterable[str], where: str) -> dict[tuple[str, int], int]:
    """Return the offsets of `topic,partition,offset` lines. Raises `InvalidRequest`, which names the line."""
    rows: dict[tuple[str, int], int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _EXPORTED.fullmatch(line.strip())
        if match is None:
            raise InvalidRequest("invalid_request", f"{where}, line {number}: it must be topic,partition,offset")
        place = (match[1], int(match[2]))
        if place in rows:
            raise InvalidRequest("invalid_request", f"{where}, line {number}: {match[1]}/{match[2]} is there twice")
        rows[place] = int(match[3])
    if not rows:
        raise InvalidRequest("invalid_request", f"{where} has no offsets")
    return rows


def _planned(admin: Admin, name: str, rows: Mapping[tuple[str, int], int]) -> list[SoughtOffset]:
    """Return the plan of an import. Raises `InvalidRequest` for a place that does not exist or an offset outside it."""
    try:
        committed = {(one.topic, one.partition): one.offset for one in admin.group_offsets(name)}
    except InvalidRequest as error:
        if error.code != "unknown_group":
            raise
        committed = {}
    planned: list[SoughtOffset] = []
    for topic in dict.fromkeys(topic for topic, _ in rows):
        described = admin.describe_topic(topic)
        numbers = [number for other, number in rows if other == topic]
        firsts = admin.list_offsets(topic, "earliest", numbers, topic_id=described.id)
        lasts = admin.list_offsets(topic, "latest", numbers, topic_id=described.id)
        for first, last in zip(firsts, lasts, strict=True):
            place, low, high = (topic, first.partition), first.offset or 0, last.offset or 0
            wanted = rows[place]
            if first.error is None and last.error is None and not low <= wanted <= high:
                told = f"{topic}/{first.partition}: {wanted} is not between {low} and {high}"
                raise InvalidRequest("offset_out_of_range", told)
            row = (topic, described.id, first.partition, committed.get(place), wanted, low, high)
            planned.append(_sought(*row))
    return planned


def _sought(*row: Any) -> SoughtOffset:
    from raftlog.api.groups import SoughtOffset

    return SoughtOffset(*row)


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
