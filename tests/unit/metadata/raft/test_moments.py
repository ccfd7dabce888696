"""Events while something is in progress: a resignation, a snapshot, a change of term, a leap of a clock (S7, S10)."""

from __future__ import annotations

import itertools

import pytest

from metadata.commands.cluster import GrantProducerIds, NoOp
from metadata.commands.results import ProducerIdsGranted
from metadata.quorum.limits import QuorumLimits
from metadata.quorum.port import Fate, Outcome
from metadata.raft.messages import AppendReply, Resign
from raftlog.model import BrokerId
from tests.support.quorum.bench import Bench
from tests.support.quorum.cluster import QuorumCluster, incarnation_of, others, ready_cluster, topic


def grant(cluster: QuorumCluster, number: int, count: int) -> GrantProducerIds:
    return GrantProducerIds(BrokerId(number), incarnation_of(cluster, number), count)


def first_of(outcome: Outcome) -> int:
    """The start of the granted block."""
    assert isinstance(outcome.result, ProducerIdsGranted)
    return int(outcome.result.first)


def granted(cluster: QuorumCluster, number: int) -> int:
    """The number of producer ids granted so far, as far as this node knows."""
    return int(cluster.node(number).image.next_producer_id)


# --- A leader that resigns -------------------------------------------------------------------------------------------


def test_a_resigning_leader_reports_appended_proposals_as_unknown_and_the_others_as_refused() -> None:
    bench = Bench()
    bench.lead()
    bench.engine.propose(b"in the log", 7)
    bench.tick()
    bench.engine.propose(b"handed in", 8)
    term, last = bench.engine.term, bench.engine.status().last_index
    bench.engine.resign()
    said = bench.tick()
    assert {peer for peer, message in said if message == Resign(term)} == {2, 3}
    assert {(lost.token, lost.certain) for lost in bench.lost} == {(7, False), (8, True)}
    bench.engine.propose(b"too late", 9)
    bench.hear(2, AppendReply(term, True, last, 0))
    assert bench.applied == [], "it counts no answers any more"
    assert [(lost.token, lost.certain) for lost in bench.lost] == [(9, True)]


@pytest.mark.parametrize("seed", range(4))
def test_proposals_in_flight_when_the_leader_resigns_are_executed_once(seed: int) -> None:
    cluster, leader = ready_cluster(seed=20 + seed)
    before, term = granted(cluster, leader), cluster.node(leader).status().term
    outcomes: list[tuple[int, Outcome]] = []
    for round_ in range(12):
        for number in cluster.nodes:
            count = 100 * number + round_
            done = lambda outcome, count=count: outcomes.append((count, outcome))  # noqa: E731
            cluster.node(number).propose(grant(cluster, number, count), done, timeout=8.0)
            cluster.node(number).tick()
        cluster.run(0.0007)
        if round_ == 6:
            cluster.node(leader).engine.resign()
            cluster.node(leader).tick()
    cluster.run_until(lambda: len(outcomes) == 36, 9.0)
    assert {outcome.fate for _, outcome in outcomes} == {Fate.APPLIED}, "there was time to try again"
    blocks = sorted((first_of(outcome), count) for count, outcome in outcomes)
    assert blocks[0][0] == before
    assert all(first + count == then for (first, count), (then, _) in itertools.pairwise(blocks)), "once each"
    assert granted(cluster, leader) == sum(blocks[-1])
    cluster.run_until(lambda: cluster.leader() not in (None, leader))
    assert cluster.node(leader).status().term == term + 1, "one election"


def test_without_a_successor_appended_proposals_are_unknown_and_later_ones_refused() -> None:
    cluster, leader = ready_cluster(seed=31)
    for number in others(cluster, leader):
        cluster.members[number].kill()
    early, late = list[Outcome](), list[Outcome]()
    cluster.node(leader).propose(grant(cluster, leader, 1), early.append, timeout=1.0)
    cluster.node(leader).tick()
    cluster.node(leader).engine.resign()
    cluster.node(leader).tick()
    cluster.node(leader).propose(grant(cluster, leader, 1), late.append, timeout=1.0)
    cluster.run(1.2)
    assert [outcome.fate for outcome in early] == [Fate.UNKNOWN]
    assert [outcome.fate for outcome in late] == [Fate.REFUSED]


# --- A session across a snapshot -------------------------------------------------------------------------------------


