"""The conditions of `raftlog cluster wait`: lines that say what is left to wait for, none once it is there."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import rich_click as click

from raftlog.cli.terminal.connection import Connection
from raftlog.errors import InvalidRequest, RaftlogError

if TYPE_CHECKING:
    from raftlog.client.cluster.api import HttpApi

POLL_SECONDS = 0.2
ANSWER_SECONDS = 2.0


def until(look: Callable[[], Awaitable[list[str]]], timeout: float) -> list[str]:
    """Call `look` until it returns no line, or until the time (in seconds) is up. Return its last lines.

    On a terminal, the first line is shown whenever it changes. A refused credential is waited for, too, because nodes
    answer before they know the first administrator of a new cluster; it is raised when the time is up.
    """
    deadline = time.monotonic() + timeout

    async def look_again() -> list[str]:
        try:
            return await look()
        except RaftlogError as error:
            if error.code != "unauthenticated" or time.monotonic() >= deadline:
                raise
            return [error.detail]

    async def wait() -> list[str]:
        told = ""
        while (problems := await look_again()) and time.monotonic() < deadline:
            if problems[0] != told and sys.stderr.isatty():
                told = problems[0]
                click.echo(f"waiting: {told}", err=True)
            await asyncio.sleep(POLL_SECONDS)
        return problems

    return asyncio.run(wait())


async def left_to_do(connection: Connection, gone: int) -> list[str]:
    """Return what the other nodes do not know or have done yet, after the node `gone` stopped.

    Each of them is asked, since their views of the cluster are not the same at every moment. Raises `InvalidRequest` if
    the cluster has no such node.
    """
    from raftlog.api.cluster import ClusterInfo

    async with connection.api() as api:
        try:
            nodes = (await api.get("/v1/cluster", ClusterInfo)).nodes
        except RaftlogError as error:
            if not error.retriable:
                raise
            return [f"the cluster does not answer: {error.detail}"]
        if gone not in (node.id for node in nodes):
            known = ", ".join(str(node.id) for node in nodes)
            raise InvalidRequest("not_found", f"the cluster has no node {gone} (it has {known})")
        others = [node for node in nodes if node.id != gone and not node.fenced]
        found = await asyncio.gather(*(_seen_by(api, node.id, node.api, gone) for node in others))
    return [line for line in found if line]


async def _seen_by(cluster: HttpApi, node: int, address: str, gone: int) -> str:
    """Return what is left to do in the eyes of one node; empty: nothing."""
    from raftlog.api.cluster import ClusterInfo
    from raftlog.api.topics import TopicDescription
    from raftlog.client.admin import find_topics
    from raftlog.client.cluster.metadata import topic_path

    try:
        async with cluster.of(address) as api:
            known = await api.get("/v1/cluster", ClusterInfo, timeout=ANSWER_SECONDS)
            if not all(one.fenced for one in known.nodes if one.id == gone):
                return f"node {node} does not know yet that node {gone} is down"
            for topic in await find_topics(api, None, timeout=ANSWER_SECONDS):
                path = topic_path(topic.name)
                for partition in (await api.get(path, TopicDescription, timeout=ANSWER_SECONDS)).partitions:
                    if partition.leader in (None, gone):
                        return f"{topic.name}/{partition.partition} has no leader in the view of node {node}"
    except RaftlogError as error:
        return f"node {node} at {address}: {error.detail}"
    return ""
