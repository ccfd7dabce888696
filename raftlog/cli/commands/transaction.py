"""`raftlog transaction`: transactions in progress, with the columns of Kafka's `kafka-transactions`.

An open transaction blocks all `read_committed` consumers at its first record. The cluster aborts it when its timeout is
over; `abort` does so at once. `positions` are named counters that commits have moved. They are kept permanently, until
`delete-position` removes them. Both commands show what they would do and ask for confirmation; `--plan` only shows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import rich_click as click

from raftlog.cli.terminal.exit_codes import EXIT_UNHEALTHY
from raftlog.cli.terminal.output import output_option, show, table
from raftlog.errors import InvalidRequest

if TYPE_CHECKING:
    from raftlog.client import Admin, TransactionInfo

T = TypeVar("T")

LIST_COLUMNS = ("TransactionalId", "ProducerId", "ProducerEpoch", "TransactionState")
WIDE_LIST_COLUMNS = ("TransactionTimeoutMs", "TransactionDurationMs", "TopicPartitions")
DESCRIBE_COLUMNS = (
    "CoordinatorId", "TransactionalId", "ProducerId", "ProducerEpoch", "TransactionState", "TransactionTimeoutMs",
    "CurrentTransactionStartTimeMs", "TransactionDurationMs", "TopicPartitions",
)  # fmt: skip
WIDE_DESCRIBE_COLUMNS = ("FirstOffsets",)
POSITION_COLUMNS = ("Position", "Value")


@click.group()
def transaction() -> None:
    """Show and abort transactions in progress."""


@transaction.command("list")
@output_option
@click.pass_context
def list_transactions(context: click.Context, output: str) -> None:
    """List open transactions, and decided ones without all their markers. Exit code 10: not all nodes answered."""
    found = _with_admin(context.obj, lambda admin: admin.list_transactions())

    def text(wide: bool) -> str:
        rows = [
            (_dash(one.transactional_id), one.producer_id, one.producer_epoch, one.state)
            + (_dash(one.timeout_ms), _dash(one.duration_ms), _places(one)) * wide
            for one in found.transactions
        ]
        return table(LIST_COLUMNS + WIDE_LIST_COLUMNS * wide, rows)

    show(output, found, text)
    if found.silent_nodes:
        silent = ", ".join(map(str, found.silent_nodes))
        click.echo(
            f"These nodes did not answer, so open transactions in partitions that they lead are missing: {silent}",
            err=True,
        )
        context.exit(EXIT_UNHEALTHY)


@transaction.command()
@click.argument("transactional_id", required=False)
@click.option("--producer-id", type=click.IntRange(0), help="Select by producer id.")
@output_option
@click.pass_obj
def describe(bootstrap: str, transactional_id: str | None, producer_id: int | None, output: str) -> None:
    """Show one transaction, its age and its partitions."""

    async def work(admin: Admin) -> tuple[TransactionInfo, int | None]:
        return await _find(admin, transactional_id, producer_id), (await admin.cluster()).controller

    found, controller = _with_admin(bootstrap, work)
    show(output, found, lambda wide: _described(found, controller, wide))


@transaction.command()
@click.argument("transactional_id", required=False)
@click.option("--producer-id", type=click.IntRange(0), help="Select by producer id.")
@click.option("--plan", is_flag=True, help="Show what would be aborted, without aborting it.")
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
@output_option
@click.pass_obj
def abort(
    bootstrap: str, transactional_id: str | None, producer_id: int | None, plan: bool, yes: bool, output: str
) -> None:
    """Abort an open transaction. Its producer gets an error when it commits."""

    async def look(admin: Admin) -> tuple[TransactionInfo, int | None]:
        return await _find(admin, transactional_id, producer_id), (await admin.cluster()).controller

    found, controller = _with_admin(bootstrap, look)
    if found.state not in ("Ongoing", "Empty"):
        raise InvalidRequest("invalid_request", f"there is nothing to abort: the transaction is in state {found.state}")
    if not plan:
        if not yes:
            click.echo(_described(found, controller, False), err=True)
            click.confirm("Abort this transaction?", abort=True, err=True)
        _with_admin(bootstrap, lambda admin: admin.abort_transaction(found.producer_id, found.producer_epoch))
    done = f"Aborted the transaction of producer {found.producer_id} in epoch {found.producer_epoch}."
    show(output, found, lambda wide: _described(found, controller, wide) if plan else done)


@transaction.command()
@click.argument("prefix", default="")
@output_option
@click.pass_obj
def positions(bootstrap: str, prefix: str, output: str) -> None:
    """List named positions that commits have moved, restricted to those that begin with PREFIX."""
    found = _with_admin(bootstrap, lambda admin: admin.list_positions(prefix))
    show(output, found, lambda wide: table(POSITION_COLUMNS, [(one.name, one.value) for one in found.positions]))
    if found.more:
        click.echo("There are more positions: give a longer PREFIX.", err=True)


@transaction.command("delete-position")
@click.argument("name")
@click.option("--plan", is_flag=True, help="Show what would be deleted, without deleting it.")
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
@output_option
@click.pass_obj
def delete_position(bootstrap: str, name: str, plan: bool, yes: bool, output: str) -> None:
    """Delete a named position permanently.

    Its records may then be published again, so the program that moved it must have ended, or start from the beginning.
    """
    value = _with_admin(bootstrap, lambda admin: admin.position(name))
    if value is None:
        raise InvalidRequest("not_found", f"there is no position {name!r}")
    if not plan:
        if not yes:
            click.confirm(f"Delete position {name}, which is at {value}?", abort=True, err=True)
        _with_admin(bootstrap, lambda admin: admin.delete_position(name, value))
    done = f"Deleted position {name}, which was at {value}."
    found = {"name": name, "value": value}
    show(output, found, lambda wide: table(POSITION_COLUMNS, [(name, value)]) if plan else done)


async def _find(admin: Admin, transactional_id: str | None, producer_id: int | None) -> TransactionInfo:
    if (transactional_id is None) == (producer_id is None):
        raise click.UsageError("select the transaction by its TRANSACTIONAL_ID or by --producer-id")
    if transactional_id is not None:
        return await admin.describe_transaction(transactional_id)
    listed = (await admin.list_transactions()).transactions
    found = [one for one in listed if one.producer_id == producer_id]
    if not found:
        raise InvalidRequest("unknown_transaction", f"producer {producer_id} has no transaction in progress")
    return found[-1]


def _with_admin(bootstrap: str, work: Callable[[Admin], Awaitable[T]]) -> T:
    from raftlog.client import Admin

    async def run() -> T:
        async with Admin(bootstrap) as admin:
            return await work(admin)

    return asyncio.run(run())


def _described(one: TransactionInfo, controller: int | None, wide: bool) -> str:
    row = (
        _dash(controller),
        _dash(one.transactional_id),
        one.producer_id,
        one.producer_epoch,
        one.state,
        _dash(one.timeout_ms),
        _dash(one.started_ms),
        _dash(one.duration_ms),
        _places(one),
    )
    firsts = [_dash(place.first_offset) for place in one.partitions]
    return table(DESCRIBE_COLUMNS + WIDE_DESCRIBE_COLUMNS * wide, [row + (firsts,) * wide])


def _places(one: TransactionInfo) -> Sequence[str]:
    """Format partitions like Kafka's tools: `topic-0`."""
    return [f"{place.topic}-{place.partition}" for place in one.partitions]


def _dash(known: object) -> object:
    """Show a missing value like Kafka's tools."""
    return "-" if known is None else known
