"""Drivers that are killed, or stand still, anywhere on the way: what was written is what was read, once (S1, S13).

Run it by hand: `python -P -m pytest -q -m soak tests/integration/test_spark_sink_kills.py`. It takes half a minute a
kill; `RAFTLOG_SPARK_KILLS` says how many there are at random points (20).
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.cli.local_cluster import LocalCluster
from raftlog.sync import Admin, Producer
from tests.support.cluster import running_cluster
from tests.support.spark import unpacked_wheel
from tests.support.spark_copier import Copier, CopierOptions
from tests.support.spark_queries import read_committed, sink_position

pytestmark = [pytest.mark.integration, pytest.mark.soak]

KILLS = int(os.environ.get("RAFTLOG_SPARK_KILLS", "20"))
PARTITIONS = 2
RECORDS = 50
"""In each partition."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with running_cluster(3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def wheel() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="raftlog-wheel-") as folder:
        yield unpacked_wheel(Path(folder))


class World:
    """Two topics, and a query between them that is started again and again."""

    def __init__(self, cluster: LocalCluster, name: str, folder: Path, wheel: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.sink = f"{name}-out"
        self.checkpoint = folder / "checkpoint"
        self.options = CopierOptions(cluster.bootstrap, f"{name}-in", self.sink, str(self.checkpoint), str(wheel))
        with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
            for topic in (self.options.source, self.sink):
                admin.create_topic(topic, partitions=PARTITIONS)
            for partition in range(PARTITIONS):
                values = [b"%d" % number for number in range(RECORDS)]
                producer.send_many(self.options.source, values, keys=values, partition=partition)

    def start(self, **changes: object) -> Copier:
        options = CopierOptions(**{**self.options.__dict__, **changes})  # type: ignore[arg-type]
        return Copier(options, self.folder / "log")

    def finish(self, **changes: object) -> None:
        """Start it once more, to its end; then all is there, once."""
        copier = self.start(**changes)
        assert copier.finish() == 0, copier.told()
        self.check()

    def check(self) -> None:
        found = sorted(row.value or b"" for row in read_committed(self.cluster, self.sink))
        expected = [b"%d/%d/%d" % (p, n, n) for p in range(PARTITIONS) for n in range(RECORDS)]
        assert found == sorted(expected)

    def position(self) -> int:
        metadata = self.checkpoint / "metadata"
        if not metadata.exists():
            return -1
        query_id = metadata.read_text().partition('"id":"')[2].partition('"')[0]
        found = sink_position(self.cluster, query_id) if query_id else None
        return -1 if found is None else found


@pytest.fixture
def world(cluster: LocalCluster, wheel: Path, request: pytest.FixtureRequest, tmp_path: Path) -> World:
    name = request.node.name.removeprefix("test_")[:40].replace("_", "-")
    return World(cluster, name, tmp_path, wheel)


def test_killed_when_its_tasks_have_written_s13(world: World) -> None:
    paused = world.folder / "paused"
    copier = world.start(pause_s=600.0, paused=str(paused))
    assert copier.wait_until(paused.exists), copier.told()
    time.sleep(0.5)  # what was handed over is sent
    copier.kill()
    assert world.position() == -1
    world.finish()


def test_killed_after_the_decision_and_before_spark_has_noted_it_s13(world: World) -> None:
    for batch_id in (0, 2):
        copier = world.start()
        assert copier.wait_until(lambda wanted=batch_id: world.position() >= wanted), copier.told()  # type: ignore[misc]
        copier.kill()
    world.finish()


def test_killed_after_the_first_entry_of_the_offset_log_s1(world: World) -> None:
    copier = world.start()
    assert copier.wait_until((world.checkpoint / "offsets" / "0").exists), copier.told()
    copier.kill()
    world.finish()


def test_killed_at_random_points_with_rows_in_another_order_each_time_s13(world: World) -> None:
    chance = random.Random(20)
    for _ in range(KILLS):
        copier = world.start(shuffled=True, per_trigger=10)
        began = len(list((world.checkpoint / "offsets").glob("[0-9]*"))) if world.checkpoint.exists() else 0

        def has_begun(least: int = began) -> bool:
            folder = world.checkpoint / "offsets"
            return folder.exists() and len(list(folder.glob("[0-9]*"))) > least

        copier.wait_until(has_begun)
        time.sleep(chance.uniform(0, 1.5))
        copier.kill()
        if world.position() >= RECORDS * PARTITIONS // 10 - 1:
            break
    world.finish(shuffled=True, per_trigger=10)


def test_a_driver_that_stood_still_for_too_long_writes_nothing_more_s13(world: World) -> None:
    """Its transactions are aborted meanwhile, and another driver does the work; when it goes on it finds that done."""
    paused = world.folder / "paused"
    copier = world.start(pause_s=3.0, paused=str(paused), transaction_timeout_ms=2_000)
    assert copier.wait_until(paused.exists), copier.told()
    copier.stop()
    time.sleep(5.0)  # its transactions' time is over
    world.finish(transaction_timeout_ms=60_000)
    copier.go_on()
    copier.finish()
    copier.kill()
    world.check()
