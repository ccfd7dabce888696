"""`raftlog quota`: the limits of users and addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
import rich_click as click

from raftlog.api.security import QuotaFields
from raftlog.cli.terminal.command import argument, command, option
from raftlog.cli.terminal.confirm import confirm
from raftlog.cli.terminal.options import Yes
from raftlog.cli.terminal.output import Output, fields, show
from raftlog.cli.terminal.units import Size

if TYPE_CHECKING:
    from raftlog.api.security import QuotaInfo
    from raftlog.sync import Admin

COUNT = click.IntRange(0, 2**53)
RATE = Size(0, 2**53)
Entity: TypeAlias = Annotated[str, argument(metavar="User:NAME|User:*|Address:IP|Address:*")]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The options that are limits; one without a value is absent."""

    bytes_in_per_second: Annotated[int | None, RATE, "Bytes received from clients in a second."] = None
    bytes_out_per_second: Annotated[int | None, RATE, "Bytes sent to clients in a second."] = None
    requests_per_second: Annotated[int | None, COUNT, "Requests in a second."] = None
    connections: Annotated[int | None, COUNT, "Open connections."] = None
    open_transactions: Annotated[int | None, COUNT, "Open transactions."] = None
    groups: Annotated[int | None, COUNT, "Consumer groups that a user made."] = None
    topics_created_per_hour: Annotated[int | None, COUNT, "Topics created in an hour."] = None
    partitions_created_per_hour: Annotated[int | None, COUNT, "Partitions created in an hour."] = None
    metadata_commands_per_second: Annotated[int | None, COUNT, "Changes of metadata in a second."] = None
    committed_offsets: Annotated[int | None, COUNT, "Committed offsets in the groups that a user made."] = None
    transactional_ids: Annotated[int | None, COUNT, "Transactional ids that a user made."] = None
    producer_id_blocks: Annotated[int | None, COUNT, "Blocks of producer ids that a user made."] = None
    positions: Annotated[int | None, COUNT, "Named positions that a user made."] = None

    @property
    def given(self) -> dict[str, int]:
        """The limits that are set, by name."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}


@click.group()
def quota() -> None:
    """Set, list and remove the limits of users and addresses."""


@command(quota, "set")
def set_quota(
    admin: Admin,
    entity: Entity,
    *,
    limits: Limits,
    unset: Annotated[
        tuple[str, ...], option("Limit to remove, by its option's name; repeatable.", metavar="NAME")
    ] = (),
    output: Output = "table",
) -> None:
    """Set or remove limits of a user (User:* is the default of each) or an address. Others stay as they are.

    Examples:
        raftlog quota set User:robot --bytes-in-per-second 1MB --connections 20
        raftlog quota set 'User:*' --requests-per-second 500
    """
    removed = {name.removeprefix("--").replace("-", "_") for name in unset}
    unknown = sorted(removed - set(Limits.__struct_fields__))
    if unknown:
        raise click.UsageError(f"--unset names no limit: {unknown[0][:64]!r}")
    if not limits.given and not removed:
        raise click.UsageError("nothing to change: give a limit, or --unset")
    if both := sorted(removed & set(limits.given)):
        raise click.UsageError(f"{both[0]} is both set and unset")
    # The cluster replaces all limits of an entity at once.
    before = next((one.limits for one in admin.list_quotas() if one.entity == entity), QuotaFields())
    kept = {name: value for name, value in msgspec.structs.asdict(before).items() if name not in removed}
    found = admin.set_quota(entity, QuotaFields(**(kept | limits.given)))
    show(output, found, lambda wide: _text(found))


@command(quota, "list")
def list_quotas(admin: Admin, output: Output = "table") -> None:
    """List the users and addresses that have limits.

    Examples:
        raftlog quota list
    """
    found = admin.list_quotas()
    show(output, found, lambda wide: "\n\n".join(map(_text, found)))


@command(quota)
def remove(admin: Admin, entity: Entity, yes: Yes = False, output: Output = "table") -> None:
    """Remove all limits of a user or address.

    Examples:
        raftlog quota remove User:robot
    """
    if not yes:
        confirm(f"Remove all limits of {entity}?")
    admin.delete_quota(entity)
    show(output, {"entity": entity}, lambda wide: f"Removed the limits of {entity}.")


def _text(found: QuotaInfo) -> str:
    limits = {name: value for name, value in msgspec.structs.asdict(found.limits).items() if value is not None}
    return fields({"Entity": found.entity, **limits})
