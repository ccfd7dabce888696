"""Whole nodes with links: observers follow, voters change one at a time, and no disk votes for another."""

from __future__ import annotations

from metadata.commands.cluster import NoOp
from metadata.commands.results import Done
from metadata.quorum.limits import QuorumLimits
from metadata.quorum.port import Fate, Outcome
from metadata.voters.changes import Action, VoterChange
from raftlog.model import BrokerId
from tests.support.quorum.cluster import QuorumCluster, others, topic


def grown(seed: int = 1, **options: object) -> tuple[QuorumCluster, int]:
    """Three voters and one observer, number 4, all registered."""
    cluster = QuorumCluster(seed, 4, voters=3, **options)  # type: ignore[arg-type]
    leader = cluster.await_leader()
    cluster.register_all()
    return cluster, leader


def is_pinned(cluster: QuorumCluster, number: int) -> bool:
    return all(voter.pinned for voter in cluster.node(number).engine.configuration.voters)


# --- Observers -------------------------------------------------------------------------------------------------------


def test_an_observer_registers_proposes_reads_and_follows() -> None:
    cluster, leader = grown()
    assert leader != 4 and cluster.voters_at(4) == (1, 2, 3)
    outcome = cluster.propose(4, topic(cluster, "t", 4))
    assert outcome.fate is Fate.APPLIED and isinstance(outcome.result, Done)
    cluster.run_until(lambda: all(cluster.members[n].view.topic("t") for n in cluster.nodes))
    barriers: list[Outcome] = []
    cluster.node(4).read_barrier(barriers.append)
    cluster.run_until(lambda: bool(barriers))
    assert barriers[0].fate is Fate.APPLIED
    cluster.run_until(lambda: cluster.node(leader).status().match_index[BrokerId(4)] >= barriers[0].index)


def test_an_observer_never_counts_toward_a_majority() -> None:
    """With two of three voters gone, the third and the observer decide nothing, and neither ever leads (S7)."""
    cluster, leader = grown()
    for number in others(cluster, leader):
        if number != 4:
            cluster.members[number].kill()
    outcome = cluster.propose(4, NoOp(), timeout=3.0)
    assert outcome.fate in (Fate.UNKNOWN, Fate.REFUSED)
    assert cluster.node(4).status().leader != 4 and cluster.leader() is None


def test_an_observer_survives_a_change_of_leaders() -> None:
    cluster, leader = grown(2)
    cluster.members[leader].kill()
    cluster.run_until(lambda: cluster.leader() not in (None, leader))
    assert cluster.propose(4, topic(cluster, "after", 4)).fate is Fate.APPLIED
    assert cluster.members[4].view.topic("after")


def test_an_observer_that_was_offline_catches_up_from_a_snapshot() -> None:
    cluster, leader = grown(3, limits=QuorumLimits(snapshot_entries=20))
    cluster.members[4].kill()
    for number in range(1100):
        cluster.node(leader).propose(topic(cluster, f"t{number}", leader), lambda outcome: None)
        if number % 100 == 0:
            cluster.run(0.05)
    cluster.run(0.5)
    base = cluster.node(leader).engine.journal.base_index
    assert base > cluster.members[4].indexes[-1], "what it needs is no longer in the log"
    cluster.members[4].start()
    cluster.run_until(lambda: cluster.members[4].view.topic("t1099") is not None)
    assert cluster.voters_at(4) == (1, 2, 3)


# --- Steps -----------------------------------------------------------------------------------------------------------


def test_the_leader_records_the_voters_disks() -> None:
    cluster, _ = grown()
    cluster.run_until(lambda: all(is_pinned(cluster, number) for number in cluster.nodes))
    for number in cluster.nodes:
        for voter in cluster.node(number).engine.configuration.voters:
            assert voter.directory_id == cluster.members[int(voter.node_id)].identity.directory_id


