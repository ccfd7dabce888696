"""What simulated producers and operators conclude from answers, and from those that do not come."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from jepsen_like.simulator.brokers.history import Fate as SendFate
from jepsen_like.simulator.brokers.history import History
from jepsen_like.simulator.load.live_topic import LiveTopic
from jepsen_like.simulator.load.producers import FORGETS_MAX, REFUSALS_MAX, IdempotentProducer, ProducerPlan
from jepsen_like.simulator.world.heap import EventHeap
from jepsen_like.simulator.world.violation import Violation
from metadata.commands.results import Done, Refused
from metadata.quorum.port import Fate, Outcome
from raftlog.wire import ProducedPartition
from tests.support.committed import TP

PLAN = ProducerPlan(in_flight=5, pause=1.0, careless=False, acks=-1, keys=0)

DONE = Outcome(Fate.APPLIED, 1, Done())
EXISTS = Outcome(Fate.APPLIED, 2, Refused("topic_exists", "there is one"))
REFUSED = Outcome(Fate.REFUSED)
UNKNOWN = Outcome(Fate.UNKNOWN)


# --- Producers -------------------------------------------------------------------------------------------------------


def producer(*, start_offset: int, expires: bool = False) -> IdempotentProducer:
    """It has two open batches and reaches nobody. `start_offset`: records below were deleted. `expires`: brokers
    forget it within the run."""
    clients: Any = SimpleNamespace(
        rng=random.Random(1),
        heap=EventHeap(),
        history=History(),
        producers_expire=expires,
        wall_ms=lambda: 1_000,
        leader_of=lambda topic_partition: None,
        truth=SimpleNamespace(of=lambda topic_partition: SimpleNamespace(start_offset=start_offset)),
    )
    made = IdempotentProducer(1, TP, clients, PLAN)
    made.produce()
    made.produce()
    return made


def refuse(asked: IdempotentProducer, *, oldest_comes: str) -> None:
    """One round of answers: its broker does not know the producer."""
    sent_in, (oldest, second) = asked._round, [send for _, send, _ in asked._queue]
    refusal = ProducedPartition(TP.topic_id, 0, error="unknown_producer_id")
    for send in (oldest, second) if oldest_comes == "first" else (second, oldest):
        asked._answered(sent_in, send, refusal)


@pytest.mark.parametrize("oldest_comes", ["first", "last"])
def test_a_producer_whose_records_were_deleted_begins_anew_after_so_many_rounds(oldest_comes: str) -> None:
    """S10: also where another batch's refusal is always the first of a round."""
    asked = producer(start_offset=9)
    sends = [send for _, send, _ in asked._queue]
    for _ in range(REFUSALS_MAX):
        refuse(asked, oldest_comes=oldest_comes)
        assert asked.waiting == 2
    refuse(asked, oldest_comes=oldest_comes)
    if oldest_comes == "last":
        refuse(asked, oldest_comes=oldest_comes)
    assert asked.waiting == 0
    assert [send.fate for send in sends] == [SendFate.INFO] * 2


def test_a_producer_is_not_to_be_forgotten_while_its_records_are_there() -> None:
    asked = producer(start_offset=0)
    for _ in range(FORGETS_MAX):
        refuse(asked, oldest_comes="first")
    with pytest.raises(Violation, match="S1: producer 1 was forgotten"):
        refuse(asked, oldest_comes="first")


def test_a_producer_whose_time_may_be_over_begins_anew() -> None:
    asked = producer(start_offset=0, expires=True)
    sends = [send for _, send, _ in asked._queue]
    for _ in range(REFUSALS_MAX + 1):
        refuse(asked, oldest_comes="first")
    assert asked.waiting == 0 and [send.fate for send in sends] == [SendFate.INFO, SendFate.INFO]


# --- Operators -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcomes", "again"),
    [
        ([None], False),  # It is there: so this one was carried out.
        ([UNKNOWN], False),
        ([DONE], False),
        ([UNKNOWN, None], True),
        ([UNKNOWN, DONE], True),
        ([UNKNOWN, REFUSED], False),
        ([REFUSED, DONE], False),
        ([UNKNOWN, EXISTS], False),
        ([DONE, EXISTS], False),
        ([UNKNOWN, UNKNOWN, EXISTS], True),
    ],
)
def test_a_topic_that_may_be_made_once_more_is_known_for_it(outcomes: list[Outcome | None], again: bool) -> None:
    """It is there, after it was proposed so often, with these outcomes; None: none came."""
    topic = LiveTopic(TP.topic_id, "t", PLAN, 3, ())
    heard = [topic.creation_asked() for _ in outcomes]
    for told, outcome in zip(heard, outcomes, strict=True):
        if outcome is not None:
            told(outcome)
    assert topic.may_come_again is again
