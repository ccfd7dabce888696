"""The conclusions of simulated producers and operators from answers, and from missing ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest

from jepsen_like.simulator.brokers.history import Fate as SendFate
from jepsen_like.simulator.brokers.history import History, Send
from jepsen_like.simulator.load.live_topic import LiveTopic
from jepsen_like.simulator.load.producers import FORGETS_MAX, REFUSALS_MAX, IdempotentProducer, ProducerPlan
from jepsen_like.simulator.world.heap import EventHeap
from jepsen_like.simulator.world.violation import Violation
from metadata.commands.results import Done, Refused
from metadata.quorum.port import Fate, Outcome
from raftlog.wire import ProducedPartition, ProduceRequest, ProduceResponse
from tests.support.partitions.committed import TP

PLAN = ProducerPlan(in_flight=5, pause=1.0, careless=False, acks=-1, keys=0)

DONE = Outcome(Fate.APPLIED, 1, Done())
EXISTS = Outcome(Fate.APPLIED, 2, Refused("topic_exists", "there is one"))
REFUSED = Outcome(Fate.REFUSED)
UNKNOWN = Outcome(Fate.UNKNOWN)


# --- Producers -------------------------------------------------------------------------------------------------------


Answered: TypeAlias = Callable[[ProduceResponse], None]


class Asked:
    """A producer with two open batches, and the broker that got them."""

    def __init__(self, *, start_offset: int, expires: bool = False) -> None:
        """`start_offset`: records below were deleted. `expires`: brokers expire its state within the run."""
        self._requests: list[Answered] = []
        broker = SimpleNamespace(local=self)
        node = SimpleNamespace(running=True, starts=1, broker=broker)
        self._heap = EventHeap()
        self._history = History()
        clients: Any = SimpleNamespace(
            rng=random.Random(1),
            heap=self._heap,
            history=self._history,
            producers_expire=expires,
            exceptions=False,
            wall_ms=lambda: 1_000,
            leader_of=lambda topic_partition: node,
            truth=SimpleNamespace(of=lambda topic_partition: SimpleNamespace(start_offset=start_offset)),
            send=lambda target, deliver: deliver(),
            answer=lambda target, hear: hear(),
        )
        self.producer = IdempotentProducer(1, TP, clients, PLAN)
        self.producer.produce()
        self.producer.produce()

    @property
    def sends(self) -> list[Send]:
        return self._history.sends

    def produce(self, request: ProduceRequest, batches: Sequence[memoryview], answered: Answered) -> None:
        """Take a request of the producer."""
        self._requests.append(answered)

    def refuse(self, *, oldest_comes: str) -> None:
        """Answer both requests: the broker does not know the producer. Then the producer resends what is open."""
        (oldest, second), self._requests = self._requests, []
        refusal = ProduceResponse(1, [ProducedPartition(TP.topic_id, 0, error="unknown_producer_id")])
        for answered in (oldest, second) if oldest_comes == "first" else (second, oldest):
            answered(refusal)
        self._heap.run_until(self._heap.now + 0.2, lambda event: event.callback())


@pytest.mark.parametrize("oldest_comes", ["first", "last"])
def test_a_producer_whose_records_were_deleted_starts_again_after_some_rounds(oldest_comes: str) -> None:
    """S10: also if another batch's refusal is always the first of a round."""
    asked = Asked(start_offset=9)
    for _ in range(REFUSALS_MAX):
        asked.refuse(oldest_comes=oldest_comes)
        assert asked.producer.waiting == 2
    asked.refuse(oldest_comes=oldest_comes)
    if oldest_comes == "last":
        asked.refuse(oldest_comes=oldest_comes)
    assert asked.producer.waiting == 0
    assert [send.fate for send in asked.sends] == [SendFate.INFO] * 2


def test_a_producers_state_does_not_expire_while_its_records_are_there() -> None:
    asked = Asked(start_offset=0)
    for _ in range(FORGETS_MAX):
        asked.refuse(oldest_comes="first")
    with pytest.raises(Violation, match="S1: producer 1 was forgotten"):
        asked.refuse(oldest_comes="first")


def test_a_producer_whose_state_may_have_expired_starts_again() -> None:
    asked = Asked(start_offset=0, expires=True)
    for _ in range(REFUSALS_MAX + 1):
        asked.refuse(oldest_comes="first")
    assert asked.producer.waiting == 0 and [send.fate for send in asked.sends] == [SendFate.INFO, SendFate.INFO]


# --- Operators -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcomes", "again"),
    [
        ([None], False),  # It exists: so this proposal was carried out.
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
def test_a_topic_that_may_be_created_once_more_is_recognized(outcomes: list[Outcome | None], again: bool) -> None:
    """The topic exists after this number of proposals, with these outcomes; None: there was none."""
    topic = LiveTopic(TP.topic_id, "t", PLAN, 3, ())
    heard = [topic.creation_asked() for _ in outcomes]
    for told, outcome in zip(heard, outcomes, strict=True):
        if outcome is not None:
            told(outcome)
    assert topic.may_come_again is again
