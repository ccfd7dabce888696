"""The bounds of waiting proposals: their number, their bytes, and the distance of the oldest."""

from __future__ import annotations

from metadata.commands.cluster import CreateTopic, ElectLeaders, GrantProducerIds, NoOp
from metadata.commands.envelope import encode
from metadata.quorum.forwarded import Forwarded
from metadata.quorum.lanes import OTHERS_BYTES_PER_TICK, Lanes
from metadata.quorum.limits import QuorumLimits
from metadata.quorum.port import Fate, Outcome
from metadata.quorum.proposals import LOOKED_AT_MAX, Proposals
from metadata.quorum.protocol import Propose, Proposed
from raftlog.config import MIB
from raftlog.model import BrokerId, Incarnation, TopicId
from tests.support.quorum.cluster import QuorumCluster

PEER, OTHER = BrokerId(2), BrokerId(3)


def wide(number: int) -> CreateTopic:
    """About ten kilobytes."""
    return CreateTopic(f"t{number}", TopicId(number.to_bytes(16, "big")), ((BrokerId(1),),) * 5_000)


def test_a_node_holds_a_bounded_number_of_bytes_and_urgent_proposals_go_first() -> None:
    cluster = QuorumCluster(1, limits=QuorumLimits(proposals_bytes_max=40_000))
    outcomes: list[Outcome] = []
    for number in range(6):
        cluster.node(1).propose(wide(number), outcomes.append)
    urgent = ElectLeaders(())
    cluster.node(1).propose(urgent, outcomes.append)
    node = cluster.node(1)
    assert len(encode(wide(1))) > 10_000 and node.facts().proposals == 4, "three of them and the urgent one"
    assert node.facts().proposal_bytes <= 40_000 + len(encode(urgent)) + 100
    cluster.node(1).tick()
    assert [outcome.fate for outcome in outcomes] == [Fate.REFUSED] * 3
    cluster.await_leader()
    cluster.run_until(lambda: len(outcomes) == 7)
    held = node.facts()
    assert (held.proposals, held.proposal_bytes, held.oldest_sequence) == (0, 0, None)


def test_a_refused_proposal_leaves_no_gap_in_the_sequences() -> None:
    cluster = QuorumCluster(1, limits=QuorumLimits(proposals_bytes_max=40_000))
    node = cluster.node(1)
    for number in range(6):
        node.propose(wide(number), lambda outcome: None)
    assert node.facts().sequence == 3
    node.propose(NoOp(), lambda outcome: None)
    assert node.facts().sequence == 3, "a barrier has no session"


def test_the_oldest_in_flight_is_never_further_behind_than_sessions_can_distinguish() -> None:
    cluster = QuorumCluster(1, limits=QuorumLimits(span_max=4))
    node, outcomes = cluster.node(1), list[Outcome]()
    for number in range(6):
        node.propose(GrantProducerIds(BrokerId(1), Incarnation(1), number + 1), outcomes.append)
    node.propose(NoOp(), outcomes.append)
    assert node.facts().proposals == 5, "four, and a barrier, which is none of the session's"
    node.tick()
    assert [outcome.fate for outcome in outcomes] == [Fate.REFUSED] * 2


class Desk:
    """The leader's side of forwarded proposals."""

    def __init__(self, **limits: int) -> None:
        self.waiting: list[tuple[bytes, object]] = []
        self.answers: list[tuple[BrokerId, Proposed]] = []
        self.forwarded = Forwarded(
            QuorumLimits(**limits),
            lambda envelope, urgent, done: self.waiting.append((envelope, done)),
            lambda peer, answer: self.answers.append((peer, answer)),
        )

    def propose(self, peer: BrokerId, number: int, *, urgent: bool = False) -> None:
        self.forwarded.on_propose(peer, Propose(number, encode(wide(number)), urgent))

    def settle(self) -> None:
        for _, done in self.waiting:
            done(Outcome(Fate.UNKNOWN))  # type: ignore[operator]
        self.waiting.clear()

    @property
    def refused(self) -> list[tuple[BrokerId, int]]:
        return [(peer, answer.request_id) for peer, answer in self.answers if answer.fate == "refused"]


def test_one_peers_bytes_are_bounded() -> None:
    desk = Desk(proposals_bytes_max=25_000)
    for number in range(3):
        desk.propose(PEER, number)
    assert desk.refused == [(PEER, 2)]
    desk.propose(PEER, 3, urgent=True)
    desk.propose(OTHER, 4)
    assert desk.refused == [(PEER, 2)], "an urgent one may, and another peer"
    desk.settle()
    desk.propose(PEER, 5)
    assert desk.refused == [(PEER, 2)], "there is room again"


def test_all_peers_bytes_together_are_bounded() -> None:
    desk = Desk(forwarded_bytes_max=25_000)
    for peer in range(2, 5):
        desk.propose(BrokerId(peer), peer)
    assert desk.refused == [(BrokerId(4), 4)]
    desk.settle()
    desk.propose(BrokerId(4), 5)
    assert len(desk.refused) == 1


def test_a_tick_enters_a_bounded_number_of_bytes_into_the_log() -> None:
    entered: list[bytes] = []
    lanes = Lanes(lambda command, token: entered.append(command))
    for _ in range(5):
        lanes.submit(bytes(MIB * 3 // 4), False, lambda outcome: None)
    lanes.drain()
    assert len(entered) == 2 and sum(map(len, entered)) < OTHERS_BYTES_PER_TICK + MIB
    lanes.submit(b"urgent", True, lambda outcome: None)
    lanes.drain()
    assert entered[2] == b"urgent" and len(entered) == 5


def test_a_new_leader_gets_ten_thousand_proposals_in_pieces() -> None:
    sent: list[int] = []
    proposals = Proposals(
        BrokerId(1), 0, lambda envelope, urgent, done: None, lambda peer, frame: sent.append(frame.request_id)
    )
    for _ in range(10 * LOOKED_AT_MAX):
        proposals.add(b"command", urgent=False, deadline=9.0, done=lambda outcome: None)
    pumps = 0
    while len(sent) < 10 * LOOKED_AT_MAX:
        before = len(sent)
        proposals.pump(0.0, PEER, True)
        assert len(sent) - before <= LOOKED_AT_MAX
        pumps += 1
        assert proposals.hurries == (pumps < 10)
    assert sent == sorted(sent), "in order"
