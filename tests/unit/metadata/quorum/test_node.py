"""Whole quorum nodes: proposals from any node, three outcomes and no fourth, events without gaps, reads."""

from __future__ import annotations

from typing import NoReturn

import pytest
from crc32c import crc32c

from metadata.commands.cluster import CreateTopic, FenceBroker, GrantProducerIds, NoOp
from metadata.commands.envelope import encode
from metadata.commands.results import Done, ProducerIdsGranted, Refused
from metadata.image.image import ClusterImage
from metadata.quorum import lanes as quorum_lanes
from metadata.quorum import node as quorum_node
from metadata.quorum.limits import QuorumLimits
from metadata.quorum.port import Fate, Outcome
from metadata.quorum.protocol import EngineFrame, Propose, Proposed, decode
from metadata.quorum.protocol import encode as encode_frame
from metadata.raft.messages import SnapshotChunk
from metadata.raft.messages import encode as encode_message
from metadata.snapshot.encoder import encode_snapshot
from raftlog.errors import InvariantViolation, RemoteProtocolError
from raftlog.model import BrokerId, Incarnation, QuorumStatus, TopicId
from tests.support.quorum.cluster import QuorumCluster, incarnation_of, others, ready_cluster, topic
from tests.support.recorded import recorded

SESSION = 0.9
ELECTION = 0.6
NEWER = b"\x94\x01\xc0\xc0\x91\xafnext_version.17"
"""A command of a later version."""


# --- Proposals -------------------------------------------------------------------------------------------------------


def test_a_command_is_applied_wherever_it_is_proposed_and_every_view_shows_it() -> None:
    cluster, _ = ready_cluster()
    for number in cluster.nodes:
        outcome = cluster.propose(number, topic(cluster, f"from-{number}", number))
        assert outcome.fate is Fate.APPLIED and outcome.result == Done()
    cluster.run(0.1)
    for member in cluster.members.values():
        assert [t.name for t in member.view.topics()] == ["from-1", "from-2", "from-3"]
        assert member.indexes == list(range(2, member.view.index + 1)), "every index once, in order"


def test_a_refusal_by_the_state_machine_is_an_applied_outcome_with_its_name() -> None:
    cluster, _ = ready_cluster()
    for number in cluster.nodes:
        outcome = cluster.propose(number, GrantProducerIds(BrokerId(number), Incarnation(999), 5))
        assert outcome.fate is Fate.APPLIED
        assert isinstance(outcome.result, Refused) and outcome.result.code == "stale_incarnation"


def test_without_a_majority_a_leaders_proposal_is_unknown_and_a_followers_refused() -> None:
    cluster, leader = ready_cluster()
    rest = others(cluster, leader)
    for number in rest:
        cluster.members[number].kill()
    assert cluster.propose(leader, NoOp(), timeout=0.3).fate is Fate.UNKNOWN
    cluster.run(1.0)
    assert cluster.propose(leader, NoOp(), timeout=0.3).fate is Fate.REFUSED
    assert cluster.heap.now < 10


def test_a_proposal_survives_its_leader_and_is_executed_once() -> None:
    """The leader dies with forwarded proposals in every state: they are retried with their session."""
    cluster, leader = ready_cluster(seed=4)
    follower = others(cluster, leader)[0]
    incarnation = incarnation_of(cluster, follower)
    outcomes: list[Outcome] = []
    for _ in range(40):
        command = GrantProducerIds(BrokerId(follower), incarnation, 1)
        cluster.node(follower).propose(command, outcomes.append, timeout=8.0)
        cluster.node(follower).tick()
        cluster.run(0.0004)
    cluster.members[leader].kill(power=True)
    cluster.run_until(lambda: len(outcomes) == 40)
    granted = [outcome.result.first for outcome in outcomes if isinstance(outcome.result, ProducerIdsGranted)]
    assert len(granted) == 40, "every one was carried out"
    assert sorted(granted) == list(range(min(granted), min(granted) + 40)), "and none of them twice"


