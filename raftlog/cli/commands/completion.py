"""`raftlog completion`: completion of commands, options, topics and groups in the user's shell.

`install` writes the script for a shell into the user's data folder (XDG Base Directory Specification) and, for bash and
zsh, adds one line to the shell's start file that reads it. `uninstall` removes both.
"""

from __future__ import annotations

import os
from typing import Annotated, Literal, NamedTuple, TypeAlias, get_args

import rich_click as click
from click.shell_completion import get_completion_class

from raftlog.cli.terminal.command import argument, command
from raftlog.errors import InvalidRequest

PROGRAM, VARIABLE = "raftlog", "_RAFTLOG_COMPLETE"
MARK = "# raftlog's completion"
Shell: TypeAlias = Literal["bash", "zsh", "fish"]
SHELLS: tuple[Shell, ...] = get_args(Shell)
ShellName: TypeAlias = Annotated[Shell | None, argument(metavar="[bash|zsh|fish]", type=click.Choice(SHELLS))]


class Places(NamedTuple):
    """The files that concern one shell."""

    script: str
    start_file: str | None
    """The file to which a line is added; None: the shell finds the script by itself."""

    @property
    def line(self) -> str:
        return f'[ -r "{self.script}" ] && . "{self.script}"  {MARK}'


@click.group()
def completion() -> None:
    """Complete commands, options, topics and groups in the shell."""


@command(completion)
def install(shell: ShellName = None) -> None:
    """Install completion for the shell that runs (or the one that is named), for this user.

    Examples:
        raftlog completion install
        raftlog completion install zsh
    """
    wanted = _shell(shell)
    places = _places(wanted)
    _write(places.script, script_of(wanted))
    click.echo(f"wrote {places.script}")
    if places.start_file is not None:
        before = _read(places.start_file)
        if places.line not in before.splitlines():
            gap = "" if not before or before.endswith("\n") else "\n"
            _write(places.start_file, f"{before}{gap}{places.line}\n")
            click.echo(f"added a line to {places.start_file}")
    click.echo("New shells complete raftlog's commands, topics and groups.")


@command(completion)
def uninstall(shell: ShellName = None) -> None:
    """Remove what `install` wrote.

    Examples:
        raftlog completion uninstall
    """
    places = _places(_shell(shell))
    try:
        os.unlink(places.script)
        click.echo(f"removed {places.script}")
    except FileNotFoundError:
        click.echo("It was not installed.")
    except OSError as error:
        raise InvalidRequest("invalid_request", f"cannot remove {places.script}: {error.strerror}") from None
    if places.start_file is not None:
        before = _read(places.start_file)
        if places.line in before.splitlines():
            _write(places.start_file, before.replace(f"{places.line}\n", ""))
            click.echo(f"removed a line from {places.start_file}")


@command(completion)
def show(shell: ShellName = None) -> None:
    """Print the completion script, for an installation by hand.

    Examples:
        raftlog completion show bash > /etc/bash_completion.d/raftlog
    """
    click.echo(script_of(_shell(shell)), nl=False)


def script_of(shell: Shell) -> str:
    """Return the completion script for a shell. It calls `raftlog` for every completion."""
    made = get_completion_class(shell)
    assert made is not None, shell
    # click's `source` checks the version of a bash that may not be the user's, so its parts are used.
    instance = made(click.Group(PROGRAM), {}, PROGRAM, VARIABLE)
    return instance.source_template % instance.source_vars()


def _shell(named: Shell | None) -> Shell:
    """Return the shell: the named one, or that of the variable `SHELL`. Raises `click.UsageError`."""
    running = os.path.basename(os.environ.get("SHELL", ""))
    for known in SHELLS:
        if (named or running) == known:
            return known
    raise click.UsageError("name the shell: bash, zsh or fish (the variable SHELL names none of them)")


def _places(shell: Shell) -> Places:
    home = os.path.expanduser("~")
    if shell == "fish":
        config = _xdg("XDG_CONFIG_HOME", os.path.join(home, ".config"))
        return Places(os.path.join(config, "fish", "completions", f"{PROGRAM}.fish"), None)
    data = _xdg("XDG_DATA_HOME", os.path.join(home, ".local", "share"))
    start = os.path.join(os.environ.get("ZDOTDIR", home), ".zshrc") if shell == "zsh" else os.path.join(home, ".bashrc")
    return Places(os.path.join(data, PROGRAM, f"completion.{shell}"), start)


def _xdg(variable: str, default: str) -> str:
    given = os.environ.get(variable, "")
    return given if os.path.isabs(given) else default  # a relative path is invalid and ignored, by the specification


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise InvalidRequest("invalid_request", f"cannot read {path}: {error.strerror}") from None


def _write(path: str, text: str) -> None:
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
    except OSError as error:
        raise InvalidRequest("invalid_request", f"cannot write {path}: {error.strerror}") from None
