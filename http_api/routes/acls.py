"""Access rules and quotas: list, add, remove, and the question which rule decides."""

from __future__ import annotations

from aiohttp import web

from http_api.web.bodies import read_json
from http_api.web.call import Call
from http_api.web.replies import json_reply
from metadata.view import QuotaLimits, QuotaRecord
from raftlog.api import security as documents
from raftlog.errors import InvalidRequest
from raftlog.security.acls import AclRule, Resource
from raftlog.security.principals import USER, Principal, check_principal, host_of

CHANGE_TIMEOUT_S = 60.0
"""Seconds beyond the time that the broker waits for the quorum."""


async def list_acls(call: Call) -> web.StreamResponse:
    await call.catch_up("a rule")
    return json_reply(_acls(call.view.security.rules()))


async def create_acls(call: Call) -> web.StreamResponse:
    """Add rules, all or none."""
    asked = await read_json(call, documents.CreateAcls)
    change = call.service.security.add_rules([one.rule for one in asked.acls])
    return json_reply(_acls(await call.context.finish(change, CHANGE_TIMEOUT_S)), status=201)


async def delete_acls(call: Call) -> web.StreamResponse:
    """Remove the rules that match a filter, and return them."""
    asked = await read_json(call, documents.DeleteAcls)
    change = call.service.security.remove_rules(asked.filter, dry_run=asked.dry_run)
    return json_reply(_acls(await call.context.finish(change, CHANGE_TIMEOUT_S)))


async def check_acl(call: Call) -> web.StreamResponse:
    """Return whether a principal may do something, and the rule that decides."""
    asked = await read_json(call, documents.CheckAcl)
    kind, _, name = check_principal(asked.principal).partition(":")
    if kind != USER or name == "*":
        raise InvalidRequest("invalid_request", "the question is about one user: User:NAME")
    await call.catch_up("a rule")
    principal, host = Principal(name, tuple(asked.groups)), host_of(asked.host) if asked.host else ""
    found = call.service.access.explain(principal, host, asked.operation, Resource(asked.resource_type, asked.name))
    acl = None if found.rule is None else documents.Acl.of(found.rule)
    return json_reply(documents.AclDecision(found.allowed, found.reason, acl))


async def list_quotas(call: Call) -> web.StreamResponse:
    await call.catch_up("a quota")
    return json_reply(documents.Quotas([_quota(one) for one in call.view.security.quotas()]))


async def set_quota(call: Call) -> web.StreamResponse:
    """Set all limits of a user or address; limits that are absent are removed."""
    asked = await read_json(call, documents.QuotaFields)
    limits = QuotaLimits(**{name: getattr(asked, name) for name in QuotaLimits.__struct_fields__})
    change = call.service.security.put_quota(call.segment("entity"), limits)
    return json_reply(_quota(await call.context.finish(change, CHANGE_TIMEOUT_S)))


async def remove_quota(call: Call) -> web.StreamResponse:
    await call.context.finish(call.service.security.remove_quota(call.segment("entity")), CHANGE_TIMEOUT_S)
    return web.Response(status=204)


def _acls(rules: tuple[AclRule, ...] | list[AclRule]) -> documents.Acls:
    return documents.Acls([documents.Acl.of(rule) for rule in rules])


def _quota(record: QuotaRecord) -> documents.QuotaInfo:
    fields = {name: getattr(record.limits, name) for name in documents.QuotaFields.__struct_fields__}
    return documents.QuotaInfo(record.entity, documents.QuotaFields(**fields))
