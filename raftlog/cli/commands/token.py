"""`raftlog token`: create, list and revoke the tokens of a user, by default of the caller itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import rich_click as click

from raftlog.api.security import MAX_TOKEN_LIFETIME_MS
from raftlog.cli.terminal.command import argument, command, option
from raftlog.cli.terminal.confirm import confirm
from raftlog.cli.terminal.options import Yes
from raftlog.cli.terminal.output import Output, listing, show
from raftlog.errors import InvalidRequest
from raftlog.quantities import duration_ms

if TYPE_CHECKING:
    from raftlog.sync import Admin

COLUMNS = ("TokenId", "User", "Description", "ExpiresMs")
OfUser: TypeAlias = Annotated[str | None, option("User of the token (default: the caller itself).", metavar="NAME")]


@click.group()
def token() -> None:
    """Create, list and revoke tokens."""


def parse_lifetime(text: str) -> int:
    """Return a duration, such as `90d` or `PT12H`, in milliseconds. Raises `click.UsageError`."""
    lifetime = duration_ms(text)
    if not lifetime or lifetime > MAX_TOKEN_LIFETIME_MS:
        raise click.UsageError(
            f"{text[:64]!r} is not a lifetime: it must look like 90d, 12h, 30m or PT45S, and at most ten years"
        )
    return lifetime


@command(token)
def create(
    admin: Admin,
    user: OfUser = None,
    description: Annotated[str, "Purpose of the token."] = "",
    expires: Annotated[
        str | None, option("Lifetime, such as 90d, 12h or 30m (default: it does not expire).", metavar="TIME")
    ] = None,
    output: Output = "table",
) -> None:
    """Create a token. It is printed once, on standard output, and cannot be shown again.

    Examples:
        raftlog token create --user robot --description nightly --expires 90d > robot.token
    """
    lifetime = None if expires is None else parse_lifetime(expires)
    made = admin.create_token(_owner(admin, user), description, expires_in_ms=lifetime)
    if output in ("table", "wide"):
        click.echo(f"Created token {made.id} of user {made.user}. It is shown this once:", err=True)
    show(output, made, lambda wide: made.token)


@command(token, "list")
def list_tokens(admin: Admin, user: OfUser = None, output: Output = "table") -> None:
    """List the tokens of a user. Their texts are not known to the cluster.

    Examples:
        raftlog token list --user robot
    """
    tokens = admin.list_tokens(_owner(admin, user))
    rows = [(one.id, one.user, one.description, one.expires_ms or "never") for one in tokens]
    show(output, tokens, listing(COLUMNS, rows))


@command(token)
def revoke(
    admin: Admin,
    ids: Annotated[tuple[str, ...], argument(metavar="TOKEN_ID...")],
    user: OfUser = None,
    yes: Yes = False,
    output: Output = "table",
) -> None:
    """Revoke tokens by their ids. Connections that use them end.

    Examples:
        raftlog token revoke 4kq7x2mzb3ra --user robot
    """
    wanted = list(dict.fromkeys(ids))
    for one in wanted:
        if one.startswith("rlt_"):
            raise click.UsageError("give the id of the token (TokenId of `raftlog token list`), not the token")
    owner = _owner(admin, user)
    if not yes:
        confirm(f"Revoke {', '.join(wanted)} of user {owner}?")
    revoked: list[str] = []
    try:
        for one in wanted:
            admin.revoke_token(owner, one)
            revoked.append(one)
    finally:
        # This also shows what was done before a failure.
        show(output, revoked, lambda wide: "\n".join(f"Revoked token {one}." for one in revoked))


def _owner(admin: Admin, user: str | None) -> str:
    if user is not None:
        return user
    caller = admin.identity()
    if not caller.mechanism:
        raise InvalidRequest("invalid_request", "the caller has no credential: name the user with --user")
    return caller.principal.removeprefix("User:")
