"""`raftlog <noun> <verb>`: the entry point of the command line.

Commands are loaded on use, so `raftlog --help` loads nothing heavy. Every `RaftlogError` ends here as one line without
a traceback, which says whose fault it is and what to do. Exit codes: 0 done, 1 failed, 2 wrong usage, 10 unhealthy, 130
interrupted. Other packages add commands through the entry point group `raftlog.commands`.
"""

from __future__ import annotations

import functools
import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import rich_click as click
from click.exceptions import Abort, ClickException

from raftlog.cli.terminal.anywhere import LOCAL, accept_anywhere
from raftlog.cli.terminal.command import options_of
from raftlog.cli.terminal.connection import ConnectionOptions
from raftlog.cli.terminal.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED
from raftlog.cli.terminal.nearest import did_you_mean
from raftlog.cli.terminal.sources import resolve
from raftlog.errors import InvalidRequest, InvariantViolation, RaftlogError
from raftlog.version import __version__

COMMANDS = (
    "acl", "backup", "bench", "cluster", "completion", "config", "consume", "debug", "dev", "doctor", "explain",
    "group", "partition", "produce", "profile", "quorum", "quota", "server", "tls", "token", "top", "topic",
    "transaction", "user", "whoami",
)  # fmt: skip
"""Each is in the module of its name."""

ENTRY_POINT_GROUP = "raftlog.commands"
PLAIN_WIDTH = 200
"""Columns of help without a terminal."""


class LazyGroup(click.RichGroup):
    """A group that finds commands by name and loads only the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_entry_points())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        point = _entry_points().get(cmd_name)
        command: click.Command | None = None if point is None else point.load()
        if command is not None and cmd_name in COMMANDS and cmd_name not in LOCAL:
            accept_anywhere(command, self.params)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in _entry_points() and not ctx.resilient_parsing:
            suggestion = did_you_mean(args[0], _entry_points())
            raise click.UsageError(f"No such command {args[0][:64]!r}.{suggestion}", ctx)
        return super().resolve_command(ctx, args)


def _entry_points() -> dict[str, EntryPoint]:
    own = [EntryPoint(name, f"raftlog.cli.commands.{name}:{name}", ENTRY_POINT_GROUP) for name in COMMANDS]
    return {point.name: point for point in (*entry_points(group=ENTRY_POINT_GROUP), *own)}


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="raftlog")
@options_of(ConnectionOptions)
@click.pass_context
def cli(context: click.Context, /, **given: Any) -> None:
    """raftlog: a replicated commit log with its own coordination."""
    context.obj = functools.cache(lambda: resolve(context))


def main() -> None:
    """Run the command line and exit."""
    try:
        # The width of a terminal is its own; elsewhere, lines are for tools that search them.
        width = None if sys.stdout.isatty() else PLAIN_WIDTH
        code = cli.main(prog_name="raftlog", standalone_mode=False, terminal_width=width)
    except Abort:
        sys.exit(EXIT_INTERRUPTED)
    except ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except InvariantViolation as error:
        click.echo(f"Error: a bug in raftlog: {error.detail}", err=True)
        sys.exit(EXIT_FAILED)
    except RaftlogError as error:
        told = isinstance(error, InvalidRequest) or error.detail.endswith((".", "?"))
        advice = "" if told or not error.retriable else " (a retry may succeed)"
        if error.code == "authorization_failed":
            advice = " (an administrator can allow it: `raftlog acl create`; `raftlog whoami` shows who you are here)"
        click.echo(f"Error: {error.detail}{advice}", err=True)
        sys.exit(EXIT_FAILED)
    except (BrokenPipeError, KeyboardInterrupt):
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
