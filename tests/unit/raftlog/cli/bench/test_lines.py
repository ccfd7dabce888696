"""Programs that parse the output of Kafka's tools can parse the lines of `raftlog bench`."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from raftlog.cli.bench.histogram import Histogram
from raftlog.cli.bench.lines import CONSUMER_HEADER, consumer_total, latency_total, producer_total, producer_window


def a_histogram() -> Histogram:
    histogram = Histogram()
    histogram.record(2_000, 98)
    histogram.record(10_400, 1)
    histogram.record(30_000, 1)
    return histogram


def test_a_producers_window() -> None:
    line = producer_window(100, 100 * 1024 * 1024, 5.0, a_histogram())
    assert line == "100 records sent, 20.0 records/sec (20.00 MB/sec), 2.4 ms avg latency, 30.0 ms max latency."


def test_a_producers_total() -> None:
    line = producer_total(1_000_000, 100_000_000, 2.0, a_histogram().summary())
    assert line == (
        "1000000 records sent, 500000.0 records/sec (47.68 MB/sec), 2.36 ms avg latency, 30.00 ms max latency, "
        "2 ms 50th, 2 ms 95th, 10 ms 99th, 30 ms 99.9th."
    )
    # The pattern of scripts that parse `kafka-producer-perf-test`.
    assert re.search(r"([\d.]+) records/sec \(([\d.]+) MB/sec\), ([\d.]+) ms avg latency", line)


def test_a_consumers_row_has_the_headers_columns() -> None:
    began = datetime(2026, 1, 31, 12, 0, 0, 7_900)
    line = consumer_total(began, began + timedelta(seconds=2.5), 1_000_000, 100 * 1024 * 1024, 2.0, 0.5)
    row = dict(zip(CONSUMER_HEADER.split(", "), line.split(", "), strict=True))
    assert row == {
        "start.time": "2026-01-31 12:00:00:007",
        "end.time": "2026-01-31 12:00:02:507",
        "data.consumed.in.MB": "100.0000",
        "MB.sec": "40.0000",
        "data.consumed.in.nMsg": "1000000",
        "nMsg.sec": "400000.0000",
        "rebalance.time.ms": "500",
        "fetch.time.ms": "2000",
        "fetch.MB.sec": "50.0000",
        "fetch.nMsg.sec": "500000.0000",
    }


def test_latencies() -> None:
    assert latency_total(a_histogram().summary()) == [
        "Avg latency: 2.3640 ms",
        "Percentiles: 50th = 2.007, 99th = 10.431, 99.9th = 30.000",
    ]