def test_a_lost_voter_is_replaced_and_the_next_loss_is_survived() -> None:
    cluster, leader = grown(4)
    lost, kept = (number for number in others(cluster, leader) if number != 4)
    cluster.members[lost].kill()
    removed = cluster.change(4, Action.REMOVE, lost)
    assert removed.verdict == "applied" and removed.after == tuple(sorted({1, 2, 3} - {lost}))
    added = cluster.change(kept, Action.ADD, 4)
    assert added.verdict == "applied" and added.after == tuple(sorted({1, 2, 3, 4} - {lost}))
    cluster.members[leader].kill()
    cluster.run_until(lambda: cluster.leader() in (kept, 4))
    assert cluster.propose(4, topic(cluster, "t", 4)).fate is Fate.APPLIED


def test_one_voter_grows_to_five_and_shrinks_to_another_one() -> None:
    cluster = QuorumCluster(5, 5, voters=1)
    assert cluster.await_leader() == 1
    cluster.register_all()
    for number in (2, 3, 4, 5):
        assert cluster.change(1, Action.ADD, number).verdict == "applied"
    cluster.run_until(lambda: all(cluster.voters_at(n) == (1, 2, 3, 4, 5) for n in cluster.nodes))
    for number in (1, 2, 3, 4):
        answer = cluster.change(5, Action.REMOVE, number)
        assert answer.verdict == "applied", answer
    cluster.run_until(lambda: all(cluster.voters_at(n) == (5,) for n in cluster.nodes))
    assert cluster.leader() == 5
    for number in (1, 2, 3, 4):
        cluster.members[number].kill()
    assert cluster.propose(5, topic(cluster, "alone", 5)).fate is Fate.APPLIED


def test_the_leader_resigns_to_be_removed() -> None:
    cluster, leader = grown(6)
    before = cluster.node(leader).status().term
    answer = cluster.change(4, Action.REMOVE, leader)
    assert answer.verdict == "applied" and leader not in answer.after
    assert cluster.node(4).status().term == before + 1, "one election, at once"
    cluster.run_until(lambda: cluster.leader() not in (None, leader))
    assert cluster.propose(leader, NoOp()).fate is Fate.APPLIED, "it observes from now on"


def test_a_plan_changes_nothing() -> None:
    cluster, leader = grown(7)
    cluster.run_until(lambda: is_pinned(cluster, leader))
    last = cluster.node(leader).status().last_index
    planned = [cluster.change(4, Action.ADD, 4, plan=True), cluster.change(4, Action.REMOVE, leader, plan=True)]
    assert [answer.verdict for answer in planned] == ["planned", "planned"]
    assert planned[0].after == (1, 2, 3, 4) and leader not in planned[1].after
    assert cluster.voters_at(leader) == (1, 2, 3) and cluster.leader() == leader
    assert cluster.node(leader).status().last_index == last


def test_adding_twice_changes_nothing_and_removing_twice_is_refused() -> None:
    cluster, leader = grown(8)
    assert cluster.change(leader, Action.ADD, 4).verdict == "applied"
    again = cluster.change(leader, Action.ADD, 4)
    assert (again.verdict, again.index, again.after) == ("applied", -1, (1, 2, 3, 4))
    assert cluster.change(leader, Action.REMOVE, 4).verdict == "applied"
    refused = cluster.change(leader, Action.REMOVE, 4)
    assert (refused.verdict, refused.code) == ("refused", "not_a_voter")


# --- Disks -----------------------------------------------------------------------------------------------------------


