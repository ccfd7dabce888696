"""A quorum node that is short of descriptors or memory promises nothing meanwhile, and continues afterwards (S7)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from crc32c import crc32c

from jepsen_like.simulator.world.disk import SimDisk, SimFile
from metadata.commands.results import Done
from metadata.journal.journal import Journal, prepare_journal
from metadata.journal.witness import PATH as WITNESS
from metadata.quorum.node import SHORTAGE_SECONDS
from metadata.quorum.port import Fate, Outcome
from metadata.raft import messages
from metadata.raft.engine import InstalledSnapshot
from metadata.raft.messages import AppendReply, SnapshotChunk
from metadata.snapshot.encoder import encode_snapshot
from raftlog.errors import ResourceShortage
from raftlog.ports import Buffer
from tests.support.quorum.bench import Bench
from tests.support.quorum.cluster import QuorumCluster, others, ready_cluster, topic
from tests.support.quorum.world import identity_of


class Shortage:
    """Writes of these files are refused while it is on; optionally also the next few calls of the disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refusing: set[Any] = set()
        """Inodes of files."""
        self.refusing_syncs: set[Any] = set()
        """Inodes of files whose fsyncs are refused."""
        self.torn = 0
        """The number of bytes that a refused write nevertheless writes."""
        self.refused = 0
        self._real = SimFile.pwritev
        shortage = self

        def pwritev(file: SimFile, buffers: Sequence[Buffer], position: int) -> int:
            if file.inode not in shortage.refusing:
                return shortage._real(file, buffers, position)
            shortage.refused += 1
            if shortage.torn:
                shortage._real(file, [b"".join(buffers)[: shortage.torn]], position)
            raise ResourceShortage("simulated: cannot allocate memory")

        real_fsync = SimFile.fsync

        def fsync(file: SimFile) -> None:
            if file.inode not in shortage.refusing_syncs:
                return real_fsync(file)
            shortage.refused += 1
            raise ResourceShortage("simulated: cannot allocate memory")

        monkeypatch.setattr(SimFile, "pwritev", pwritev)
        monkeypatch.setattr(SimFile, "fsync", fsync)


@pytest.fixture
def shortage(monkeypatch: pytest.MonkeyPatch) -> Shortage:
    return Shortage(monkeypatch)


# --- The journal ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["journal", "torn", "witness"])
def test_records_that_a_shortage_kept_from_the_journal_are_written_with_the_next_sync(
    shortage: Shortage, what: str
) -> None:
    disk, identity = SimDisk(), identity_of(1, 3)
    prepare_journal(disk, identity)
    journal: Any = Journal(disk, identity)
    journal.set_hard_state(1, 2)
    journal.append(b"first", 2, 1)
    shortage.refusing.add(disk.inode_of(WITNESS if what == "witness" else journal.path))
    shortage.torn = 7 if what == "torn" else 0
    for _ in range(2):
        with pytest.raises(ResourceShortage):
            journal.sync()
        assert journal.dirty and journal.usable
    journal.append(b"second", 3, 1)
    shortage.refusing.clear()
    journal.sync()
    disk.power_loss(random.Random(1))
    again = Journal(disk, identity)
    assert (again.term, again.vote) == (1, 2)
    assert [command for command, _, _ in again.entries] == [b"", b"first", b"second"]


def test_a_journal_closed_in_a_shortage_has_everything_promised(shortage: Shortage) -> None:
    disk, identity = SimDisk(), identity_of(1, 3)
    prepare_journal(disk, identity)
    journal: Any = Journal(disk, identity)
    journal.set_hard_state(1, 2)
    journal.sync()
    journal.append(b"never promised", 2, 1)
    shortage.refusing.add(disk.inode_of(journal.path))
    journal.close()
    again = Journal(disk, identity)
    assert (again.term, again.vote, again.last_index) == (1, 2, 1)


def test_a_rewrite_that_a_shortage_ended_does_not_block_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, identity = SimDisk(), identity_of(1, 3)
    prepare_journal(disk, identity)
    journal = Journal(disk, identity)
    journal.set_hard_state(1, 2)
    journal.append(b"first", 2, 1)
    journal.sync()

    def refuse(source: str, target: str) -> None:
        raise ResourceShortage("simulated: cannot allocate memory")

    with monkeypatch.context() as patch, pytest.raises(ResourceShortage):
        patch.setattr(disk, "rename", refuse)
        journal.reset(20, 1)
    assert journal.usable and journal.last_index == 2
    journal.reset(20, 1)
    journal.append(b"behind the snapshot", 21, 1)
    journal.sync()
    disk.power_loss(random.Random(1))
    again = Journal(disk, identity)
    assert (again.term, again.vote) == (1, 2)
    assert [(command, index) for command, index, _ in again.entries] == [(b"", 20), (b"behind the snapshot", 21)]


# --- A node -----------------------------------------------------------------------------------------------------------


