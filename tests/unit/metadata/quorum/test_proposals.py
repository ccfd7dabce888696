"""A proposal's states: waiting, sent, retried, and its end in one of three ways, reported once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from metadata.commands.envelope import encode_result
from metadata.commands.results import Done, Refused
from metadata.quorum.lanes import Lanes
from metadata.quorum.port import Fate, Outcome
from metadata.quorum.proposals import ANSWER_AFTER, RETRY_AFTER, Proposals
from metadata.quorum.protocol import Propose, Proposed
from metadata.quorum.questions import Barriers
from metadata.raft.engine import Lost
from raftlog.errors import RemoteProtocolError
from raftlog.model import NO_BROKER, BrokerId

ME, LEADER, OTHER = BrokerId(1), BrokerId(2), BrokerId(3)


class Way:
    """Proposals whose both ends the test controls."""

    def __init__(self) -> None:
        self.submitted: list[tuple[bytes, object]] = []
        self.sent: list[tuple[BrokerId, Propose]] = []
        self.outcomes: list[Outcome] = []
        self.proposals = Proposals(
            ME, 100, lambda e, u, done: self.submitted.append((e, done)), lambda p, f: self.sent.append((p, f))
        )

    def add(self, deadline: float = 5.0) -> None:
        self.proposals.add(b"command", urgent=False, deadline=deadline, done=self.outcomes.append)

    def pump(self, now: float, leader: BrokerId = LEADER, reachable: bool = True) -> None:
        self.proposals.pump(now, leader, reachable)
        self.proposals.finish()

    def answer(self, now: float, fate: str, sender: BrokerId = LEADER, result: bytes = b"") -> None:
        index = 7 if fate == "applied" else -1
        self.proposals.on_proposed(sender, Proposed(100, fate, index, result), now)
        self.proposals.finish()


APPLIED = encode_result(Done())


def test_it_waits_for_a_leader_and_ends_refused_if_it_was_never_sent() -> None:
    way = Way()
    way.add()
    way.pump(0.0, NO_BROKER, False)
    way.pump(1.0, LEADER, False)
    assert way.sent == [] and way.outcomes == []
    way.pump(5.0, LEADER, True)
    assert [outcome.fate for outcome in way.outcomes] == [Fate.REFUSED]
    assert way.sent == []


def test_it_is_sent_once_and_its_answer_ends_it() -> None:
    way = Way()
    way.add()
    for now in (0.0, 0.1, 0.2):
        way.pump(now)
    assert [(peer, frame.envelope) for peer, frame in way.sent] == [(LEADER, b"command")]
    way.answer(0.3, "applied", result=APPLIED)
    assert way.outcomes == [Outcome(Fate.APPLIED, 7, Done())]
    way.answer(0.4, "applied", result=APPLIED)
    assert len(way.outcomes) == 1


@pytest.mark.parametrize("fate", ["refused", "unknown"])
def test_it_is_retried_with_the_same_bytes(fate: str) -> None:
    way = Way()
    way.add()
    way.pump(0.0)
    way.answer(0.1, fate)
    way.pump(0.1)
    assert len(way.sent) == 1
    way.pump(0.1 + RETRY_AFTER)
    assert len(way.sent) == 2 and way.sent[0] == way.sent[1]
    way.pump(5.0)
    assert [outcome.fate for outcome in way.outcomes] == [Fate.UNKNOWN], "the second attempt may be in a log"


def test_another_leader_a_lost_link_or_silence_bring_another_attempt() -> None:
    way = Way()
    way.add(deadline=50.0)
    way.pump(0.0)
    way.pump(0.1, OTHER)
    assert [peer for peer, _ in way.sent] == [LEADER, OTHER]
    way.pump(0.2, OTHER, False)
    way.pump(0.3 + ANSWER_AFTER, OTHER, True)
    assert [peer for peer, _ in way.sent] == [LEADER, OTHER, OTHER]
    way.pump(0.4 + 2 * ANSWER_AFTER, OTHER, True)
    assert len(way.sent) == 4


def test_a_late_answer_of_a_former_leader_counts_only_if_it_is_the_result() -> None:
    way = Way()
    way.add()
    way.pump(0.0)
    way.pump(0.1, OTHER)
    way.answer(0.2, "refused", LEADER)
    way.pump(0.3, OTHER)
    assert len(way.sent) == 2, "the present attempt goes on"
    way.answer(0.4, "applied", LEADER, APPLIED)
    assert [outcome.fate for outcome in way.outcomes] == [Fate.APPLIED]


def test_the_leader_uses_its_own_engine() -> None:
    way = Way()
    way.add()
    way.pump(0.0, ME, True)
    way.pump(0.1, ME, True)
    assert len(way.submitted) == 1 and way.sent == []
    way.pump(5.0, ME, True)
    assert [outcome.fate for outcome in way.outcomes] == [Fate.UNKNOWN]


@pytest.mark.parametrize(
    ("certain", "expected"),
    [
        (True, Outcome(Fate.REFUSED, detail="no outcome in time: this node does not lead the quorum")),
        (False, Outcome(Fate.UNKNOWN, detail="no outcome in time: this node no longer leads the quorum")),
    ],
    ids=["never appended", "cut away"],
)
def test_a_leader_that_lost_a_proposal_reports_whether_it_had_entered_the_log(certain: bool, expected: Outcome) -> None:
    """S7: an appended proposal may still be decided by another leader whose log has it, and is not reported as
    refused."""
    entered: list[int] = []
    lanes = Lanes(lambda command, token: entered.append(token))
    outcomes: list[Outcome] = []
    proposals = Proposals(ME, 100, lanes.submit, lambda peer, frame: None)
    proposals.add(b"command", urgent=False, deadline=5.0, done=outcomes.append)
    proposals.pump(0.0, ME, True)
    lanes.drain()
    lanes.lost(Lost(entered.pop(), certain))
    proposals.pump(5.0, NO_BROKER, False)
    proposals.finish()
    assert outcomes == [expected]


def test_a_dropped_answer_is_unknown() -> None:
    way = Way()
    way.add()
    way.pump(0.0)
    way.answer(0.1, "applied", result=encode_result(Refused("outcome_unknown", "forgotten")))
    assert [outcome.fate for outcome in way.outcomes] == [Fate.UNKNOWN]


def test_an_invalid_answer_is_a_protocol_violation() -> None:
    way = Way()
    way.add()
    way.pump(0.0)
    with pytest.raises(RemoteProtocolError):
        way.answer(0.1, "applied", result=b"\xc1")
    with pytest.raises(RemoteProtocolError):
        way.proposals.on_proposed(LEADER, Proposed(100, "applied", -1, APPLIED), 0.1)


def test_at_the_end_all_callers_are_answered() -> None:
    way = Way()
    way.add()
    way.pump(0.0)
    way.add()
    way.proposals.close()
    assert [outcome.fate for outcome in way.outcomes] == [Fate.UNKNOWN, Fate.REFUSED]


def test_a_barrier_requested_while_one_is_in_flight_waits_for_the_next() -> None:
    proposed: list[object] = []
    barriers = Barriers(lambda deadline, done: proposed.append(done))
    answers: list[tuple[str, int]] = []
    barriers.ask(5.0, lambda outcome: answers.append(("first", outcome.index)))
    barriers.pump(0.0)
    barriers.ask(5.0, lambda outcome: answers.append(("second", outcome.index)))
    barriers.ask(0.5, lambda outcome: answers.append(("impatient", outcome.index)))
    barriers.pump(0.1)
    assert len(proposed) == 1
    barriers.pump(0.6)
    proposed[0](Outcome(Fate.APPLIED, 10))  # type: ignore[operator]
    barriers.pump(0.7)
    proposed[1](Outcome(Fate.APPLIED, 11))  # type: ignore[operator]
    assert answers == [("impatient", -1), ("first", 10), ("second", 11)]
    assert len(proposed) == 2


# --- Read barriers ---------------------------------------------------------------------------------------------------


def test_a_barrier_is_answered_by_its_own_entry_only() -> None:
    """An entry that took too long ends late: callers that asked after it was proposed must not get its index (S7)."""
    proposed: list[Callable[[Outcome], None]] = []
    heard: dict[str, Outcome] = {}
    barriers = Barriers(lambda deadline, done: proposed.append(done))

    def ask(name: str, deadline: float) -> None:
        barriers.ask(deadline, lambda outcome: heard.__setitem__(name, outcome))

    ask("first", 1.0)
    barriers.pump(0.0)
    ask("second", 5.0)
    barriers.pump(1.0)
    assert heard.pop("first").fate is Fate.UNKNOWN
    assert len(proposed) == 2
    proposed[0](Outcome(Fate.UNKNOWN))
    assert not heard, "the second one's entry is still under way"
    ask("third", 5.0)
    barriers.pump(1.1)
    proposed[1](Outcome(Fate.APPLIED, 7))
    assert heard.pop("second").index == 7 and not heard
    barriers.pump(1.2)
    proposed[2](Outcome(Fate.APPLIED, 9))
    assert heard.pop("third").index == 9 and len(barriers) == 0
