"""`raftlog bench` against a node: its lines, its numbers, and no client left behind."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog import Admin
from raftlog.cli.bench.fleet import Fleet
from raftlog.cli.bench.lines import CONSUMER_HEADER
from raftlog.cli.bench.messages import Go, ProduceJob
from raftlog.cli.nodes.local_cluster import LocalCluster
from raftlog.errors import InvalidRequest, RaftlogError
from tests.support.cli_runner import PATIENCE_S, Result, run, start
from tests.support.clusters.cluster import eventually, process_is_gone, running_cluster

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def node() -> Iterator[LocalCluster]:
    with running_cluster(1) as cluster:
        yield cluster


def bench(node: LocalCluster, *arguments: str) -> Result:
    return run("bench", *arguments, bootstrap=node.bootstrap)


async def written(node: LocalCluster, topic: str) -> int:
    async with Admin(node.bootstrap) as admin:
        partitions = (await admin.describe_topic(topic)).partition_count
        return sum([(await admin.offsets(topic, partition)).latest for partition in range(partitions)])


def test_producer_and_consumer_agree_with_the_log(node: LocalCluster) -> None:
    """Two clients; one pass each way, then repeated until there are enough."""
    sent = bench(node, "producer", "p", "--create", "--partitions", "2", "--records", "20001", "--clients", "2")
    assert sent.code == 0, sent.stderr
    total = (
        r"20001 records sent, \d+\.\d records/sec \(\d+\.\d\d MB/sec\), [\d.]+ ms avg latency, [\d.]+ ms max latency"
    )
    assert re.fullmatch(total + r", \d+ ms 50th, \d+ ms 95th, \d+ ms 99th, \d+ ms 99.9th.", sent.lines[-1])
    assert asyncio.run(written(node, "p")) == 20001

    read = bench(node, "consumer", "p")
    header, row = read.lines
    assert header == CONSUMER_HEADER
    assert dict(zip(header.split(", "), row.split(", "), strict=True))["data.consumed.in.nMsg"] == "20001"

    again = bench(node, "consumer", "p", "--records", "50000", "--decode", "arrow", "-o", "json")
    assert again.json["records"] >= 50_000
    assert again.json["clients"] == 1 and again.json["passes"] >= 3
    assert again.json["records_per_second"] == pytest.approx(again.json["records"] / again.json["seconds"])


def test_latency_is_reported_and_plotted(node: LocalCluster, tmp_path: Path) -> None:
    page = tmp_path / "latency.svg"
    arguments = ("--create", "--records", "200", "--rate", "400", "--warm-up", "0.1", "--histogram")
    result = bench(node, "latency", "l", *arguments, "--chart", str(page))
    assert result.code == 0, result.stderr
    assert re.fullmatch(r"Avg latency: \d+\.\d{4} ms", result.lines[0])
    assert re.fullmatch(r"Percentiles: 50th = [\d.]+, 99th = [\d.]+, 99\.9th = [\d.]+", result.lines[1])
    assert all(name in result.text for name in ("end to end:", "acknowledged:", "p99.9", "max", "█"))
    assert "end to end: 200 records" in "".join(ElementTree.parse(page).getroot().itertext())
    # Only the measured records and those of the warm-up were sent.
    assert asyncio.run(written(node, "l")) == 240


def test_errors_are_reported_in_one_line(node: LocalCluster, tmp_path: Path) -> None:
    unknown = bench(node, "producer", "nix", "--records", "10")
    assert (unknown.code, unknown.stdout) == (1, b"")
    assert "nix" in unknown.stderr and "Traceback" not in unknown.stderr
    assert bench(node, "latency", "l", "--chart", "x.png").code == 2
    assert bench(node, "producer", "l", "--records", "0").code == 2
    for number in ("nan", "inf", "-1"):
        assert bench(node, "producer", "l", "--throughput", number).code == 2
        assert bench(node, "consumer", "l", "--seconds", number).code == 2
    nowhere = bench(node, "latency", "l", "--chart", str(tmp_path / "no" / "x.svg"))
    assert nowhere.code == 2 and "does not exist" in nowhere.stderr


def test_a_topic_without_records_cannot_be_read(node: LocalCluster) -> None:
    async def make() -> None:
        async with Admin(node.bootstrap) as admin:
            await admin.create_topic("bare", 2)

    asyncio.run(make())
    result = bench(node, "consumer", "bare", "--seconds", "5")
    assert result.code == 1 and "has no records" in result.stderr


def test_ctrl_c_ends_it_and_its_clients(node: LocalCluster) -> None:
    asyncio.run(_make(node, "endless"))
    process = start("bench", "producer", "endless", "--seconds", "600", "--throughput", "500", bootstrap=node.bootstrap)
    asyncio.run(_until_written(node, "endless"))
    children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    assert len(children) == 1
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, stderr
    assert b"Traceback" not in stderr
    assert b"99.9th" not in stdout  # half a measurement is not reported
    assert all(map(process_is_gone, children))


async def test_a_client_that_dies_fails_the_run(node: LocalCluster) -> None:
    await _make(node, "mortal")
    with pytest.raises(RaftlogError, match="ended by itself"):
        async with Fleet([ProduceJob(node.bootstrap, "mortal", 100, rate=1.0)]) as fleet:
            (pid,) = fleet.pids
            running = asyncio.create_task(fleet.go([Go()]))
            await _until_written(node, "mortal")
            os.kill(pid, signal.SIGKILL)
            await running
    assert process_is_gone(pid)


async def _make(node: LocalCluster, topic: str) -> None:
    async with Admin(node.bootstrap) as admin:
        try:
            await admin.create_topic(topic, 1)
        except InvalidRequest as error:
            assert error.code == "topic_exists"


async def _until_written(node: LocalCluster, topic: str) -> None:
    async def look() -> bool:
        return await written(node, topic) > 0

    await eventually(look, f"records in {topic}")
