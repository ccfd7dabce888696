"""Simulated clusters with the library's clients, and topics that are deleted and re-created under their names (S1, S3,
S8, S10, S13).
"""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import pytest

from jepsen_like.planted.catalogue import BUGS, load_detections, run_planted, search
from jepsen_like.planted.lives_bugs import LIVES_BUGS
from jepsen_like.simulator.cluster.run import Verdict
from jepsen_like.simulator.library.run import run_client_seed

SECONDS = 20.0
SEEDS = range(1, 9)
SOAK_SEEDS = range(1, 201)
SOAK_SECONDS = 60.0
MORE_SEEDS = 12
SOON = 20.0
"""Virtual seconds of its seed: bugs that show themselves by then are searched in every run of the suite."""
NAMES = [bug.name for bug in LIVES_BUGS]
KNOWN = load_detections()
COUNTED = (
    "acknowledged",
    "shown",
    "handed out",
    "told gone",
    "lives",
    "send unknown_topic",
    "send outcome_unknown",
    "transactions committed",
    "transactions unknown_topic",
    "transactions unknown_partition",
    "transactions stale_generation",
)
"""Events that some client must have met, or the seeds prove nothing."""


def run(seed: int) -> Verdict:
    return run_client_seed(seed, SECONDS)


def run_long(seed: int) -> Verdict:
    return run_client_seed(seed, SOAK_SECONDS)


def test_clients_and_topics_keep_their_guarantees_under_faults() -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=os.cpu_count() or 1, mp_context=context) as pool:
        verdicts = list(pool.map(run, SEEDS))
    assert {verdict.seed: verdict.violation for verdict in verdicts if not verdict.passed} == {}
    totals: Counter[str] = Counter()
    for verdict in verdicts:
        totals.update(verdict.checks)
        totals.update(verdict.operations)
    assert {name for name in COUNTED if not totals[f"clients {name}"]} == set()
    assert totals["recreate"] > len(verdicts)
    assert {
        name for name in ("delete", "member_crashes", "member_leaves", "process_hangs") if not totals[name]
    } == set()


def test_without_faults_everything_is_delivered_and_consumed() -> None:
    verdict = run_client_seed(1, 10.0, faulty=False)
    assert verdict.passed, verdict.violation
    assert verdict.checks["clients handed out"] > 50


def test_one_seed_and_one_code_give_one_trace() -> None:
    first, second = run_client_seed(2, 8.0), run_client_seed(2, 8.0)
    assert (first.trace, first.events) == (second.trace, second.events)


@pytest.mark.soak
def test_many_seeds_of_library_clients() -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=os.cpu_count() or 1, mp_context=context) as pool:
        verdicts = list(pool.map(run_long, SOAK_SEEDS))
    assert {verdict.seed: verdict.violation for verdict in verdicts if not verdict.passed} == {}


def found(name: str) -> bool:
    if not run_planted(BUGS[name], KNOWN[name].seed).passed:
        return True
    return search(BUGS[name], first=KNOWN[name].seed + 1, seeds=MORE_SEEDS) is not None


def test_each_bug_of_the_library_has_a_seed_that_finds_it() -> None:
    assert set(NAMES) <= set(KNOWN)


@pytest.mark.parametrize("name", [name for name in NAMES if name in KNOWN and KNOWN[name].virtual_seconds <= SOON])
def test_the_removal_of_a_rule_is_detected(name: str) -> None:
    assert found(name), f"{name} is no longer found"


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_a_planted_bug_of_the_library_is_found(name: str) -> None:
    assert found(name), f"{name} is no longer found"
