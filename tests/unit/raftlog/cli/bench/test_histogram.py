"""The latency histogram of `raftlog bench`: within its error of the true values, bounded, and the same
through a pipe.
"""

from __future__ import annotations

import itertools
import math
import random
import xml.etree.ElementTree as ElementTree

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.cli.bench.chart import bars, html_page, svg_chart, text_chart
from raftlog.cli.bench.histogram import BUCKETS, Histogram, bucket_of, bucket_range

VALUES = st.integers(0, 2**44)


def of(values: list[int]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    return histogram


def exact(values: list[int], percent: float) -> int:
    return sorted(values)[max(math.ceil(len(values) * percent / 100), 1) - 1]


class TestBuckets:
    def test_buckets_follow_each_other_without_gap_or_overlap(self) -> None:
        end = -1
        for bucket in range(BUCKETS):
            lowest, highest = bucket_range(bucket)
            assert lowest == end + 1 and highest >= lowest
            assert bucket_of(lowest) == bucket_of(highest) == bucket
            end = highest
        assert end == 2**40 - 1

    @given(VALUES)
    def test_no_bucket_is_wider_than_a_part_in_128(self, value: int) -> None:
        bucket = bucket_of(value)
        assert 0 <= bucket < BUCKETS
        if value < 2**40:
            lowest, highest = bucket_range(bucket)
            assert lowest <= value <= highest
            assert highest - lowest <= value / 128


class TestHistogram:
    @given(st.lists(VALUES, min_size=1, max_size=200), st.sampled_from([0, 10, 50, 99, 99.9, 100]))
    def test_percentiles_are_the_true_values_or_slightly_above(self, values: list[int], percent: float) -> None:
        values = [value % 2**40 for value in values]
        found, truth = of(values).percentile(percent), exact(values, percent)
        assert truth <= found <= truth * (1 + 1 / 128)

    def test_average_and_maximum_are_exact(self) -> None:
        values = [3, 1_000_003, 77_777, 2**43]
        histogram = of(values)
        assert histogram.average == sum(values) / 4
        assert histogram.maximum == histogram.percentile(100) == 2**43

    def test_it_stays_small_whatever_values_arrive(self) -> None:
        source = random.Random(7)
        histogram = of([source.getrandbits(source.randrange(1, 60)) for _ in range(50_000)])
        assert len(list(histogram.buckets())) <= BUCKETS < 4500
        assert sum(count for _, _, count in histogram.buckets()) == histogram.count == 50_000

    @given(st.lists(VALUES, max_size=50), st.lists(VALUES, max_size=50))
    def test_parts_of_several_processes_are_merged(self, mine: list[int], yours: list[int]) -> None:
        merged = Histogram()
        for values in (mine, yours):
            merged.merge(msgspec.json.decode(msgspec.json.encode(of(values)), type=Histogram))
        assert merged == of(mine + yours)
        assert merged.count == len(mine) + len(yours)

    def test_one_value_counted_many_times(self) -> None:
        histogram = Histogram()
        histogram.record(10, 999)
        histogram.record(5000, 1)
        histogram.record(1, 0)
        assert (histogram.percentile(99.9), histogram.percentile(100)) == (10, 5000)
        assert histogram.summary().count == 1000

    def test_an_empty_histogram(self) -> None:
        told = Histogram().summary()
        assert (told.count, told.p50_ms, told.max_ms, told.avg_ms) == (0, 0, 0, 0)

    def test_invalid_values_are_refused(self) -> None:
        with pytest.raises(ValueError, match="percentage"):
            Histogram().percentile(100.1)
        with pytest.raises(ValueError, match="times"):
            Histogram().record(1, -1)
        for counts in ({BUCKETS: 1}, {-1: 1}, {0: -1}):
            with pytest.raises(msgspec.ValidationError, match=r"Expected `int`"):
                msgspec.json.decode(msgspec.json.encode(Histogram(0, 0, counts)), type=Histogram)


class TestCharts:
    def test_bars_hold_every_record_and_rise(self) -> None:
        histogram = of([900, 1000, 1100, 9_000, 250_000])
        shown = bars(histogram)
        assert sum(count for _, _, count in shown) == 5
        assert all(a[1] == pytest.approx(b[0]) for a, b in itertools.pairwise(shown))
        assert shown[0][0] <= 0.9 <= shown[0][1] and shown[-1][0] <= 250 <= shown[-1][1]

    def test_one_slow_record_of_a_million_is_visible(self) -> None:
        histogram = Histogram()
        histogram.record(1000, 10**6)
        histogram.record(90_000)
        last = text_chart(histogram).splitlines()[-1]
        assert "▏" in last and last.split()[-3:] == ["1", "0.000", "%"]

    def test_the_chart_is_well_formed_and_shows_percentiles(self) -> None:
        histograms = {"ack <all>": of([1000] * 99 + [8000]), "nothing": Histogram()}
        tree = ElementTree.fromstring(svg_chart("A & B", histograms))
        texts = [element.text for element in tree.iter() if element.tag.endswith("text")]
        assert "A & B" in texts
        assert "ack <all>: 100 records, p50 1.003, p99 1.003, p99.9 8.000, max 8.000 ms" in texts
        page = html_page("A & B", histograms)
        assert "<td>8.000</td>" in page and "ack &lt;all&gt;" in page
