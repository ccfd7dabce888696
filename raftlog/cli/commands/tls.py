"""`raftlog tls create-authority` and `raftlog tls create-certificate`: certificates for TLS between nodes.

They are for users without an authority of their own, and need the extra `raftlog[tls]`; `docs/security.md` shows the
same with `openssl`. Existing files are not overwritten, and keys are readable only by their owner.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from types import ModuleType

import rich_click as click

from raftlog.broker.tls.names import NodeNames
from raftlog.config import DEFAULT_NODE_NAME, TlsConfig
from raftlog.errors import InvalidRequest
from raftlog.model import BrokerId

AUTHORITY = "authority"
FILE = click.Path(dir_okay=False)


@click.group()
def tls() -> None:
    """Create certificates for TLS between nodes. `docs/security.md` explains what they protect."""


@tls.command("create-authority")
@click.option(
    "--folder", default=".", show_default=True, type=click.Path(file_okay=False), help="Folder for the files."
)
@click.option("--days", default=3650, show_default=True, type=click.IntRange(1, 36_500))
def create_authority(folder: str, days: int) -> None:
    """Create the authority of one cluster: authority.pem for all nodes, and the secret authority.key."""
    made = _certificates().create_authority("raftlog authority", days, datetime.datetime.now(datetime.UTC))
    _write(folder, AUTHORITY, *made)
    click.echo("Copy authority.pem to every node and client. Keep authority.key secret: its owner can create nodes.")


@tls.command("create-certificate")
@click.option("--cluster-id", required=True, help="As given to `raftlog server init`.")
@click.option("--node-id", required=True, type=click.IntRange(0, 2**31 - 1))
@click.option("--host", "hosts", multiple=True, help="Name or address that native clients dial; repeatable.")
@click.option(
    "--folder", default=".", show_default=True, type=click.Path(file_okay=False), help="Folder for the files."
)
@click.option("--authority", default="authority.pem", show_default=True, type=FILE)
@click.option("--authority-key", default="authority.key", show_default=True, type=FILE)
@click.option("--node-name", default=DEFAULT_NODE_NAME, show_default=True, help="As in node.toml.")
@click.option("--days", default=365, show_default=True, type=click.IntRange(1, 36_500))
def create_certificate(
    cluster_id: str,
    node_id: int,
    hosts: tuple[str, ...],
    folder: str,
    authority: str,
    authority_key: str,
    node_name: str,
    days: int,
) -> None:
    """Create one node's certificate and key: node-ID.pem and node-ID.key."""
    try:
        TlsConfig(certificate="-", key="-", authority="-", node_name=node_name)
    except ValueError as error:
        raise InvalidRequest("invalid_request", str(error)) from None
    names = [NodeNames(node_name, cluster_id).name_of(BrokerId(node_id)), *map(_host, hosts)]
    now = datetime.datetime.now(datetime.UTC)
    signing = (_read(authority), _read(authority_key))
    made = _certificates().create_certificate(signing, names, days, now)
    _write(folder, f"node-{node_id}", *made)
    click.echo(f"node-{node_id}.pem is for node {node_id} of cluster {cluster_id}: {', '.join(names)}")


def _host(host: str) -> str:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return f"DNS:{host}"
    return f"IP:{host}"


def _certificates() -> ModuleType:
    try:
        from raftlog.cli.nodes import certificates
    except ImportError:
        raise InvalidRequest(
            "invalid_request",
            "this needs the `cryptography` package: pip install 'raftlog[tls]'. Or use openssl, see docs/security.md",
        ) from None
    return certificates


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(1 << 20)
    except OSError as error:
        raise InvalidRequest("invalid_request", f"cannot read {path}: {error.strerror}") from None


def _write(folder: str, name: str, certificate: bytes, key: bytes) -> None:
    """Write both files. If one of them exists, write neither."""
    paths = [os.path.join(folder, f"{name}.{suffix}") for suffix in ("key", "pem")]
    for path in paths:
        if os.path.lexists(path):
            raise InvalidRequest("invalid_request", f"{path} already exists; it was not changed")
    try:
        os.makedirs(folder, exist_ok=True)
        for path, content, hidden in zip(paths, (key, certificate), (0o077, 0o022), strict=True):
            before = os.umask(hidden)  # a key must never be readable by others, not even for a moment
            try:
                with open(path, "xb") as file:
                    file.write(content)
            finally:
                os.umask(before)
            click.echo(f"wrote {path}")
    except OSError as error:
        raise InvalidRequest("invalid_request", f"cannot write {error.filename}: {error.strerror}") from None
