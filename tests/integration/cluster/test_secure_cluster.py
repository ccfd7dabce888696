"""A cluster that `raftlog dev --secure` makes, as processes: who gets in, what stays out of files and logs. S12."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from raftlog.cli.nodes.authority import create_authority
from raftlog.cli.nodes.local_cluster import LocalCluster, LocalNode, free_base_port
from raftlog.cli.nodes.local_security import LocalSecurity
from raftlog.cli.nodes.pem_files import write_pair
from tests.support.security.token_texts import secret_part

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = LocalCluster(str(tmp_path_factory.mktemp("secure") / "c"), 3, free_base_port(3), secure=True)
    with made:
        made.start()
        made.wait_ready(60)
        yield made


@pytest.fixture
def security(cluster: LocalCluster) -> LocalSecurity:
    assert cluster.security is not None
    return cluster.security


def get(
    node: LocalNode, path: str, context: ssl.SSLContext, authorization: str | None = None
) -> tuple[int, dict[str, object]]:
    connection = http.client.HTTPSConnection(node.api.host, node.api.port, timeout=20, context=context)
    try:
        connection.request("GET", path, headers={"Authorization": authorization} if authorization else {})
        answer = connection.getresponse()
        return answer.status, msgspec.json.decode(answer.read())
    finally:
        connection.close()


def test_the_administrators_token_opens_every_node(cluster: LocalCluster, security: LocalSecurity) -> None:
    for node in cluster.nodes:
        status, found = get(node, "/v1/cluster", security.client_context(), f"Bearer {security.token()}")
        assert status == 200 and len(found["nodes"]) == 3  # type: ignore[arg-type]
        assert not (Path(node.folder) / "data" / "first-administrator.json").exists()


async def test_both_ports_serve_the_api_over_http2_to_those_with_a_credential(
    cluster: LocalCluster, security: LocalSecurity
) -> None:
    node = cluster.nodes[0]
    known = {"Authorization": f"Bearer {security.token()}"}
    async with httpx.AsyncClient(http1=False, http2=True, verify=security.client_context()) as client:
        for door in (node.api, node.data):
            answer = await client.get(f"https://{door}/v1/cluster")
            assert (answer.http_version, answer.status_code) == ("HTTP/2", 401)
            assert answer.json()["code"] == "unauthenticated"
            answer = await client.get(f"https://{door}/v1/cluster", headers=known)
            assert (answer.status_code, len(answer.json()["nodes"])) == (200, 3)


@pytest.mark.parametrize("authorization", [None, "Bearer rlt_abcdefghijkl_" + "A" * 43, "Basic YWRtaW46YWRtaW4="])
def test_without_a_valid_credential_there_is_only_the_state_of_the_node(
    cluster: LocalCluster, security: LocalSecurity, authorization: str | None
) -> None:
    context = security.client_context()
    assert get(cluster.nodes[0], "/v1/cluster", context, authorization)[0] == 401
    assert get(cluster.nodes[0], "/v1/ready", context, authorization)[0] == 200


def test_a_user_may_show_a_certificate_instead(cluster: LocalCluster, security: LocalSecurity, tmp_path: Path) -> None:
    """And a node's certificate is no user's."""
    user = write_pair(str(tmp_path), "admin", *security.authority.sign_user("admin"))
    context = security.client_context()
    context.load_cert_chain(user[1], user[0])
    status, found = get(cluster.nodes[0], "/v1/identity", context)
    assert status == 200 and "User:admin" in str(found)
    node = cluster.nodes[1]
    context = security.client_context()
    context.load_cert_chain(f"{node.folder}/node-1.pem", f"{node.folder}/node-1.key")
    assert get(cluster.nodes[0], "/v1/cluster", context)[0] == 401


def test_a_user_of_a_foreign_authority_is_refused_in_the_handshake(
    cluster: LocalCluster, security: LocalSecurity, tmp_path: Path
) -> None:
    create_authority(str(tmp_path))
    foreign = type(security.authority).in_folder(str(tmp_path))
    pair = write_pair(str(tmp_path), "admin", *foreign.sign_user("admin"))
    context = security.client_context()
    context.load_cert_chain(pair[1], pair[0])
    with pytest.raises(OSError):
        get(cluster.nodes[0], "/v1/cluster", context)


def test_plain_text_is_refused_at_both_ports(cluster: LocalCluster) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", cluster.nodes[0].api.port, timeout=20)
    connection.request("GET", "/v1/cluster")
    assert connection.getresponse().status == 400
    connection.close()
    with socket.create_connection(("127.0.0.1", cluster.nodes[0].data.port), 20) as plain:
        plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        received = b""
        while piece := plain.recv(4096):
            received += piece
        assert b"TLS only" in received


def test_the_token_is_in_its_file_alone(cluster: LocalCluster, security: LocalSecurity) -> None:
    """Not in the nodes' logs, settings and journals, and not in the list of processes."""
    secret = secret_part(security.token()).encode()
    found = [path for path in Path(cluster.folder).rglob("*") if path.is_file() and secret in path.read_bytes()]
    assert [path.name for path in found] == ["admin.token"]
    for node in cluster.nodes:
        assert node.process is not None
        for name in ("cmdline", "environ"):
            assert secret not in Path(f"/proc/{node.process.pid}/{name}").read_bytes()


def test_it_starts_again_with_the_same_token(cluster: LocalCluster, security: LocalSecurity) -> None:
    assert set(cluster.stop().values()) == {0}
    cluster.start()
    cluster.wait_ready(60)
    assert get(cluster.nodes[2], "/v1/cluster", security.client_context(), f"Bearer {security.token()}")[0] == 200
    assert os.listdir(cluster.folder).count("admin.token") == 1
