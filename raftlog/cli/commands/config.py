"""`raftlog config`: the settings of a node as its `node.toml` and the defaults give them.

A cluster has no settings of its own that change while it runs: those of topics are `raftlog topic alter`, limits are
`raftlog quota`, and those of a node are its `node.toml`, which is read at the start. `raftlog server settings` lists
all settings with their meaning, and `raftlog server check-config` checks a file.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import rich_click as click

from raftlog.cli.nodes.node_settings import load_settings
from raftlog.cli.terminal.command import argument, command
from raftlog.cli.terminal.nearest import did_you_mean
from raftlog.cli.terminal.output import Output, dash, listing, show
from raftlog.errors import InvalidRequest

ConfigFile: TypeAlias = Annotated[str, click.Path(dir_okay=False), "Path of node.toml."]


@click.group()
def config() -> None:
    """Show the effective settings of a node. `raftlog server check-config` checks a file."""


@command(config, "show")
def show_settings(
    names: Annotated[tuple[str, ...], argument(metavar="[SETTING]...")] = (),
    config: ConfigFile = "node.toml",
    changed: Annotated[bool, "Only settings that the file sets."] = False,
    output: Output = "table",
) -> None:
    """Show the effective settings of a node, where each comes from, and its default (default: all settings).

    Examples:
        raftlog config show --config /etc/raftlog/node.toml
        raftlog config show timing.broker_session_ms fsync_threads
        raftlog config show --changed -o json
    """
    found = load_settings(config).settings()
    for name in names:
        if not any(_is_in(name, one.name) for one in found):
            suggestion = did_you_mean(name, [one.name for one in found])
            raise InvalidRequest("invalid_request", f"there is no setting {name[:64]!r}.{suggestion}")
    shown = [
        one
        for one in found
        if (not names or any(_is_in(name, one.name) for name in names)) and (not changed or one.source != "default")
    ]
    rows = [(one.name, dash(one.value), one.source, dash(one.default)) for one in shown]
    show(output, shown, listing(("Setting", "Value", "Source", "Default"), rows))


def _is_in(name: str, setting: str) -> bool:
    return setting == name or setting.startswith(f"{name}.")
