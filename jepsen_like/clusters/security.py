"""The security of a cluster: an authority, certificates, the first administrator, and the credentials of clients.

    authority/   the authority's certificate and key
    nodes/       certificate and key of each node
    admin.token  the administrator's token; other users' tokens lie beside it

The suite's own clients are the administrator, those of the workload are an ordinary user (`APPLICATION`) with access
rules. Both find the authority and their token by the environment, as any application may: the authority by OpenSSL's
variable, so that `https://` addresses suffice.

Certificates are made with a date far in the past, because nodes start with wrong clocks here.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from raftlog.broker.tls.names import NodeNames
from raftlog.cli.nodes.authority import host_name
from raftlog.cli.nodes.certificates import create_authority, create_certificate
from raftlog.cli.nodes.secure import make_administrator
from raftlog.client.cluster.api import HttpApi
from raftlog.config import DEFAULT_NODE_NAME
from raftlog.errors import RaftlogError
from raftlog.model import BrokerId

ADMINISTRATOR = "admin"
APPLICATION = "application"
AGE_DAYS, LIFETIME_DAYS = 2_000, 4_000
AUTHORITY_VARIABLE = "SSL_CERT_FILE"
TOKEN_FILE_VARIABLE = "RAFTLOG_TOKEN_FILE"
RETRY_SECONDS = 0.2
RULES = (
    ("topic", "read"),
    ("topic", "write"),
    ("group", "read"),
    ("transactional_id", "write"),
)
"""The rights of the application, each for every resource of the type."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The files of a certificate and its key."""

    certificate: str
    key: str


@dataclass(slots=True)
class ClusterSecurity:
    """The files of one cluster's security."""

    folder: Path
    authority: tuple[bytes, bytes] = field(default=(b"", b""), repr=False)
    """Certificate and key in PEM."""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.authority = create_authority("authority of a test", LIFETIME_DAYS, _made())
        self.authority_file.write_bytes(self.authority[0])

    @property
    def authority_file(self) -> Path:
        return self.folder / "authority.pem"

    def token_file(self, user: str) -> Path:
        return self.folder / f"{user}.token"

    def settings(self, node: str) -> dict[str, str]:
        """Return the lines of a node's `node.toml`."""
        pair = self.pair(node)
        names = {"certificate": pair.certificate, "key": pair.key, "authority": str(self.authority_file)}
        files = ", ".join(f"{name} = {msgspec.json.encode(path).decode()}" for name, path in names.items())
        return {"tls": f"{{ {files} }}", "security": '{ mode = "required" }'}

    def pair(self, name: str) -> Pair:
        """Return the files of a certificate, whether they exist or not."""
        return Pair(str(self.folder / f"{name}.pem"), str(self.folder / f"{name}.key"))

    def sign(self, name: str, *names: str, by: tuple[bytes, bytes] | None = None) -> Pair:
        """Write a certificate with these names (OpenSSL's notation) and return its files. `by`: another authority."""
        pair = self.pair(name)
        certificate, key = create_certificate(by or self.authority, names, LIFETIME_DAYS, _made())
        Path(pair.certificate).write_bytes(certificate)
        Path(pair.key).write_bytes(key)
        os.chmod(pair.key, 0o600)
        return pair

    def sign_node(self, name: str, cluster_id: str, number: int, host: str) -> Pair:
        """Write the certificate of a node and return its files."""
        return self.sign(name, node_name(cluster_id, number), host_name(host))

    def add_administrator(self, data_folder: Path) -> None:
        """Write the first administrator into a node's data folder, and its token beside the authority."""
        token = make_administrator(str(data_folder), ADMINISTRATOR)
        self.write_token(ADMINISTRATOR, token.reveal())

    def write_token(self, user: str, token: str) -> None:
        file = self.token_file(user)
        file.write_text(token)
        file.chmod(0o600)

    def environment(self, user: str) -> dict[str, str]:
        """Return the variables with which a client of this user finds authority and token."""
        return {AUTHORITY_VARIABLE: str(self.authority_file), TOKEN_FILE_VARIABLE: str(self.token_file(user))}

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make this process the administrator while the block runs."""
        before = {name: os.environ.get(name) for name in self.environment(ADMINISTRATOR)}
        os.environ.update(self.environment(ADMINISTRATOR))
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    def context(self, pair: Pair | None = None) -> ssl.SSLContext:
        """Return a client's TLS context that trusts the cluster, with a certificate of its own if one is given."""
        context = ssl.create_default_context(cafile=str(self.authority_file))
        if pair is not None:
            context.load_cert_chain(pair.certificate, pair.key)
        return context

    async def add_application(self, bootstrap: Sequence[str]) -> None:
        """Create the user of the workload's clients, with its rules and token. Raises a `RaftlogError`."""
        async with HttpApi(list(bootstrap)) as api:
            await change(api, "POST", "/v1/users", {"name": APPLICATION}, done=("user_exists",))
            rules = [
                {"principal": f"User:{APPLICATION}", "operation": operation, "resource_type": kind, "name": "*"}
                for kind, operation in RULES
            ]
            await change(api, "POST", "/v1/acls", {"acls": rules})
            made = await change(api, "POST", f"/v1/users/{APPLICATION}/tokens", {"description": "workload"})
        self.write_token(APPLICATION, made["token"])


async def change(api: HttpApi, method: str, path: str, body: Any = None, *, done: tuple[str, ...] = ()) -> Any:
    """Make a change until the cluster has decided it. Returns the answer's document, or None if there is none.

    `done`: codes that an attempt gets after an earlier one was carried out unanswered. Raises the `RaftlogError` that
    does not allow a retry.
    """
    kind = None if method == "DELETE" else Any
    while True:
        try:
            return await api.change(method, path, kind, body)
        except RaftlogError as error:
            if error.code in done:
                return None
            if not error.retriable and error.status < 500:
                raise
        await asyncio.sleep(RETRY_SECONDS)


def new_authority() -> tuple[bytes, bytes]:
    """Return the certificate and key of another authority, in PEM."""
    return create_authority("another authority", LIFETIME_DAYS, _made())


def node_name(cluster_id: str, number: int) -> str:
    """Return the name of a node in its certificate."""
    return NodeNames(DEFAULT_NODE_NAME, cluster_id).name_of(BrokerId(number))


def _made() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=AGE_DAYS)
