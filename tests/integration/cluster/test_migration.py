"""A cluster changes from plain text to required credentials, one node after the other, and goes on working. S1, S12."""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftlog.cli.nodes.local_cluster import LocalCluster, LocalNode, free_base_port
from tests.support.clusters.tls import Authority, write

pytestmark = pytest.mark.integration

PATIENCE_S = 60.0

FILES = 'certificate = "certificate.pem", key = "key.pem", authority = "authority.pem"'
STEPS: tuple[Mapping[str, str], ...] = (
    {"tls": f"{{ {FILES}, migrating = true }}", "security": '{ mode = "optional" }'},
    {"tls": f"{{ {FILES} }}", "security": '{ mode = "required" }'},
)
"""The settings of every node after each round of restarts."""


class Client:
    """A client of the HTTP API, which talks plain text or TLS."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context: ssl.SSLContext | None = None
        self.verified = context
        self.token = ""

    def ask(self, node: LocalNode, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        host, port = node.api.host, node.api.port
        connection = http.client.HTTPConnection(host, port, timeout=20)
        if self.context is not None:
            connection = http.client.HTTPSConnection(host, port, timeout=20, context=self.context)
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        try:
            connection.request(method, path, None if body is None else msgspec.json.encode(body), headers)
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, msgspec.json.decode(text) if text else None
        except OSError:
            return 0, None
        finally:
            connection.close()

    def must(self, node: LocalNode, method: str, path: str, body: Any = None) -> Any:
        """Return the answer. Asks again while a node is not ready."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            status, found = self.ask(node, method, path, body)
            if 200 <= status < 300:
                return found
            assert status in (0, 503), (status, found)
            time.sleep(0.05)
        raise AssertionError(f"{method} {path} is not answered: {status} {found}")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(str(tmp_path / "c"), 3, free_base_port(3)) as made:
        made.start()
        made.wait_ready(60)
        yield made


def test_from_plain_text_to_required_credentials_by_rolling_restarts(cluster: LocalCluster) -> None:
    authority = Authority()
    client = Client(ssl.create_default_context(cadata=authority.pair[0].decode()))
    cluster_id = client.must(cluster.nodes[0], "GET", "/v1/cluster")["cluster_id"]
    for node in cluster.nodes:
        write(node.folder, authority, authority.for_node(cluster_id, node.node_id))
    client.must(cluster.nodes[0], "POST", "/v1/topics", {"name": "t", "partitions": 3})
    client.must(cluster.nodes[0], "POST", "/v1/users", {"name": "admin", "superuser": True})
    token = client.must(cluster.nodes[0], "POST", "/v1/users/admin/tokens", {"description": "mine"})["token"]
    everything = [
        {"principal": "User:ANONYMOUS", "operation": "all", "permission": "allow", "resource_type": kind, "name": name}
        for kind, name in (("topic", "*"), ("cluster", "raftlog-cluster"))
    ]
    rules = client.must(cluster.nodes[0], "POST", "/v1/acls", {"acls": everything})
    assert len(rules["acls"]) == 2
    sent = 0

    def work() -> int:
        """Write to every partition through every node, and return the number of records."""
        for node in cluster.nodes:
            records = [{"value": "x", "partition": partition} for partition in range(3)]
            client.must(node, "POST", "/v1/topics/t/records", {"records": records})
        return 9

    sent += work()
    for step, settings in enumerate(STEPS):
        cluster.settings = settings
        for node in cluster.nodes:
            if step == 1:  # Clients change to TLS and to their credentials between the rounds.
                client.context, client.token = client.verified, token
            assert node.process is not None
            node.process.terminate()
            assert node.process.wait(PATIENCE_S) == 0
            cluster.kill_node(node.node_id)
            cluster.start_node(node.node_id)
            client.must(node, "GET", "/v1/ready")
            sent += work()
    client.token = ""
    assert client.ask(cluster.nodes[0], "GET", "/v1/topics")[0] == 401
    client.token = token
    ranges = [client.must(node, "GET", f"/v1/topics/t/partitions/{n}/offsets") for n, node in enumerate(cluster.nodes)]
    assert sum(found["latest"] for found in ranges) >= sent, "nothing is lost (S1)"
    client.context = None
    assert client.ask(cluster.nodes[0], "GET", "/v1/topics")[0] == 400
