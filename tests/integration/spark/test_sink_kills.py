"""Drivers that are killed or suspended at any point: the written records are the read ones, once (S1, S13).

Run it by hand: `python -P -m pytest -q -m soak tests/integration/spark/test_sink_kills.py`. It takes a quarter of a
minute per kill. `RAFTLOG_SPARK_KILLS` sets the number of kills at random points of a query into a topic, and of one
into Parquet (20 each); `RAFTLOG_SPARK_RESULTS` names a file of results, whose kills are not repeated.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raftlog.cli.nodes.local_cluster import LocalCluster
from tests.support.clusters.cluster import PATIENCE_S, POLL_S, running_cluster
from tests.support.spark.copier import Copier
from tests.support.spark.copies import PARTITIONS, Copies, ParquetCopies, Target, TopicCopies
from tests.support.spark.kills import opened, run, seeds_to_do
from tests.support.spark.session import unpacked_wheel

pytestmark = [pytest.mark.integration, pytest.mark.soak]

KILLS = int(os.environ.get("RAFTLOG_SPARK_KILLS", "20"))
RECORDS = 50
"""Records in each partition."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with running_cluster(3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def wheel() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="raftlog-wheel-") as folder:
        yield unpacked_wheel(Path(folder))


@pytest.fixture
def copies(cluster: LocalCluster, wheel: Path, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Copies]:
    with opened(cluster, _name(Target.TOPIC, request), tmp_path, wheel, Target.TOPIC) as copies:
        copies.produce(RECORDS)
        yield copies


@pytest.fixture
def files(cluster: LocalCluster, wheel: Path, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Copies]:
    """The same, into Parquet."""
    with opened(cluster, _name(Target.PARQUET, request), tmp_path, wheel, Target.PARQUET) as files:
        files.produce(RECORDS)
        yield files


def _name(target: Target, request: pytest.FixtureRequest) -> str:
    return f"{target}-{request.node.name.removeprefix('test_')[:40].replace('_', '-')}"


@pytest.fixture
def copiers() -> Iterator[list[Copier]]:
    """The copiers that a test started: none outlives it."""
    started: list[Copier] = []
    yield started
    for copier in started:
        copier.kill()


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(POLL_S)


def test_killed_after_its_tasks_have_written_s13(copies: TopicCopies, copiers: list[Copier]) -> None:
    copier = copies.start(pause_s=600.0, paused=str(copies.folder / "paused"))
    copiers.append(copier)
    assert copier.wait_until(lambda: bool(copies.left_open()) and copies.written() > 0), copier.told()
    copier.kill()
    assert copies.check_published() == -1
    assert copies.left_open(), "it was killed before it could end what it had begun"
    copies.finish()


def test_killed_after_the_decision_and_before_spark_has_recorded_it_s13(
    copies: TopicCopies, copiers: list[Copier]
) -> None:
    for batch_id in (0, 2):
        copier = copies.start()
        copiers.append(copier)
        assert copier.wait_until(lambda wanted=batch_id: copies.published() >= wanted), copier.told()  # type: ignore[misc]
        copier.kill()
        assert copies.check_published() >= batch_id
    copies.finish()


def test_killed_after_the_first_entry_of_the_offset_log_s1(copies: TopicCopies, copiers: list[Copier]) -> None:
    copier = copies.start()
    copiers.append(copier)
    assert copier.wait_until(lambda: copies.planned() >= 0), copier.told()
    copier.kill()
    copies.check_published()
    copies.finish()


def test_a_query_killed_before_any_commit_continues_at_its_first_latest_offset_s1(
    copies: TopicCopies, copiers: list[Copier]
) -> None:
    """Spark asks the source again for the starting offset, when the latest offset is another one."""
    copies.began = list(copies.produced)
    held = copies.folder / "held"
    copier = copies.start(start="latest", held=str(held), pause_s=600.0, paused=str(copies.folder / "paused"))
    copiers.append(copier)
    assert copier.wait_until(held.exists), copier.told()
    copies.produce(10)
    held.unlink()
    assert copier.wait_until(lambda: bool(copies.left_open()) and copies.written() > 0), copier.told()
    copier.kill()
    # Micro-batch 0 has records, and is the query's only one.
    assert copies.planned() == 0 and copies.planned_ends() == copies.produced
    assert copies.noted() == -1 and copies.check_published() == -1
    copies.produce(RECORDS)
    copies.finish(start="latest")


def test_killed_after_the_first_entry_of_the_offset_log_and_while_files_are_written_s1(
    files: ParquetCopies, copiers: list[Copier]
) -> None:
    copier = files.start()
    copiers.append(copier)
    assert copier.wait_until(lambda: files.planned() >= 0), copier.told()
    copier.kill()
    files.check_published()
    before = files.left_open()
    copier = files.start(pause_s=600.0, paused=str(files.folder / "paused"))
    copiers.append(copier)
    assert copier.wait_until(lambda: (files.folder / "paused").exists() and bool(files.left_open() - before)), (
        copier.told()
    )
    copier.kill()
    files.check_published()
    left = files.left_open()
    assert left - before, "it was killed before it could end what it had begun"
    files.finish()
    assert files.left_open() == left, "what is in no micro-batch is still there, and nobody has read it"


@pytest.mark.parametrize("target", list(Target))
def test_killed_at_random_points_with_rows_in_another_order_each_time_s13(
    target: Target, cluster: LocalCluster, wheel: Path, tmp_path: Path
) -> None:
    results = os.environ.get("RAFTLOG_SPARK_RESULTS", str(tmp_path / "results.jsonl"))
    with opened(cluster, f"random-{target}", tmp_path, wheel, target) as copies:
        run(copies, seeds_to_do(results, 1, KILLS, target), results)
    assert seeds_to_do(results, 1, KILLS, target) == []


def test_a_driver_that_was_suspended_for_too_long_writes_nothing_more_s13(
    copies: TopicCopies, copiers: list[Copier]
) -> None:
    """Its transactions are aborted meanwhile, and another driver does the work; when it continues, it finds the work
    done."""
    paused = copies.folder / "paused"
    copier = copies.start(
        pause_s=1.0, paused=str(paused), transaction_timeout_ms=2_000, per_trigger=PARTITIONS * RECORDS
    )
    copiers.append(copier)
    assert copier.wait_until(lambda: bool(copies.left_open())), copier.told()
    copier.stop()
    until(lambda: not copies.left_open(), "its transactions' time is over")
    copies.finish(transaction_timeout_ms=60_000)
    copier.go_on()
    copier.finish()
    copier.kill()
    copies.check_all()
