"""The sources of a command's connection: options, profiles and variables, read when a command needs them."""

from __future__ import annotations

import os

import rich_click as click
from click.core import ParameterSource

from raftlog.errors import InvalidRequest

from .connection import OF_CONNECTION, TOKEN_VARIABLE, Connection, choose
from .profiles import load_profiles, profiles_path
from .secrets import STDIN, ask_secret, read_secret


def resolve(context: click.Context) -> Connection:
    """Return the connection that the options before the command, the environment and profiles give.

    Reads standard input if an option says so, and asks for the password of `--user`. Raises `InvalidRequest`.
    """
    options = _from(context, ParameterSource.COMMANDLINE)
    environment = _from(context, ParameterSource.ENVIRONMENT)
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if token:
        environment = Connection(bootstrap=environment.bootstrap, token=token).over(_without_credential(environment))
    name = context.params.get("profile")
    stored = load_profiles(profiles_path())
    named = [] if name is None else [stored.named(name)]
    current = stored.in_use if name is None else None
    return _with_secrets(choose([options, *named, environment], current), context.params.get("password_file"))


def resolve_without_asking(context: click.Context) -> Connection | None:
    """Return the same, or None if it needs standard input or a question. Raises `InvalidRequest`."""
    asks = context.params.get("user") is not None and context.params.get("password_file") in (None, STDIN)
    return None if asks or context.params.get("token_file") == STDIN else resolve(context)


def _from(context: click.Context, source: ParameterSource) -> Connection:
    given = {name: context.params[name] for name in OF_CONNECTION if context.get_parameter_source(name) is source}
    if given.get("bootstrap") == "":
        raise InvalidRequest("invalid_request", "--bootstrap has no address: give host:port, separated by commas")
    given.setdefault("bootstrap", "")
    if given.get("token_file") is not None and given.get("user") is not None:
        raise click.UsageError("give one credential: --token-file or --user")
    insecure = source is ParameterSource.COMMANDLINE and context.params["insecure_credentials"]
    return Connection(**given, insecure_credentials=insecure)


def _without_credential(connection: Connection) -> Connection:
    if connection.token_file is not None:
        raise InvalidRequest(
            "invalid_request", f"both {TOKEN_VARIABLE} and RAFTLOG_TOKEN_FILE are set: unset one of them"
        )
    return connection


def _with_secrets(found: Connection, password_file: str | None) -> Connection:
    """Return the connection with what standard input or the terminal has to give."""
    if found.token_file == STDIN:
        token = read_secret(STDIN, "a token").reveal()
        return Connection(bootstrap=found.bootstrap, token=token).over(found)
    if found.user is not None and found.password is None:
        shown = f"Password of {found.user}"
        password = ask_secret(shown) if password_file is None else read_secret(password_file, "a password")
        return Connection(bootstrap=found.bootstrap, user=found.user, password=password.reveal()).over(found)
    return found