def journal_file(cluster: QuorumCluster, number: int) -> Any:
    return cluster.members[number].disk.inode_of(cluster.node(number).engine.journal.path)


def test_a_follower_acknowledges_entries_once_it_could_write_them(shortage: Shortage) -> None:
    cluster, leader = ready_cluster(3)
    short, away = others(cluster, leader)
    cluster.members[away].kill()
    cluster.run(0.05)
    before = cluster.node(leader).status().commit_index
    outcomes: list[Outcome] = []
    shortage.refusing.add(journal_file(cluster, short))
    cluster.node(leader).propose(topic(cluster, "t", leader), outcomes.append, timeout=9.0)
    cluster.run(0.5)
    assert shortage.refused and not outcomes
    assert cluster.node(leader).status().commit_index == before
    shortage.refusing.clear()
    cluster.run_until(lambda: bool(outcomes))
    assert outcomes[0].fate is Fate.APPLIED
    cluster.run_until(lambda: cluster.members[short].view.topic("t") is not None)


def test_a_leader_in_a_shortage_steps_down_and_returns(shortage: Shortage) -> None:
    """S7: to the others it seems cut off; nothing that it staged meanwhile has left it."""
    cluster, leader = ready_cluster(4)
    shortage.refusing.add(journal_file(cluster, leader))
    cluster.node(leader).propose(topic(cluster, "lost", leader), lambda outcome: None)
    cluster.run_until(lambda: any(cluster.node(number).status().leader == number for number in others(cluster, leader)))
    new = next(number for number in others(cluster, leader) if cluster.node(number).status().leader == number)
    assert cluster.propose(new, topic(cluster, "kept", new)).result == Done()
    shortage.refusing.clear()
    cluster.run_until(lambda: cluster.members[leader].view.topic("kept") is not None)
    cluster.run(0.5)
    assert len({encode_snapshot(cluster.node(number).image) for number in cluster.nodes}) == 1


def test_a_shortage_that_lasts_stops_the_node(shortage: Shortage) -> None:
    cluster, leader = ready_cluster(5)
    short, _ = others(cluster, leader)
    shortage.refusing.add(journal_file(cluster, short))
    cluster.node(leader).propose(topic(cluster, "t", leader), lambda outcome: None)
    cluster.run(SHORTAGE_SECONDS - 5.0)
    with pytest.raises(ResourceShortage):
        cluster.run(10.0)
    with pytest.raises(ResourceShortage):
        cluster.node(short).tick()


def test_the_witness_is_written_after_a_shortage(shortage: Shortage) -> None:
    bench = Bench()
    assert bench.replies(2, bench.append(2, 5, 5)) == [AppendReply(5, True, 3, 0)]
    shortage.refusing_syncs.add(bench.disk.inode_of(WITNESS))
    for _ in range(5):
        bench.tick(0.2)
    assert shortage.refused and bench.engine.journal.unwitnessed
    shortage.refusing_syncs.clear()
    bench.tick(0.2)
    assert not bench.engine.journal.unwitnessed


# --- A leader's snapshot ----------------------------------------------------------------------------------------------


HALF_DONE = 4
"""The call of the disk at which the new journal has its name, and is not durable under it."""


@pytest.mark.parametrize("calls", [call for call in range(1, 8) if call != HALF_DONE])
def test_a_leaders_snapshot_that_met_a_shortage_is_installed_when_it_is_sent_again(calls: int) -> None:
    bench, state = Bench(), bytes(1000)
    bench.hear(2, bench.append(2, 5, 5, 5, commit=2))
    whole = SnapshotChunk(6, 20, 6, len(state), crc32c(state), 0, crc32c(state), state)
    bench.disk.descriptors_left = calls - 1
    said = bench.replies(3, whole)
    (answer,) = said
    assert isinstance(answer, messages.SnapshotReply)
    bench.disk.descriptors_left = None
    if not answer.installed:
        assert answer.next_offset == 0
        assert bench.engine.status().last_index == 4 and bench.applied == []
        (answer,) = bench.replies(3, whole)
    assert answer == messages.SnapshotReply(6, 20, len(state), True)
    assert bench.applied == [InstalledSnapshot(20, 6, state)]
    bench.disk.power_loss(random.Random(calls))
    bench.start()
    bench.tick()
    assert bench.applied == [InstalledSnapshot(20, 6, state)]


def test_after_a_shortage_in_the_middle_of_a_new_journal_the_next_start_has_the_snapshot() -> None:
    bench, state = Bench(), bytes(1000)
    bench.hear(2, bench.append(2, 5, 5, 5, commit=2))
    whole = SnapshotChunk(6, 20, 6, len(state), crc32c(state), 0, crc32c(state), state)
    bench.disk.descriptors_left = HALF_DONE - 1
    with pytest.raises(ResourceShortage):
        bench.hear(3, whole)
    bench.disk.descriptors_left = None
    bench.disk.power_loss(random.Random(1))
    bench.start()
    bench.tick()
    assert bench.applied == [InstalledSnapshot(20, 6, state)]