def test_an_answer_to_a_former_incarnation_matches_no_question_of_this_one() -> None:
    cluster, leader = ready_cluster()
    follower = others(cluster, leader)[0]
    asked: list[int] = []

    def note(sender: int, receiver: int, message: bytes) -> None:
        frame = decode(message)
        if sender == follower and isinstance(frame, Propose):
            asked.append(frame.request_id)

    cluster.network.on_send = note
    cluster.propose(follower, NoOp())
    first = asked[-1]
    cluster.members[follower].kill()
    cluster.members[follower].start()
    outcomes: list[Outcome] = []
    cluster.node(follower).propose(NoOp(), outcomes.append)
    for number in range(5):
        answer = Proposed(first + number, "unknown", detail="old")
        cluster.node(follower).on_message(BrokerId(leader), encode_frame(answer))
    cluster.run(1.0)
    assert abs(asked[-1] - first) > 10_000
    assert [outcome.fate for outcome in outcomes] == [Fate.APPLIED]


def test_too_many_proposals_are_refused_at_once() -> None:
    cluster = QuorumCluster(1, limits=QuorumLimits(proposals_max=3))
    outcomes: list[Outcome] = []
    for _ in range(7):
        cluster.node(1).propose(NoOp(), outcomes.append)
    cluster.node(1).tick()
    assert [outcome.fate for outcome in outcomes] == [Fate.REFUSED, Fate.REFUSED], "five are three and a half more"


def test_too_many_proposals_of_one_peer_are_refused() -> None:
    cluster, leader = ready_cluster(limits=QuorumLimits(proposals_max=3))
    follower = others(cluster, leader)[0]
    answers: list[Proposed] = []
    node = cluster.node(leader)

    def note(sender: int, receiver: int, message: bytes) -> None:
        frame = decode(message)
        if isinstance(frame, Proposed):
            answers.append(frame)

    cluster.network.on_send = note
    for number in range(5):
        node.on_message(BrokerId(follower), encode_frame(Propose(number, encode(NoOp()), False)))
    node.tick()
    assert [(answer.request_id, answer.fate) for answer in answers] == [(3, "refused"), (4, "refused")]
    cluster.run(0.2)
    assert sorted(answer.request_id for answer in answers if answer.fate == "applied") == [0, 1, 2]


def test_a_command_that_no_node_could_decode_never_enters_the_log() -> None:
    cluster, leader = ready_cluster()
    node = cluster.node(leader)
    last = node.status().last_index
    for envelope in (b"\xc1", b"\x94\x01\xc0\xc0\x91\xa6what.9", encode(NoOp(), term=3)):
        with pytest.raises(RemoteProtocolError):
            node.on_message(BrokerId(others(cluster, leader)[0]), encode_frame(Propose(1, envelope, False)))
    node.tick()
    assert node.status().last_index == last
    outcomes: list[Outcome] = []
    node.propose(CreateTopic("x" * 5000, TopicId(bytes(16)), ((BrokerId(1),),), ()), outcomes.append)
    node.tick()
    assert [outcome.fate for outcome in outcomes] == [Fate.REFUSED]


def test_urgent_proposals_enter_the_log_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum_lanes, "OTHERS_PER_TICK", 5)
    cluster, leader = ready_cluster()
    order: list[str] = []
    node = cluster.node(leader)
    for number in range(20):
        node.propose(topic(cluster, f"t{number}", leader), lambda outcome: order.append("topic"))
    node.propose(FenceBroker(BrokerId(1), Incarnation(999)), lambda outcome: order.append("fence"))
    cluster.run(0.5)
    assert order[0] == "fence" and order.count("topic") == 20


# --- Commands that cannot be applied ---------------------------------------------------------------------------------


def test_a_committed_entry_that_cannot_be_decoded_stops_the_node_permanently() -> None:
    cluster, leader = ready_cluster(size=1)
    node = cluster.node(leader)
    node.engine.propose(NEWER, 10**9)
    with pytest.raises(InvariantViolation, match="upgraded"):
        cluster.run(1.0)
    for call in (node.tick, lambda: node.on_connected(BrokerId(1)), lambda: node.on_message(BrokerId(2), b"")):
        with pytest.raises(InvariantViolation, match="upgraded"):
            call()
    node.close()


