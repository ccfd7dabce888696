"""A node keeps to its OpenAPI documents, whatever a program makes of them: schemathesis generates requests from the
documents, valid and not, alone and in sequences, and checks each answer. No unexpected 5xx, no undocumented status,
media type or header, and no answer beside its schema. S11.

The short runs belong to the suite; the long ones, with all phases, run with `-m soak`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.cli.nodes.local_cluster import LocalCluster
from tests.support.clusters.cluster import running_cluster

pytestmark = pytest.mark.integration

DOCUMENTS = ("openapi.json", "openapi/rest-proxy.json")
CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance",
)  # fmt: skip
NOT_FOR_GENERATORS = (
    "/v1/events", "/v1/stream",  # they answer for as long as their client listens
    "/v1/produce", "/v1/fetch", "/v1/offsets",  # messages of the client protocol
)  # fmt: skip
SOAK_SECONDS = 300

# Answers that tell what the node cannot know, not that it has failed: nodes and transactions that never were.
EXPECTED = """
[[operations]]
include-path = "/v1/quorum/voters"
checks.not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 503]

[[operations]]
include-path-regex = "^/v1/transactions/(commit|abort)$"
checks.not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 504]
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with running_cluster(1) as running:
        yield running


def call(api: str, method: str, path: str, document: object = None) -> bytes:
    body = None if document is None else json.dumps(document).encode()
    request = urllib.request.Request(f"{api}{path}", body, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: bytes = answer.read()
        return found


def prepare(api: str, topic: str) -> str:
    """Make what requests can be about, and return the configuration that names it."""
    call(api, "POST", "/v1/topics", {"name": topic, "partitions": 2})
    call(api, "POST", f"/v1/topics/{topic}/records", {"records": [{"key": "k", "value": n} for n in range(20)]})
    call(api, "POST", f"/v1/groups/{topic}/offsets", {"offsets": [{"topic": topic, "partition": 0, "offset": 1}]})
    cluster_id = json.loads(call(api, "GET", "/v1/cluster"))["cluster_id"]
    named = {"topic": topic, "group": topic, "partition": 0, "cluster": cluster_id, "config": "retention.ms"}
    return "[parameters]\n" + "".join(f'"path.{name}" = {json.dumps(value)}\n' for name, value in named.items())


def conforms(folder: Path, api: str, document: str, *options: str, config: str = "", patience_s: float) -> None:
    settings = folder / "schemathesis.toml"
    settings.write_text(config + EXPECTED)
    excluded = [option for path in NOT_FOR_GENERATORS for option in ("--exclude-path", path)]
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(settings), "run", f"{api}/{document}",
        "--url", api, "--no-color", "--request-timeout", "20", "--checks", ",".join(CHECKS), *excluded, *options,
    ]  # fmt: skip
    told = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=patience_s)
    assert told.returncode == 0, f"{told.stdout[-8000:]}\n{told.stderr[-2000:]}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_few_requests_of_each_operation(cluster: LocalCluster, tmp_path: Path, document: str) -> None:
    api = f"http://{cluster.nodes[0].api}"
    topic = f"short-{DOCUMENTS.index(document)}"
    config = prepare(api, topic)
    options = ("--phases", "examples,fuzzing", "-n", "1", "--max-time", "5", "--no-shrink", "--seed", "1")
    conforms(tmp_path, api, document, *options, config=config, patience_s=120)
    assert json.loads(call(api, "GET", "/v1/ready"))["ready"]


@pytest.mark.soak
@pytest.mark.parametrize("named", [True, False], ids=["named", "free"])
@pytest.mark.parametrize("document", DOCUMENTS)
def test_all_phases(tmp_path: Path, document: str, named: bool) -> None:
    """`named`: requests are about a topic and a group that exist, so that they get further."""
    with running_cluster(1) as cluster:
        api = f"http://{cluster.nodes[0].api}"
        config = prepare(api, "soak") if named else ""
        options = ("--phases", "examples,coverage,fuzzing,stateful", "--max-time", str(SOAK_SECONDS))
        conforms(tmp_path, api, document, *options, "--continue-on-failure", config=config, patience_s=4 * SOAK_SECONDS)
        assert json.loads(call(api, "GET", "/v1/ready"))["ready"]
