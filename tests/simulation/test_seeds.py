"""A hundred simulated clusters, sixty virtual seconds of faults each: S1-S6 after every event, S10 at the end.

The seeds run in as many processes as there are cores. A failing seed prints its violation; `make sim SEED=n` shows the
trace that led to it.
"""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import pytest

from jepsen_like.simulator.run import run_seed
from partitions.isr import IsrState
from partitions.leader import Leader
from partitions.progress import FollowerProgress

SECONDS = 60.0
SEEDS = range(1, 101)


def passed(seed: int) -> tuple[int, str]:
    verdict = run_seed(seed, SECONDS)
    return seed, verdict.violation


def test_a_hundred_seeds_keep_every_property() -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=os.cpu_count() or 1, mp_context=context) as pool:
        violations = {seed: violation for seed, violation in pool.map(passed, SEEDS) if violation}
    assert violations == {}


@pytest.mark.parametrize("seed", [3, 4])
def test_one_seed_and_one_code_give_one_trace(seed: int) -> None:
    first, second = run_seed(seed, 20.0), run_seed(seed, 20.0)
    assert first.trace == second.trace
    assert first.events == second.events


@pytest.mark.parametrize(
    ("owner", "name", "planted", "law"),
    [
        (Leader, "exposed_high_watermark", property(lambda leader: leader.high_watermark), "S3"),
        (IsrState, "maximal", property(lambda isr: isr.accepted), "S6"),
        (FollowerProgress, "counted_end_offset", property(lambda follower: follower.fetch_offset), "S6"),
    ],
)
def test_a_rule_that_is_left_out_is_missed(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, planted: property, law: str
) -> None:
    """What is checked is no repetition of what the product does."""
    monkeypatch.setattr(owner, name, planted)
    violations = (run_seed(seed, SECONDS).violation for seed in range(1, 11))
    assert next(filter(None, violations), "").startswith(law)


def test_without_faults_every_batch_is_acknowledged_and_read() -> None:
    verdict = run_seed(1, 20.0, faulty=False)
    assert verdict.passed, verdict.violation
    assert verdict.sends["ok"] > 20
    assert verdict.sends["open"] == 0
    assert verdict.reads > 20
