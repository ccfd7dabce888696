"""Votes: durable, one per voter, only for a complete log; and a leader that is alive is not deposed."""

from __future__ import annotations

import random

import pytest

from metadata.raft import messages
from metadata.raft.messages import Append, AppendReply, RequestVote, SnapshotChunk, Vote
from raftlog.config import TimingConfig
from raftlog.errors import DiskFailed
from raftlog.model import BrokerId
from tests.support.quorum.bench import Bench
from tests.support.quorum.world import World

ELECTION_MAX = TimingConfig().election_timeout_max_ms / 1000


# --- Votes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("power", [False, True])
def test_no_second_vote_after_a_restart(power: bool) -> None:
    bench = Bench()
    bench.tick(1.0)
    assert bench.vote(2, RequestVote(7, 1, 0)) == Vote(7, True)
    if power:
        bench.disk.power_loss(random.Random(0))
    bench.start()
    bench.tick(1.0)
    assert bench.vote(3, RequestVote(7, 1, 0)) == Vote(7, False)
    assert bench.vote(2, RequestVote(7, 1, 0)) == Vote(7, True)
    assert bench.engine.term == 7


def test_no_promise_leaves_when_the_disk_fails() -> None:
    bench = Bench()
    bench.tick(1.0)
    bench.disk.fail_fsync = 1
    with pytest.raises(DiskFailed):
        bench.hear(2, RequestVote(7, 1, 0))
    with pytest.raises(DiskFailed):
        bench.engine.ready()


def test_one_voters_vote_counts_once() -> None:
    bench = Bench(voters=5, pinned=True)
    bench.campaign()
    term = bench.engine.term
    for _ in range(4):
        bench.hear(2, Vote(term, True))
    assert bench.engine.leader == -1
    bench.hear(3, Vote(term - 1, True))
    bench.hear(4, Vote(term, False))
    assert bench.engine.leader == -1
    bench.hear(3, Vote(term, True))
    assert bench.engine.leader == 1


def test_a_candidate_with_a_shorter_log_gets_no_vote() -> None:
    bench = Bench()
    bench.hear(2, bench.append(2, 5, 5))
    bench.tick(1.0)
    assert bench.vote(3, RequestVote(9, 2, 5)) == Vote(9, False)
    assert bench.vote(3, RequestVote(9, 9, 4)) == Vote(9, False)
    assert bench.vote(3, RequestVote(9, 3, 5)) == Vote(9, True)


# --- A healthy leader is not deposed ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_a_partly_cut_off_node_deposes_no_leader(seed: int) -> None:
    world = World(seed)
    leader = world.await_leader()
    term = world.nodes[leader].live().term
    partial = next(number for number in world.nodes if number != leader)
    world.network.cuts = {(leader, partial)}
    world.run(5.0)
    assert world.leader() == leader and world.nodes[leader].live().term == term
    world.network.cuts = {(leader, partial), (partial, leader)}
    world.run(5.0)
    assert world.leader() == leader and world.nodes[leader].live().term == term
    world.heal()
    world.run(2.0)
    assert world.leader() == leader and world.nodes[leader].live().term == term


@pytest.mark.parametrize("seed", range(5))
def test_restarting_nodes_depose_no_leader(seed: int) -> None:
    world = World(seed)
    leader = world.await_leader()
    term = world.nodes[leader].live().term
    for _ in range(4):
        for number in world.nodes:
            if number != leader:
                world.crash(number, power=True)
                world.run(0.2)
                world.start(number)
                world.run(0.5)
    assert world.leader() == leader and world.nodes[leader].live().term == term


def test_a_late_request_for_votes_does_not_depose_a_live_leader() -> None:
    bench = Bench()
    bench.hear(2, bench.append(2, 5))
    assert bench.hear(3, RequestVote(9, 10, 8)) == []
    assert bench.engine.term == 5
    bench.tick(ELECTION_MAX)
    assert bench.vote(3, RequestVote(9, 10, 8)) == Vote(9, True)


def test_a_stale_leader_learns_the_later_term() -> None:
    bench = Bench()
    bench.hear(2, bench.append(2, 5))
    assert bench.replies(3, Append(4, 1, 0, 1, ())) == [AppendReply(5, False, 0, 0)]
    assert bench.replies(3, SnapshotChunk(4, 9, 4, 1, 0, 0, 0, b"")) == [messages.SnapshotReply(5, 9, 0, False)]
    assert bench.engine.leader == 2


def test_voters_that_lose_the_link_to_a_dead_leader_need_not_wait_for_their_timers() -> None:
    took: list[float] = []
    for seed in range(20):
        world = World(seed)
        leader = world.await_leader()
        world.run(0.3)
        world.crash(leader)
        began = world.now
        world.await_leader()
        took.append(world.now - began)
    assert sorted(took)[10] < 0.2, "the shortest election timeout is 0.3 s"


def test_one_voter_that_loses_its_link_deposes_no_leader() -> None:
    world = World(3)
    leader = world.await_leader()
    term = world.nodes[leader].live().term
    for _ in range(20):
        for number in world.nodes:
            if number != leader:
                world.nodes[number].live().peer_disconnected(BrokerId(leader))
                world.run(0.2)
                world.nodes[number].live().peer_connected(BrokerId(leader))
    assert world.leader() == leader and world.nodes[leader].live().term == term
