"""`raftlog cluster reassign|drain|balance|elect|unregister`: placement of replicas and leaders.

Every command that moves data has `--plan`, which shows the moves and their bytes and changes nothing. Otherwise the
moves are submitted and then watched. They continue without being watched, so Ctrl-C, `--no-wait` and `--timeout` end
only the watching. `--throttle` applies until the last move is complete, regardless of who started it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import rich_click as click

from raftlog.cli.terminal.exit_codes import EXIT_FAILED
from raftlog.cli.terminal.output import fields, output_option, show, table
from raftlog.errors import InvalidRequest

from .move_progress import sizes, watch

if TYPE_CHECKING:
    from raftlog.client import Admin
    from raftlog.client.admin import MoveInfo, PartitionOutcome, ReassignmentInfo, ThrottleInfo, TopicDescription

DEFAULT_TIMEOUT = 3600.0
MAX_RATE = 2**62


class ShownMove(msgspec.Struct, frozen=True):
    """One partition of a plan. `bytes` is the amount that is copied over the network."""

    topic: str
    partition: int
    replicas: list[int]
    target_replicas: list[int]
    bytes: int
    replaces: list[int] | None = None
    """Target of the move in progress that this one replaces; None if there is none."""
    cancels: list[int] = []
    """Brokers whose copies in progress are cancelled and discarded."""


def moving_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--plan`, `--no-wait`, `--timeout`, `--throttle` and `-o` to a command."""
    for decorate in (
        output_option,
        click.option(
            "--throttle",
            type=click.IntRange(0, MAX_RATE),
            metavar="BYTES_PER_SECOND",
            help="Maximum rate at which a broker sends or receives for moves, until all are complete. 0: no limit.",
        ),
        click.option(
            "--timeout",
            default=DEFAULT_TIMEOUT,
            show_default=True,
            type=click.FloatRange(0),
            help="Seconds to watch the moves.",
        ),
        click.option("--no-wait", is_flag=True, help="Return when the moves are accepted."),
        click.option("--plan", "plan_only", is_flag=True, help="Show the moves without changing anything."),
    ):
        command = decorate(command)
    return command


@click.command()
@click.argument("assignments", nargs=-1, metavar="TOPIC/PARTITION[=BROKER,...]...")
@click.option("--cancel", is_flag=True, help="Cancel the moves of these partitions.")
@click.option("--list", "list_only", is_flag=True, help="List moves in progress.")
@moving_options
@click.pass_context
def reassign(
    context: click.Context,
    assignments: tuple[str, ...],
    cancel: bool,
    list_only: bool,
    plan_only: bool,
    no_wait: bool,
    timeout: float,
    throttle: int | None,
    output: str,
) -> None:
    """Change the replicas of partitions and their number, with the preferred leader first: `orders/0=1,2,3`.

    A move in progress of the same partition is replaced: --plan shows it.

    With --throttle alone: change the rate of all moves in progress.
    """
    if list_only:
        found, limits = _with_admin(context.obj, _under_way)
        show(output, found, lambda wide: _reassignments_text(found, limits))
        return
    wanted = dict(map(_parse, assignments))
    if not wanted and throttle is not None and not cancel and not plan_only:
        _with_admin(context.obj, lambda admin: admin.alter_reassignments({}, throttle=throttle))
        show(output, {"throttle": throttle or None}, lambda wide: f"{_limit_text(throttle)}.")
        return
    if not wanted or len(wanted) != len(assignments):
        raise click.UsageError("name each partition once, as TOPIC/PARTITION=BROKER,BROKER,...")
    if cancel and (plan_only or throttle is not None or any(target is not None for target in wanted.values())):
        raise click.UsageError("--cancel takes only TOPIC/PARTITION, without --plan and --throttle")
    if not cancel and any(target is None for target in wanted.values()):
        raise click.UsageError("the target is missing: give TOPIC/PARTITION=BROKER,BROKER,...")

    async def run(admin: Admin) -> int:
        if cancel:
            return _report(await admin.alter_reassignments(wanted), "cancelled", output)
        moves = await _as_moves(admin, wanted)
        return await _carry_out(admin, moves, plan_only, no_wait, timeout, throttle, output)

    context.exit(_with_admin(context.obj, run))


