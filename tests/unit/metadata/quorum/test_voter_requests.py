"""A request for a change of voters: retried where that is safe, and never reported wrongly."""

from __future__ import annotations

from collections.abc import Callable

from metadata.quorum.lanes import Lanes
from metadata.quorum.protocol import ChangeVoters, VotersChanged
from metadata.quorum.voter_requests import ASKED_AGAIN_AFTER, REQUESTS_MAX, RETRY_AFTER, VoterChangeQueue, VoterChanges
from metadata.raft.messages import AppendReply
from metadata.voters.changes import Action, VoterChange
from raftlog.errors import CODES
from raftlog.model import NO_BROKER, BrokerId
from tests.support.quorum.bench import Bench, acknowledge, configuration, led

A, B = BrokerId(1), BrokerId(2)
REMOVE_3 = VoterChange(Action.REMOVE, 3)


class Asker:
    """One node's requests, with the nodes that received them."""

    def __init__(self) -> None:
        self.asked: list[tuple[BrokerId, ChangeVoters]] = []
        self.told: list[VotersChanged] = []
        self.changes = VoterChanges(100, self._ask)

    def _ask(self, leader: BrokerId, asked: ChangeVoters, told: Callable[[VotersChanged], None]) -> None:
        self.asked.append((leader, asked))

    def add(self, change: VoterChange = REMOVE_3, *, plan: bool = False, deadline: float = 10.0) -> None:
        self.changes.add(change, plan=plan, deadline=deadline, done=self.told.append)

    def answer(self, attempt: int, verdict: str, code: str = "", index: int = -1) -> None:
        request_id = self.asked[attempt][1].request_id
        self.changes.on_answer(VotersChanged(request_id, verdict, index, code=code))

    @property
    def verdicts(self) -> list[tuple[str, str]]:
        assert all(answer.code in ("", *CODES) for answer in self.told)
        return [(answer.verdict, answer.code) for answer in self.told]


def test_a_request_waits_for_a_leader_that_can_be_reached() -> None:
    asker = Asker()
    asker.add()
    for leader, reachable in ((NO_BROKER, False), (A, False)):
        asker.changes.pump(0.0, leader, reachable)
    assert asker.asked == []
    asker.changes.pump(0.1, A, True)
    asker.changes.pump(0.2, A, True)
    (to, asked), *more = asker.asked
    assert (to, asked.action, asked.node_id, asked.plan) == (A, "remove", 3, False) and not more
    asker.answer(0, "applied", index=7)
    assert asker.verdicts == [("applied", "")] and asker.told[0].index == 7


def test_the_next_leader_is_asked_at_once() -> None:
    asker = Asker()
    asker.add()
    asker.changes.pump(0.0, A, True)
    asker.changes.pump(0.5, B, True)
    assert [to for to, _ in asker.asked] == [A, B]
    asker.answer(1, "refused", "not_a_voter")
    assert asker.verdicts == [("applied", "")], "the first attempt did it"


def test_a_former_leaders_refusal_does_not_determine_the_outcome() -> None:
    asker = Asker()
    asker.add()
    asker.changes.pump(0.0, A, True)
    asker.changes.pump(0.5, B, True)
    asker.answer(0, "refused", "quorum_majority_at_risk")
    assert asker.told == []
    asker.answer(1, "applied", index=9)
    assert asker.verdicts == [("applied", "")]


def test_a_completed_step_counts_whichever_attempt_did_it() -> None:
    asker = Asker()
    asker.add()
    asker.changes.pump(0.0, A, True)
    asker.changes.pump(ASKED_AGAIN_AFTER, A, True)
    asker.answer(1, "again")
    asker.answer(0, "applied", index=5)
    assert asker.told[0].index == 5
    asker.answer(1, "refused", "not_a_voter")
    assert asker.verdicts == [("applied", "")], "told once"


def test_an_attempt_that_certainly_failed_is_repeated_after_a_pause() -> None:
    asker = Asker()
    asker.add()
    asker.changes.pump(0.0, A, True)
    asker.answer(0, "again")
    asker.changes.pump(RETRY_AFTER / 2, A, True)
    assert len(asker.asked) == 1
    asker.changes.pump(RETRY_AFTER, A, True)
    asker.answer(1, "refused", "not_a_voter")
    assert asker.verdicts == [("refused", "not_a_voter")], "nobody can have done it"


