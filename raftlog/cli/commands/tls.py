"""`raftlog tls`: an authority, and certificates for nodes and users.

They are for operators without an authority of their own; `docs/security.md` shows the same with `openssl`. Existing
files are not overwritten, and keys are readable only by their owner.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias
from urllib.parse import quote

import rich_click as click

from raftlog.cli.nodes import authority as authorities
from raftlog.cli.nodes.authority import AUTHORITY_DAYS, CERTIFICATE_DAYS, AuthorityFiles
from raftlog.cli.nodes.pem_files import write_pair
from raftlog.cli.terminal.command import command
from raftlog.cli.terminal.options import NODE_NUMBER
from raftlog.config import DEFAULT_NODE_NAME, TlsConfig
from raftlog.errors import InvalidRequest

FILE = click.Path(dir_okay=False)
DAYS = click.IntRange(1, 36_500)
Folder: TypeAlias = Annotated[str, click.Path(file_okay=False), "Folder for the files."]
AuthorityCertificate: TypeAlias = Annotated[str, FILE, "Certificate of the authority."]
AuthorityKey: TypeAlias = Annotated[str, FILE, "Key of the authority."]
Days: TypeAlias = Annotated[int, DAYS, "Days from now for which the certificate is valid."]


@click.group()
def tls() -> None:
    """Create certificates for TLS. `docs/security.md` explains what they protect."""


@command(tls, "create-authority")
def create_authority(
    folder: Folder = ".",
    days: Annotated[int, DAYS, "Days from now for which the authority is valid."] = AUTHORITY_DAYS,
) -> None:
    """Create the authority of one cluster: authority.pem for all nodes and clients, and the secret authority.key.

    Examples:
        raftlog tls create-authority --folder ca
    """
    _report(authorities.create_authority(folder, days))
    click.echo(
        "Copy authority.pem to every node and client. Keep authority.key secret: its owner can create nodes and users."
    )


@command(tls, "create-certificate")
def create_certificate(
    cluster_id: Annotated[str, "As given to `raftlog server init`."],
    node_id: Annotated[int, NODE_NUMBER, "As given to `raftlog server init`."],
    host: Annotated[tuple[str, ...], "Name or address that clients dial; repeatable."] = (),
    folder: Folder = ".",
    authority: AuthorityCertificate = "authority.pem",
    authority_key: AuthorityKey = "authority.key",
    node_name: Annotated[str, "As in node.toml."] = DEFAULT_NODE_NAME,
    days: Days = CERTIFICATE_DAYS,
) -> None:
    """Create one node's certificate and key: node-ID.pem and node-ID.key.

    Examples:
        raftlog tls create-certificate --cluster-id prod --node-id 0 --host node0.example.org --folder node0
    """
    try:
        TlsConfig(certificate="-", key="-", authority="-", node_name=node_name)
    except ValueError as error:
        raise InvalidRequest("invalid_request", str(error)) from None
    files = AuthorityFiles(authority, authority_key)
    certificate, key, names = files.sign_node(cluster_id, node_id, host, node_name=node_name, days=days)
    _report(write_pair(folder, f"node-{node_id}", certificate, key))
    click.echo(f"node-{node_id}.pem is for node {node_id} of cluster {cluster_id}: {', '.join(names)}")


@command(tls, "create-user-certificate")
def create_user_certificate(
    user: Annotated[str, "Name of a user of the cluster."],
    folder: Folder = ".",
    authority: AuthorityCertificate = "authority.pem",
    authority_key: AuthorityKey = "authority.key",
    days: Days = CERTIFICATE_DAYS,
) -> None:
    """Create a user's certificate and key, a credential in the place of a token: user-NAME.pem and user-NAME.key.

    It counts as long as the cluster has a user of that name (raftlog user).

    Examples:
        raftlog tls create-user-certificate --user alice --folder alice
    """
    made = AuthorityFiles(authority, authority_key).sign_user(user, days=days)
    _report(write_pair(folder, f"user-{quote(user, safe='')}", *made))


def _report(paths: list[str]) -> None:
    for path in paths:
        click.echo(f"wrote {path}")
