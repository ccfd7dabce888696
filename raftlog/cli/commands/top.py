"""`raftlog top`: throughput of topics, lag of groups, health of nodes and elections, live in the terminal.

Each screen compares two samples (`raftlog/cli/top/`). Without a terminal, and with `--once`, one screen is printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import TYPE_CHECKING, Annotated

from click.exceptions import Abort

from raftlog.cli.terminal.command import command, option
from raftlog.cli.terminal.connection import Connection
from raftlog.cli.terminal.exit_codes import EXIT_INTERRUPTED
from raftlog.cli.terminal.interrupt import run_until_interrupted
from raftlog.cli.terminal.options import POSITIVE
from raftlog.cli.terminal.output import Output, show
from raftlog.cli.terminal.units import Duration
from raftlog.errors import RaftlogError

if TYPE_CHECKING:
    from raftlog.cli.top.rates import Changes
    from raftlog.cli.top.sample import Sample
    from raftlog.client import Admin

INTERVAL = Duration(1_000, low=0.1, high=3_600)
LINES_AROUND = 14
"""Lines of the screen that are not those of topics or groups."""


@command()
def top(
    connection: Connection,
    interval: Annotated[float, INTERVAL, "Time between two samples, in seconds."] = 2.0,
    once: Annotated[bool, "Print one screen, and end: for scripts."] = False,
    topics: Annotated[str | None, option("Only topics whose whole names match (RE2).", metavar="PATTERN")] = None,
    rows: Annotated[int | None, POSITIVE, "Topics and groups to show [default: what fits]."] = None,
    output: Output = "table",
) -> int:
    """Show throughput, lag, health and elections, live. Ctrl-C ends it.

    Examples:
        raftlog top
        raftlog top --interval 5s --topics 'orders-.*'
        raftlog top --once -o json
    """
    if once or output in ("json", "yaml") or not sys.stdout.isatty():
        changes = run_until_interrupted(_once(connection, interval, topics))

        def text(wide: bool) -> str:
            from raftlog.cli.top.screen import render

            return render(changes, rows or max(1, len(changes.topics), len(changes.groups)))

        show(output, changes, text)
        return 0
    with contextlib.suppress(Abort):
        run_until_interrupted(_live(connection, interval, topics, rows))
    return EXIT_INTERRUPTED


async def _once(connection: Connection, interval: float, pattern: str | None) -> Changes:
    from raftlog.cli.top.rates import between
    from raftlog.cli.top.sample import take
    from raftlog.client import Admin

    await connection.reach()
    async with Admin(connection.bootstrap, **connection.keywords) as admin:
        before = await take(connection, admin, pattern)
        await asyncio.sleep(interval)
        return between(before, await take(connection, admin, pattern))


async def _live(connection: Connection, interval: float, pattern: str | None, rows: int | None) -> None:
    from rich.live import Live
    from rich.text import Text

    from raftlog.cli.top.rates import between
    from raftlog.cli.top.sample import take
    from raftlog.cli.top.screen import render
    from raftlog.client import Admin

    await connection.reach()
    async with Admin(connection.bootstrap, **connection.keywords) as admin:
        before = await take(connection, admin, pattern)
        with Live(Text("the first screen takes two samples"), screen=True, auto_refresh=False) as live:
            while True:
                await asyncio.sleep(interval)
                after = await _again(connection, admin, pattern)
                if isinstance(after, str):
                    live.update(Text(after), refresh=True)
                    continue
                fits = max(3, (os.get_terminal_size().lines - LINES_AROUND - len(after.nodes)) // 2)
                screen = Text.from_ansi(render(between(before, after), rows or fits), no_wrap=True, overflow="crop")
                live.update(screen, refresh=True)
                before = after


async def _again(connection: Connection, admin: Admin, pattern: str | None) -> Sample | str:
    """Return the next sample, or why there is none: a cluster that is in trouble is when the screen matters."""
    from raftlog.cli.top.sample import take

    try:
        return await take(connection, admin, pattern)
    except RaftlogError as error:
        if not error.retriable:
            raise
        return f"no answer: {error.detail}"
