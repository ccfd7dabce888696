"""The image and the Compose file: their rules, which need no Docker, and with Docker a cluster that works."""

from __future__ import annotations

import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from http_api.app import ROUTES
from raftlog import sync
from raftlog.broker.node.addresses import address_problem
from raftlog.config import NodeConfig

from .test_prepare import DEPLOY, Container

ROOT = DEPLOY.parent
DOCKER = DEPLOY / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = msgspec.yaml.decode((DOCKER / "compose.yaml").read_bytes())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def test_the_image_runs_as_an_ordinary_user_and_has_a_health_check() -> None:
    instructions = re.findall(r"^([A-Z]+) (.*(?:\\\n.*)*)$", DOCKERFILE, re.MULTILINE)
    last = dict(instructions)
    assert last["USER"] == "10001:10001"
    assert last["STOPSIGNAL"] == "SIGTERM"
    assert last["CMD"] == '["raftlog", "server", "run", "--config", "/run/raftlog/node.toml"]', (
        "no shell before the node"
    )
    (path,) = re.findall(r"'(/v1/\w+)'", last["HEALTHCHECK"])
    assert ("GET", path) in {(method, path) for method, path, _ in ROUTES}


def test_the_image_copies_what_the_wheel_needs() -> None:
    built = re.findall(r"^COPY (?!-)(.*) \S+$", DOCKERFILE, re.MULTILINE)
    copied = {name for names in built for name in names.split()}
    wheel = re.search(r"\npackages = \[(.*)\]", (ROOT / "pyproject.toml").read_text())
    assert wheel is not None
    assert {name.strip('" ') for name in wheel[1].split(",")} <= copied
    assert all((ROOT / name).exists() for name in copied)
    sent = (ROOT / ".dockerignore").read_text().splitlines()
    assert {f"!{name}" for name in copied} | {"!deploy/docker/raftlog-prepare"} <= set(sent)


@pytest.mark.parametrize("name", SERVICES)
def test_each_node_of_compose_is_found_by_the_others_and_by_clients(name: str, tmp_path: Path) -> None:
    service = SERVICES[name]
    environment = {key: str(value) for key, value in service["environment"].items()}
    environment |= {"RAFTLOG_PREPARE": "yes", "RAFTLOG_MORE_SETTINGS": str(DOCKER / "insecure.toml")}
    container = Container(tmp_path, **environment)
    done = container.prepare()
    assert done.returncode == 0, done.stdout + done.stderr
    config: NodeConfig = container.config
    node = container.identity["node_id"]
    assert name == f"node-{node}"
    assert address_problem(config, node, None, started_before=False) == ""
    published = [text.rsplit(":", 1)[0] for text in service["ports"]]
    assert config.api.advertised is not None and config.data.advertised is not None
    assert published == [str(config.api.advertised.endpoint), str(config.data.advertised.endpoint)]
    others = {other: SERVICES[other]["environment"]["RAFTLOG_DATA_PORT"] for other in SERVICES if other != name}
    assert {peer.data.host: str(peer.data.port) for peer in config.peers.values()} == others


def test_compose_is_hardened_and_waits_for_the_node_to_stop() -> None:
    for service in SERVICES.values():
        assert service["read_only"] and service["cap_drop"] == ["ALL"] and "privileged" not in service
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), "the cluster has no security"
        assert int(service["stop_grace_period"].removesuffix("s")) * 1000 > NodeConfig().shutdown_timeout_ms
    assert len(SERVICES) == 3 and set(COMPOSE["volumes"]) == set(SERVICES)


# --- With Docker ------------------------------------------------------------------------------------------------------


def docker_is_missing() -> str:
    """Return why Compose cannot be run here; empty if it can."""
    if shutil.which("docker") is None:
        return "Docker is not installed"
    for command in (["docker", "info"], ["docker", "compose", "version"]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            return f"`{' '.join(command)}` fails: {(done.stderr or done.stdout).strip().splitlines()[-1:]}"
    return ""


def compose(*arguments: str, prepare: str = "no") -> None:
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "RAFTLOG_PREPARE": prepare}
    command = ["docker", "compose", "-f", str(DOCKER / "compose.yaml"), "-p", "raftlog-test", *arguments]
    subprocess.run(command, env=environment, timeout=900, check=True)


@pytest.fixture
def running() -> Iterator[None]:
    reason = docker_is_missing()
    if reason:
        pytest.skip(reason)
    try:
        compose("up", "--build", "--wait", prepare="yes")
        yield
    finally:
        compose("down", "--volumes", "--timeout", "60")


@pytest.mark.integration
@pytest.mark.usefixtures("running")
def test_the_cluster_of_compose_keeps_records_over_a_restart() -> None:
    bootstrap = ",".join(f"127.0.0.1:{9640 + 10 * node}" for node in range(3))
    with sync.Admin(bootstrap) as admin:
        admin.create_topic("t", 1, 3)
    with sync.Producer(bootstrap) as producer:
        producer.send_and_wait("t", b"kept")
    compose("restart", "--timeout", "60")
    compose("up", "--wait")
    with urllib.request.urlopen("http://127.0.0.1:9640/v1/ready", timeout=5) as answer:
        assert answer.status == 200
    with sync.Consumer(bootstrap, "t") as consumer:
        assert [record.value for record in consumer.poll(timeout=30)] == [b"kept"]