def test_no_node_takes_an_entry_that_it_could_not_apply() -> None:
    """Only a bug puts it into a leader's log: the link is dropped, and no node stops."""
    cluster, leader = ready_cluster()
    cluster.node(leader).engine.propose(NEWER, 10**9)
    others = [number for number in cluster.nodes if number != leader]
    cluster.run(1.0)
    assert all("upgraded" in cluster.members[number].dropped[0] for number in others)
    cluster.members[leader].kill()
    cluster.run_until(lambda: cluster.leader() in others)
    assert cluster.propose(others[0], topic(cluster, "t", others[0])).fate is Fate.APPLIED
    cluster.members[leader].start()
    cluster.run_until(lambda: cluster.node(leader).image.index == cluster.node(others[0]).image.index)


@pytest.mark.parametrize("state", [b"", b"no snapshot", encode_snapshot(ClusterImage())[:-1]])
def test_a_leaders_snapshot_that_cannot_be_read_is_not_installed(state: bytes) -> None:
    """On the disk it would keep the node from every later start."""
    cluster, leader = ready_cluster()
    other = next(number for number in cluster.nodes if number != leader)
    sender = next(number for number in cluster.nodes if number not in (leader, other))
    node = cluster.node(other)
    before = node.engine.status()
    chunk = SnapshotChunk(before.term + 1, 1_000, 1, len(state), crc32c(state), 0, crc32c(state), state)
    for _ in range(2):
        node.on_message(BrokerId(sender), encode_frame(EngineFrame(encode_message(chunk))))
        cluster.run(0.05)
    assert node.engine.snapshot_index < 1_000 and node.engine.status().last_index < 1_000
    faults = cluster.members[other].faults
    assert len(faults) == 1 and faults[0][0] == sender, "told once"
    assert cluster.propose(other, topic(cluster, "t", leader)).fate is Fate.APPLIED


def test_a_leaders_snapshot_that_can_be_read_is_installed_and_answered() -> None:
    cluster, leader = ready_cluster()
    other = next(number for number in cluster.nodes if number != leader)
    node = cluster.node(other)
    state, term = encode_snapshot(node.image), node.engine.term
    chunk = SnapshotChunk(term, 1_000, term, len(state), crc32c(state), 0, crc32c(state), state)
    node.on_message(BrokerId(leader), encode_frame(EngineFrame(encode_message(chunk))))
    cluster.run(0.05)
    assert node.engine.snapshot_index == 1_000 and cluster.members[other].faults == []


