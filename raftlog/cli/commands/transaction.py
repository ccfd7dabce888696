"""`raftlog transaction`: transactions in progress, with the columns of Kafka's `kafka-transactions`.

An open transaction blocks all `read_committed` consumers at its first record. The cluster aborts it when its timeout is
over; `abort` does so at once. `positions` are named counters that commits have moved. They are kept permanently, until
`delete-position` removes them. Both commands show what they would do and ask for confirmation; `--plan` only shows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
import rich_click as click

from raftlog.cli.terminal.command import argument, command, option
from raftlog.cli.terminal.confirm import confirm
from raftlog.cli.terminal.exit_codes import EXIT_UNHEALTHY
from raftlog.cli.terminal.options import COUNT, Name, PlanDeletion, Yes, parse_partition
from raftlog.cli.terminal.output import Output, dash, listing, show
from raftlog.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftlog.client import TransactionInfo
    from raftlog.sync import Admin

DESCRIBE_COLUMNS = (
    "CoordinatorId", "TransactionalId", "ProducerId", "ProducerEpoch", "TransactionState", "TransactionTimeoutMs",
    "CurrentTransactionStartTimeMs", "TransactionDurationMs", "TopicPartitions",
)  # fmt: skip
POSITION_COLUMNS = ("Position", "Value")

TransactionalId: TypeAlias = Annotated[str | None, argument()]
ProducerId: TypeAlias = Annotated[int | None, COUNT, "Select by producer id."]


@click.group()
def transaction() -> None:
    """Show and abort transactions in progress."""


@command(transaction, "list")
def list_transactions(
    admin: Admin,
    *,
    partition: Annotated[
        tuple[str, ...], option("Only transactions with records in it; repeatable.", metavar="TOPIC/PARTITION")
    ] = (),
    output: Output = "table",
) -> int:
    """List open transactions, and decided ones without all their markers. Exit code 10: not all nodes answered.

    Examples:
        raftlog transaction list
        raftlog transaction list --partition orders/0
    """
    wanted = {parse_partition(text) for text in partition}
    found = admin.list_transactions()
    if wanted:
        there = [
            one for one in found.transactions if wanted.intersection((p.topic, p.partition) for p in one.partitions)
        ]
        found = msgspec.structs.replace(found, transactions=there)
    columns = ("TransactionalId", "ProducerId", "ProducerEpoch", "TransactionState")
    rows = []
    for one in found.transactions:
        key = (one.transactional_id, one.producer_id, one.producer_epoch, one.state)
        rows.append((*map(dash, (*key, one.timeout_ms, one.duration_ms)), _places(one)))
    show(output, found, listing(columns, rows, ("TransactionTimeoutMs", "TransactionDurationMs", "TopicPartitions")))
    if not found.silent_nodes:
        return 0
    silent = ", ".join(map(str, found.silent_nodes))
    click.echo(
        f"These nodes did not answer, so open transactions in partitions that they lead are missing: {silent}", err=True
    )
    return EXIT_UNHEALTHY


@command(transaction)
def describe(
    admin: Admin, transactional_id: TransactionalId = None, producer_id: ProducerId = None, output: Output = "table"
) -> None:
    """Show one transaction, its age and its partitions.

    Examples:
        raftlog transaction describe shout-1
    """
    found = _find(admin, transactional_id, producer_id)
    show(output, found, _text(found, admin.cluster().controller))


@command(transaction)
def abort(
    admin: Admin,
    transactional_id: TransactionalId = None,
    producer_id: ProducerId = None,
    plan: Annotated[bool, "Show what would be aborted, without aborting it."] = False,
    yes: Yes = False,
    output: Output = "table",
) -> None:
    """Abort an open transaction. Its producer gets an error when it commits.

    Examples:
        raftlog transaction abort shout-1 --plan
    """
    found = _find(admin, transactional_id, producer_id)
    text = _text(found, admin.cluster().controller)
    if found.state not in ("Ongoing", "Empty"):
        raise InvalidRequest("invalid_request", f"there is nothing to abort: the transaction is in state {found.state}")
    if not plan:
        if not yes:
            click.echo(text(False), err=True)
            confirm("Abort this transaction?")
        admin.abort_transaction(found.producer_id, found.producer_epoch)
    done = f"Aborted the transaction of producer {found.producer_id} in epoch {found.producer_epoch}."
    show(output, found, text if plan else lambda wide: done)


@command(transaction)
def positions(admin: Admin, prefix: Annotated[str, argument()] = "", output: Output = "table") -> None:
    """List the named positions that begin with PREFIX (default: all).

    Examples:
        raftlog transaction positions report/
    """
    found = admin.list_positions(prefix)
    show(output, found, listing(POSITION_COLUMNS, [(one.name, one.value) for one in found.positions]))
    if found.more:
        click.echo("There are more positions: give a longer PREFIX.", err=True)


@command(transaction, "delete-position")
def delete_position(
    admin: Admin, name: Name, plan: PlanDeletion = False, yes: Yes = False, output: Output = "table"
) -> None:
    """Delete a named position permanently.

    Its records may then be published again, so the program that moved it must have ended, or start from the beginning.

    Examples:
        raftlog transaction delete-position report/7 --plan
    """
    value = admin.position(name)
    if value is None:
        raise InvalidRequest("not_found", f"there is no position {name!r}")
    if not plan:
        if not yes:
            confirm(f"Delete position {name}, which is at {value}?")
        admin.delete_position(name, value)
    text = listing(POSITION_COLUMNS, [(name, value)])
    done = f"Deleted position {name}, which was at {value}."
    show(output, {"name": name, "value": value}, text if plan else lambda wide: done)


def _find(admin: Admin, transactional_id: str | None, producer_id: int | None) -> TransactionInfo:
    if (transactional_id is None) == (producer_id is None):
        raise click.UsageError("select the transaction by its TRANSACTIONAL_ID or by --producer-id")
    if transactional_id is not None:
        return admin.describe_transaction(transactional_id)
    found = [one for one in admin.list_transactions().transactions if one.producer_id == producer_id]
    if not found:
        raise InvalidRequest("unknown_transaction", f"producer {producer_id} has no transaction in progress")
    return found[-1]


def _text(one: TransactionInfo, controller: int | None) -> Callable[[bool], str]:
    key = (one.transactional_id, one.producer_id, one.producer_epoch, one.state)
    age = (one.timeout_ms, one.started_ms, one.duration_ms)
    firsts = [dash(place.first_offset) for place in one.partitions]
    row = (*map(dash, (controller, *key, *age)), _places(one), firsts)
    return listing(DESCRIBE_COLUMNS, [row], ("FirstOffsets",))


def _places(one: TransactionInfo) -> list[str]:
    """Format partitions like Kafka's tools: `topic-0`."""
    return [f"{place.topic}-{place.partition}" for place in one.partitions]
