"""`raftlog acl`: access rules, with the terms of Kafka's `kafka-acls`.

A rule allows or denies a principal an operation on a resource: a topic, a group, a transactional id (also of a named
position) or the cluster. A denial wins over every allowance, and what no rule allows is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import msgspec
import rich_click as click

from raftlog.api.security import Acl, CheckAcl, DeleteAcls
from raftlog.cli.terminal.command import command, option
from raftlog.cli.terminal.confirm import confirm
from raftlog.cli.terminal.exit_codes import EXIT_DENIED
from raftlog.cli.terminal.options import PlanDeletion, Yes
from raftlog.cli.terminal.output import Output, Row, counted, fields, listing, show
from raftlog.security.acls import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType

if TYPE_CHECKING:
    from raftlog.sync import Admin

COLUMNS = ("Principal", "Host", "Permission", "Operation", "ResourceType", "PatternType", "Name")
PRODUCER = ((ResourceType.TOPIC, Operation.WRITE), (ResourceType.TRANSACTIONAL_ID, Operation.WRITE))
CONSUMER = ((ResourceType.TOPIC, Operation.READ), (ResourceType.GROUP, Operation.READ))


class OperationChoice(click.Choice[Any]):
    """An operation, in Kafka's spelling (`DescribeConfigs`) or that of the HTTP API (`describe_configs`)."""

    def __init__(self) -> None:
        super().__init__([one.value for one in Operation])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", str(value)).lower(), param, ctx)


OPERATION = OperationChoice()
Pattern: TypeAlias = Literal["literal", "prefixed"]


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """The options that name resources."""

    topic: Annotated[tuple[str, ...], option("Topic, or * for all; repeatable.", metavar="NAME")] = ()
    group: Annotated[tuple[str, ...], option("Consumer group, or * for all; repeatable.", metavar="NAME")] = ()
    transactional_id: Annotated[
        tuple[str, ...], option("Transactional id or named position, or * for all; repeatable.", metavar="NAME")
    ] = ()
    cluster: Annotated[bool, "The cluster itself."] = False

    @property
    def named(self) -> list[tuple[ResourceType, str]]:
        """Type and name of each resource."""
        of_type = {
            ResourceType.TOPIC: self.topic,
            ResourceType.GROUP: self.group,
            ResourceType.TRANSACTIONAL_ID: self.transactional_id,
            ResourceType.CLUSTER: (CLUSTER_NAME,) if self.cluster else (),
        }
        return [(kind, name) for kind, names in of_type.items() for name in names]

    def need_one(self) -> list[tuple[ResourceType, str]]:
        """Return the resources. Raises `click.UsageError` if there is none."""
        if not self.named:
            raise click.UsageError("name a resource: --topic, --group, --transactional-id or --cluster")
        return self.named


@click.group()
def acl() -> None:
    """List, create, delete and check access rules."""


@command(acl, "list")
def list_acls(
    admin: Admin,
    principal: Annotated[str | None, option("Only rules of this principal.", metavar="User:NAME")] = None,
    *,
    resources: Resources,
    output: Output = "table",
) -> None:
    """List access rules, or those that match a principal and apply to resources.

    Examples:
        raftlog acl list
        raftlog acl list --topic orders
    """
    wanted = resources.named
    found = [
        one
        for one in admin.list_acls()
        if principal in (None, one.principal) and (not wanted or any(_applies(one, *place) for place in wanted))
    ]
    _show(output, found)


@command(acl)
def create(
    admin: Admin,
    allow_principal: Annotated[
        tuple[str, ...], option("Allow this principal; repeatable.", metavar="User:NAME|Group:NAME")
    ] = (),
    deny_principal: Annotated[
        tuple[str, ...], option("Deny this principal; repeatable.", metavar="User:NAME|Group:NAME")
    ] = (),
    operation: Annotated[tuple[str, ...], option("Operation; repeatable. [default: all]", type=OPERATION)] = (),
    producer: Annotated[bool, "Instead of --operation: what a producer to these topics needs."] = False,
    consumer: Annotated[bool, "Instead of --operation: what a consumer of these topics and groups needs."] = False,
    *,
    resources: Resources,
    resource_pattern_type: Annotated[
        Pattern, "Whether names are those of resources, or the beginnings of their names."
    ] = "literal",
    host: Annotated[tuple[str, ...], option("IP address of clients; repeatable. [default: *]", metavar="IP")] = (),
    output: Output = "table",
) -> None:
    """Create access rules: one for each principal, operation, resource and host.

    Examples:
        raftlog acl create --allow-principal User:robot --producer --topic orders
        raftlog acl create --allow-principal Group:analysts --operation read --topic '*'
    """
    if not allow_principal and not deny_principal:
        raise click.UsageError("name a principal: --allow-principal or --deny-principal")
    if operation and (producer or consumer):
        raise click.UsageError("give --operation, or --producer and --consumer")
    principals = [(one, Permission.ALLOW) for one in allow_principal]
    principals += [(one, Permission.DENY) for one in deny_principal]
    rules = [
        Acl(who, what, kind, name, PatternType(resource_pattern_type), permission, where)
        for who, permission in principals
        for kind, name in resources.need_one()
        for what in _operations(kind, operation, producer, consumer)
        for where in host or ("*",)
    ]
    if not rules:
        raise click.UsageError("--producer is about topics and transactional ids, --consumer about topics and groups")
    _show(output, admin.create_acls(rules))