@click.command()
@click.argument("brokers", nargs=-1, required=True, type=click.IntRange(0), metavar="BROKER...")
@moving_options
@click.pass_context
def drain(
    context: click.Context,
    brokers: tuple[int, ...],
    plan_only: bool,
    no_wait: bool,
    timeout: float,
    throttle: int | None,
    output: str,
) -> None:
    """Move all replicas of some brokers to the others."""

    async def run(admin: Admin) -> int:
        moves = await admin.plan_moves(sorted(set(brokers)))
        return await _carry_out(admin, moves, plan_only, no_wait, timeout, throttle, output)

    context.exit(_with_admin(context.obj, run))


@click.command()
@moving_options
@click.pass_context
def balance(
    context: click.Context, plan_only: bool, no_wait: bool, timeout: float, throttle: int | None, output: str
) -> None:
    """Balance racks, replicas and leaders with as few moves as possible."""

    async def run(admin: Admin) -> int:
        moves = await admin.plan_moves()
        code = await _carry_out(admin, moves, plan_only, no_wait, timeout, throttle, output)
        if plan_only or no_wait or code or not moves:
            return code
        # The first replica should lead. If it is not in sync, the controller gives it the leadership later.
        elsewhere = await _not_preferred(admin, [(move.topic, move.partition) for move in moves], in_sync=True)
        chosen = [(move.topic, move.partition) for move in elsewhere]
        outcomes = await admin.elect_leaders(chosen) if chosen else []
        return _report(outcomes, "led by its preferred leader", "quiet")

    context.exit(_with_admin(context.obj, run))


@click.command()
@click.argument("partitions", nargs=-1, metavar="[TOPIC/PARTITION]...")
@click.option("--plan", "plan_only", is_flag=True, help="Show the changes of leaders without making them.")
@click.option("--unclean", is_flag=True, help="Last resort: elect a replica that may lack acknowledged records.")
@click.option("--i-accept-data-loss", "accepted", is_flag=True, help="Required with --unclean.")
@click.option(
    "--candidate",
    type=click.IntRange(0),
    help="Replica to elect with --unclean (default: the one with the longest log).",
)
@output_option
@click.pass_context
def elect(
    context: click.Context,
    partitions: tuple[str, ...],
    plan_only: bool,
    unclean: bool,
    accepted: bool,
    candidate: int | None,
    output: str,
) -> None:
    """Elect the preferred leaders of partitions (default: all partitions)."""
    named = [_parse_partition(text) for text in partitions]
    if unclean and not (accepted and named):
        raise click.UsageError(
            "an unclean election may lose acknowledged records: name the partitions, and give --i-accept-data-loss"
        )
    if not unclean and (accepted or candidate is not None):
        raise click.UsageError("--i-accept-data-loss and --candidate are valid only with --unclean")
    if unclean and plan_only:
        raise click.UsageError("an unclean election has no plan: see `raftlog cluster health` for missing brokers")

    async def run(admin: Admin) -> int:
        if unclean:
            outcomes = await admin.elect_unclean(named, accept_data_loss=True, candidate=candidate)
            return _report(outcomes, "led again; records may be lost", output)
        moves = await _not_preferred(admin, named)
        if plan_only:
            show(output, moves, lambda wide: _elections_text(moves))
            return 0
        chosen = [(move.topic, move.partition) for move in moves]
        return _report(await admin.elect_leaders(chosen) if chosen else [], "led by its preferred leader", output)

    context.exit(_with_admin(context.obj, run))


@click.command()
@click.argument("broker", type=click.IntRange(0))
@output_option
@click.pass_obj
def unregister(bootstrap: str, broker: int, output: str) -> None:
    """Remove a broker that was drained and stopped from the cluster."""
    _with_admin(bootstrap, lambda admin: admin.unregister_broker(broker))
    show(output, {"broker": broker, "unregistered": True}, lambda wide: f"Unregistered broker {broker}.")


