"""Snapshots: taken, kept, sent in pieces, installed; with crashes and damage in between."""

from __future__ import annotations

import random

import msgspec
import pytest
from crc32c import crc32c

from jepsen_like.simulator.world.disk import SimulatedCrash
from metadata.journal.journal import Journal
from metadata.journal.snapshot_file import PATH
from metadata.raft import messages, pysyncobj_engine
from metadata.raft.engine import InstalledSnapshot
from metadata.raft.messages import AppendReply, SnapshotChunk
from raftlog.errors import DiskDamaged, RemoteProtocolError
from raftlog.model import BrokerId
from tests.support.quorum.bench import Bench
from tests.support.quorum.world import World

# --- Snapshots -------------------------------------------------------------------------------------------------------


def chunk(bench: Bench, index: int, term: int, state: bytes, start: int, end: int) -> SnapshotChunk:
    data = state[start:end]
    return SnapshotChunk(6, index, term, len(state), crc32c(state), start, crc32c(data), data)


def test_only_a_complete_snapshot_commits() -> None:
    bench = Bench()
    bench.hear(2, bench.append(2, 5, 5, 5, commit=2))
    state = bytes(range(256)) * 4
    (answer,) = bench.replies(3, chunk(bench, 20, 6, state, 0, 500))
    assert answer == messages.SnapshotReply(6, 20, 500, False)
    assert bench.engine.status().commit_index == 2 and bench.engine.status().last_index == 4
    (answer,) = bench.replies(3, chunk(bench, 20, 6, state, 600, 700))
    assert answer == messages.SnapshotReply(6, 20, 500, False), "a gap is not filled"
    (answer,) = bench.replies(3, chunk(bench, 20, 6, state, 500, 1024))
    assert answer == messages.SnapshotReply(6, 20, 1024, True)
    assert bench.applied == [InstalledSnapshot(20, 6, state)]
    assert bench.engine.journal.entries == [(b"", 20, 6)]
    bench.disk.power_loss(random.Random(1))
    bench.start()
    bench.tick()
    assert bench.applied == [InstalledSnapshot(20, 6, state)]
    assert bench.engine.status().commit_index == 20


def test_half_a_snapshot_is_not_kept_beyond_its_leaders_term() -> None:
    bench = Bench()
    state = bytes(1000)
    bench.hear(3, chunk(bench, 20, 6, state, 0, 500))
    assert bench.engine.incoming_bytes == 500
    bench.hear(2, bench.append(2, 7, term=7))
    assert bench.engine.incoming_bytes == 0


def test_a_log_that_has_the_snapshots_last_entry_keeps_what_follows() -> None:
    bench = Bench()
    bench.hear(2, bench.append(2, 5, 5, 5, 5, term=6, commit=2))
    bench.hear(2, chunk(bench, 4, 5, b"state", 0, 5))
    assert bench.engine.status().last_index == 5
    assert bench.engine.status().commit_index == 4


def test_a_damaged_chunk_is_refused_and_a_damaged_snapshot_is_sent_again() -> None:

    bench = Bench()
    good = chunk(bench, 20, 6, b"state" * 10, 0, 50)
    with pytest.raises(RemoteProtocolError, match="checksum"):
        bench.hear(3, msgspec.structs.replace(good, data=b"other" * 10))
    (answer,) = bench.replies(3, msgspec.structs.replace(good, crc=1))
    assert answer == messages.SnapshotReply(6, 20, 0, False)
    assert bench.engine.status().commit_index == 1
    (answer,) = bench.replies(3, good)
    assert answer == messages.SnapshotReply(6, 20, 50, True)


def test_a_damaged_snapshot_on_disk_is_fatal() -> None:
    bench = Bench()
    bench.hear(2, bench.append(2, 5, 5, 5, commit=4))
    assert not list(bench.engine.compact(b"state", 4)), "a small one in one go"
    bench.disk.flip(PATH, 30, 1)
    with pytest.raises(DiskDamaged, match="damaged"):
        bench.start()


