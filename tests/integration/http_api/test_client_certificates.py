"""Client certificates at the API as credentials: whom they name, beside a header and alone (S12)."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from raftlog.broker.tls.node_tls import NodeTls
from raftlog.model import BrokerId
from raftlog.security.secrets import Secret
from raftlog.system.clock import SystemClock
from tests.support.client.secured_broker import SecuredBroker, basic
from tests.support.clusters.tls import Authority, write
from tests.support.http.api_client import Api, running_api

pytestmark = pytest.mark.integration

AUTHORITY = Authority()


@asynccontextmanager
async def shown(broker: SecuredBroker, folder: Path, *names: str) -> AsyncIterator[Api]:
    """Run an API over TLS, with a client whose certificate has these names; without any it has no certificate."""
    node = write(folder / "node", AUTHORITY, AUTHORITY.for_node("c1", 0))
    context = ssl.create_default_context(cafile=node.authority)
    if names:
        own = write(folder / "client", AUTHORITY, AUTHORITY.sign(*names))
        context.load_cert_chain(own.certificate, own.key)
    tls = NodeTls(node, "c1", BrokerId(0), SystemClock())
    async with running_api(broker, ssl_context=tls.api_context, client_ssl=context) as api:
        yield api


@pytest.fixture
async def broker() -> SecuredBroker:
    broker = SecuredBroker()
    for name in ("alice", "bob"):
        await broker.security.create_user(name, Secret("a long password"), superuser=False)
    return broker


async def test_a_certificate_authenticates_the_user_that_it_names(broker: SecuredBroker, tmp_path: Path) -> None:
    async with shown(broker, tmp_path, "URI:raftlog:/user/alice", "DNS:laptop.example") as api:
        for _ in range(2):
            told = (await api.get("/v1/identity")).document
            assert (told["principal"], told["mechanism"]) == ("User:alice", "certificate")
        assert (await api.get("/v1/users/alice")).status == 200
        assert (await api.get("/v1/identity", headers=basic("alice", "a long password"))).status == 200
        (await api.get("/v1/identity", headers=basic("bob", "a long password"))).problem("unauthenticated")
        await broker.security.remove_user("alice")
        (await api.get("/v1/identity")).problem("unauthenticated")


@pytest.mark.parametrize(
    "names",
    [
        (),
        ("DNS:laptop.example",),
        ("URI:raftlog:/cluster/c1/node/0",),
        ("URI:raftlog:/user/nobody-knows",),
        ("URI:raftlog:/user/alice", "URI:raftlog:/user/bob"),
        ("URI:raftlog:/user/ANONYMOUS",),
    ],
)
async def test_other_certificates_authenticate_nobody(
    broker: SecuredBroker, tmp_path: Path, names: tuple[str, ...]
) -> None:
    async with shown(broker, tmp_path, *names) as api:
        (await api.get("/v1/identity")).problem("unauthenticated")
        assert (await api.get("/v1/ready")).status == 200
