"""The order and the exactly-once of a producer, with a leader that loses, delays, repeats and refuses batches (S1).

The model is a leader in thirty lines: it appends a name (producer id, epoch, sequence) at most once and only after its
predecessor. Now and then it loses the state of every producer, and then refuses resends (ids rise, so it knows which
ones it lost). Between the two is a network that may break at any moment: messages in flight are then applied at any
later time, or never, and their answers are lost. Whatever happens, a batch that is reported as delivered is in the log
once, at the reported offset, after all delivered ones that were sent before it; one that is reported as not applied is
not in the log.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.client.producing.batch import Batch
from raftlog.client.producing.partition_queue import Delivered, Outcome, Undelivered
from raftlog.client.producing.sequencer import Sequencer
from raftlog.errors import CODES, Applied, RaftlogError, error_from_code

WINDOW = 5
TOPIC = "t"


@dataclass
class Message:
    batch: Batch[int]
    attempt: int
    name: tuple[int, int]
    values: list[bytes]
    resent: bool


@dataclass
class Leader:
    """A partition's log and its state of each producer."""

    log: list[bytes] = field(default_factory=list)
    windows: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    forgotten_up_to: int = 0

    def forget(self) -> None:
        self.forgotten_up_to = max(self.forgotten_up_to, *self.windows, 0)
        self.windows.clear()

    def produce(self, message: Message) -> int | str:
        producer, sequence = message.name
        if producer not in self.windows and (sequence or (message.resent and producer <= self.forgotten_up_to)):
            return "unknown_producer_id"
        window = self.windows.setdefault(producer, [])
        for base, count, offset in window:
            if (base, count) == (sequence, len(message.values)):
                return offset
        expected = window[-1][0] + window[-1][1] if window else 0
        if sequence != expected:
            return "out_of_order_sequence"
        offset = len(self.log)
        self.log += message.values
        window.append((sequence, len(message.values), offset))
        del window[:-WINDOW]
        return offset