def test_a_command_that_raises_stops_the_node_and_is_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is unknown how much of it was executed: executing it twice, or half, gives another state (S7)."""
    cluster, leader = ready_cluster()
    node, tried = cluster.node(leader), []

    def poisoned(image: ClusterImage, index: int, term: int, envelope: object) -> NoReturn:
        tried.append(index)
        raise ValueError("poison")

    with monkeypatch.context() as poison:
        poison.setattr("metadata.quorum.machine.apply_in_steps", poisoned)
        node.propose(NoOp(), lambda outcome: None)
        with pytest.raises(ValueError, match="poison"):
            cluster.run(1.0)
    for call in (node.tick, node.tick, lambda: node.on_connected(BrokerId(1))):
        with pytest.raises(ValueError, match="poison"):
            call()
    assert len(tried) == 1
    node.close()


def test_a_controllers_command_is_refused_in_another_term(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = recorded(monkeypatch, quorum_node, "Lanes")
    cluster, leader = ready_cluster()
    node = cluster.node(leader)
    results: list[Outcome] = []
    target = BrokerId(others(cluster, leader)[0])
    fence = FenceBroker(target, incarnation_of(cluster, int(target)))
    for term in (node.status().term - 1, node.status().term + 1):
        lanes[leader - 1].submit(encode(fence, term=term), True, results.append)
    cluster.run(0.3)
    assert [r.result.code for r in results if isinstance(r.result, Refused)] == ["not_controller", "not_controller"]
    assert cluster.members[leader].view.alive(target)


# --- Snapshots -------------------------------------------------------------------------------------------------------


def test_a_node_that_was_offline_gets_the_difference_and_misses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metadata.raft.pysyncobj_engine.TRAILING_ENTRIES", 4)
    cluster, leader = ready_cluster(limits=QuorumLimits(snapshot_entries=25))
    away = others(cluster, leader)[0]
    incarnations = {number: incarnation_of(cluster, number) for number in cluster.nodes}
    cluster.members[away].kill()
    for number in range(120):
        assert cluster.propose(leader, GrantProducerIds(BrokerId(leader), incarnations[leader], 1)).index > number
    cluster.propose(leader, topic(cluster, "meanwhile", leader))
    cluster.members[away].start()
    cluster.run_until(lambda: cluster.members[away].view.topic("meanwhile") is not None)
    member = cluster.members[away]
    jumps = [(a, b) for a, b in zip(member.indexes, member.indexes[1:], strict=False) if b != a + 1]
    assert len(jumps) <= 1 and (not jumps or jumps[0][1] - jumps[0][0] > 20), "one installed snapshot, no other gap"
    assert member.indexes[0] > 2 or jumps, "it came by a snapshot"
    cluster.run(0.2)
    assert encode_snapshot(cluster.node(away).image) == encode_snapshot(cluster.node(leader).image)


def test_the_journal_stays_bounded() -> None:
    cluster, leader = ready_cluster(limits=QuorumLimits(snapshot_bytes=20_000))
    for number in range(80):
        cluster.propose(leader, topic(cluster, f"t{number}", leader))
    for number in cluster.nodes:
        files = cluster.members[number].disk.files()
        journals = [size for name, size in files.items() if "journal" in name]
        assert len(journals) == 1 and journals[0] < 60_000


@pytest.mark.parametrize("partitions_a_step", [1, 500])
def test_everything_survives_a_power_loss_of_all(partitions_a_step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metadata.snapshot.encoder.PARTITIONS_PER_STEP", partitions_a_step)
    cluster, leader = ready_cluster(limits=QuorumLimits(snapshot_entries=20))
    for number in range(30):
        assert cluster.propose(leader, topic(cluster, f"t{number}", leader)).result == Done()
    for number in cluster.nodes:
        cluster.members[number].kill(power=True)
    for member in cluster.members.values():
        member.start()
    cluster.await_leader()
    cluster.run_until(lambda: all(len(m.view.topics()) == 30 for m in cluster.members.values()))


# --- Reads -----------------------------------------------------------------------------------------------------------


def test_a_barrier_is_beyond_everything_acknowledged_before_its_request() -> None:
    cluster, leader = ready_cluster()
    for reader in cluster.nodes:
        written = cluster.propose(leader, topic(cluster, f"for-{reader}", leader))
        barriers: list[Outcome] = []
        cluster.node(reader).read_barrier(barriers.append)
        cluster.run_until(lambda b=barriers: bool(b))  # type: ignore[misc]
        assert barriers[0].fate is Fate.APPLIED and barriers[0].index > written.index


def test_barriers_requested_together_share_an_entry() -> None:
    cluster, leader = ready_cluster()
    last = cluster.node(leader).status().last_index
    answers: list[Outcome] = []
    for _ in range(50):
        cluster.node(leader).read_barrier(answers.append)
    cluster.run_until(lambda: len(answers) == 50)
    assert cluster.node(leader).status().last_index == last + 1
    assert {answer.index for answer in answers} == {last + 1}


def test_a_cut_off_leader_answers_no_barrier() -> None:
    cluster, leader = ready_cluster()
    rest = others(cluster, leader)
    for number in rest:
        cluster.network.cut((leader, number), (number, leader))
    answers: list[Outcome] = []
    cluster.node(leader).read_barrier(answers.append, timeout=1.0)
    cluster.node(leader).read_barrier(answers.append, timeout=0.2)
    cluster.run(1.2)
    assert [answer.fate for answer in answers] != [] and all(answer.fate is not Fate.APPLIED for answer in answers)
    assert len(answers) == 2


def test_the_leaders_status_from_any_node_and_the_own_one_without_a_leader() -> None:
    cluster, leader = ready_cluster()
    answers: list[QuorumStatus] = []
    for number in cluster.nodes:
        cluster.node(number).leader_status(answers.append)
    cluster.run(0.2)
    assert [int(status.node_id) for status in answers] == [leader] * 3
    rest = others(cluster, leader)
    for number in (leader, rest[0]):
        cluster.members[number].kill()
    cluster.node(rest[1]).leader_status(answers.append, timeout=0.5)
    cluster.run(1.5)
    assert int(answers[-1].node_id) == rest[1]