@pytest.mark.parametrize("power", [False, True])
def test_a_retry_gets_its_first_answer_from_nodes_restored_from_a_snapshot(
    power: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metadata.raft.pysyncobj_engine.TRAILING_ENTRIES", 2)
    cluster, leader = ready_cluster(seed=5, limits=QuorumLimits(snapshot_entries=10))
    asker, other = others(cluster, leader)
    outcomes: list[Outcome] = []
    cluster.network.cuts.update({(leader, asker), (other, asker)})
    before = granted(cluster, leader)
    cluster.node(asker).propose(grant(cluster, asker, 7), outcomes.append, timeout=30.0)
    cluster.node(asker).tick()
    cluster.run_until(lambda: granted(cluster, leader) == before + 7)
    asked_at = cluster.node(leader).status().applied_index
    cluster.network.cut((asker, leader), (asker, other))
    for _ in range(40):
        assert cluster.propose(leader, NoOp()).fate is Fate.APPLIED
    for number in (leader, other):
        assert cluster.node(number).engine.base_configuration is not None
        cluster.members[number].kill(power=power)
    for number in (leader, other):
        cluster.members[number].start()
        journal = cluster.node(number).engine.journal
        assert journal.base_index > asked_at, "the entry itself is nowhere any more"
    assert outcomes == []
    cluster.network.cuts.clear()
    cluster.run_until(lambda: bool(outcomes), 20.0)
    assert (outcomes[0].fate, first_of(outcomes[0])) == (Fate.APPLIED, before)
    cluster.run_until(lambda: cluster.members[asker].view.index >= outcomes[0].index)
    for number in cluster.nodes:
        assert granted(cluster, number) == before + 7, "it was not carried out again"


# --- Barriers and terms ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_a_barrier_of_a_deposed_leader_comes_after_all_acknowledgements_of_the_next_one(seed: int) -> None:
    cluster, leader = ready_cluster(seed=40 + seed)
    rest = others(cluster, leader)
    written = cluster.propose(leader, topic(cluster, "before", leader))
    for number in rest:
        cluster.network.cut((leader, number), (number, leader))
    early, late = list[Outcome](), list[Outcome]()
    cluster.node(leader).read_barrier(early.append, timeout=20.0)
    cluster.node(leader).tick()
    cluster.run_until(lambda: cluster.node(rest[0]).status().leader in rest)
    meanwhile = cluster.propose(rest[0], topic(cluster, "meanwhile", rest[0]))
    assert meanwhile.fate is Fate.APPLIED
    cluster.node(leader).read_barrier(late.append, timeout=20.0)
    cluster.run(0.5)
    assert early == late == [], "nobody answers a read who cannot know what was acknowledged"
    cluster.network.cuts.clear()
    cluster.run_until(lambda: bool(early and late), 20.0)
    assert early[0].fate is late[0].fate is Fate.APPLIED
    assert early[0].index > written.index
    assert late[0].index > meanwhile.index
    cluster.run_until(lambda: cluster.members[leader].view.index >= late[0].index)
    assert cluster.members[leader].view.topic("meanwhile") is not None


def test_a_barrier_whose_entry_was_truncated_is_requested_in_the_next_term() -> None:
    """The old leader appends it and no other node has it: another entry takes its place in the log."""
    cluster, leader = ready_cluster(seed=50)
    rest = others(cluster, leader)
    for number in rest:
        cluster.network.cut((leader, number), (number, leader))
    answers: list[Outcome] = []
    cluster.node(leader).read_barrier(answers.append, timeout=20.0)
    cluster.node(leader).tick()
    appended = cluster.node(leader).status().last_index
    cluster.run_until(lambda: cluster.node(rest[0]).status().leader in rest)
    for number in range(3):
        assert cluster.propose(rest[0], topic(cluster, f"t{number}", rest[0])).fate is Fate.APPLIED
    assert cluster.node(rest[0]).status().commit_index > appended
    cluster.network.cuts.clear()
    cluster.run_until(lambda: bool(answers), 20.0)
    assert answers[0].fate is Fate.APPLIED and answers[0].index > appended


# --- Leaps of clocks -------------------------------------------------------------------------------------------------


def test_a_followers_leap_deposes_no_leader_and_fences_no_broker() -> None:
    cluster, leader = ready_cluster(seed=60)
    term = cluster.node(leader).status().term
    for number in others(cluster, leader):
        cluster.members[number].clock.leapt += 100.0
        cluster.run(0.5)
    cluster.run(1.0)
    assert (cluster.leader(), cluster.node(leader).status().term) == (leader, term)
    assert all(not broker.fenced for broker in cluster.node(leader).image.brokers.values())


def test_a_leaders_leap_costs_an_election_at_most_and_fences_no_broker() -> None:
    cluster, leader = ready_cluster(seed=61)
    term = cluster.node(leader).status().term
    index = cluster.propose(leader, topic(cluster, "kept", leader)).index
    fenced = [0]
    for _ in range(3):
        cluster.members[leader].clock.leapt += 100.0
        for _ in range(200):
            cluster.run(0.01)
            brokers = [b for number in cluster.nodes for b in cluster.node(number).image.brokers.values()]
            fenced.append(sum(broker.fenced for broker in brokers))
        leader = cluster.await_leader()
    assert max(fenced) == 0, "silence counts only while somebody listens"
    assert cluster.node(leader).status().term <= term + 3
    assert cluster.node(leader).status().commit_index >= index
    assert cluster.members[leader].view.topic("kept") is not None


@pytest.mark.parametrize("cut_off", [False, True])
def test_a_deadline_passed_by_a_leap_ends_as_unknown_and_nothing_happens_twice(cut_off: bool) -> None:
    cluster, leader = ready_cluster(seed=62)
    asker = others(cluster, leader)[0]
    before = granted(cluster, leader)
    outcomes: list[Outcome] = []
    cluster.network.cuts.add((leader, asker))
    cluster.node(asker).propose(grant(cluster, asker, 3), outcomes.append, timeout=5.0)
    cluster.node(asker).tick()
    cluster.run(0.05)
    cluster.members[asker].clock.leapt += 6.0
    cluster.run(0.05)
    assert [outcome.fate for outcome in outcomes] == [Fate.UNKNOWN], "it left, and may be carried out"
    if not cut_off:
        cluster.network.cuts.clear()
    cluster.run(2.0)
    assert len(outcomes) == 1 and granted(cluster, leader) == before + 3


def test_a_leap_without_a_leader_refuses_for_certain() -> None:
    cluster = QuorumCluster(63)
    outcomes: list[Outcome] = []
    cluster.node(1).propose(NoOp(), outcomes.append, timeout=5.0)
    cluster.members[1].clock.leapt += 6.0
    cluster.node(1).tick()
    assert [outcome.fate for outcome in outcomes] == [Fate.REFUSED]
    cluster.await_leader()