def test_at_the_deadline_an_unanswered_attempt_is_unknown_and_a_plan_never_is() -> None:
    for leader, plan, code in (
        (NO_BROKER, False, "quorum_unavailable"),
        (A, False, "outcome_unknown"),
        (A, True, "quorum_unavailable"),
    ):
        asker = Asker()
        asker.add(plan=plan, deadline=1.0)
        asker.changes.pump(0.0, leader, leader != NO_BROKER)
        asker.changes.pump(1.0, leader, leader != NO_BROKER)
        assert asker.verdicts == [("refused", code)]


def test_waiting_requests_are_bounded_and_end_when_the_node_stops() -> None:
    asker = Asker()
    for _ in range(REQUESTS_MAX + 1):
        asker.add()
    assert asker.verdicts == [("refused", "overloaded")]
    asker.changes.pump(0.0, A, True)
    asker.changes.close()
    assert asker.verdicts[1:] == [("refused", "outcome_unknown")] * REQUESTS_MAX
    asker.answer(0, "applied")
    assert len(asker.told) == REQUESTS_MAX + 1


# --- At the leader ----------------------------------------------------------------------------------------------------


class Desk:
    """The queue of a leader: node 1 of the voters 1 to 3, and node 4 observes."""

    def __init__(self) -> None:
        self.bench: Bench = led(4)
        for _ in range(8):  # not a young leader
            self.bench.tick(0.1)
            acknowledge(self.bench, 2, 3, 4)
        self.lanes = Lanes(self.bench.engine.propose)
        self.desk = VoterChangeQueue(self.bench.engine, self.lanes)
        self.told: list[VotersChanged] = []

    def ask(self, action: str, node: int, *, plan: bool = False) -> None:
        self.desk.answer(ChangeVoters(1, action, node, plan), self.told.append)

    def settle(self) -> None:
        for applied in self.bench.applied:
            self.lanes.applied(applied, None)

    @property
    def verdicts(self) -> list[str]:
        return [answer.verdict for answer in self.told]


def test_a_step_is_reported_as_done_only_when_the_voters_after_it_agreed() -> None:
    """Also to a caller that requests it a second time: an uncommitted step may still be truncated."""
    for action, node in (("add", 4), ("remove", 3)):
        desk = Desk()
        desk.ask(action, node)
        desk.ask(action, node)
        assert desk.verdicts == ["again"]
        acknowledge(desk.bench, 2)
        if action == "add":
            desk.settle()
            assert desk.verdicts == ["again"], "the majority of four is three"
            desk.bench.hear(3, AppendReply(desk.bench.engine.term, True, desk.bench.engine.status().last_index, 0))
        desk.settle()
        assert desk.verdicts == ["again", "applied"]
        assert desk.told[1].index == desk.bench.engine.status().commit_index
        desk.ask(action, node)
        last = desk.told[-1]
        assert (last.verdict, last.code) == (("applied", "") if action == "add" else ("refused", "not_a_voter"))


def test_a_plan_shows_the_effect_and_appends_nothing() -> None:
    desk = Desk()
    last = desk.bench.engine.status().last_index
    desk.ask("add", 4, plan=True)
    desk.ask("remove", 1, plan=True)
    assert [(answer.verdict, answer.after) for answer in desk.told] == [("planned", (1, 2, 3, 4)), ("planned", (2, 3))]
    assert desk.bench.engine.status().last_index == last and desk.bench.engine.is_leader


def test_the_leader_resigns_and_the_next_one_is_asked() -> None:
    desk = Desk()
    desk.ask("remove", 1)
    assert desk.verdicts == ["again"] and not desk.bench.engine.is_leader
    desk.ask("remove", 1)
    assert desk.verdicts == ["again", "again"], "this one leads no more"
    assert desk.bench.engine.configuration == configuration(1, 2, 3)


def test_a_step_of_a_deposed_leader_has_an_unknown_outcome() -> None:
    desk = Desk()
    desk.ask("remove", 3)
    desk.bench.tick()
    desk.bench.hear(2, AppendReply(desk.bench.engine.term + 1, False, 1, 1))
    assert [lost.certain for lost in desk.bench.lost] == [False]
    for lost in desk.bench.lost:
        desk.lanes.lost(lost)
    assert desk.verdicts == ["unknown"]