class World:
    """One producer's sequencer, one partition, and two brokers of which one leads at a time over the same log."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.sequencer: Sequencer[int] = Sequencer(idempotent=True, delivery_timeout=3.0, random=self.random)
        self.leader = Leader()
        self.leads = 1
        self.epoch = 1
        self.wire: dict[int, list[Message]] = {1: [], 2: []}
        self.answers: list[tuple[Message, int | str]] = []
        self.zombies: list[Message] = []
        self.sent: list[Batch[int]] = []
        self.outcomes: dict[int, Outcome[int]] = {}
        self.producers = 0

    def decide(self, outcomes: list[Outcome[int]]) -> None:
        for outcome in outcomes:
            assert outcome.batch.delivery not in self.outcomes, "decided twice"
            self.outcomes[outcome.batch.delivery] = outcome

    def send(self) -> None:
        number = len(self.sent)
        batch: Batch[int] = Batch(TOPIC, 0, 1000, number, self.now, 0)
        batch.values = [f"{number}.{i}".encode() for i in range(self.random.randrange(1, 4))]
        self.sent.append(batch)
        self.sequencer.enqueue(batch)

    def pump(self) -> None:
        self.sequencer.wake(self.now)
        for broker in self.sequencer.leaders():
            for batch in self.sequencer.take(broker, self.now, 10_000):
                name = (batch.producer_id, batch.base_sequence)
                self.wire[broker].append(Message(batch, batch.attempt, name, list(batch.values), batch.resent))

    def process(self, broker: int) -> None:
        if not self.wire[broker]:
            return
        message = self.wire[broker].pop(0)
        if broker != self.leads:
            self.answers.append((message, "not_leader"))
        elif self.random.random() < 0.1:
            refusals = ["overloaded", "timestamp_out_of_range", "unknown_topic", "not_enough_replicas"]
            self.answers.append((message, self.random.choice(refusals)))
        else:
            answer = self.leader.produce(message)
            if self.random.random() < 0.1:
                answer = "request_timed_out"
            self.answers.append((message, answer))

    def answer(self) -> None:
        if not self.answers:
            return
        message, answer = self.answers.pop(self.random.randrange(len(self.answers)))
        if isinstance(answer, int):
            self.decide(self.sequencer.acknowledged(message.batch, message.attempt, answer, -1))
        else:
            error = error_from_code(answer, "no")
            self.decide(self.sequencer.refused(message.batch, message.attempt, error, self.now))

    def break_connection(self, broker: int) -> None:
        gone, self.wire[broker] = self.wire[broker], []
        self.zombies += gone
        lost = [message for message, _ in self.answers] + gone
        self.answers = []
        for message in lost:
            error = error_from_code("connection_lost", "gone")
            self.sequencer.lost(message.batch, message.attempt, error, self.now)

    def zombie(self) -> None:
        """Bytes of a broken connection reach the leader after all."""
        if self.zombies:
            self.leader.produce(self.zombies.pop(0))

    def forget(self) -> None:
        """The leader keeps the state for longer than any message is in flight, so first attempts do not arrive after
        its loss."""
        if not self.zombies and not any(self.wire.values()):
            self.leader.forget()

    def move(self) -> None:
        self.leads = 3 - self.leads
        self.epoch += 1

    def refresh(self) -> None:
        self.sequencer.stale_topics.clear()
        self.sequencer.set_leader(TOPIC, 0, self.leads, self.epoch)
        if self.sequencer.identity_wanted:
            self.producers += 1
            self.sequencer.grant_identity(self.producers, 0)

    def step(self) -> None:
        action = self.random.choices(
            [
                self.send,
                self.pump,
                lambda: self.process(self.random.choice([1, 2])),
                self.answer,
                lambda: self.break_connection(self.random.choice([1, 2])),
                self.zombie,
                self.move,
                self.refresh,
                self.forget,
                lambda: self.decide(self.sequencer.expire(self.now)),
            ],
            [6, 10, 16, 12, 1, 1, 1, 4, 1, 1],
        )[0]
        action()
        self.now += self.random.uniform(0, 0.04)
        self.sequencer.check_invariants()

    def settle(self) -> None:
        for _ in range(2000):
            if len(self.outcomes) == len(self.sent):
                return
            self.refresh()
            self.pump()
            for broker in (1, 2):
                self.process(broker)
            self.answer()
            self.zombie()
            self.now += 0.01
            self.decide(self.sequencer.expire(self.now))
        pytest.fail(f"not settled: {[str(queue) for queue in self.sequencer.queues()]}")

    def check(self) -> None:
        while self.zombies:
            self.zombie()
        delivered_at = []
        for number, batch in enumerate(self.sent):
            outcome = self.outcomes[number]
            copies = self.leader.log.count(batch.values[0])
            if isinstance(outcome, Delivered):
                assert copies == 1, f"batch {number} is there {copies} times"
                end = outcome.base_offset + batch.count
                assert self.leader.log[outcome.base_offset : end] == batch.values
                delivered_at.append(outcome.base_offset)
            elif CODES[outcome.error.code].applied is Applied.NO:
                assert copies == 0, f"batch {number} was reported as {outcome.error}, and is there"
            else:
                assert copies <= 1, f"batch {number} is there {copies} times"
        assert delivered_at == sorted(delivered_at), "delivered out of order"


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_delivered_batches_are_there_once_and_in_order(seed: int) -> None:
    world = World(seed)
    for _ in range(150):
        world.step()
    world.settle()
    world.check()


def test_the_model_finds_a_producer_that_renames_too_early() -> None:
    """The check itself is checked: giving a batch with an unknown outcome a new name must show up as a duplicate."""

    def run(seed: int) -> None:
        world = World(seed)
        original = world.sequencer.lost

        def forgetful(batch: Batch[int], attempt: int, error: RaftlogError, now: float) -> None:
            original(batch, attempt, error, now)
            for waiting in world.sequencer.unfinished():
                waiting.maybe_applied = False
            for queue in world.sequencer.queues():
                if not queue.in_flight:
                    for waiting in queue.ready:
                        waiting.producer_id = waiting.base_sequence = -1
                    queue.producer_id = -1
                    world.sequencer.identity_wanted = True

        world.sequencer.lost = forgetful  # type: ignore[method-assign]
        for _ in range(150):
            world.step()
        world.settle()
        world.check()

    with pytest.raises(AssertionError, match=r"times|out of order|is there"):
        for seed in range(50):
            run(seed)


def test_the_model_finds_a_resend_that_is_not_marked() -> None:
    """The check of marks is checked: a later attempt without its mark is there twice."""

    def run(seed: int) -> None:
        world = World(seed)
        take = world.sequencer.take

        def unmarked(leader: int, now: float, max_bytes: int) -> list[Batch[int]]:
            batches = take(leader, now, max_bytes)
            for batch in batches:
                batch.resent = False
            return batches

        world.sequencer.take = unmarked  # type: ignore[method-assign]
        for _ in range(150):
            world.step()
        world.settle()
        world.check()

    with pytest.raises(AssertionError, match=r"times|is there"):
        for seed in range(2000):
            run(seed)


def test_only_an_attempt_whose_predecessor_may_have_been_applied_is_marked_as_a_resend(
    pipelined: tuple[Sequencer[int], list[Batch[int]]],
) -> None:
    sequencer, batches = pipelined
    assert [batch.resent for batch in batches] == [False] * 3
    sequencer.refused(batches[0], 1, error_from_code("overloaded", ""), 1.0)
    sequencer.lost(batches[1], 1, error_from_code("connection_lost", ""), 1.0)
    sequencer.wake(9.0)
    again = sequencer.take(1, 9.0, 10_000)
    assert [batch.resent for batch in again] == [False, True, True]
    sequencer.refused(again[0], again[0].attempt, error_from_code("request_timed_out", ""), 9.0)
    sequencer.lost(again[1], again[1].attempt, error_from_code("connection_lost", ""), 9.0)
    sequencer.wake(19.0)
    third = sequencer.take(1, 19.0, 10_000)
    assert [batch.resent for batch in third] == [True, True, True], "a mark stays"


def test_a_marked_batch_that_its_leader_cannot_judge_has_an_unknown_outcome(
    pipelined: tuple[Sequencer[int], list[Batch[int]]],
) -> None:
    """It is not sent again under a new name, which would append it twice if it was there (S1)."""
    sequencer, batches = pipelined
    sequencer.lost(batches[0], 1, error_from_code("connection_lost", ""), 1.0)
    sequencer.wake(9.0)
    first, *_ = sequencer.take(1, 9.0, 10_000)
    outcomes = sequencer.refused(first, first.attempt, error_from_code("unknown_producer_id", ""), 9.0)
    assert outcome_codes(outcomes) == ["outcome_unknown"] * 3
    assert sequencer.take(1, 19.0, 10_000) == []


def outcome_codes(outcomes: list[Outcome[int]]) -> list[str]:
    return ["ok" if isinstance(outcome, Delivered) else outcome.error.code for outcome in outcomes]


@pytest.fixture
def pipelined() -> tuple[Sequencer[int], list[Batch[int]]]:
    """Three batches in flight to broker 1."""
    sequencer: Sequencer[int] = Sequencer(idempotent=True, delivery_timeout=10.0, random=random.Random(1))
    sequencer.grant_identity(7, 0)
    sequencer.set_leader(TOPIC, 0, 1, 1)
    batches = []
    for number in range(3):
        batch: Batch[int] = Batch(TOPIC, 0, 1000, number, 0.0, 0)
        batch.values = [b"x"] * 2
        sequencer.enqueue(batch)
        batches.append(batch)
    assert sequencer.take(1, 0.0, 10_000) == batches
    assert [batch.base_sequence for batch in batches] == [0, 2, 4]
    return sequencer, batches


def test_batches_behind_a_refused_one_are_resent_in_order_under_the_same_names(
    pipelined: tuple[Sequencer[int], list[Batch[int]]],
) -> None:
    sequencer, batches = pipelined
    assert sequencer.refused(batches[0], 1, error_from_code("not_leader", ""), 1.0) == []
    assert sequencer.refused(batches[1], 1, error_from_code("out_of_order_sequence", ""), 1.0) == []
    assert list(sequencer.stale_topics) == [TOPIC]
    sequencer.set_leader(TOPIC, 0, 2, 2)
    again = sequencer.take(2, 1.0, 10_000)
    assert again == batches and [batch.base_sequence for batch in again] == [0, 2, 4]
    assert {batch.producer_id for batch in again} == {7}


def test_nothing_is_resent_while_an_earlier_answer_is_awaited(
    pipelined: tuple[Sequencer[int], list[Batch[int]]],
) -> None:
    sequencer, batches = pipelined
    assert sequencer.refused(batches[1], 1, error_from_code("overloaded", ""), 1.0) == []
    sequencer.wake(9.0)
    assert sequencer.take(1, 9.0, 10_000) == []
    assert outcome_codes(sequencer.acknowledged(batches[0], 1, 0, -1)) == ["ok"]
    assert sequencer.take(1, 9.0, 10_000) == batches[1:]


def test_a_moved_leader_gets_what_the_stopped_one_never_answered(
    pipelined: tuple[Sequencer[int], list[Batch[int]]],
) -> None:
    sequencer, batches = pipelined
    sequencer.set_leader(TOPIC, 0, 2, 2)
    assert sequencer.take(2, 0.1, 10_000) == batches
    assert sequencer.acknowledged(batches[0], 1, 0, -1) == [], "the old leader's answer came too late to count"


def test_an_older_leader_epoch_changes_nothing(pipelined: tuple[Sequencer[int], list[Batch[int]]]) -> None:
    sequencer, _ = pipelined
    sequencer.set_leader(TOPIC, 0, 2, 0)
    assert [queue.leader for queue in sequencer.queues()] == [1]


def test_the_expiry_of_a_batch_of_unknown_outcome_includes_the_sent_ones_after_it(
    pipelined: tuple[Sequencer[int], list[Batch[int]]],
) -> None:
    sequencer, _ = pipelined
    late: Batch[int] = Batch(TOPIC, 0, 1000, 9, 9.0, 0)
    late.values = [b"x"]
    sequencer.enqueue(late)
    # (It could be sent: three are in flight, five may be.) It stays ready, so it was never sent.
    assert outcome_codes(sequencer.expire(10.0)) == ["outcome_unknown"] * 3
    assert sequencer.identity_wanted
    sequencer.grant_identity(8, 0)
    assert sequencer.take(1, 10.0, 10_000) == [late]
    assert (late.producer_id, late.base_sequence) == (8, 0)


def test_batches_behind_a_certainly_refused_one_continue_under_a_new_name(
    pipelined: tuple[Sequencer[int], list[Batch[int]]],
) -> None:
    sequencer, batches = pipelined
    assert outcome_codes(sequencer.refused(batches[0], 1, error_from_code("corrupt_batch", ""), 1.0)) == [
        "corrupt_batch"
    ]
    sequencer.grant_identity(8, 0)
    assert sequencer.take(1, 1.0, 10_000) == batches[1:]
    assert [(batch.producer_id, batch.base_sequence) for batch in batches[1:]] == [(8, 0), (8, 2)]


def test_a_leader_that_does_not_know_the_topic_ends_no_batch(
    pipelined: tuple[Sequencer[int], list[Batch[int]]],
) -> None:
    """The leader's view may lag: only the topic's description says whether the topic is gone."""
    sequencer, batches = pipelined
    unknown = error_from_code("unknown_topic", "")
    assert sequencer.refused(batches[0], 1, unknown, 1.0) == []
    sequencer.wake(1.5)
    assert sequencer.take(1, 1.5, 10_000) == batches
    sequencer.stale_topics.clear()
    assert sequencer.refused(batches[0], batches[0].attempt, unknown, 9.1) == []
    assert list(sequencer.stale_topics) == [TOPIC]
    first, *in_flight = outcome_codes(sequencer.fail_topic(TOPIC, unknown))
    assert first == "unknown_topic" and set(in_flight) == {"outcome_unknown"}


def test_an_expired_batch_that_was_never_sent_is_reported_as_not_applied() -> None:
    sequencer: Sequencer[int] = Sequencer(idempotent=True, delivery_timeout=1.0, random=random.Random(1))
    batch: Batch[int] = Batch(TOPIC, 0, 1000, 0, 0.0, 0)
    sequencer.enqueue(batch)
    assert list(sequencer.stale_topics) == [TOPIC]
    (outcome,) = sequencer.expire(1.0)
    assert isinstance(outcome, Undelivered)
    assert outcome.error.code == "leader_not_available"
    assert outcome.error.applied is Applied.NO


def test_a_topic_that_failed_never_counts_from_zero_under_the_same_producer_id(
    pipelined: tuple[Sequencer[int], list[Batch[int]]],
) -> None:
    sequencer, batches = pipelined
    unsent: Batch[int] = Batch(TOPIC, 0, 1000, 3, 0.0, 0)
    unsent.values = [b"x"]
    sequencer.enqueue(unsent)
    failed = sequencer.fail_topic(TOPIC, error_from_code("unknown_topic", ""))
    assert outcome_codes(failed) == ["outcome_unknown"] * 3 + ["unknown_topic"]
    sequencer.set_leader(TOPIC, 0, 1, 1)
    batch: Batch[int] = Batch(TOPIC, 0, 1000, 0, 0.0, 0)
    batch.values = [b"x"]
    sequencer.enqueue(batch)
    assert sequencer.identity_wanted
    assert sequencer.take(1, 0.0, 10_000) == []
    sequencer.grant_identity(8, 0)
    assert sequencer.take(1, 0.0, 10_000) == [batch]
    assert sequencer.acknowledged(batches[0], 1, 0, -1) == []


def test_without_idempotence_only_failed_batches_are_resent() -> None:
    sequencer: Sequencer[int] = Sequencer(idempotent=False, delivery_timeout=9.0, random=random.Random(1))
    sequencer.set_leader(TOPIC, 0, 1, 1)
    batches = []
    for number in range(3):
        batch: Batch[int] = Batch(TOPIC, 0, 1000, number, 0.0, 0)
        batch.values = [b"x"]
        sequencer.enqueue(batch)
        batches.append(batch)
    assert sequencer.take(1, 0.0, 10_000) == batches
    for lost in batches[:2]:
        sequencer.lost(lost, 1, error_from_code("connection_lost", ""), 0.0)
    assert outcome_codes(sequencer.acknowledged(batches[2], 1, 0, -1)) == ["ok"]
    sequencer.wake(1.0)
    assert sequencer.take(1, 1.0, 10_000) == batches[:2]


def test_records_without_key_go_to_a_leader_with_little_backlog() -> None:
    sequencer: Sequencer[int] = Sequencer(idempotent=False, delivery_timeout=9.0, random=random.Random(1))
    for partition in range(3):
        sequencer.set_leader(TOPIC, partition, 1 if partition != 1 else -1, 1)
    chosen = [sequencer.choose_partition(TOPIC, 3) for _ in range(6)]
    assert set(chosen) == {0, 2}
    for number in range(3):
        batch: Batch[int] = Batch(TOPIC, 0, 1000, number, 0.0, 0)
        sequencer.enqueue(batch)
    assert {sequencer.choose_partition(TOPIC, 3) for _ in range(6)} == {2}


def test_a_broker_with_an_open_request_is_chosen_if_all_have_one() -> None:
    busy = {1}
    sequencer: Sequencer[int] = Sequencer(
        idempotent=False, delivery_timeout=9.0, random=random.Random(1), busy=busy.__contains__
    )
    assert sequencer.sendable(TOPIC, 0, True) and sequencer.sendable(TOPIC, -1, True), "nothing is known of it"
    for partition in range(4):
        sequencer.set_leader(TOPIC, partition, 1 + partition % 2, 1)
    assert {sequencer.choose_partition(TOPIC, 4) for _ in range(8)} == {1, 3}
    assert [sequencer.sendable(TOPIC, partition, True) for partition in (-1, 0, 1)] == [True, False, True]
    assert sequencer.sendable(TOPIC, 0, False), "it has waited for long enough"
    busy.add(2)
    assert {sequencer.choose_partition(TOPIC, 4) for _ in range(8)} == {0, 1, 2, 3}
    assert not sequencer.sendable(TOPIC, -1, True)


def test_a_batch_does_not_scan_all_partitions_of_its_topic() -> None:
    asked: list[int] = []

    def busy(leader: int) -> bool:
        asked.append(leader)
        return True

    sequencer: Sequencer[int] = Sequencer(idempotent=False, delivery_timeout=9.0, random=random.Random(1), busy=busy)
    for partition in range(1000):
        sequencer.set_leader(TOPIC, partition, partition % 10, 1)
    assert not sequencer.sendable(TOPIC, -1, True)
    sequencer.choose_partition(TOPIC, 1000)
    assert len(asked) <= 16


def test_without_a_leader_a_batch_waits_for_no_answer() -> None:
    sequencer: Sequencer[int] = Sequencer(
        idempotent=False, delivery_timeout=9.0, random=random.Random(1), busy=lambda leader: leader == 1
    )
    for partition, leader in enumerate((-1, 1)):
        sequencer.set_leader(TOPIC, partition, leader, 1)
    assert [sequencer.sendable(TOPIC, partition, True) for partition in (-1, 0, 1)] == [False, True, False]
    sequencer.set_leader(TOPIC, 1, -1, 2)
    assert sequencer.sendable(TOPIC, -1, True), "the leader is asked for when there is something to send"
