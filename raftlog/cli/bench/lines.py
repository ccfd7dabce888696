"""The output lines of Kafka's own performance tools, so that programs that parse those can parse these.

The formats are those of `kafka-producer-perf-test` (`ProducerPerformance`), `kafka-consumer-perf-test`
(`ConsumerPerformance`) and `kafka-e2e-latency` (`EndToEndLatency`) of Kafka 3.9. Their MB are 2**20 bytes, and their
latency percentiles are whole milliseconds; `-o json` has exact values.
"""

from __future__ import annotations

from datetime import datetime

from .histogram import Histogram, Summary

MIB = 1024 * 1024
CONSUMER_HEADER = (
    "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, "
    "rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
)


def producer_window(records: int, size: int, seconds: float, latency: Histogram) -> str:
    """Return the line about the records acknowledged in the last seconds."""
    return (
        f"{records} records sent, {records / seconds:.1f} records/sec ({size / MIB / seconds:.2f} MB/sec), "
        f"{latency.average / 1000:.1f} ms avg latency, {latency.maximum / 1000:.1f} ms max latency."
    )


def producer_total(records: int, size: int, seconds: float, latency: Summary) -> str:
    """Return the last line."""
    return (
        f"{records} records sent, {records / seconds:.1f} records/sec ({size / MIB / seconds:.2f} MB/sec), "
        f"{latency.avg_ms:.2f} ms avg latency, {latency.max_ms:.2f} ms max latency, "
        f"{latency.p50_ms:.0f} ms 50th, {latency.p95_ms:.0f} ms 95th, {latency.p99_ms:.0f} ms 99th, "
        f"{latency.p999_ms:.0f} ms 99.9th."
    )


def consumer_total(began: datetime, ended: datetime, records: int, size: int, seconds: float, joining: float) -> str:
    """Return the row below `CONSUMER_HEADER`.

    `seconds` is the time of fetching. `joining` is that of connecting and finding the partitions, which Kafka's tool
    counts as rebalancing (and, unlike `seconds`, in its first two rates).
    """
    whole = seconds + joining
    return (
        f"{_moment(began)}, {_moment(ended)}, {size / MIB:.4f}, {size / MIB / whole:.4f}, {records}, "
        f"{records / whole:.4f}, {joining * 1000:.0f}, {seconds * 1000:.0f}, {size / MIB / seconds:.4f}, "
        f"{records / seconds:.4f}"
    )


def latency_total(latency: Summary) -> list[str]:
    """Return both lines; the second one has decimals, unlike Kafka's."""
    return [
        f"Avg latency: {latency.avg_ms:.4f} ms",
        f"Percentiles: 50th = {latency.p50_ms:.3f}, 99th = {latency.p99_ms:.3f}, 99.9th = {latency.p999_ms:.3f}",
    ]


def _moment(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}:{moment.microsecond // 1000:03}"
