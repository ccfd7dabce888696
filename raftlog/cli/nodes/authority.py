"""A certificate authority in two files, and the certificates that it signs for nodes and users.

The work is done by `certificates.py`, with the `cryptography` package.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Iterable
from types import ModuleType
from urllib.parse import quote

import msgspec

from raftlog.broker.tls.names import NodeNames
from raftlog.config import DEFAULT_NODE_NAME, DEFAULT_USER_NAME
from raftlog.model import BrokerId
from raftlog.security.principals import check_user_name

from .pem_files import read_file, write_pair

AUTHORITY = "authority"
AUTHORITY_DAYS = 3650
"""Lifetime of a new authority, in days."""
CERTIFICATE_DAYS = 365


class AuthorityFiles(msgspec.Struct, frozen=True):
    """The paths of an authority's certificate and key, in PEM."""

    certificate: str
    key: str

    @staticmethod
    def in_folder(folder: str) -> AuthorityFiles:
        """Return the files that `create` writes into this folder."""
        return AuthorityFiles(*(os.path.join(folder, f"{AUTHORITY}.{suffix}") for suffix in ("pem", "key")))

    @property
    def exists(self) -> bool:
        """Whether one of the files is there."""
        return os.path.lexists(self.certificate) or os.path.lexists(self.key)

    def sign_node(
        self,
        cluster_id: str,
        node_id: int,
        hosts: Iterable[str],
        *,
        node_name: str = DEFAULT_NODE_NAME,
        days: int = CERTIFICATE_DAYS,
    ) -> tuple[bytes, bytes, list[str]]:
        """Return certificate and key of a node, and the names in it. Raises `InvalidRequest`."""
        names = [NodeNames(node_name, cluster_id).name_of(BrokerId(node_id)), *map(host_name, hosts)]
        certificate, key = _certificates().create_certificate(self._pair(), names, days, _now())
        return certificate, key, names

    def sign_user(self, user: str, *, days: int = CERTIFICATE_DAYS) -> tuple[bytes, bytes]:
        """Return certificate and key of a user, under the default `security.user_name`. Raises `InvalidRequest`."""
        name = DEFAULT_USER_NAME.replace("{user}", quote(check_user_name(user), safe=""))
        made: tuple[bytes, bytes] = _certificates().create_certificate(self._pair(), [name], days, _now(), server=False)
        return made

    def _pair(self) -> tuple[bytes, bytes]:
        return read_file(self.certificate), read_file(self.key)


def create_authority(folder: str, days: int = AUTHORITY_DAYS) -> list[str]:
    """Create an authority in a folder, and return the paths of its files. Raises `InvalidRequest`."""
    return write_pair(folder, AUTHORITY, *_certificates().create_authority("raftlog authority", days, _now()))


def host_name(host: str) -> str:
    """Return the name of a host in a certificate, in OpenSSL's notation: `DNS:...` or `IP:...`."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return f"DNS:{host}"
    return f"IP:{host}"


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _certificates() -> ModuleType:
    """Load the library when it is needed: other commands start faster without it."""
    from raftlog.cli.nodes import certificates

    return certificates
