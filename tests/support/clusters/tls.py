"""Authorities and node certificates for tests, as files beside a node's settings."""

from __future__ import annotations

import datetime
from pathlib import Path

from raftlog.broker.tls.names import NodeNames
from raftlog.cli.nodes.certificates import create_authority, create_certificate
from raftlog.config import DEFAULT_NODE_NAME, TlsConfig
from raftlog.model import BrokerId

SETTING = '{ certificate = "certificate.pem", key = "key.pem", authority = "authority.pem" }'
"""The value of `tls` in `node.toml`."""


class Authority:
    """An authority: the cluster's, or another one."""

    def __init__(self) -> None:
        self.pair = create_authority("test authority", 10, now())

    def sign(self, *names: str, days: float = 5.0) -> tuple[bytes, bytes]:
        """Return certificate and key as PEM. A certificate with a negative lifetime has expired."""
        return create_certificate(self.pair, names, days, now())

    def for_node(self, cluster_id: str, node: int, days: float = 5.0) -> tuple[bytes, bytes]:
        name = NodeNames(DEFAULT_NODE_NAME, cluster_id).name_of(BrokerId(node))
        return self.sign(name, "IP:127.0.0.1", days=days)


def write(folder: Path | str, authority: Authority, signed: tuple[bytes, bytes]) -> TlsConfig:
    """Write the three files, each replaced atomically."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    contents = {"authority.pem": authority.pair[0], "key.pem": signed[1], "certificate.pem": signed[0]}
    for name, content in contents.items():
        fresh = folder / f"{name}.new"
        fresh.write_bytes(content)
        fresh.chmod(0o600)
        fresh.rename(folder / name)
    return TlsConfig(
        certificate=str(folder / "certificate.pem"),
        key=str(folder / "key.pem"),
        authority=str(folder / "authority.pem"),
    )


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
