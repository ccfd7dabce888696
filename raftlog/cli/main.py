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

from raftlog.cli.terminal.command import options_of
from raftlog.cli.terminal.connection import ConnectionOptions
from raftlog.cli.terminal.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE
from raftlog.cli.terminal.sources import resolve
from raftlog.errors import InvalidRequest, InvariantViolation, RaftlogError
from raftlog.version import __version__

COMMANDS = (
    "acl", "bench", "cluster", "consume", "dev", "group", "partition", "produce", "profile", "quorum", "quota",
    "server", "tls", "token", "topic", "transaction", "user", "whoami",
)  # fmt: skip
"""Each is in the module of its name."""

ENTRY_POINT_GROUP = "raftlog.commands"


class LazyGroup(click.RichGroup):
    """A group that finds commands by name and loads only the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_entry_points())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        point = _entry_points().get(cmd_name)
        command: click.Command | None = None if point is None else point.load()
        return command


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
        code = cli.main(standalone_mode=False)
    except Abort:
        sys.exit(EXIT_INTERRUPTED)
    except ClickException as error:
        error.show()
        sys.exit(EXIT_USAGE)
    except InvariantViolation as error:
        click.echo(f"Error: a bug in raftlog: {error.detail}", err=True)
        sys.exit(EXIT_FAILED)
    except RaftlogError as error:
        advice = " (a retry may succeed)" if error.retriable and not isinstance(error, InvalidRequest) else ""
        if error.code == "authorization_failed":
            advice = " (an administrator can allow it: `raftlog acl create`; `raftlog whoami` shows who you are here)"
        click.echo(f"Error: {error.detail}{advice}", err=True)
        sys.exit(EXIT_FAILED)
    except (BrokenPipeError, KeyboardInterrupt):
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
