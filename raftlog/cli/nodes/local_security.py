"""The security of a local cluster: an authority, the nodes' certificates and an administrator's token in its folder.

A folder that was made secure stays so: later starts need no option.
"""

from __future__ import annotations

import os
import ssl

import msgspec

from raftlog.errors import InvalidRequest

from .authority import AUTHORITY, AUTHORITY_DAYS, AuthorityFiles, create_authority
from .pem_files import PUBLIC, read_file, write_new, write_pair
from .secure import make_administrator, security_lines, write_credential

ADMINISTRATOR = "admin"
TOKEN_FILE = f"{ADMINISTRATOR}.token"
HOSTS = ("127.0.0.1", "::1", "localhost")


class LocalSecurity(msgspec.Struct, frozen=True):
    """The security in the folder of a cluster on this machine."""

    folder: str

    @property
    def authority(self) -> AuthorityFiles:
        """The files of the authority."""
        return AuthorityFiles.in_folder(os.path.join(self.folder, AUTHORITY))

    @property
    def is_set_up(self) -> bool:
        """Whether the folder is that of a secure cluster."""
        return os.path.exists(self.authority.certificate)

    @property
    def token_file(self) -> str:
        """The file with the administrator's token."""
        return os.path.join(self.folder, TOKEN_FILE)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make other commands trust the nodes, and act as the administrator."""
        paths = {"RAFTLOG_TLS_AUTHORITY": self.authority.certificate, "RAFTLOG_TOKEN_FILE": self.token_file}
        return {name: os.path.abspath(path) for name, path in paths.items()}

    def set_up(self) -> None:
        """Create the authority, if there is none. Raises `InvalidRequest`."""
        if not self.is_set_up:
            _remove(self.authority.key)  # The certificate is written last, so this key was never used.
            create_authority(os.path.dirname(self.authority.key))

    def add_node(self, folder: str, cluster_id: str, node_id: int) -> None:
        """Write the certificate of a node into its folder, in place of one from an interrupted preparation.

        Raises `InvalidRequest`.
        """
        trusted = os.path.join(folder, f"{AUTHORITY}.pem")
        certificate, key, _ = self.authority.sign_node(cluster_id, node_id, HOSTS, days=AUTHORITY_DAYS)
        _remove(*(os.path.join(folder, f"node-{node_id}.{suffix}") for suffix in ("pem", "key")), trusted)
        write_pair(folder, f"node-{node_id}", certificate, key)
        write_new(trusted, read_file(self.authority.certificate), PUBLIC)

    def add_administrator(self, data_folder: str) -> None:
        """Write the first administrator into a node's data folder, and its token into the cluster's folder.

        Raises `InvalidRequest`.
        """
        token = make_administrator(data_folder, ADMINISTRATOR)
        _remove(self.token_file)
        write_credential(self.token_file, token)

    def settings(self, node_id: int) -> list[str]:
        """Return the lines of a node's `node.toml`."""
        return security_lines(node_id)

    def token(self) -> str:
        """Return the administrator's token. Raises `InvalidRequest` if it cannot be read."""
        return read_file(self.token_file).decode(errors="replace").strip()

    def client_context(self) -> ssl.SSLContext:
        """Return the TLS context of clients. Raises `InvalidRequest` if the authority's file cannot be used."""
        try:
            return ssl.create_default_context(cafile=self.authority.certificate)
        except (OSError, ValueError) as error:
            raise InvalidRequest(
                "invalid_config", f"{self.authority.certificate} contains no certificate of an authority: {error}"
            ) from None


def _remove(*paths: str) -> None:
    for path in paths:
        if os.path.lexists(path):
            os.remove(path)
