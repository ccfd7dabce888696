"""`raftlog cluster reassign|drain|balance|elect|unregister`: placement of replicas and leaders.

Every command that moves data has `--plan`, which shows the moves and their bytes and changes nothing. Otherwise the
moves are submitted and then watched. They continue without being watched, so Ctrl-C, `--no-wait` and `--timeout` end
only the watching. `--throttle` applies until the last move is complete, regardless of who started it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import rich_click as click

from raftlog.api.moves import MoveInfo, PartitionOutcome
from raftlog.api.problems import PartitionError
from raftlog.cli.terminal.command import argument, command, option
from raftlog.cli.terminal.exit_codes import EXIT_FAILED
from raftlog.cli.terminal.options import COUNT, parse_partition
from raftlog.cli.terminal.output import Output, counted, fields, show, table
from raftlog.cli.terminal.units import SECONDS, Size
from raftlog.errors import InvalidRequest

from .move_progress import sizes, watch

if TYPE_CHECKING:
    from raftlog.api.moves import ReassignmentInfo, ThrottleInfo
    from raftlog.api.topics import TopicDescription
    from raftlog.sync import Admin

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


class Moving(msgspec.Struct, frozen=True):
    """The options of all commands that move data."""

    plan: Annotated[bool, "Show the moves without changing anything."] = False
    no_wait: Annotated[bool, "Return when the moves are accepted."] = False
    timeout: Annotated[float, SECONDS, "Time to watch the moves, in seconds, or such as 2h."] = 3600.0
    throttle: Annotated[
        int | None,
        option(
            "Maximum rate at which a broker sends or receives for moves, until all are complete. 0: no limit.",
            type=Size(0, MAX_RATE),
            metavar="BYTES_PER_SECOND",
        ),
    ] = None
    output: Output = "table"


@command()
def reassign(
    admin: Admin,
    assignments: Annotated[tuple[str, ...], argument(metavar="TOPIC/PARTITION[=BROKER,...]...")] = (),
    cancel: Annotated[bool, "Cancel the moves of these partitions."] = False,
    list_only: Annotated[bool, option("List moves in progress.", "--list")] = False,
    *,
    moving: Moving,
) -> int:
    """Change the replicas of partitions and their number, with the preferred leader first: `orders/0=1,2,3`.

    A move in progress of the same partition is replaced: --plan shows it.

    With --throttle alone: change the rate of all moves in progress.

    Examples:
        raftlog cluster reassign orders/0=1,2,3 --plan
        raftlog cluster reassign --list
        raftlog cluster reassign --cancel orders/0
        raftlog cluster reassign --throttle 50MB
    """
    if list_only:
        found, limits = admin.list_reassignments(), admin.throttle()
        show(moving.output, found, lambda wide: _reassignments_text(found, limits))
        return 0
    wanted, rate = dict(map(_parse, assignments)), moving.throttle
    if not wanted and rate is not None and not cancel and not moving.plan:
        admin.alter_reassignments({}, throttle=rate)
        show(moving.output, {"throttle": rate or None}, lambda wide: f"{_limit_text(rate)}.")
        return 0
    if not wanted or len(wanted) != len(assignments):
        raise click.UsageError("name each partition once, as TOPIC/PARTITION=BROKER,BROKER,...")
    if cancel:
        if moving.plan or rate is not None or any(target is not None for target in wanted.values()):
            raise click.UsageError("--cancel takes only TOPIC/PARTITION, without --plan and --throttle")
        return _report(admin.alter_reassignments(wanted), "cancelled", moving.output)
    if any(target is None for target in wanted.values()):
        raise click.UsageError("the target is missing: give TOPIC/PARTITION=BROKER,BROKER,...")
    return _carry_out(admin, _as_moves(admin, wanted), moving)


@command()
def drain(
    admin: Admin,
    brokers: Annotated[tuple[int, ...], argument(type=COUNT, metavar="BROKER...")],
    moving: Moving,
) -> int:
    """Move all replicas of some brokers to the others.

    Examples:
        raftlog cluster drain 4 --plan
        raftlog cluster drain 4 --throttle 20MB
    """
    return _carry_out(admin, admin.plan_moves(sorted(set(brokers))), moving)


@command()
def balance(admin: Admin, moving: Moving) -> int:
    """Balance racks, replicas and leaders with as few moves as possible.

    Examples:
        raftlog cluster balance --plan
    """
    moves = admin.plan_moves()
    code = _carry_out(admin, moves, moving)
    if moving.plan or moving.no_wait or code or not moves:
        return code
    # The first replica should lead. If it is not in sync, the controller gives it the leadership later.
    return _errors(_elect_preferred(admin, _not_preferred(admin, list(map(_name, moves)), in_sync=True)))


@command()
def elect(
    admin: Admin,
    partitions: Annotated[tuple[str, ...], argument(metavar="[TOPIC/PARTITION]...")] = (),
    plan: Annotated[bool, "Show the changes of leaders without making them."] = False,
    unclean: Annotated[bool, "Last resort: elect a replica that may lack acknowledged records."] = False,
    accepted: Annotated[bool, option("Required with --unclean.", "--i-accept-data-loss")] = False,
    candidate: Annotated[
        int | None, COUNT, "Replica to elect with --unclean (default: the one with the longest log)."
    ] = None,
    output: Output = "table",
) -> int:
    """Elect the preferred leaders of partitions (default: all partitions).

    Examples:
        raftlog cluster elect
        raftlog cluster elect orders/0 --plan
    """
    named = [parse_partition(text) for text in partitions]
    if unclean and not (accepted and named):
        raise click.UsageError(
            "an unclean election may lose acknowledged records: name the partitions, and give --i-accept-data-loss"
        )
    if not unclean and (accepted or candidate is not None):
        raise click.UsageError("--i-accept-data-loss and --candidate are valid only with --unclean")
    if unclean and plan:
        raise click.UsageError("an unclean election has no plan: see `raftlog cluster health` for missing brokers")
    if unclean:
        outcomes = admin.elect_unclean(named, accept_data_loss=True, candidate=candidate)
        return _report(outcomes, "led again; records may be lost", output)
    moves = _not_preferred(admin, named)
    if plan:
        show(output, moves, lambda wide: _elections_text(moves))
        return 0
    return _report(_elect_preferred(admin, moves), "led by its preferred leader", output)


@command()
def unregister(admin: Admin, broker: Annotated[int, argument(type=COUNT)], output: Output = "table") -> None:
    """Remove a broker that was drained and stopped from the cluster.

    Examples:
        raftlog cluster unregister 4
    """
    admin.unregister_broker(broker)
    show(output, {"broker": broker, "unregistered": True}, lambda wide: f"Unregistered broker {broker}.")


# --- Inside ----------------------------------------------------------------------------------------------------------


def _name(one: MoveInfo | ReassignmentInfo | ShownMove) -> tuple[str, int]:
    return one.topic, one.partition


def _carry_out(admin: Admin, moves: Sequence[MoveInfo], moving: Moving) -> int:
    """Show the plan or carry it out. Return the exit code."""
    held = sizes(admin)
    under_way = {_name(one): one for one in admin.list_reassignments()}
    shown = [_shown(move, under_way.get(_name(move)), held.get(_name(move), 0)) for move in moves]
    _warn_of_few(admin, moves)
    if moving.plan or not moves:
        show(moving.output, shown, lambda wide: _plan_text(shown))
        return 0
    outcomes = admin.alter_reassignments(
        {_name(move): move.target_replicas for move in moves}, throttle=moving.throttle
    )
    if moving.no_wait:
        return _report(outcomes, "asked for", moving.output)
    decided = [one for one, outcome in zip(shown, outcomes, strict=True) if outcome.error is None]
    watch(admin, map(_name, decided), sum(one.bytes for one in decided), moving.timeout)
    return _report(_arrived(admin, moves, outcomes), "moved", moving.output)


def _warn_of_few(admin: Admin, moves: Sequence[MoveInfo]) -> None:
    """Say on standard error which partitions could not be written to as soon as one replica is down."""
    shrinking = [move for move in moves if len(move.target_replicas) < len(move.replicas)]
    for topic in sorted({move.topic for move in shrinking}):
        partitions = admin.describe_topic(topic).partitions
        for move in shrinking:
            replicas, needed = len(move.target_replicas), partitions[move.partition].min_insync_replicas
            if move.topic == topic and replicas <= needed:
                place = f"{topic}/{move.partition} would have {counted(replicas, 'replica')}"
                click.echo(
                    f"Warning: {place} and min.insync.replicas {needed}: with one of them down, acks=all fails there",
                    err=True,
                )


def _shown(move: MoveInfo, before: ReassignmentInfo | None, size: int) -> ShownMove:
    """Return a move of a plan, with the move that it replaces.

    Copies in progress continue and are not counted again.
    """
    shown = ShownMove(move.topic, move.partition, move.replicas, move.target_replicas, size * len(move.adding))
    if before is None or before.target_replicas == move.target_replicas:
        return shown
    cancels = [broker for broker in before.adding_replicas if broker not in move.target_replicas]
    return msgspec.structs.replace(shown, replaces=before.target_replicas, cancels=cancels)


def _arrived(admin: Admin, moves: Sequence[MoveInfo], outcomes: Sequence[PartitionOutcome]) -> list[PartitionOutcome]:
    """Return the outcomes, with an error for a finished move that another client cancelled or replaced."""
    found: dict[str, TopicDescription | PartitionError] = {}
    for topic in sorted({move.topic for move in moves}):
        try:
            found[topic] = admin.describe_topic(topic)
        except InvalidRequest as refused:
            found[topic] = PartitionError(refused.code, refused.detail)
    arrived = []
    for move, outcome in zip(moves, outcomes, strict=True):
        now, error = found[move.topic], outcome.error
        if isinstance(now, PartitionError):
            error = error or now
        elif error is None and (replicas := now.partitions[move.partition].replicas) != move.target_replicas:
            why = f"it was cancelled or replaced: the replicas are {replicas}"
            error = PartitionError("no_reassignment_in_progress", why)
        arrived.append(PartitionOutcome(move.topic, move.partition, error))
    return arrived


def _as_moves(admin: Admin, wanted: Mapping[tuple[str, int], Sequence[int] | None]) -> list[MoveInfo]:
    moves = []
    topics = {topic: admin.describe_topic(topic) for topic in sorted({topic for topic, _ in wanted})}
    for (topic, number), target in wanted.items():
        if number >= topics[topic].partition_count:
            raise InvalidRequest("unknown_partition", f"topic {topic} has no partition {number}")
        found = topics[topic].partitions[number]
        moves.append(MoveInfo(topic, number, found.replicas, list(target or ()), found.leader))
    return moves


def _not_preferred(admin: Admin, named: Sequence[tuple[str, int]], *, in_sync: bool = False) -> list[MoveInfo]:
    """Return partitions that their first replica does not lead; with `in_sync` those that it could lead now."""
    topics = sorted({topic for topic, _ in named}) or [summary.name for summary in admin.list_topics()]
    found = []
    for topic in topics:
        for info in admin.describe_topic(topic).partitions:
            asked = not named or (topic, info.partition) in named
            able = not in_sync or info.replicas[0] in info.isr
            if asked and able and info.leader is not None and info.leader != info.replicas[0]:
                found.append(MoveInfo(topic, info.partition, info.replicas, info.replicas, info.leader))
    return found


def _elect_preferred(admin: Admin, moves: Sequence[MoveInfo]) -> list[PartitionOutcome]:
    return admin.elect_leaders(list(map(_name, moves))) if moves else []


def _parse(text: str) -> tuple[tuple[str, int], list[int] | None]:
    name, equals, brokers = text.partition("=")
    if not equals:
        return parse_partition(name), None
    try:
        return parse_partition(name), [int(broker) for broker in brokers.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r}: brokers must be numbers, as in orders/0=1,2,3") from None


def _report(outcomes: Sequence[PartitionOutcome], done: str, output: str) -> int:
    """Show the outcomes, and the errors on standard error. Return the exit code."""
    # A document of the API leaves out the error of a part that succeeded; this one has a null.
    shown = [msgspec.structs.asdict(outcome) for outcome in outcomes]
    good = sum(outcome["error"] is None for outcome in shown)
    failed = len(shown) - good
    verdict = f"{counted(good, 'partition')} {done}" + (f", {failed} failed" if failed else "")
    show(output, shown, lambda wide: f"{verdict}.")
    return _errors(outcomes)


def _errors(outcomes: Sequence[PartitionOutcome]) -> int:
    """Show the errors on standard error. Return the exit code."""
    refused = [outcome for outcome in outcomes if outcome.error is not None]
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
    return f"{table(columns, rows)}\n\n{counted(len(moves), 'partition')}, {total} bytes."


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
    rates = {name: rate for name, rate in msgspec.to_builtins(limits).items() if rate is not None}
    return f"{shown}\n\n{fields(rates)}" if rates else shown
