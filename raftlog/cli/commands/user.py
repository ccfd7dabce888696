"""`raftlog user`: create, list, describe, change and delete users.

The command asks for a password without echo, or reads it from a file or standard input. It is never an argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias

import rich_click as click

from raftlog.cli.terminal.command import argument, command, option
from raftlog.cli.terminal.confirm import confirm
from raftlog.cli.terminal.connection import FILE_OR_STDIN
from raftlog.cli.terminal.options import Name, Yes
from raftlog.cli.terminal.output import Output, listing, show
from raftlog.cli.terminal.secrets import secret_of

if TYPE_CHECKING:
    from raftlog.api.security import UserInfo
    from raftlog.sync import Admin

COLUMNS = ("User", "Superuser", "Password", "Tokens")
WIDE_COLUMNS = ("Version",)

PasswordFile: TypeAlias = Annotated[
    str | None,
    option(
        "File with the new password; - reads it from standard input (default: ask for it).",
        metavar="FILE|-",
        type=FILE_OR_STDIN,
    ),
]


@click.group()
def user() -> None:
    """Create, list, describe, change and delete users."""


@command(user)
def create(
    admin: Admin,
    name: Name,
    password_file: PasswordFile = None,
    no_password: Annotated[bool, "Let the user authenticate by tokens and certificates only."] = False,
    superuser: Annotated[bool, "Let the user do everything, whatever the rules say."] = False,
    output: Output = "table",
) -> None:
    """Create a user.

    Examples:
        raftlog user create alice
        raftlog user create robot --no-password
    """
    if no_password and password_file is not None:
        raise click.UsageError("--no-password and --password-file cannot be combined")
    password = None if no_password else secret_of(password_file, "a password", f"Password of {name}", confirm=True)
    _show(output, admin.create_user(name, password, superuser=superuser), f"Created user {name}.")


@command(user, "list")
def list_users(admin: Admin, output: Output = "table") -> None:
    """List all users by name.

    Examples:
        raftlog user list
    """
    users = admin.list_users()
    show(output, users, listing(COLUMNS, _rows(users), WIDE_COLUMNS))


@command(user)
def describe(admin: Admin, name: Name, output: Output = "table") -> None:
    """Show a user and its tokens.

    Examples:
        raftlog user describe alice
    """
    found, tokens = admin.describe_user(name), admin.list_tokens(name)

    def text(wide: bool) -> str:
        shown = listing(COLUMNS, _rows([found]), WIDE_COLUMNS)(wide)
        rows = [(one.id, one.description, one.expires_ms or "never") for one in tokens]
        return f"{shown}\n\n{listing(('TokenId', 'Description', 'ExpiresMs'), rows)(wide)}" if rows else shown

    show(output, {"user": found, "tokens": tokens}, text)


@command(user)
def alter(
    admin: Admin,
    name: Name,
    superuser: Annotated[
        bool | None,
        option("Let the user do everything, or only what rules allow.", "--superuser/--no-superuser", default=None),
    ] = None,
    remove_password: Annotated[bool, "Let the user authenticate by tokens and certificates only."] = False,
    output: Output = "table",
) -> None:
    """Change a user. Its open connections end.

    Examples:
        raftlog user alter alice --superuser
    """
    if superuser is None and not remove_password:
        raise click.UsageError("nothing to change: give --superuser, --no-superuser or --remove-password")
    altered = admin.alter_user(name, remove_password=remove_password, superuser=superuser)
    _show(output, altered, f"Altered user {name}.")


@command(user, "set-password")
def set_password(admin: Admin, name: Name, password_file: PasswordFile = None, output: Output = "table") -> None:
    """Set a user's password. Connections that the user has open end.

    Examples:
        raftlog user set-password alice
    """
    password = secret_of(password_file, "a password", f"New password of {name}", confirm=True)
    _show(output, admin.alter_user(name, password=password), f"Set the password of user {name}.")


@command(user)
def delete(
    admin: Admin,
    names: Annotated[tuple[str, ...], argument(metavar="NAME...")],
    yes: Yes = False,
    output: Output = "table",
) -> None:
    """Delete users with their tokens. Their access rules stay.

    Examples:
        raftlog user delete alice
    """
    wanted = list(dict.fromkeys(names))
    if not yes:
        confirm(f"Delete {', '.join(wanted)} with all tokens?")
    deleted: list[str] = []
    try:
        for name in wanted:
            admin.delete_user(name)
            deleted.append(name)
    finally:
        # This also shows what was done before a failure.
        show(output, deleted, lambda wide: "\n".join(f"Deleted user {name}." for name in deleted))


def _rows(users: Sequence[UserInfo]) -> list[tuple[object, ...]]:
    return [(one.name, one.superuser, one.has_password, one.tokens, one.version) for one in users]


def _show(output: str, found: UserInfo, done: str) -> None:
    table = listing(COLUMNS, _rows([found]), WIDE_COLUMNS)
    show(output, found, lambda wide: f"{done}\n{table(True)}" if wide else done)
