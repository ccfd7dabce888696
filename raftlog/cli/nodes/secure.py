"""A secure node: its certificate, its `node.toml`, and the first administrator of its cluster.

The first of the initial voters makes the administrator. Its data folder gets the digest of a token; the token itself is
returned to the caller, who shows it once or writes it to a file. Nothing that exists is overwritten.
"""

from __future__ import annotations

import ipaddress
import json
import os

import msgspec

from raftlog.broker.security.administration.first_administrator import FIRST_ADMINISTRATOR_FILE, AdministratorFile
from raftlog.broker.security.authentication.tokens import new_token
from raftlog.config import Address
from raftlog.errors import InvalidRequest
from raftlog.model import Endpoint
from raftlog.security.secrets import Secret

from .authority import AUTHORITY, AuthorityFiles
from .pem_files import PRIVATE, PUBLIC, check_absent, read_file, write_new, write_pair


class SecureNode(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a secure node. Paths are those of this machine."""

    cluster_id: str
    node_id: int
    data_folder: str
    settings_file: str
    """The `node.toml` to write; certificates are written beside it."""
    api: Endpoint
    data: Endpoint
    hosts: tuple[str, ...] = ()
    """Further names and addresses by which clients reach the node."""
    authority: AuthorityFiles

    @property
    def folder(self) -> str:
        """The folder of `node.toml`."""
        return os.path.dirname(os.path.abspath(self.settings_file))

    @property
    def names(self) -> list[str]:
        """The hosts in the certificate. An address that stands for all of a machine's is none that clients dial."""
        hosts = dict.fromkeys((self.api.host, self.data.host, *self.hosts))
        local = ["localhost"] if any(Address(host=host).is_loopback for host in hosts) else []
        return [host for host in dict.fromkeys((*hosts, *local)) if not _is_unspecified(host)]

    @property
    def _trusted(self) -> str:
        return os.path.join(self.folder, f"{AUTHORITY}.pem")

    def check(self) -> None:
        """Raise `InvalidRequest` if a file to write exists."""
        certificates = [f"node-{self.node_id}.pem", f"node-{self.node_id}.key"]
        check_absent([self.settings_file, *(os.path.join(self.folder, name) for name in certificates)])

    def sign(self) -> tuple[bytes, bytes]:
        """Return certificate and key, and write nothing. Raises `InvalidRequest`, also if `write` could not succeed."""
        certificate, key, _ = self.authority.sign_node(self.cluster_id, self.node_id, self.names)
        if os.path.lexists(self._trusted) and read_file(self._trusted) != read_file(self.authority.certificate):
            told = f"{self._trusted} is the certificate of another authority than {self.authority.certificate}"
            raise InvalidRequest("invalid_request", f"{told}: remove it, or give another --config")
        return certificate, key

    def write(self, certificate: bytes, key: bytes) -> list[str]:
        """Write certificate, key, the authority's certificate and `node.toml`, and return their paths.

        Raises `InvalidRequest`.
        """
        written = write_pair(self.folder, f"node-{self.node_id}", certificate, key)
        if not os.path.lexists(self._trusted):
            write_new(self._trusted, read_file(self.authority.certificate), PUBLIC)
            written.append(self._trusted)
        write_new(self.settings_file, self.settings_text().encode(), PUBLIC)
        return [*written, self.settings_file]

    def settings_text(self) -> str:
        """Return the text of `node.toml`."""
        lines = [f"data_folder = {json.dumps(os.path.relpath(self.data_folder, self.folder))}"]
        if self.hosts:
            lines.append(f"allowed_hosts = {json.dumps(list(self.hosts))}")
        lines += ["", "[api]", f"listen = {_address(self.api)}", "", "[data]", f"listen = {_address(self.data)}"]
        return "\n".join([*lines, "", *security_lines(self.node_id)]) + "\n"


def security_lines(node_id: int) -> list[str]:
    """Return the lines of `node.toml` for the files of a secure node."""
    return [
        "[tls]",
        f'certificate = "node-{node_id}.pem"',
        f'key = "node-{node_id}.key"',
        f'authority = "{AUTHORITY}.pem"',
        "",
        "[security]",
        'mode = "required"',
    ]


def make_administrator(data_folder: str, name: str) -> Secret:
    """Write the first administrator into a prepared data folder, and return the token. Raises `InvalidRequest`."""
    token = new_token()
    content = AdministratorFile.of(name, token).encoded()
    write_new(os.path.join(data_folder, FIRST_ADMINISTRATOR_FILE), content, PRIVATE)
    return token.text


def write_credential(path: str, token: Secret) -> None:
    """Write a token to a file that only its owner can read. Raises `InvalidRequest`."""
    write_new(path, token.reveal().encode() + b"\n", PRIVATE)


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _address(endpoint: Endpoint) -> str:
    return f"{{ host = {json.dumps(endpoint.host)}, port = {endpoint.port} }}"
