"""One sample of a cluster, taken over the API. Everything is asked at the same time, within bounds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

import msgspec

from raftlog.api.cluster import ClusterInfo, HealthInfo, NodeInfo
from raftlog.api.topics import TopicDescription
from raftlog.cli.terminal.connection import Connection
from raftlog.client import Admin
from raftlog.client.cluster.api import HttpApi
from raftlog.errors import RaftlogError, RetriableError

AT_ONCE = 16
"""Requests in flight."""
MAX_TOPICS = 500
MAX_GROUPS = 200
HEALTH_SECONDS = 2.0

K = TypeVar("K")
V = TypeVar("V")


class TopicSample(msgspec.Struct, frozen=True):
    """A topic at one moment."""

    end_offset: int
    """Sum of the high watermarks of its partitions."""
    bytes: int
    """Sum over all replicas."""
    leader_epochs: int
    """Sum of the leader epochs: it rises with every election."""
    under_replicated: int
    offline: int


class GroupSample(msgspec.Struct, frozen=True):
    """A group at one moment."""

    state: str
    members: int
    committed: int
    """Sum of the committed offsets."""
    lag: int


class NodeSample(msgspec.Struct, frozen=True):
    """A node at one moment. `leads` counts partitions."""

    api: str
    status: str
    """`ready`, `not ready`, `fenced` or `silent`."""
    leads: int
    replicas: int
    problems: int


class Sample(msgspec.Struct, frozen=True):
    """A cluster at one moment. `at` is in seconds of a monotonic clock."""

    at: float
    cluster_id: str
    controller: int | None
    term: int
    topics: dict[str, TopicSample]
    groups: dict[str, GroupSample]
    nodes: dict[int, NodeSample]
    left_out: int = 0
    """Topics and groups beyond the bounds."""


async def take(connection: Connection, admin: Admin, pattern: str | None = None) -> Sample:
    """Take a sample of the topics whose names match a pattern, or of all. Raises `RaftlogError`."""
    cluster, quorum = await asyncio.gather(admin.cluster(), admin.quorum())
    names = [one.name for one in await admin.list_topics(pattern)]
    groups = await admin.list_groups()
    sizes: dict[str, int] = {}
    for held in (await admin.replicas()).values():
        for one in held:
            sizes[one.topic] = sizes.get(one.topic, 0) + one.size_bytes
    described = await _each(names[:MAX_TOPICS], admin.describe_topic)
    ends = await _each(described, lambda name: _end(admin, name))
    states = {one.group: one for one in groups[:MAX_GROUPS]}
    offsets = await _each(states, admin.group_offsets)
    sampled = {}
    for name, rows in offsets.items():
        some = [one for one in rows if one.offset is not None]
        lag = sum(one.lag or 0 for one in some)
        state = states[name]
        sampled[name] = GroupSample(state.state, state.member_count, sum(one.offset or 0 for one in some), lag)
    return Sample(
        time.monotonic(),
        cluster.cluster_id,
        cluster.controller,
        quorum.term,
        {name: _topic(one, ends.get(name, 0), sizes.get(name, 0)) for name, one in described.items()},
        sampled,
        await _nodes(connection, cluster, described.values()),
        max(0, len(names) - MAX_TOPICS) + max(0, len(groups) - MAX_GROUPS),
    )


def _topic(described: TopicDescription, end: int, size: int) -> TopicSample:
    partitions = described.partitions
    return TopicSample(
        end,
        size,
        sum(max(0, one.leader_epoch) for one in partitions),
        sum(len(one.isr) < len(one.replicas) for one in partitions),
        sum(one.leader is None for one in partitions),
    )


async def _end(admin: Admin, topic: str) -> int:
    found = await admin.list_offsets(topic, "latest", isolation="read_uncommitted")
    return sum(one.offset or 0 for one in found)


async def _nodes(
    connection: Connection, cluster: ClusterInfo, described: Iterable[TopicDescription]
) -> dict[int, NodeSample]:
    leads: dict[int | None, int] = {}
    replicas: dict[int, int] = {}
    for topic in described:
        for one in topic.partitions:
            leads[one.leader] = leads.get(one.leader, 0) + 1
            for broker in one.replicas:
                replicas[broker] = replicas.get(broker, 0) + 1
    async with connection.api() as api:
        health = dict(
            zip(
                [node.id for node in cluster.nodes],
                await asyncio.gather(*(_health(api, node) for node in cluster.nodes)),
                strict=True,
            )
        )
    found = {}
    for node in cluster.nodes:
        told = health[node.id]
        status = "fenced" if node.fenced else "silent" if told is None else "ready" if told.ready else "not ready"
        problems = 0 if told is None else len(told.problems)
        found[node.id] = NodeSample(node.api, status, leads.get(node.id, 0), replicas.get(node.id, 0), problems)
    return found


async def _health(api: HttpApi, node: NodeInfo) -> HealthInfo | None:
    try:
        async with api.of(node.api) as one:
            return await one.get("/v1/health", HealthInfo, accept=(503,), timeout=HEALTH_SECONDS)
    except RetriableError:
        return None


async def _each(names: Iterable[K], ask: Callable[[K], Awaitable[V]]) -> Mapping[K, V]:
    """Return the answers by name, with bounded requests in flight, and without those that are gone meanwhile."""
    gate = asyncio.Semaphore(AT_ONCE)
    found: dict[K, V] = {}

    async def one(name: K) -> None:
        async with gate:
            try:
                found[name] = await ask(name)
            except RaftlogError as error:
                if error.code not in ("unknown_topic", "unknown_group") and not error.retriable:
                    raise

    wanted = list(names)
    await asyncio.gather(*map(one, wanted))
    return {name: found[name] for name in wanted if name in found}
