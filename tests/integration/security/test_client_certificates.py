"""The users of certificates as `ssl` shows them after a handshake. S12."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from raftlog.broker.security.authentication.client_names import ClientNames
from raftlog.broker.tls.names import NodeNames
from raftlog.config import DEFAULT_NODE_NAME, DEFAULT_USER_NAME
from tests.support.clusters.tls import Authority, write

pytestmark = pytest.mark.integration

AUTHORITY = Authority()


def shown(folder: Path, *names: str) -> Mapping[str, Any] | None:
    """Return a client's certificate with these names as a server that verified it sees it."""
    server_files = write(folder / "server", AUTHORITY, AUTHORITY.for_node("c1", 0))
    client_files = write(folder / "client", AUTHORITY, AUTHORITY.sign(*names))
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=server_files.authority)
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_cert_chain(server_files.certificate, server_files.key)
    client = ssl.create_default_context(cafile=client_files.authority)
    client.check_hostname = False
    client.load_cert_chain(client_files.certificate, client_files.key)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True))
    for _ in range(10):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return ends[1].getpeercert()


@pytest.mark.parametrize(
    ("names", "pattern", "user"),
    [
        (["URI:raftlog:/user/Zo%C3%AB", "DNS:laptop.example.org"], DEFAULT_USER_NAME, "Zoë"),
        (["DNS:alice.clients.example.org"], "DNS:{user}.clients.example.org", "alice"),
        (["URI:spiffe://example.org/ns/prod/sa/ingest"], "URI:spiffe://example.org/ns/prod/sa/{user}", "ingest"),
        (["DNS:laptop.example.org"], DEFAULT_USER_NAME, None),
        (["URI:raftlog:/cluster/c1/node/1", "URI:raftlog:/user/alice"], DEFAULT_USER_NAME, None),
        (["URI:raftlog:/cluster/c1/node/1"], "URI:raftlog:/cluster/c1/node/{user}", None),
    ],
)
def test_a_verified_certificate_names_its_user(
    tmp_path: Path, names: list[str], pattern: str, user: str | None
) -> None:
    nodes = NodeNames(DEFAULT_NODE_NAME, "c1")
    assert ClientNames(pattern, "c1", nodes.names_a_node).user_of(shown(tmp_path, *names)) == user