# --- Inside ----------------------------------------------------------------------------------------------------------


def _with_admin(bootstrap: str, work: Callable[[Admin], Any]) -> Any:
    from raftlog.client import Admin

    async def run() -> Any:
        async with Admin(bootstrap) as admin:
            return await work(admin)

    return asyncio.run(run())


async def _under_way(admin: Admin) -> tuple[list[ReassignmentInfo], ThrottleInfo]:
    return await admin.list_reassignments(), await admin.throttle()


async def _carry_out(
    admin: Admin,
    moves: Sequence[MoveInfo],
    plan_only: bool,
    no_wait: bool,
    timeout: float,
    throttle: int | None,
    output: str,
) -> int:
    """Show the plan or carry it out. Return the exit code."""
    held = await sizes(admin)
    under_way = {(one.topic, one.partition): one for one in await admin.list_reassignments()}
    shown = [_shown(m, under_way.get((m.topic, m.partition)), held.get((m.topic, m.partition), 0)) for m in moves]
    if plan_only or not moves:
        show(output, shown, lambda wide: _plan_text(shown))
        return 0
    wanted: dict[tuple[str, int], Sequence[int] | None] = {(m.topic, m.partition): m.target_replicas for m in moves}
    outcomes = await admin.alter_reassignments(wanted, throttle=throttle)
    decided = [s for s, outcome in zip(shown, outcomes, strict=True) if outcome.error is None]
    if not no_wait:
        await watch(admin, [(s.topic, s.partition) for s in decided], sum(s.bytes for s in decided), timeout)
        outcomes = await _arrived(admin, moves, outcomes)
    return _report(outcomes, "asked for" if no_wait else "moved", output)


def _shown(move: MoveInfo, before: ReassignmentInfo | None, size: int) -> ShownMove:
    """Return a move of a plan, with the move that it replaces.

    Copies in progress continue and are not counted again.
    """
    shown = ShownMove(move.topic, move.partition, move.replicas, move.target_replicas, size * len(move.adding))
    if before is None or before.target_replicas == move.target_replicas:
        return shown
    cancels = [broker for broker in before.adding_replicas if broker not in move.target_replicas]
    return msgspec.structs.replace(shown, replaces=before.target_replicas, cancels=cancels)


async def _arrived(
    admin: Admin, moves: Sequence[MoveInfo], outcomes: Sequence[PartitionOutcome]
) -> list[PartitionOutcome]:
    """Return the outcomes, with an error for a finished move that another client cancelled or replaced."""
    from raftlog.client.admin import PartitionError, PartitionOutcome

    found: dict[str, TopicDescription | InvalidRequest] = {}
    for topic in sorted({move.topic for move in moves}):
        try:
            found[topic] = await admin.describe_topic(topic)
        except InvalidRequest as refused:
            found[topic] = refused
    arrived = []
    for move, outcome in zip(moves, outcomes, strict=True):
        now, error = found[move.topic], outcome.error
        if error is None and isinstance(now, InvalidRequest):
            error = PartitionError(now.code, now.detail)
        elif error is None and not isinstance(now, InvalidRequest):
            replicas = now.partitions[move.partition].replicas
            if replicas != move.target_replicas:
                error = PartitionError(
                    "no_reassignment_in_progress", f"it was cancelled or replaced: the replicas are {replicas}"
                )
        arrived.append(PartitionOutcome(move.topic, move.partition, error))
    return arrived


async def _as_moves(admin: Admin, wanted: Mapping[tuple[str, int], Sequence[int] | None]) -> list[MoveInfo]:
    from raftlog.client.admin import MoveInfo

    moves = []
    topics = {topic: await admin.describe_topic(topic) for topic in sorted({topic for topic, _ in wanted})}
    for (topic, number), target in wanted.items():
        if number >= topics[topic].partition_count:
            raise InvalidRequest("unknown_partition", f"topic {topic} has no partition {number}")
        found = topics[topic].partitions[number]
        moves.append(MoveInfo(topic, number, found.replicas, list(target or ()), found.leader))
    return moves


