"""benchmarks/kafka_peer.py: its decisions before Maven and brokers are started."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """The module, with a folder of its own for jars."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = importlib.import_module("kafka_peer")
    monkeypatch.setattr(module, "JARS", tmp_path / "jars")
    yield module
    sys.modules.pop("kafka_peer", None)


def test_a_project_names_its_dependencies(peer: Any) -> None:
    tree = ElementTree.fromstring(peer.project(peer.broker_artifacts("4.3.1&")))
    found = [[field.text for field in one] for one in tree.iter("{http://maven.apache.org/POM/4.0.0}dependency")]
    assert ["org.apache.kafka", "kafka_2.13", "4.3.1&"] in found and len(found) == 2


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("kafka-clients-3.9.2.jar", "kafka-clients"),
        ("spark-sql-kafka-0-10_2.13-4.2.0.jar", "spark-sql-kafka-0-10_2.13"),
        ("spark-core_2.13-4.3.0.jar", "spark-core_2.13"),
        ("commons-pool-1.5.4.jar", "commons-pool"),
        ("zstd-jni-1.5.6-10.jar", "zstd-jni"),
        ("unversioned.jar", "unversioned"),
    ],
)
def test_a_jars_name_without_its_version(peer: Any, file: str, name: str) -> None:
    assert peer.jar_name(Path("/jars", file)) == name


def test_sparks_own_jars_are_not_fetched_again(peer: Any) -> None:
    brought = [Path("/a/lz4-java-1.10.1.jar"), Path("/a/commons-pool2-2.13.1.jar"), Path("/a/kafka-clients-3.9.2.jar")]
    assert peer.beside(brought, [Path("/b/lz4-java-1.11.0.jar"), Path("/b/commons-pool-1.5.4.jar")]) == brought[1:]


@pytest.mark.parametrize(("count", "majority"), [(1, "1"), (2, "2"), (3, "2")])
def test_brokers_replicate_as_raftlog_does(peer: Any, count: int, majority: str) -> None:
    brokers = peer.Brokers(Path("/data"), count, 20_000)
    settings = [brokers.settings(node) for node in brokers.nodes]
    assert {one["default.replication.factor"] for one in settings} == {str(count)}
    assert {one["min.insync.replicas"] for one in settings} == {majority}
    assert len({one["controller.quorum.voters"] for one in settings}) == 1
    for node, one in zip(brokers.nodes, settings, strict=True):
        # Each is reachable where the others expect it, and no two share a port.
        assert f"{node.node_id}@127.0.0.1:{node.controller_port}" in one["controller.quorum.voters"].split(",")
        assert one["listeners"].endswith(f"CONTROLLER://127.0.0.1:{node.controller_port}")
        assert f"127.0.0.1:{node.port}" in brokers.bootstrap.split(",")
    assert len({port for node in brokers.nodes for port in (node.port, node.controller_port)}) == 2 * count


def test_a_clusters_id_is_valid_for_kafka(peer: Any) -> None:
    found = {peer.cluster_id(os.urandom(12)) for _ in range(100)}
    assert len(found) == 100
    assert {len(one) for one in found} == {22} and not any(one.startswith("-") for one in found)


def test_without_maven_the_error_says_what_to_do(peer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(peer.Missing, match="apt-get install maven"):
        peer.fetch(peer.broker_artifacts("4.3.1"), Path("/java"))


def test_a_failed_fetch_names_the_reason_and_leaves_nothing(
    peer: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mvn = tmp_path / "mvn"
    mvn.write_text("#!/bin/sh\necho '[ERROR] Could not find artifact in central'\nexit 1\n")
    mvn.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(
        peer.Missing, match=r"could not fetch org.apache.kafka:kafka_2.13:4.3.1(.|\n)*Could not find artifact"
    ):
        peer.fetch(peer.broker_artifacts("4.3.1"), Path("/java"))
    assert not list(peer.JARS.iterdir())


def test_maven_is_quoted_without_colours_and_advice(peer: Any) -> None:
    output = "\x1b[0m\x1b[1;31m\n[ERROR] No such artifact\n[ERROR] \n[ERROR] To see the full stack trace, use -e.\n"
    assert peer.what_it_said(output) == "[ERROR] No such artifact"
    assert peer.what_it_said("line\n" * 1_000).count("\n") == peer.TOLD_LINES - 1


def test_existing_jars_need_no_maven(peer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    folder = peer.JARS / "kafka_2.13-4.3.1"
    folder.mkdir(parents=True)
    (folder / "kafka_2.13-4.3.1.jar").touch()
    assert peer.fetch(peer.broker_artifacts("4.3.1"), Path("/java")) == [folder / "kafka_2.13-4.3.1.jar"]


def test_a_program_that_hangs_is_ended(peer: Any) -> None:
    with pytest.raises(peer.Missing, match=r"waiting: sleep had not ended after 0 s"):
        peer.run(["sleep", "60"], "waiting", Path("/java"), seconds=0.05)


def test_a_broker_that_ends_at_its_start_is_named_with_its_last_lines(peer: Any, tmp_path: Path) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\ncase "$*" in *StorageTool*) exit 0;; esac\necho no memory for a heap; exit 3\n')
    java.chmod(0o755)
    brokers = peer.Brokers(tmp_path / "data", 2, 1)
    try:
        brokers.start([], java.parents[1])
        with pytest.raises(peer.Missing, match=r"broker \d ended with 3:\nno memory for a heap"):
            brokers.wait_listening(30)
    finally:
        brokers.stop()
    assert all(node.process.returncode is not None for node in brokers.nodes)
