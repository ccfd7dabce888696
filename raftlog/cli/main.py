"""`raftlog <noun> <verb>`: the entry point of the command line.

Commands are loaded on use, so `raftlog --help` loads nothing heavy. Every `RaftlogError` ends here as one line without
a traceback, which says whose fault it is and what to do. Exit codes: 0 done, 1 failed, 2 wrong usage, 10 unhealthy, 130
interrupted. Other packages add commands through the entry point group `raftlog.commands`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys

import rich_click as click
from click.exceptions import Abort, ClickException

from raftlog.cli.terminal.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE
from raftlog.errors import InvalidRequest, InvariantViolation, RaftlogError
from raftlog.version import __version__

COMMANDS = {
    "bench": "raftlog.cli.commands.bench:bench",
    "cluster": "raftlog.cli.commands.cluster:cluster",
    "consume": "raftlog.cli.commands.consume:consume",
    "dev": "raftlog.cli.commands.dev:dev",
    "group": "raftlog.cli.commands.group:group",
    "partition": "raftlog.cli.commands.partition:partition",
    "produce": "raftlog.cli.commands.produce:produce",
    "quorum": "raftlog.cli.commands.quorum:quorum",
    "server": "raftlog.cli.commands.server:server",
    "tls": "raftlog.cli.commands.tls:tls",
    "topic": "raftlog.cli.commands.topic:topic",
    "transaction": "raftlog.cli.commands.transaction:transaction",
}
"""Name → module and attribute of the command."""

ENTRY_POINT_GROUP = "raftlog.commands"


class LazyGroup(click.RichGroup):
    """A group that finds commands by name and loads only the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*COMMANDS, *(point.name for point in _entry_points())})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            module, _, attribute = COMMANDS[cmd_name].partition(":")
            command: click.Command = getattr(importlib.import_module(module), attribute)
            return command
        for point in _entry_points():
            if point.name == cmd_name:
                loaded: click.Command = point.load()
                return loaded
        return None


def _entry_points() -> list[importlib.metadata.EntryPoint]:
    return sorted(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="raftlog")
@click.option(
    "--bootstrap",
    envvar="RAFTLOG_BOOTSTRAP",
    default="127.0.0.1:9640",
    show_default=True,
    metavar="HOST:PORT,...",
    help="API addresses of some nodes; the others are found through them.",
)
@click.pass_context
def cli(context: click.Context, bootstrap: str) -> None:
    """raftlog: a replicated commit log with its own coordination."""
    context.obj = bootstrap


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
        click.echo(f"Error: {error.detail}{advice}", err=True)
        sys.exit(EXIT_FAILED)
    except (BrokenPipeError, KeyboardInterrupt):
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