async def _not_preferred(admin: Admin, named: Sequence[tuple[str, int]], *, in_sync: bool = False) -> list[MoveInfo]:
    """Return partitions that their first replica does not lead; with `in_sync` those that it could lead now."""
    from raftlog.client.admin import MoveInfo

    topics = sorted({topic for topic, _ in named}) or [summary.name for summary in await admin.list_topics()]
    found = []
    for topic in topics:
        for info in (await admin.describe_topic(topic)).partitions:
            asked = not named or (topic, info.partition) in named
            able = not in_sync or info.replicas[0] in info.isr
            if asked and able and info.leader is not None and info.leader != info.replicas[0]:
                found.append(MoveInfo(topic, info.partition, info.replicas, info.replicas, info.leader))
    return found


def _parse(text: str) -> tuple[tuple[str, int], list[int] | None]:
    name, equals, brokers = text.partition("=")
    if not equals:
        return _parse_partition(name), None
    try:
        return _parse_partition(name), [int(broker) for broker in brokers.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r}: brokers must be numbers, as in orders/0=1,2,3") from None


def _parse_partition(text: str) -> tuple[str, int]:
    topic, slash, number = text.rpartition("/")
    if not slash or not topic or not number.isascii() or not number.isdigit():
        raise click.BadParameter(f"{text!r} is not a partition: it must be TOPIC/PARTITION")
    return topic, int(number)


def _report(outcomes: Sequence[PartitionOutcome], done: str, output: str) -> int:
    """Show the outcomes, errors on standard error. Return the exit code."""
    refused = [outcome for outcome in outcomes if outcome.error is not None]
    if output != "quiet":
        good = len(outcomes) - len(refused)
        show(output, outcomes, lambda wide: f"{good} partition{'' if good == 1 else 's'} {done}.")
    for outcome in refused:
        assert outcome.error is not None
        click.echo(f"Error: {outcome.topic}/{outcome.partition}: {outcome.error.detail}", err=True)
    return EXIT_FAILED if refused else 0


def _plan_text(moves: Sequence[ShownMove]) -> str:
    if not moves:
        return "Nothing to move."
    replacing = any(move.replaces is not None for move in moves)
    columns = ("Topic", "Partition", "From", "To", "Bytes") + ("Replaces", "Cancels") * replacing
    rows = [
        (m.topic, m.partition, m.replicas, m.target_replicas, m.bytes) + (m.replaces, m.cancels) * replacing
        for m in moves
    ]
    total = sum(move.bytes for move in moves)
    return f"{table(columns, rows)}\n\n{len(moves)} partitions, {total} bytes."


def _elections_text(moves: Sequence[MoveInfo]) -> str:
    if not moves:
        return "Every partition is led by its preferred leader."
    return table(("Topic", "Partition", "From", "To"), [(m.topic, m.partition, m.leader, m.replicas[0]) for m in moves])


def _limit_text(rate: int | None) -> str:
    return f"Moves copy at most {rate} bytes a second from and to each broker" if rate else "Moves have no limit"


def _reassignments_text(found: Sequence[ReassignmentInfo], limits: ThrottleInfo) -> str:
    if not found:
        return "Nothing is being moved."
    rows = [
        (r.topic, r.partition, r.leader, r.replicas, r.target_replicas, r.isr, "moving" if r.moving else "waiting")
        for r in found
    ]
    shown = table(("Topic", "Partition", "Leader", "Replicas", "Target", "Isr", "State"), rows)
    rates = {"leader.replication.throttled.rate": limits.leader_rate}
    rates["follower.replication.throttled.rate"] = limits.follower_rate
    set_rates = {name: rate for name, rate in rates.items() if rate is not None}
    return f"{shown}\n\n{fields(set_rates)}" if set_rates else shown