def test_a_stop_at_any_disk_call_of_an_installation_loses_nothing() -> None:
    for operation in range(1, 40):
        bench = Bench()
        bench.hear(2, bench.append(2, 5, 5, 5, commit=3))
        bench.disk.crash_countdown = operation
        try:
            bench.hear(3, chunk(bench, 20, 6, b"state", 0, 5))
            done = True
        except SimulatedCrash:
            done = False
        bench.disk.crash_countdown = 0
        bench.disk.power_loss(random.Random(operation))
        bench.start()
        bench.tick()
        status = bench.engine.status()
        assert (status.last_index, status.commit_index) in ((20, 20), (4, 1))
        assert status.last_index == 20 or bench.engine.journal.term_at(3) == 5
        if done:
            break
    assert done and status.last_index == 20


@pytest.mark.parametrize("seed", range(8))
def test_kills_of_all_nodes_during_snapshots_lose_nothing(seed: int) -> None:
    world = World(seed)
    leader = world.await_leader()
    tokens = [world.propose(leader) for _ in range(300)]
    world.run(1.0)
    assert all(world.is_acked(token) for token in tokens)
    for number, node in world.nodes.items():
        node.disk.crash_countdown = world.rng.randrange(1, 15)
        world.compact(number)
        if node.up:
            world.crash(number, power=True)
    world.settle()
    world.check_acked_survive()


def test_a_voter_that_lags_far_behind_gets_a_snapshot_while_others_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pysyncobj_engine, "TRAILING_ENTRIES", 4)
    world = World(3)
    world.keep_sent = True
    leader = world.await_leader()
    behind = next(number for number in world.nodes if number != leader)
    world.crash(behind)
    for _ in range(100):
        world.propose(leader)
        world.run(0.01)
    world.compact(leader)
    world.start(behind)
    for _ in range(50):
        world.propose(leader)
        world.run(0.01)
    assert any(isinstance(message, SnapshotChunk) for _, _, receiver, message in world.sent if receiver == behind)
    world.settle()
    world.check_acked_survive()
    assert Journal(world.nodes[behind].disk, world.nodes[behind].identity).base_index > 90


@pytest.mark.parametrize("distrusted", [False, True])
def test_a_node_that_gets_a_snapshot_while_the_next_one_is_taken_continues_from_the_log(
    distrusted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S10: otherwise, under load, the log would always have dropped the entries that it needs next.

    That a voter lost its disk, and counts for no majority, makes no difference: it is a broker all the same.
    """
    monkeypatch.setattr(pysyncobj_engine, "TRAILING_ENTRIES", 2)
    bench = Bench()
    bench.lead()
    bench.engine.distrust(BrokerId(3), distrusted)
    term = bench.engine.term

    def write_and_compact() -> list[tuple[int, messages.Message]]:
        for number in range(30):
            bench.engine.propose(b"%d" % number, number + 1)
        bench.tick()
        last = bench.engine.status().last_index
        bench.hear(2, AppendReply(term, True, last, 0))
        said = bench.tick()
        assert list(bench.engine.compact(b"state", last)) == []
        return said

    write_and_compact()
    (begun,) = bench.replies(3, AppendReply(term, False, 1, 1))
    assert isinstance(begun, SnapshotChunk) and begun.index == bench.engine.status().last_index
    write_and_compact()
    assert bench.engine.journal.base_index == begun.index
    bench.hear(3, messages.SnapshotReply(term, begun.index, 5, True))
    following = [said for peer, said in bench.tick(0.11) if peer == 3]
    assert [type(message) for message in following] == [messages.Append], "no other snapshot"
    bench.tick(0.4)
    write_and_compact()
    # No entries are kept for a peer that has the snapshot, or that does not answer.
    assert bench.engine.journal.base_index > begun.index + 30
