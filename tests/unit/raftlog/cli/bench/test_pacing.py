"""A fixed rate on a clock that only the test moves: no record is left out, however the sender stalls."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.cli.bench.histogram import Histogram
from raftlog.cli.bench.pacing import Pacer


def test_each_record_is_due_in_its_turn() -> None:
    pacer = Pacer(1000, start=5.0)
    assert list(pacer.due(4.9, 100)) == []
    assert pacer.wait(4.9) == pytest.approx(0.1)
    assert list(pacer.due(5.0, 100)) == [0]
    assert pacer.wait(5.0) == pytest.approx(0.001)
    assert list(pacer.due(5.0035, 100)) == [1, 2, 3]
    assert pacer.time_of(3) == pytest.approx(5.003)


def test_records_delayed_by_a_stall_are_due_at_once_with_their_original_times() -> None:
    """No coordinated omission: a stall of a second at 1,000/s is a thousand records late, by up to a second."""
    pacer, latency = Pacer(1000, start=0.0), Histogram()
    now = 0.0
    while now < 10.0:
        now += 1.0 if 5.0 <= now < 5.0005 else pacer.wait(now)
        for number in pacer.due(now, 10_000):
            latency.record(round((now - pacer.time_of(number)) * 1e6))
    assert latency.count == pytest.approx(10_000, abs=2)
    assert latency.percentile(89) <= 10
    # Of those thousand the first waited a whole second, the last hardly at all.
    assert latency.maximum == pytest.approx(1e6, rel=0.01)
    assert latency.percentile(95) == pytest.approx(500_000, rel=0.02)


def test_a_burst_is_bounded() -> None:
    pacer = Pacer(1e6, start=0.0)
    assert len(pacer.due(10.0, 500)) == 500
    assert pacer.wait(10.0) == 0.0
    assert pacer.due(10.0, 500) == range(500, 1000)


@given(
    st.floats(0.01, 1e7), st.floats(-1e6, 1e6), st.lists(st.floats(0, 3), min_size=1, max_size=30), st.integers(1, 1000)
)
def test_numbers_come_once_in_order_and_never_early(rate: float, start: float, steps: list[float], limit: int) -> None:
    pacer, now, seen = Pacer(rate, start), start, 0
    for step in steps:
        now += step
        due = pacer.due(now, limit)
        assert due.start == seen and len(due) <= limit
        seen = due.stop
        if due:
            assert pacer.time_of(due[-1]) <= now + 1e-6
        if len(due) < limit:
            assert pacer.time_of(seen) >= now - 1e-6


@given(st.floats(1, 1e6), st.floats(0, 1e6))
def test_after_the_requested_wait_the_next_one_is_due(rate: float, start: float) -> None:
    """Rounding must not make a sender wait for nothing repeatedly."""
    pacer, now = Pacer(rate, start), start
    for number in range(5):
        now += pacer.wait(now)
        assert list(pacer.due(now + 1e-9, 1)) == [number]


@pytest.mark.parametrize("rate", [0, -1, float("inf"), float("nan")])
def test_an_invalid_rate_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="rate"):
        Pacer(rate, 0.0)
