"""The connection options in any place: `raftlog topic list --bootstrap HOST:PORT` is `raftlog --bootstrap ...`.

They are declared once, before the command (`connection.py`). Here every command gets them again, hidden, unless it has
an option of that name for something else. A value that is given there takes the place of the one before the command.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import rich_click as click
from click.core import ParameterSource

LOCAL = ("completion", "config", "dev", "server", "tls")
"""Commands that connect to no cluster, or to one that their own arguments describe."""


def accept_anywhere(command: click.Command, options: Iterable[click.Parameter]) -> None:
    """Add the options of the entry point to a command and to those in its group."""
    given = [one for one in options if isinstance(one, click.Option) and one.name != "version"]
    for one in given:
        taken = {name for known in command.params for name in (*known.opts, *known.secondary_opts)}
        if not taken.intersection(one.opts):
            command.params.append(_again(one))
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            inner = command.get_command(click.Context(command), name)
            if inner is not None:
                accept_anywhere(inner, given)


def _again(option: click.Option) -> click.Option:
    return click.Option(
        list(option.opts),
        type=option.type,
        is_flag=option.is_flag,
        hidden=True,
        help=option.help,
        expose_value=False,
        default=False if option.is_flag else None,
        callback=_hand_up,
    )


def _hand_up(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Give the value to the entry point, as if it stood before the command."""
    assert parameter.name is not None
    if context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE:
        root = context.find_root()
        root.params[parameter.name] = value
        root.set_parameter_source(parameter.name, ParameterSource.COMMANDLINE)
