"""Access rules: search, create, delete. Kafka's names of types and operations, in capitals."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from aiohttp import web

from http_api.routes.acls import CHANGE_TIMEOUT_S
from http_api.web.bodies import read_json
from http_api.web.call import Call
from raftlog.api.security import Acl
from raftlog.errors import InvalidRequest
from raftlog.security.acls import (
    CLUSTER_NAME,
    AclFilter,
    AclRule,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    checked_filter,
    checked_rule,
)

from .resources import Addresses, ListMetadata, Metadata, ResourceList, check_cluster, reply

E = TypeVar("E", Operation, PatternType, Permission, ResourceType)

QUERY = ("resource_type", "resource_name", "pattern_type", "principal", "host", "operation", "permission")
KAFKA_CLUSTER = "kafka-cluster"
"""Kafka's name of the only resource of type CLUSTER."""
_ANYTHING = ("", "ANY")


class CreateAcl(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request to add a rule."""

    resource_type: str
    resource_name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission: str


class AclResource(msgspec.Struct, frozen=True):
    """An access rule."""

    kind: str
    metadata: Metadata
    cluster_id: str
    resource_type: str
    resource_name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission: str


async def search_acls(call: Call) -> web.StreamResponse:
    """List the rules that match the query; a parameter that is absent, or `ANY`, matches everything."""
    check_cluster(call)
    await call.catch_up("a rule")
    wanted = _filter(call)
    return await _reply(call, [rule for rule in call.view.security.rules() if wanted.matches(rule)])


async def create_acl(call: Call) -> web.StreamResponse:
    """Add a rule; one that is there already stays."""
    check_cluster(call)
    asked = await read_json(call, CreateAcl)
    fields: dict[str, Any] = {
        "principal": asked.principal,
        "operation": _member(Operation, asked.operation),
        "resource_type": _member(ResourceType, asked.resource_type),
        "name": _own_name(asked.resource_name),
        "pattern_type": _member(PatternType, asked.pattern_type),
        "permission": _member(Permission, asked.permission),
        "host": asked.host,
    }
    try:
        rule = checked_rule(msgspec.convert(fields, Acl).rule)
    except msgspec.ValidationError as error:
        raise InvalidRequest("invalid_request", str(error)) from None
    await call.context.finish(call.service.security.add_rules([rule]), CHANGE_TIMEOUT_S)
    return web.Response(status=201, headers={"Location": Addresses(call).url("acls")})


async def delete_acls(call: Call) -> web.StreamResponse:
    """Remove the rules that match the query, which must have a parameter, and return them."""
    check_cluster(call)
    wanted = _filter(call)
    if all(call.query.text(name) is None for name in QUERY):
        raise InvalidRequest("invalid_request", "without a filter all rules would be removed: name a parameter")
    change = call.service.security.remove_rules(wanted, dry_run=False)
    removed = await call.context.finish(change, CHANGE_TIMEOUT_S)
    to = Addresses(call)
    return await reply(call, {"data": [_acl(to, rule) for rule in removed]}, len(removed))


async def _reply(call: Call, rules: list[AclRule]) -> web.StreamResponse:
    to = Addresses(call)
    listed = ResourceList("KafkaAclList", ListMetadata(to.url("acls")), [_acl(to, rule) for rule in rules])
    return await reply(call, listed, len(rules))


def _filter(call: Call) -> AclFilter:
    text = {name: call.query.text(name) or "" for name in QUERY}
    pattern, name = text["pattern_type"].upper(), text["resource_name"] or None
    if name is not None:
        name = _own_name(name)
    is_match = pattern == "MATCH"
    return checked_filter(
        AclFilter(
            principal=text["principal"] or None,
            host=text["host"] or None,
            operation=_wanted(Operation, text["operation"]),
            permission=_wanted(Permission, text["permission"]),
            resource_type=_wanted(ResourceType, text["resource_type"]),
            pattern_type=None if is_match else _wanted(PatternType, pattern),
            name=None if is_match else name,
            applies_to=name if is_match else None,
        )
    )


def _wanted(kind: type[E], text: str) -> E | None:
    return None if text.upper() in _ANYTHING else _member(kind, text)


def _member(kind: type[E], text: str) -> E:
    """Return the member of this name. Raises `InvalidRequest`."""
    try:
        return kind[text.upper()]
    except KeyError:
        known = ", ".join(kind.__members__)
        raise InvalidRequest("invalid_request", f"{text[:64]!r} is none of {known}") from None


def _own_name(name: str) -> str:
    return CLUSTER_NAME if name == KAFKA_CLUSTER else name


def _acl(to: Addresses, rule: AclRule) -> AclResource:
    is_cluster = rule.resource_type is ResourceType.CLUSTER
    return AclResource(
        "KafkaAcl",
        Metadata(to.url("acls")),
        to.cluster_id,
        rule.resource_type.name,
        KAFKA_CLUSTER if is_cluster else rule.name,
        rule.pattern_type.name,
        rule.principal,
        rule.host,
        rule.operation.name,
        rule.permission.name,
    )
