"""Changes of voters at bad moments: right after an election, while a snapshot is installed, while the
leader resigns.
"""

from __future__ import annotations

import pytest

from metadata.commands.cluster import NoOp
from metadata.quorum.limits import QuorumLimits
from metadata.quorum.port import Fate
from metadata.quorum.protocol import Propose, VotersChanged, encode
from metadata.raft import pysyncobj_engine
from metadata.raft import snapshot_transfer as quorum_snapshot
from metadata.voters.changes import Action, VoterChange
from tests.support.quorum.cluster import QuorumCluster, incarnation_of, others, topic

# --- Right after an election -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
def test_a_new_leader_does_not_count_on_the_dead_one(seed: int) -> None:
    """The leader dies while a voter is to be removed. Without it, the two remaining ones need each other: its
    successor, which has not detected the failure yet, must not remove one of them, or no majority could agree to
    anything (S10)."""
    cluster, leader = grown(seed)
    first, second = (number for number in others(cluster, leader) if number != 4)
    cluster.members[leader].kill()
    answer = cluster.change(4, Action.REMOVE, first)
    assert (answer.verdict, answer.code) == ("refused", "quorum_majority_at_risk"), answer
    assert cluster.voters_at(second) == (1, 2, 3)
    assert cluster.propose(4, topic(cluster, "t", 4)).fate is Fate.APPLIED


def test_a_step_requested_right_after_an_election_is_done_and_not_refused() -> None:
    """Not all voters have answered the new leader when it is asked: it waits for them."""
    for seed in range(3):
        cluster, leader = grown(seed)
        first = next(number for number in others(cluster, leader) if number != 4)
        cluster.members[leader].kill()
        answer = cluster.change(4, Action.REMOVE, leader)
        assert answer.verdict == "applied" and leader not in answer.after, answer
        added = cluster.change(first, Action.ADD, 4)
        assert added.verdict == "applied" and 4 in added.after, added


# --- While a snapshot is installed -----------------------------------------------------------------------------------


@pytest.fixture
def small_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot takes many messages, and is needed soon."""
    monkeypatch.setattr(quorum_snapshot, "SNAPSHOT_CHUNK_BYTES", 128)
    monkeypatch.setattr(pysyncobj_engine, "TRAILING_ENTRIES", 4)


def grown(seed: int = 1, **options: object) -> tuple[QuorumCluster, int]:
    """Three voters and one observer, number 4, all registered."""
    cluster = QuorumCluster(seed, 4, voters=3, **options)  # type: ignore[arg-type]
    leader = cluster.await_leader()
    cluster.register_all()
    return cluster, leader


def behind(seed: int, number_of: int | None) -> tuple[QuorumCluster, int, int]:
    """A cluster, its leader, and a node that is in the middle of the leader's snapshot: node 4, or a voter."""
    cluster, leader = grown(seed, limits=QuorumLimits(snapshot_entries=20))
    late = number_of or next(number for number in others(cluster, leader) if number != 4)
    cluster.members[late].kill()
    for number in range(60):
        cluster.node(leader).propose(topic(cluster, f"t{number}", leader), lambda outcome: None)
        cluster.run(0.01)
    cluster.members[late].start()
    cluster.run_until(lambda: in_the_middle(cluster, leader, late))
    return cluster, leader, late


def in_the_middle(cluster: QuorumCluster, leader: int, peer: int) -> bool:
    return cluster.node(leader).engine.transfer_facts().get(peer, 0) > 0


def has_all(cluster: QuorumCluster, number: int) -> bool:
    return cluster.members[number].view.topic("t59") is not None


@pytest.mark.usefixtures("small_snapshots")
def test_a_voter_that_installs_a_snapshot_is_removed_and_continues_as_an_observer() -> None:
    cluster, leader, late = behind(21, None)
    assert cluster.change(leader, Action.REMOVE, late).verdict == "applied"
    assert not has_all(cluster, late), "in the middle of it"
    cluster.run_until(lambda: has_all(cluster, late))
    left = tuple(sorted({1, 2, 3} - {late}))
    cluster.run_until(lambda: cluster.voters_at(late) == left)
    assert not cluster.node(late).engine.membership.is_voter
    added = cluster.change(late, Action.ADD, late)
    assert added.verdict == "applied" and added.after == (1, 2, 3)


