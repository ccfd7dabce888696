"""Simulated clusters with transactions (S13).

Some seeds run in every run of the suite, many in the soak; each planted bug of transactions is found by the seed that
is known to find it.
"""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import pytest

from jepsen_like.planted.catalogue import BUGS, load_detections, run_planted, search
from jepsen_like.planted.transaction_bugs import TRANSACTION_BUGS
from jepsen_like.simulator.cluster.run import Verdict
from jepsen_like.simulator.transactions.run import run_transaction_seed
from jepsen_like.simulator.transactions.truth import COUNTED

SECONDS = 25.0
SEEDS = range(1, 9)
SOAK_SEEDS = range(1, 401)
SOAK_SECONDS = 60.0
MORE_SEEDS = 12
SOON = 12.0
"""Virtual seconds of its seed: bugs that show themselves by then are searched in every run of the suite."""

OF_CLUSTERS = (
    "elected", "joined", "below the minimum", "counted beyond the ISR", "members of the commit set alone",
    "members below a promised start",
)  # fmt: skip
"""Checks of members, of leaders and of the high watermark (11-29)."""

NAMES = [bug.name for bug in TRANSACTION_BUGS]
KNOWN = load_detections()


def run(seed: int) -> Verdict:
    return run_transaction_seed(seed, SECONDS)


def run_long(seed: int) -> Verdict:
    return run_transaction_seed(seed, SOAK_SECONDS)


def test_transactions_hold_under_faults() -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=os.cpu_count() or 1, mp_context=context) as pool:
        verdicts = list(pool.map(run, SEEDS))
    assert {verdict.seed: verdict.violation for verdict in verdicts if not verdict.passed} == {}
    # The runs were not empty: every possible outcome of a transaction's record occurred.
    totals: dict[str, int] = {}
    for verdict in verdicts:
        for name, count in verdict.checks.items():
            totals[name] = totals.get(name, 0) + count
    assert {name for name in COUNTED if not totals[f"transactions {name}"]} == set()
    # These are whole clusters: the checks of a cluster had something to check.
    assert {name for name in OF_CLUSTERS if not totals[name]} == set()


@pytest.mark.parametrize("seed", [3351, 3619])
def test_replicas_that_met_exceptions_return_without_a_restart_s10(seed: int) -> None:
    """Replicas with `flush=os`, whose losses the quorum knew, and whose jobs broke before they took note of that."""
    verdict = run_transaction_seed(seed, 60.0)
    assert verdict.passed, verdict.violation


def test_without_faults_everything_is_decided_and_read() -> None:
    verdict = run_transaction_seed(1, 10.0, faulty=False)
    assert verdict.passed, verdict.violation
    assert verdict.checks["transactions committed"] > 10


def test_one_seed_and_one_code_give_one_trace() -> None:
    first, second = run_transaction_seed(2, 8.0), run_transaction_seed(2, 8.0)
    assert (first.trace, first.events) == (second.trace, second.events)


def found(name: str) -> bool:
    if not run_planted(BUGS[name], KNOWN[name].seed).passed:
        return True
    return search(BUGS[name], first=KNOWN[name].seed + 1, seeds=MORE_SEEDS) is not None


@pytest.mark.parametrize("name", [name for name in NAMES if name in KNOWN and KNOWN[name].virtual_seconds <= SOON])
def test_the_removal_of_a_rule_is_detected(name: str) -> None:
    assert found(name), f"{name} is no longer found"


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_a_planted_bug_of_transactions_is_found(name: str) -> None:
    assert found(name), f"{name} is no longer found"


def test_each_bug_has_a_seed_that_finds_it() -> None:
    assert set(KNOWN) >= set(NAMES)
    assert {KNOWN[name].law for name in NAMES} == {"S1", "S13"}


@pytest.mark.soak
def test_hundreds_of_seeds_keep_every_property() -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=os.cpu_count() or 1, mp_context=context) as pool:
        verdicts = list(pool.map(run_long, SOAK_SEEDS))
    assert {verdict.seed: verdict.violation for verdict in verdicts if not verdict.passed} == {}
