"""Completion of names that only the cluster knows: topics and groups.

A completion must be quick and must not ask for a password: if the names are not there in a moment, there are none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import rich_click as click

from raftlog.errors import RaftlogError

from .connection import Connection
from .sources import resolve_without_asking

if TYPE_CHECKING:
    from raftlog.client import Admin

PATIENCE_SECONDS = 1.0


def complete_topics(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the topics whose names begin so."""

    async def names(admin: Admin) -> list[str]:
        return [one.name for one in await admin.list_topics()]

    return _complete(context, incomplete, names)


def complete_groups(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the consumer groups whose names begin so."""

    async def names(admin: Admin) -> list[str]:
        return [one.group for one in await admin.list_groups()]

    return _complete(context, incomplete, names)


def _complete(context: click.Context, incomplete: str, names: Callable[[Admin], Awaitable[list[str]]]) -> list[str]:
    try:
        connection = resolve_without_asking(context.find_root())
        found = [] if connection is None else asyncio.run(_ask(connection, names))
    except (RaftlogError, click.ClickException, TimeoutError):
        return []  # the command itself says what is wrong
    return [one for one in found if one.startswith(incomplete)]


async def _ask(connection: Connection, names: Callable[[Admin], Awaitable[list[str]]]) -> list[str]:
    from raftlog.client import Admin

    async with asyncio.timeout(PATIENCE_SECONDS):
        await connection.reach()
        async with Admin(connection.bootstrap, **connection.keywords) as admin:
            return await names(admin)