@pytest.mark.usefixtures("small_snapshots")
def test_an_observer_that_installs_a_snapshot_becomes_a_voter_when_it_has_caught_up() -> None:
    cluster, leader, late = behind(22, 4)
    refused = cluster.change(leader, Action.ADD, late)
    assert (refused.verdict, refused.code) == ("refused", "voter_not_caught_up") and "lacks" in refused.detail
    assert cluster.change(leader, Action.REMOVE, leader, plan=True).verdict == "planned", "others go on meanwhile"
    cluster.run_until(lambda: has_all(cluster, late))
    assert cluster.change(late, Action.ADD, late).after == (1, 2, 3, 4)


@pytest.mark.usefixtures("small_snapshots")
def test_a_snapshot_begun_before_a_change_of_voters_delivers_the_change_after_it() -> None:
    """It contains the voters of its index; the log behind it has the current ones."""
    cluster, leader, late = behind(23, 4)
    gone = next(number for number in others(cluster, leader) if number != 4)
    assert cluster.change(leader, Action.REMOVE, gone).verdict == "applied"
    assert not has_all(cluster, late)
    cluster.run_until(lambda: has_all(cluster, late) and gone not in cluster.voters_at(late))


@pytest.mark.usefixtures("small_snapshots")
def test_a_leader_that_dies_while_it_sends_a_snapshot_is_followed_by_one_that_starts_again() -> None:
    cluster, leader, late = behind(24, 4)
    cluster.members[leader].kill()
    cluster.run_until(lambda: cluster.leader() is not None and has_all(cluster, late))
    assert cluster.change(late, Action.REMOVE, leader).verdict == "applied"


# --- While the leader resigns ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_another_step_while_the_leader_resigns_is_done_or_refused_as_answered(seed: int) -> None:
    """Two operators send requests at once: one wants the leader removed, the other one more voter."""
    cluster, leader = grown(30 + seed)
    answers: dict[Action, VotersChanged] = {}
    asked = (4, leader) if seed % 2 else (leader, 4)
    for asked_of, change in zip(asked, (VoterChange(Action.REMOVE, leader), VoterChange(Action.ADD, 4)), strict=True):
        told = lambda answer, change=change: answers.__setitem__(change.action, answer)  # noqa: E731
        cluster.node(asked_of).change_voters(change, told, timeout=8.0)
    cluster.run_until(lambda: len(answers) == 2, 9.0)
    voters = {1, 2, 3}
    for action, answer in answers.items():
        assert answer.verdict == "applied" or answer.code == "quorum_change_in_progress", answer
        if answer.verdict == "applied":
            voters = voters | {4} if action is Action.ADD else voters - {leader}
    assert any(answer.verdict == "applied" for answer in answers.values())
    cluster.run_until(lambda: all(set(cluster.voters_at(number)) == voters for number in cluster.nodes))
    assert cluster.propose(leader, NoOp()).fate is Fate.APPLIED


def test_a_leader_that_resigns_and_dies_is_removed_nevertheless() -> None:
    cluster, leader = grown(40)
    answers: list[VotersChanged] = []
    cluster.node(4).change_voters(VoterChange(Action.REMOVE, leader), answers.append, timeout=8.0)
    cluster.run_until(lambda: cluster.node(leader).status().leader != leader)
    cluster.members[leader].kill()
    cluster.run_until(lambda: bool(answers), 9.0)
    assert answers[0].verdict == "applied" and leader not in answers[0].after
    assert cluster.propose(4, NoOp()).fate is Fate.APPLIED


# --- Identity --------------------------------------------------------------------------------------------------------


def test_no_node_proposes_in_another_ones_name() -> None:
    """S12: a link belongs to one node, and so do all messages on it."""
    from metadata.commands.envelope import encode as encode_command

    cluster, leader = grown(41)
    first, second = (number for number in others(cluster, leader) if number != 4)
    forged = encode(Propose(1, encode_command(cluster.registration(second, start=9)), True))
    before = incarnation_of(cluster, second)
    ends = [link for link in cluster.network.links if link.open and (link.owner, link.peer) == (first, leader)]
    (sender,) = (end for end in ends if end.handler is not cluster.network.listeners[first][1])
    sender.send([forged])
    cluster.run(0.2)
    assert any(f"proposed a command in the name of broker {second}" in said for said in cluster.members[leader].dropped)
    assert incarnation_of(cluster, second) == before, "its registration stands"
    cluster.run_until(lambda: cluster.propose(first, NoOp()).fate is Fate.APPLIED)
