"""Plots: the last day of the main numbers of topics, groups and nodes, which every node keeps on its disk."""

from __future__ import annotations

from aiohttp import web

from http_api.service.groups import check_name
from http_api.web.call import Call
from http_api.web.replies import encoded_reply
from http_api.web.topics import topic_of
from raftlog.api.plots import MAX_MINUTES, Plots
from raftlog.errors import InvalidRequest
from raftlog.json_values import encode
from raftlog.security.acls import Operation, ResourceType
from raftlog.security.principals import Caller

QUERY = ("minutes",)
DEFAULT_MINUTES = 60
_POINT_COST = 32
"""Encoding a point takes about as long as parsing this number of bytes."""


async def plot_topic(call: Call) -> web.StreamResponse:
    """Plot throughput and size of a topic."""
    topic = topic_of(call)
    return await _reply(call, await call.service.plots.topic(topic.topic_id, _minutes(call), _named(call)))


async def plot_group(call: Call) -> web.StreamResponse:
    """Plot the lag of a group. It is a sum over all of its partitions, so a caller that may not describe all of their
    topics gets no values."""
    name, minutes = check_name("a group", call.segment("group")), _minutes(call)
    group = call.view.groups.group(name)
    if group is None:
        raise InvalidRequest("unknown_group", f"there is no group {name!r}")
    topics = {tp.topic_id for tp in call.view.groups.offsets(name)}
    known = [topic for topic_id in topics if (topic := call.view.topic_by_id(topic_id)) is not None]
    found = await call.service.plots.group(name, minutes, _named(call))
    if not all(call.may(Operation.DESCRIBE, ResourceType.TOPIC, topic.name) for topic in known):
        found = Plots(found.from_ms, found.step_ms, found.points, [], found.unanswered)
    return await _reply(call, found)


async def plot_nodes(call: Call) -> web.StreamResponse:
    """Plot the main numbers of each node."""
    return await _reply(call, await call.service.plots.nodes(_minutes(call), _named(call)))


def _minutes(call: Call) -> int:
    return call.query.integer("minutes", 1, MAX_MINUTES, DEFAULT_MINUTES)


def _named(call: Call) -> Caller | None:
    """Return the caller in whose name other nodes are asked; None without security."""
    return call.caller if call.principal else None


async def _reply(call: Call, found: Plots) -> web.StreamResponse:
    call.check_again()
    return await encoded_reply(call, _POINT_COST * found.points * len(found.series), encode, found)