def test_a_voter_on_a_new_disk_counts_nowhere_until_it_is_removed_and_added_again() -> None:
    """S9: with one other voter gone, the one that lost its disk gives no majority; as a new voter it does."""
    cluster = QuorumCluster(9, 3)
    leader = cluster.await_leader()
    cluster.register_all()
    cluster.run_until(lambda: all(is_pinned(cluster, number) for number in cluster.nodes))
    lost, kept = others(cluster, leader)
    cluster.members[lost].kill()
    cluster.members[lost].replace_disk()
    cluster.members[lost].start()
    cluster.run_until(lambda: is_pinned(cluster, lost))
    assert not cluster.node(lost).engine.membership.is_voter
    refused = cluster.change(leader, Action.ADD, lost)
    assert (refused.verdict, refused.code) == ("refused", "invalid_request") and "remove" in refused.detail
    cluster.members[kept].kill()
    assert cluster.propose(leader, NoOp(), timeout=2.0).fate is not Fate.APPLIED
    cluster.members[kept].start()
    cluster.run_until(lambda: cluster.leader() is not None)
    assert cluster.change(kept, Action.REMOVE, lost).verdict == "applied"
    added = cluster.change(lost, Action.ADD, lost)
    assert added.verdict == "applied" and added.after == (1, 2, 3)
    cluster.members[kept].kill()
    cluster.run_until(lambda: cluster.leader() is not None)
    assert cluster.propose(lost, NoOp()).fate is Fate.APPLIED


def test_the_old_disk_of_a_replaced_voter_neither_elects_nor_is_elected() -> None:
    cluster = QuorumCluster(10, 3)
    leader = cluster.await_leader()
    cluster.register_all()
    lost, kept = others(cluster, leader)
    member = cluster.members[lost]
    member.kill()
    old_disk, old_identity = member.disk, member.identity
    assert cluster.change(leader, Action.REMOVE, lost).verdict == "applied"
    member.replace_disk()
    member.start()
    cluster.run(0.5)
    assert cluster.change(leader, Action.ADD, lost).verdict == "applied"
    member.kill()
    member.disk, member.identity = old_disk, old_identity
    member.start()
    cluster.members[kept].kill()
    cluster.run(3.0)
    assert cluster.node(leader).status().leader != lost
    assert cluster.propose(leader, NoOp(), timeout=2.0).fate is not Fate.APPLIED, "its acknowledgements are another's"


# --- Requests at bad moments -----------------------------------------------------------------------------------------


def test_a_step_that_cannot_commit_has_an_unknown_outcome_and_completes_when_the_voters_return() -> None:
    """The other voters die at the moment of the request: the leader does not know yet."""
    cluster, leader = grown(11)
    gone = [number for number in others(cluster, leader) if number != 4]
    for number in gone:
        cluster.members[number].kill()
    answer = cluster.change(4, Action.ADD, 4, timeout=2.0)
    assert (answer.verdict, answer.code) == ("refused", "outcome_unknown")
    cluster.members[gone[0]].start()
    cluster.run_until(lambda: cluster.leader() is not None)
    assert cluster.change(4, Action.ADD, 4).after == (1, 2, 3, 4)


def test_without_a_leader_a_change_is_refused_for_certain() -> None:
    cluster, leader = grown(11)
    for number in others(cluster, leader):
        if number != 4:
            cluster.members[number].kill()
    cluster.run(2.0)
    answer = cluster.change(4, Action.ADD, 4, timeout=1.0)
    assert (answer.verdict, answer.code) == ("refused", "quorum_unavailable")


def test_a_step_whose_answer_was_lost_is_recognized_as_done() -> None:
    """The leader dies when the removal is committed and before any node knows."""
    cluster, leader = grown(12)
    target = next(number for number in others(cluster, leader) if number != 4)
    cluster.network.cut((leader, 4))
    answers: list[object] = []
    cluster.node(4).change_voters(VoterChange(Action.REMOVE, target), answers.append, timeout=8.0)
    cluster.run(1.0)
    cluster.network.cuts.clear()
    cluster.run_until(lambda: bool(answers), 9.0)
    assert answers[0].verdict == "applied", answers[0]  # type: ignore[attr-defined]
    cluster.run_until(lambda: target not in cluster.voters_at(4))