@command(acl)
def delete(
    admin: Admin,
    principal: Annotated[str | None, option("Only rules of this principal.", metavar="User:NAME|Group:NAME")] = None,
    operation: Annotated[str | None, option("Only rules of this operation.", type=OPERATION)] = None,
    permission: Annotated[str | None, click.Choice(["allow", "deny"]), "Only rules that allow, or that deny."] = None,
    *,
    resources: Resources,
    resource_pattern_type: Annotated[
        Literal["literal", "prefixed", "any"], "Only rules with this kind of name; any: all that apply to the resource."
    ] = "literal",
    host: Annotated[str | None, option("Only rules for this IP address, or *.", metavar="IP")] = None,
    plan: PlanDeletion = False,
    yes: Yes = False,
    output: Output = "table",
) -> None:
    """Delete access rules that match all options.

    Examples:
        raftlog acl delete --principal User:robot --plan
    """
    places: list[tuple[ResourceType | None, str | None]] = list(resources.named) or [(None, None)]
    if (principal, operation, permission, host, places) == (None, None, None, None, [(None, None)]):
        raise click.UsageError("name rules: without any option, all of them would be deleted")
    exact = resource_pattern_type != "any"
    filters = [
        DeleteAcls(
            principal=principal,
            host=host,
            operation=None if operation is None else Operation(operation),
            permission=None if permission is None else Permission(permission),
            resource_type=kind,
            pattern_type=PatternType(resource_pattern_type) if exact and name is not None else None,
            name=name if exact else None,
            applies_to=None if exact else name,
        )
        for kind, name in places
    ]
    planned = [one for wanted in filters for one in admin.delete_acls(msgspec.structs.replace(wanted, dry_run=True))]
    if plan or not planned:
        _show(output, planned)
        return
    if not yes:
        click.echo(listing(COLUMNS, _rows(planned))(False), err=True)
        confirm(f"Delete {counted(len(planned), 'rule')}?")
    _show(output, [one for wanted in filters for one in admin.delete_acls(wanted)])


@command(acl)
def check(
    admin: Admin,
    principal: Annotated[str, option("Principal that asks.", metavar="User:NAME")],
    operation: Annotated[str, option("Operation.", type=OPERATION)],
    *,
    resources: Resources,
    of_group: Annotated[
        tuple[str, ...], option("Group that an identity provider states; repeatable.", metavar="NAME")
    ] = (),
    host: Annotated[str, option("IP address of the client.", metavar="IP")] = "",
    output: Output = "table",
) -> int:
    """Show whether a principal may do something, and the rule that decides. Exit code 10: it may not.

    Examples:
        raftlog acl check --principal User:robot --operation write --topic orders
    """
    wanted = resources.need_one()
    if len(wanted) > 1:
        raise click.UsageError("name one resource: the answer is about one")
    kind, name = wanted[0]
    question = CheckAcl(principal, Operation(operation), kind, name, list(of_group), host)
    found = admin.check_acl(question)

    def text(wide: bool) -> str:
        summary = fields({"Allowed": found.allowed, "Reason": found.reason})
        return summary if found.acl is None else f"{summary}\n\n{listing(COLUMNS, _rows([found.acl]))(wide)}"

    show(output, found, text)
    return 0 if found.allowed else EXIT_DENIED


def _operations(kind: ResourceType, named: Sequence[str], producer: bool, consumer: bool) -> list[Operation]:
    """Return the operations of the rules for a resource of this type."""
    if not (producer or consumer):
        return [Operation(one) for one in named or ("all",)]
    needed = [*(PRODUCER if producer else ()), *(CONSUMER if consumer else ())]
    return [what for of, what in needed if of is kind]


def _applies(rule: Acl, kind: ResourceType, name: str) -> bool:
    if rule.resource_type is not kind:
        return False
    if rule.pattern_type is PatternType.PREFIXED:
        return name.startswith(rule.name)
    return rule.name in (name, "*")


def _rows(rules: Sequence[Acl]) -> list[Row]:
    return [
        (
            one.principal, one.host, one.permission.value, one.operation.value, one.resource_type.value,
            one.pattern_type.value, one.name,
        )
        for one in rules
    ]  # fmt: skip


def _show(output: str, rules: Sequence[Acl]) -> None:
    show(output, rules, listing(COLUMNS, _rows(rules)))
