"""`raftlog doctor`, `top` and `debug` beside running nodes; and no secret of a secure cluster in a bundle (S12)."""

from __future__ import annotations

import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.cli.nodes.local_cluster import SETTINGS_FILE, LocalCluster
from raftlog.sync import Admin, Consumer, Producer
from tests.support.cli_runner import run
from tests.support.clusters.cluster import PATIENCE_S, running_cluster

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def node() -> Iterator[LocalCluster]:
    with running_cluster(1) as cluster:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic("watched", partitions=2)
        yield cluster


def settings_of(cluster: LocalCluster) -> str:
    return f"{cluster.nodes[0].folder}/{SETTINGS_FILE}"


def test_top_shows_throughput_and_lag(node: LocalCluster) -> None:
    stop = threading.Event()
    with Consumer.subscribe(node.bootstrap, "slow", ["watched"], auto_offset_reset="earliest") as consumer:
        consumer.poll(timeout=PATIENCE_S / 4)
        consumer.commit()

        def produce() -> None:
            with Producer(node.bootstrap) as producer:
                while not stop.wait(0.02):
                    producer.send_many("watched", [b"x" * 100] * 10)

        thread = threading.Thread(target=produce)
        thread.start()
        try:
            result = run("top", "--once", "--interval", "1s", "-o", "json", bootstrap=node.bootstrap)
        finally:
            stop.set()
            thread.join(PATIENCE_S)
    assert result.code == 0, result.stderr
    (topic,) = [one for one in result.json["topics"] if one["topic"] == "watched"]
    assert topic["records_per_second"] > 0 and topic["offline"] == 0
    assert [(one["node"], one["status"], one["is_controller"]) for one in result.json["nodes"]] == [(0, "ready", True)]
    table = run("top", "--once", "--interval", "0.1", "--topics", "none", bootstrap=node.bootstrap)
    assert table.code == 0 and "watched" not in table.text and "Records/s" in table.text


def test_doctor_examines_a_running_node_and_its_cluster(node: LocalCluster) -> None:
    result = run("doctor", "--config", settings_of(node), "-o", "json", bootstrap=None)
    found = result.json["findings"]
    told = {
        area: [one["level"] for one in found if one["area"] == area] for area in ("settings", "addresses", "cluster")
    }
    assert set(told["addresses"]) == set(told["settings"]) == set(told["cluster"]) == {"ok"}, found
    assert any("a node runs on it" in one["text"] for one in found)
    assert all(one["remedy"] for one in found if one["level"] != "ok")
    assert result.code == (0 if result.json["healthy"] else 1)


def test_segments_are_dumped_beside_the_node(node: LocalCluster) -> None:
    with Producer(node.bootstrap) as producer:
        producer.send_many("watched", [b"a", b"b"], partition=0)
        producer.flush()
    segments = sorted(map(str, Path(node.nodes[0].folder).rglob("partitions/*/*.log")))
    result = run("debug", "dump-segment", *segments, "--records", bootstrap=None)
    assert result.code == 0, result.text
    assert '"value":"a"' in result.text and "PROBLEM" not in result.text


def test_a_bundle_of_a_secure_cluster_has_no_secret_s12(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_cluster(1, secure=True) as cluster:
        assert cluster.security is not None
        for name, value in cluster.security.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("RAFTLOG_BOOTSTRAP", cluster.bootstrap)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        password = "a-password-of-the-test"
        created = run("user", "create", "alice", "--password-file", "-", bootstrap=None, stdin=password.encode())
        assert created.code == 0, created.stderr
        made = run("token", "create", "--user", "alice", bootstrap=None)
        file = tmp_path / "bundle.tar.gz"
        node = cluster.nodes[0]
        settings = ("--config", settings_of(cluster))
        result = run("debug", "bundle", *settings, "--log", node.log_path, "--file", str(file), bootstrap=None)
        assert result.code == 0, result.stderr
        doctor = run("doctor", *settings, "-o", "json", bootstrap=None)
        assert [one for one in doctor.json["findings"] if one["area"] == "certificates" and one["level"] != "ok"] == []
        folder = Path(cluster.folder)
        secrets = {password, made.text.strip()}
        for path in folder.rglob("*"):
            if path.is_file() and (path.suffix == ".key" or "token" in path.name):
                secrets |= {line for line in path.read_text().splitlines() if len(line) > 20 and "-----" not in line}
        assert len(secrets) >= 6, "password, tokens, and lines of keys"
        with tarfile.open(file) as archive:
            contents = b"".join(archive.extractfile(one).read() for one in archive).decode()  # type: ignore[union-attr]
        assert [secret for secret in secrets if secret in contents] == []
        assert '"security.mode"' in contents
