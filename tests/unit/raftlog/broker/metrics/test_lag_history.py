"""Lags in seconds, from the past of a high watermark."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from raftlog.broker.metrics.lag_history import MAX_SAMPLES, LagHistory


def history(*samples: tuple[float, int]) -> LagHistory:
    found = LagHistory()
    for now, high_watermark in samples:
        found.observe(now, high_watermark)
    return found


def test_a_group_without_lag_has_no_age() -> None:
    assert history((0, 100), (10, 200)).age(15, 200) == 0
    assert history().age(15, 7) == 0


def test_between_two_samples_the_high_watermark_rises_evenly() -> None:
    found = history((0, 0), (10, 100), (20, 300))
    assert found.age(30, 0) == 30
    assert found.age(30, 50) == 25
    assert found.age(30, 100) == 20
    assert found.age(30, 200) == 15
    assert found.age(30, 299) < 10.2


def test_an_offset_before_the_first_sample_is_at_least_as_old_as_it() -> None:
    assert history((5, 100), (10, 200)).age(20, 3) == 15


def test_time_in_which_nothing_came_does_not_make_the_next_records_old() -> None:
    found = history((0, 100), (100, 100), (101, 200))
    assert found.age(101, 100) == 1


def test_a_high_watermark_that_fell_begins_a_new_past() -> None:
    assert history((0, 100), (10, 200), (20, 50), (30, 60)).age(30, 55) == 5


@given(st.integers(min_value=0, max_value=2**32))
def test_the_age_of_a_steady_rise_is_exact_however_long_it_lasts(seed: int) -> None:
    chosen = random.Random(seed)
    found = LagHistory()
    for second in range(10 * MAX_SAMPLES):
        found.observe(float(second), 10 * second)
    last = 10.0 * MAX_SAMPLES - 1
    offset = chosen.randrange(0, int(10 * last))
    assert abs(found.age(last, offset) - (last - offset / 10)) < 1e-6
    assert len(found) <= MAX_SAMPLES
