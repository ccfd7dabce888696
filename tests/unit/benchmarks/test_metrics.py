"""The benchmark of metrics: a node that does not count."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"

PROGRAM = """
from uncounted_node import stop_counting
from partitions.driver.traffic import TopicTraffic
from raftlog.broker.requests.request_counts import RequestCounts
from raftlog.system.shared_histogram import SharedHistogram
from raftlog.wire import FetchRequest

stop_counting()
requests, traffic, seconds = RequestCounts(), TopicTraffic(), SharedHistogram()
timed = requests.begin(FetchRequest(1, 0, 1, 1, []), 100)
timed.size = 5
other = requests.begin(FetchRequest(2, 0, 1, 1, []), 100)
assert other.size == 0, "each request has a state of its own"
requests.end(timed, None, 100)
traffic.appended(1, 100)
seconds.observe(1.0)
assert sum(one.successes + one.received_bytes for one in requests.by_kind.values()) == 0
assert traffic.appended_bytes == seconds.state().count == 0
"""


def test_a_node_without_counting_counts_nothing() -> None:
    """It replaces what counts by name, so a name that has changed must be noticed."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=BENCHMARKS, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
