"""Explanations: why a partition, a consumer group or a transaction is in its state."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from http_api.service.groups import check_name
from http_api.service.transactions import check_name as check_transaction_name
from http_api.web.call import Call
from http_api.web.query import integer
from http_api.web.replies import encoded_reply
from http_api.web.topics import partition_of, topic_of
from metadata.view import GroupRecord
from raftlog.api.explain import AccessDecision, Explanation
from raftlog.errors import InvalidRequest
from raftlog.json_values import encode
from raftlog.security.acls import Operation, Resource, ResourceType
from raftlog.security.principals import USER, Caller, Principal, check_principal

PARTITION_QUERY = ("offset", "principal")
GROUP_QUERY = ("principal",)

_COST = 64 * 1024
"""Encoding an explanation takes about as long as parsing this number of bytes."""
_ABOUT_TOPIC = (Operation.WRITE, Operation.READ, Operation.DESCRIBE)
_ABOUT_GROUP = (Operation.READ, Operation.DESCRIBE)


async def explain_partition(call: Call) -> web.StreamResponse:
    """Explain a partition of this node's view, which a silent quorum leaves as it is."""
    topic = topic_of(call)
    record = partition_of(call, topic)
    text = call.query.text("offset")
    offset = None if text is None else integer("offset", text, 0, 2**62)
    access = _decisions(call, _ABOUT_TOPIC, Resource(ResourceType.TOPIC, topic.name))
    found = await call.service.explain.partition(record.topic_partition, offset, _named(call), access)
    return await _reply(call, found)


async def explain_group(call: Call) -> web.StreamResponse:
    """Explain a consumer group."""
    group = await _group_of(call)
    access = [*_decisions(call, _ABOUT_GROUP, Resource(ResourceType.GROUP, group.group_id))]
    for name in sorted({name for member in group.members.values() for name in member.topics}):
        if call.may(Operation.DESCRIBE, ResourceType.TOPIC, name):
            access += _decisions(call, (Operation.READ,), Resource(ResourceType.TOPIC, name))

    def describable(name: str) -> bool:
        return call.may(Operation.DESCRIBE, ResourceType.TOPIC, name)

    return await _reply(call, await call.service.explain.group(group, call.caller, describable, access))


async def explain_transaction(call: Call) -> web.StreamResponse:
    """Explain what the transaction of a named producer waits for."""
    name = check_transaction_name("a transactional id", call.segment("transactional_id"))
    if call.view.transactions.producer(name) is None:
        await call.catch_up(f"transactional id {name!r}")
    return await _reply(call, await call.service.explain.transaction(name, _named(call)))


def _named(call: Call) -> Caller | None:
    """Return the caller in whose name other nodes are asked; None without security."""
    return call.caller if call.principal else None


async def _group_of(call: Call) -> GroupRecord:
    """Return the group; the quorum is asked only about one that this node does not know."""
    name = check_name("a group", call.segment("group"))
    if call.view.groups.group(name) is None:
        await call.catch_up(f"group {name!r}")
    group = call.view.groups.group(name)
    if group is None:
        raise InvalidRequest("unknown_group", f"there is no group {name!r}")
    return group


def _decisions(call: Call, operations: Sequence[Operation], resource: Resource) -> list[AccessDecision]:
    """Return the decisions about the principal that the query names, for callers that may see access rules."""
    asked = call.query.text("principal")
    if asked is None:
        return []
    call.check(Operation.DESCRIBE)
    kind, _, name = check_principal(asked).partition(":")
    if kind != USER or name == "*":
        raise InvalidRequest("invalid_request", "the question is about one user: User:NAME")
    found = []
    for operation in operations:
        one = call.service.access.explain(Principal(name), "", operation, resource)
        rule = "" if one.rule is None else str(one.rule)
        found.append(AccessDecision(asked, operation.value, str(resource), one.allowed, one.reason, rule))
    return found


async def _reply(call: Call, found: Explanation) -> web.StreamResponse:
    return await encoded_reply(call, _COST, encode, found)
