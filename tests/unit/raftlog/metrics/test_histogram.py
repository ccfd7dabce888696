"""Histograms of plain numbers."""

from __future__ import annotations

import threading

import pytest

from raftlog.metrics.histogram import SECONDS, SIZES, Histogram
from raftlog.system.shared_histogram import SharedHistogram


@pytest.mark.parametrize("bounds", [SECONDS, SIZES])
def test_bounds_rise(bounds: tuple[float, ...]) -> None:
    assert list(bounds) == sorted(set(bounds))


def test_a_bound_belongs_to_its_bucket_and_the_last_bucket_has_none() -> None:
    histogram = Histogram((1, 2))
    for value in (0.5, 1, 1.5, 2, 2.5, 100):
        histogram.observe(value)
    state = histogram.state()
    assert state.counts == (2, 2, 2)
    assert state.count == 6
    assert state.total == 107.5


def test_a_state_does_not_change() -> None:
    histogram = Histogram((1,))
    before = histogram.state()
    histogram.observe(1)
    assert before.counts == (0, 0)


def test_no_observation_of_several_threads_is_lost() -> None:
    histogram = SharedHistogram((1,))
    threads = [threading.Thread(target=lambda: [histogram.observe(1) for _ in range(2_000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert histogram.state().count == 8_000
