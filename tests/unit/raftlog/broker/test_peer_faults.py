"""Faults of peers are logged at a bounded rate, and contradictions appear in the node's health (S11)."""

from __future__ import annotations

import pytest

from raftlog.broker.peer_faults import LINES_MAX, PEERS_MAX, REMEMBERED_SECONDS, TOLD_MAX, TOLD_SECONDS, PeerFaults
from raftlog.errors import Contradiction, RemoteProtocolError
from tests.support.partitions.replication_cluster import QuietLogger


class HandClock:
    """Time passes when a test says so."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def logger() -> QuietLogger:
    return QuietLogger()


def test_the_faults_of_a_peer_are_logged_at_a_bounded_rate(clock: HandClock, logger: QuietLogger) -> None:
    faults = PeerFaults(clock, logger)
    for _ in range(1_000):
        faults.hear("quorum_link_dropped", 2, RemoteProtocolError("garbage"))
    faults.hear("quorum_link_dropped", 3, RemoteProtocolError("garbage"))
    assert [fields["peer"] for _, fields in logger.lines] == [2] * TOLD_MAX + [3]
    clock.now += TOLD_SECONDS
    faults.hear("quorum_link_dropped", 2, RemoteProtocolError("garbage"))
    assert logger.lines[-1][1]["untold"] == 1_000 - TOLD_MAX
    assert faults.problems() == [], "a stranger's bytes are no problem of this node"


def test_a_contradiction_is_a_problem_of_the_health_for_a_while(clock: HandClock, logger: QuietLogger) -> None:
    faults = PeerFaults(clock, logger)
    for index in (7, 8):
        faults.hear("quorum_link_dropped", 2, Contradiction(f"it has another entry {index}"))
    (problem,) = faults.problems()
    assert problem.startswith("node 2 contradicted this node 2 times, the last time: it has another entry 8.")
    clock.now += REMEMBERED_SECONDS
    assert faults.problems() == []


def test_the_memory_of_faults_is_bounded(clock: HandClock, logger: QuietLogger) -> None:
    faults = PeerFaults(clock, logger)
    for peer in range(2 * PEERS_MAX):
        faults.hear("quorum_link_dropped", peer, Contradiction("x" * 10_000))
    problems = faults.problems()
    assert len(problems) == LINES_MAX + 1 and problems[-1] == f"... and {PEERS_MAX - LINES_MAX} more peers"
    assert max(map(len, problems)) < 1_000
