"""`raftlog transaction`: transactions that are under way, with the columns of Kafka's `kafka-transactions`.

A transaction that stays open holds up everybody who reads what is committed, behind its first record. The cluster
aborts it when its time is over; `abort` does so at once. `positions` are the named counters that commits have moved:
they stay for ever, until `delete-position` has one forgotten. Both show what they would do and ask; `--plan` only shows
it.
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
    """Transactions that are under way."""


@transaction.command("list")
@output_option
@click.pass_context
def list_transactions(context: click.Context, output: str) -> None:
    """Open ones, and those that are decided and not shown everywhere yet. Exit code 10: not all nodes answered."""
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
            f"These nodes did not answer, so what is open in partitions that they lead is missing: {silent}", err=True
        )
        context.exit(EXIT_UNHEALTHY)


@transaction.command()
@click.argument("transactional_id", required=False)
@click.option("--producer-id", type=click.IntRange(0), help="Of one without a name, or whatever its name is.")
@output_option
@click.pass_obj
def describe(bootstrap: str, transactional_id: str | None, producer_id: int | None, output: str) -> None:
    """One transaction: since when it is open, and where."""

    async def work(admin: Admin) -> tuple[TransactionInfo, int | None]:
        return await _find(admin, transactional_id, producer_id), (await admin.cluster()).controller

    found, controller = _with_admin(bootstrap, work)
    show(output, found, lambda wide: _described(found, controller, wide))


@transaction.command()
@click.argument("transactional_id", required=False)
@click.option("--producer-id", type=click.IntRange(0), help="Of one without a name, or whatever its name is.")
@click.option("--plan", is_flag=True, help="Only show what would be aborted.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option
@click.pass_obj
def abort(
    bootstrap: str, transactional_id: str | None, producer_id: int | None, plan: bool, yes: bool, output: str
) -> None:
    """Abort a transaction that is open. Its producer is told when it wants to commit."""

    async def look(admin: Admin) -> tuple[TransactionInfo, int | None]:
        return await _find(admin, transactional_id, producer_id), (await admin.cluster()).controller

    found, controller = _with_admin(bootstrap, look)
    if found.state not in ("Ongoing", "Empty"):
        raise InvalidRequest("invalid_request", f"there is nothing to abort: the transaction is in {found.state}")
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
    """Named positions, which commits have moved; those that begin with PREFIX."""
    found = _with_admin(bootstrap, lambda admin: admin.list_positions(prefix))
    show(output, found, lambda wide: table(POSITION_COLUMNS, [(one.name, one.value) for one in found.positions]))
    if found.more:
        click.echo("There are more: give a longer PREFIX.", err=True)


@transaction.command("delete-position")
@click.argument("name")
@click.option("--plan", is_flag=True, help="Only show what would be forgotten.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option
@click.pass_obj
def delete_position(bootstrap: str, name: str, plan: bool, yes: bool, output: str) -> None:
    """Forget a named position, for good. What it kept from being published twice may then be published again: whoever
    moved it must have ended, or begin anew."""
    value = _with_admin(bootstrap, lambda admin: admin.position(name))
    if value is None:
        raise InvalidRequest("not_found", f"there is no position {name!r}")
    if not plan:
        if not yes:
            click.confirm(f"Forget position {name}, which is at {value}?", abort=True, err=True)
        _with_admin(bootstrap, lambda admin: admin.delete_position(name, value))
    done = f"Forgot position {name}, which was at {value}."
    found = {"name": name, "value": value}
    show(output, found, lambda wide: table(POSITION_COLUMNS, [(name, value)]) if plan else done)


async def _find(admin: Admin, transactional_id: str | None, producer_id: int | None) -> TransactionInfo:
    if (transactional_id is None) == (producer_id is None):
        raise click.UsageError("say which one by its TRANSACTIONAL_ID or by --producer-id")
    if transactional_id is not None:
        return await admin.describe_transaction(transactional_id)
    listed = (await admin.list_transactions()).transactions
    found = [one for one in listed if one.producer_id == producer_id]
    if not found:
        raise InvalidRequest("unknown_transaction", f"nothing of producer {producer_id} is under way")
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
    """As Kafka's tools write them: `topic-0`."""
    return [f"{place.topic}-{place.partition}" for place in one.partitions]


def _dash(known: object) -> object:
    """Kafka's tools show what is not known so."""
    return "-" if known is None else known
