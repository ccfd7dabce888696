"""`raftlog profile`: connections by name, with addresses, TLS files and a credential.

A profile takes what the options before the command and the environment say: `raftlog --bootstrap https://node0:9640
--token-file token profile create prod`. The file of profiles is readable by its owner only, and no command shows a
token or a password.
"""

from __future__ import annotations

import os
from typing import Annotated

import msgspec
import rich_click as click

from raftlog.cli.terminal.command import command, option
from raftlog.cli.terminal.confirm import confirm
from raftlog.cli.terminal.connection import TLS_FIELDS, Connection
from raftlog.cli.terminal.options import Name, Yes
from raftlog.cli.terminal.output import Output, listing, show
from raftlog.cli.terminal.profiles import load_profiles, profiles_path, save_profiles
from raftlog.cli.terminal.secrets import ask_secret
from raftlog.errors import InvalidRequest


class ProfileInfo(msgspec.Struct, frozen=True):
    """A profile without its secrets."""

    name: str
    current: bool
    bootstrap: str
    credential: str
    """The kind of credential."""
    tls_authority: str | None


@click.group()
def profile() -> None:
    """Create, list, select and delete profiles: connections by name."""


@command(profile)
def create(
    connection: Connection,
    name: Name,
    token: Annotated[bool, option("Ask for a token, and keep it in the profile.", "--ask-token")] = False,
    use: Annotated[bool, "Make it the current profile."] = False,
    replace: Annotated[bool, "Replace a profile of this name."] = False,
    output: Output = "table",
) -> None:
    """Create a profile from the options before the command and the environment.

    A token of --token-file stays in its file, and the profile refers to it; one of the environment or of standard input
    is kept in the profile.

    Examples:
        raftlog --bootstrap https://node0.example.org:9640 --tls-authority authority.pem profile create prod --ask-token
    """
    path = profiles_path()
    stored = load_profiles(path)
    if name in stored.profiles and not replace:
        raise InvalidRequest("invalid_request", f"profile {name!r} exists already: give --replace")
    made = _with_whole_paths(connection)
    if token:
        if made.credential_kind not in ("none", "certificate"):
            raise click.UsageError("--ask-token and another credential cannot be combined")
        made = Connection(bootstrap=made.bootstrap, token=ask_secret("Token").reveal().strip()).over(made)
    made.check()
    stored = stored.with_profile(name, made)
    stored = stored.using(name) if use else stored
    save_profiles(path, stored)
    current = stored.current == name
    note = ", the current one" if current else f"; `raftlog profile use {name}` makes it the current one"
    show(output, _info(name, made, current), lambda wide: f"Created profile {name}{note}.")


@command(profile, "list")
def list_profiles(output: Output = "table") -> None:
    """List all profiles by name, without their secrets.

    Examples:
        raftlog profile list
    """
    stored = load_profiles(profiles_path())
    found = [_info(name, one, name == stored.current) for name, one in sorted(stored.profiles.items())]
    rows = [(one.name, one.current, one.bootstrap, one.credential, one.tls_authority or "-") for one in found]
    show(output, found, listing(("Profile", "Current", "Bootstrap", "Credential"), rows, ("TlsAuthority",)))


@command(profile)
def use(name: Name) -> None:
    """Make a profile the current one, which commands use if they get no address otherwise.

    Examples:
        raftlog profile use prod
    """
    path = profiles_path()
    save_profiles(path, load_profiles(path).using(name))
    click.echo(f"Profile {name} is the current one.")


@command(profile)
def delete(name: Name, yes: Yes = False) -> None:
    """Delete a profile with its credential. A token in it stays valid until it is revoked.

    Examples:
        raftlog profile delete prod
    """
    path = profiles_path()
    load_profiles(path).named(name)
    if not yes:
        confirm(f"Delete profile {name}?")
    save_profiles(path, load_profiles(path).without(name))
    click.echo(f"Deleted profile {name}.")


def _info(name: str, one: Connection, current: bool) -> ProfileInfo:
    return ProfileInfo(name, current, one.bootstrap, one.credential_kind, one.tls_authority)


def _with_whole_paths(connection: Connection) -> Connection:
    """Return the connection with absolute paths: a profile is used in any folder."""
    paths = {name: getattr(connection, name) for name in (*TLS_FIELDS, "token_file")}
    return msgspec.structs.replace(
        connection, **{name: os.path.abspath(path) for name, path in paths.items() if path is not None}
    )
