"""A node whose disk fails or is full promises nothing more and stops; the others continue, and it returns (S7, S9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jepsen_like.simulator.world.disk import SimDisk
from metadata.commands.results import Done
from metadata.quorum.limits import QuorumLimits
from metadata.quorum.port import Fate, Outcome
from metadata.raft.messages import AppendReply, RequestVote
from metadata.snapshot.encoder import encode_snapshot
from raftlog.errors import DiskFailed, DiskFull, RaftlogError
from raftlog.model import BrokerId
from tests.support.quorum.bench import Bench
from tests.support.quorum.cluster import QuorumCluster, others, ready_cluster, topic


def fill(disk: SimDisk) -> None:
    disk.full = True


def break_fsync(disk: SimDisk) -> None:
    disk.fail_fsync = 1


Fault = Callable[[SimDisk], None]


class Limits:
    """The usual limits, but for the number of entries after which a snapshot is taken: that may change."""

    def __init__(self) -> None:
        self._usual = QuorumLimits()
        self.snapshot_entries = 10_000

    def __getattr__(self, name: str) -> Any:
        return getattr(self._usual, name)


FAULTS = pytest.mark.parametrize(("fault", "raised"), [(fill, DiskFull), (break_fsync, DiskFailed)])


def stop(cluster: QuorumCluster, number: int, raised: type[RaftlogError]) -> None:
    """The node stops itself at its next write, and stays stopped; then its process ends."""
    node = cluster.node(number)
    with pytest.raises(raised) as first:
        cluster.run(1.0)
    for call in (node.tick, lambda: node.on_message(BrokerId(number % 3 + 1), b"")):
        with pytest.raises(raised) as again:
            call()
        assert again.value is first.value
    node.close()
    cluster.members[number].kill()
    cluster.members[number].disk.full = False


@FAULTS
def test_a_leader_that_cannot_write_stops_and_its_acknowledged_entries_stay(
    fault: Fault, raised: type[RaftlogError]
) -> None:
    """Its last proposals end as unknown: appended entries may or may not have been sent before."""
    cluster, leader = ready_cluster(3)
    before = cluster.propose(leader, topic(cluster, "before", leader))
    assert before.fate is Fate.APPLIED
    outcomes: list[Outcome] = []
    during = topic(cluster, "during", leader)
    fault(cluster.members[leader].disk)
    cluster.node(leader).propose(during, outcomes.append)
    stop(cluster, leader, raised)
    assert [outcome.fate for outcome in outcomes] == [Fate.UNKNOWN]
    cluster.run_until(lambda: cluster.leader() not in (None, leader))
    new = cluster.await_leader()
    assert cluster.propose(new, during).result == Done(), "whether it was appended or not"
    cluster.members[leader].start()
    cluster.run_until(lambda: cluster.members[leader].view.topic("during") is not None)
    assert cluster.members[leader].view.topic("before") is not None
    cluster.run(0.5)
    assert len({encode_snapshot(cluster.node(number).image) for number in cluster.nodes}) == 1


@FAULTS
def test_a_follower_that_cannot_write_acknowledges_nothing(fault: Fault, raised: type[RaftlogError]) -> None:
    """S7: of the two remaining voters one has the entry on disk only; it is not committed before the third returns."""
    cluster, leader = ready_cluster(4)
    failing, away = others(cluster, leader)
    cluster.members[away].kill()
    cluster.run(0.05)
    index = cluster.node(leader).status().commit_index
    outcomes: list[Outcome] = []
    fault(cluster.members[failing].disk)
    cluster.node(leader).propose(topic(cluster, "t", leader), outcomes.append, timeout=9.0)
    stop(cluster, failing, raised)
    assert cluster.node(leader).status().commit_index == index and outcomes == []
    cluster.members[failing].start()
    cluster.run_until(lambda: bool(outcomes))
    assert outcomes[0].fate is Fate.APPLIED
    cluster.run_until(lambda: cluster.members[failing].view.topic("t") is not None)


@FAULTS
def test_no_vote_leaves_a_disk_that_cannot_keep_it(fault: Fault, raised: type[RaftlogError]) -> None:
    """S9: after the restart the voter may vote for another candidate, since no peer got its vote."""
    bench = Bench()
    bench.tick(1.0)
    fault(bench.disk)
    with pytest.raises(raised):
        bench.hear(2, RequestVote(7, 1, 0))
    bench.engine.close(sync=False)
    bench.disk.full = False
    bench.start()
    bench.tick(1.0)
    vote = bench.vote(3, RequestVote(7, 1, 0))
    assert vote is not None and vote.granted


@FAULTS
@pytest.mark.parametrize("step", range(1, 4))
def test_a_disk_that_fails_while_the_log_is_compacted_loses_nothing(
    fault: Fault, raised: type[RaftlogError], step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snapshot and new journal are complete or do not exist; the old ones are there until then."""
    monkeypatch.setattr("metadata.raft.pysyncobj_engine.TRAILING_ENTRIES", 2)
    limits = Limits()
    cluster, leader = ready_cluster(5, limits=limits)
    for number in range(12):
        assert cluster.propose(leader, topic(cluster, f"t{number}", leader)).fate is Fate.APPLIED
    disk = cluster.members[leader].disk
    limits.snapshot_entries = 1
    if fault is fill:
        fill(disk)
    else:
        real, left = disk._fsync_fault, [step]

        def fail_later() -> None:
            left[0] -= 1
            disk.fail_fsync = int(left[0] == 0)
            real()

        monkeypatch.setattr(disk, "_fsync_fault", fail_later)
    stop(cluster, leader, raised)
    monkeypatch.undo()
    cluster.members[leader].start()
    cluster.run_until(lambda: cluster.members[leader].view.topic("t11") is not None)


def test_an_append_is_answered_only_after_it_is_durable() -> None:
    bench = Bench()
    (answer,) = bench.replies(2, bench.append(2, 5, 5))
    assert answer == AppendReply(5, True, 3, 0)
    bench.disk.fail_fsync = 1
    with pytest.raises(DiskFailed):
        bench.hear(2, bench.append(4, 5))
    bench.engine.close(sync=False)
    bench.start()
    assert bench.engine.status().last_index == 3, "what was not synced is gone, and nobody counts on it"
