"""Drivers that are killed, or stand still, anywhere on the way: what was written is what was read, once (S1, S13).

Run it by hand: `python -P -m pytest -q -m soak tests/integration/test_spark_sink_kills.py`. It takes a quarter of a
minute a kill; `RAFTLOG_SPARK_KILLS` says how many there are at random points (20), and `RAFTLOG_SPARK_RESULTS` names a
file of results: kills that it has already are not made again.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raftlog.cli.local_cluster import LocalCluster
from tests.support.cluster import PATIENCE_S, POLL_S, running_cluster
from tests.support.spark import unpacked_wheel
from tests.support.spark_copier import Copier
from tests.support.spark_copies import PARTITIONS, Copies
from tests.support.spark_kills import opened, run, seeds_to_do

pytestmark = [pytest.mark.integration, pytest.mark.soak]

KILLS = int(os.environ.get("RAFTLOG_SPARK_KILLS", "20"))
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


@pytest.fixture
def copies(cluster: LocalCluster, wheel: Path, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Copies]:
    name = request.node.name.removeprefix("test_")[:40].replace("_", "-")
    with opened(cluster, name, tmp_path, wheel) as copies:
        copies.produce(RECORDS)
        yield copies


@pytest.fixture
def copiers() -> Iterator[list[Copier]]:
    """Those that a test started: none outlives it."""
    started: list[Copier] = []
    yield started
    for copier in started:
        copier.kill()


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(POLL_S)


def test_killed_when_its_tasks_have_written_s13(copies: Copies, copiers: list[Copier]) -> None:
    copier = copies.start(pause_s=600.0, paused=str(copies.folder / "paused"))
    copiers.append(copier)
    assert copier.wait_until(lambda: bool(copies.open_transactions()) and copies.written() > 0), copier.told()
    copier.kill()
    assert copies.check_published() == -1
    assert copies.open_transactions(), "it was killed before it could end what it had begun"
    copies.finish()


def test_killed_after_the_decision_and_before_spark_has_noted_it_s13(copies: Copies, copiers: list[Copier]) -> None:
    for batch_id in (0, 2):
        copier = copies.start()
        copiers.append(copier)
        assert copier.wait_until(lambda wanted=batch_id: copies.published() >= wanted), copier.told()  # type: ignore[misc]
        copier.kill()
        assert copies.check_published() >= batch_id
    copies.finish()


def test_killed_after_the_first_entry_of_the_offset_log_s1(copies: Copies, copiers: list[Copier]) -> None:
    copier = copies.start()
    copiers.append(copier)
    assert copier.wait_until(lambda: copies.planned() >= 0), copier.told()
    copier.kill()
    copies.check_published()
    copies.finish()


def test_killed_at_random_points_with_rows_in_another_order_each_time_s13(
    cluster: LocalCluster, wheel: Path, tmp_path: Path
) -> None:
    results = os.environ.get("RAFTLOG_SPARK_RESULTS", str(tmp_path / "results.jsonl"))
    with opened(cluster, "random", tmp_path, wheel) as copies:
        run(copies, seeds_to_do(results, 1, KILLS), results)
    assert seeds_to_do(results, 1, KILLS) == []


def test_a_driver_that_stood_still_for_too_long_writes_nothing_more_s13(copies: Copies, copiers: list[Copier]) -> None:
    """Its transactions are aborted meanwhile, and another driver does the work; when it goes on it finds that done."""
    paused = copies.folder / "paused"
    copier = copies.start(
        pause_s=1.0, paused=str(paused), transaction_timeout_ms=2_000, per_trigger=PARTITIONS * RECORDS
    )
    copiers.append(copier)
    assert copier.wait_until(lambda: bool(copies.open_transactions())), copier.told()
    copier.stop()
    until(lambda: not copies.open_transactions(), "its transactions' time is over")
    copies.finish(transaction_timeout_ms=60_000)
    copier.go_on()
    copier.finish()
    copier.kill()
    copies.check_all()
