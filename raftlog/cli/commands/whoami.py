"""`raftlog whoami`: the caller as the cluster authenticates it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftlog.cli.terminal.command import command
from raftlog.cli.terminal.output import Output, fields, show

if TYPE_CHECKING:
    from raftlog.sync import Admin


@command()
def whoami(admin: Admin, output: Output = "table") -> None:
    """Show the principal that the cluster sees, and how it was authenticated.

    Examples:
        raftlog whoami
    """
    found = admin.identity()
    summary = {
        "Principal": found.principal,
        "Groups": found.groups,
        "Host": found.host,
        "Superuser": found.superuser,
        "Mechanism": found.mechanism or "none",
    }
    show(output, found, lambda wide: fields(summary))
