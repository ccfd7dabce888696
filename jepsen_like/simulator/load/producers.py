"""Simulated producers of one partition: an idempotent one that resends, and a careless one that does not.

The idempotent producer numbers its batches, has a few in flight, and uses `acks=all`. After an error or a missing
answer it resends all open batches in order. Now and then it resends a batch that was acknowledged.

The careless producer sends each batch once, with `acks` of 1 or all. An error with `applied` "no" means that nothing
was appended; a missing answer tells nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jepsen_like.simulator.brokers.history import Fate, Send
from jepsen_like.simulator.brokers.node import SimNode
from jepsen_like.simulator.world.violation import Violation
from raftlog.errors import CODES, Applied, RaftlogError
from raftlog.model import TopicPartition
from raftlog.records.batch import encode
from raftlog.wire import ProducedPartition, ProducePartition, ProduceRequest, ProduceResponse

from .clients import REQUEST_TIMEOUT, Clients

PRODUCE_TIMEOUT_MS = 800
WAITING_MAX = 20
"""The most batches without an answer; a producer sends no further ones."""

REFUSALS_MAX = 6
"""Number of refusals of its oldest batch after which a producer gives up, if a broker may have forgotten it."""

FORGETS_MAX = 40
"""Number of refusals that are a violation if no broker may have forgotten the producer: a deposed leader may not have
what the others have.
"""


@dataclass(frozen=True, slots=True)
class ProducerPlan:
    """How a topic's producers behave."""

    in_flight: int
    pause: float
    """Mean seconds between batches."""
    careless: bool
    acks: int
    """`acks` of a careless producer; -1 is all."""
    keys: int
    """The number of different keys; 0: none."""


class SimProducer:
    """Makes batches and sends produce requests; see the two kinds."""

    def __init__(self, number: int, topic_partition: TopicPartition, clients: Clients, plan: ProducerPlan) -> None:
        self.number = number
        self.topic_partition = topic_partition
        self.plan = plan
        self._clients = clients
        self._values = 0
        self.stopped = False

    @property
    def waiting(self) -> int:
        """Batches without an answer."""
        raise NotImplementedError

    def produce(self) -> None:
        """Make one more batch, and send the batches that may be sent."""
        raise NotImplementedError

    def send_again(self) -> None:
        """Resend the batch that was acknowledged last. Only an idempotent producer does."""

    def _batch(self, *, producer_id: int = -1, sequence: int = -1) -> tuple[Send, bytes]:
        rng = self._clients.rng
        count = rng.randrange(1, 5)
        values: list[bytes | None] = [f"{self.number}:{self._values + i}".encode() for i in range(count)]
        self._values += count
        keys = None
        if self.plan.keys:
            keys = [f"key-{rng.randrange(self.plan.keys)}".encode() for _ in range(count)]
            values = [None if rng.random() < 0.1 else value for value in values]
        acks = self.plan.acks if self.plan.careless else -1
        send = Send(self.number, self.topic_partition, tuple(values), self._clients.heap.now, acks)
        self._clients.history.sends.append(send)
        return send, encode(
            values,
            keys=keys,
            base_timestamp_ms=self._clients.wall_ms(),
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=sequence,
        )

    def _request(
        self,
        target: SimNode,
        send: Send,
        batch: bytes,
        hear: Callable[[ProducedPartition], None],
        *,
        resent: bool = False,
    ) -> None:
        """Send a produce request; `hear` is called if an answer arrives."""
        clients, tp = self._clients, self.topic_partition
        part = ProducePartition(tp.topic_id, tp.partition, len(batch), resent)
        request = ProduceRequest(1, send.acks, PRODUCE_TIMEOUT_MS, [part])

        def deliver() -> None:
            assert target.broker is not None
            target.broker.local.produce(request, [memoryview(batch)], answered)

        def answered(response: ProduceResponse) -> None:
            answer = response.partitions[0]
            if not answer.error and send.acks == -1:
                clients.truth.acknowledged(target, tp, answer.base_offset + len(send.values))
            clients.answer(target, lambda: hear(answer))

        clients.send(target, deliver)


class IdempotentProducer(SimProducer):
    """See the module.

    Invariant: batches are sent and resent in the order of `_queue`.

    Invariant: no batch is sent that is `in_flight` or more after the oldest open one: a leader remembers only the last
    five batches of a producer, and must still know the oldest when it is resent.
    """

    def __init__(self, number: int, topic_partition: TopicPartition, clients: Clients, plan: ProducerPlan) -> None:
        super().__init__(number, topic_partition, clients, plan)
        self._producer_id = 1_000 + number
        self._queue: list[tuple[int, Send, bytes]] = []
        """Open batches in order, each with its number."""
        self._batches = 0
        self._tried = 0
        """Number of the first batch that was never sent."""
        self._sent = 0
        """Number of batches at the head of the queue that are in flight."""
        self._round = 0
        """An answer of an earlier round is late: its batch was resent since."""
        self._sequence = 0
        self._refusals = 0
        self._target: SimNode | None = None
        self._target_starts = 0
        self._last: tuple[Send, bytes] | None = None
        """The batch that was acknowledged last."""

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def produce(self) -> None:
        if self.waiting >= WAITING_MAX:
            return
        send, batch = self._batch(producer_id=self._producer_id, sequence=self._sequence)
        self._sequence += len(send.values)
        self._queue.append((self._batches, send, batch))
        self._batches += 1
        self._pump()

    def send_again(self) -> None:
        """S1: a resent batch gets the same offset again, or an error; it is not appended twice."""
        target = self._clients.leader_of(self.topic_partition)
        if self._last is None or target is None:
            return
        first, batch = self._last
        copy = Send(self.number, self.topic_partition, first.values, self._clients.heap.now, -1, Fate.INFO)

        def hear(answer: ProducedPartition) -> None:
            if not answer.error:
                self._clients.history.duplicates += 1
                if answer.base_offset != first.base_offset:
                    raise Violation(
                        f"S1: producer {self.number} got offset {first.base_offset} for a batch of "
                        f"{self.topic_partition}, and {answer.base_offset} when it resent it"
                    )

        self._request(target, copy, batch, hear, resent=True)

    def _pump(self) -> None:
        while self._sent < len(self._queue) and self._queue[self._sent][0] < self._queue[0][0] + self.plan.in_flight:
            target = self._target
            if target is None or not target.running or target.starts != self._target_starts:
                target = self._target = self._clients.leader_of(self.topic_partition)
                if target is None:
                    self._retry_later()
                    return
                self._target_starts = target.starts
            number, send, batch = self._queue[self._sent]
            self._sent += 1
            resent, self._tried = number < self._tried, max(self._tried, number + 1)
            self._send(target, send, batch, self._round, resent)

    def _send(self, target: SimNode, send: Send, batch: bytes, sent_in: int, resent: bool) -> None:
        def timed_out() -> None:
            if sent_in == self._round and send.fate is None:
                self._again()

        self._request(target, send, batch, lambda answer: self._answered(sent_in, send, answer), resent=resent)
        self._clients.heap.schedule(REQUEST_TIMEOUT, timed_out)

    def _answered(self, sent_in: int, send: Send, answer: ProducedPartition) -> None:
        if send.fate is not None:
            return
        if not answer.error:
            # A late answer acknowledges the batch too.
            send.fate, send.base_offset = Fate.OK, answer.base_offset
            self._refusals = 0
            self._forget(send)
            return
        # A broker that is behind does not know the topic yet; a sequence out of order follows the loss of another
        # batch.
        forgotten = answer.error in ("out_of_order_sequence", "unknown_producer_id")
        # It also counts if the refusal of another batch came first, and began the next round.
        self._refusals += forgotten and send is self._queue[0][1]
        if sent_in != self._round or self.stopped:
            return
        unforeseen = answer.error == "internal_error" and self._clients.exceptions
        if unforeseen or (forgotten and self._may_be_forgotten(answer)):
            self._begin_anew()
            return
        behind = answer.error in ("unknown_topic", "unknown_partition")
        if not (forgotten or behind or CODES[answer.error].retriable):
            raise RaftlogError("internal_error", f"producer {self.number}: {answer.error} {answer.detail}")
        self._again()

    def _may_be_forgotten(self, answer: ProducedPartition) -> bool:
        """A broker knows a producer by its batches: if these may be deleted, it may not know the producer (KIP-360)."""
        deletes = self._clients.truth.of(self.topic_partition).start_offset > 0 or self._clients.producers_expire
        if answer.error == "unknown_producer_id" and not deletes and self._refusals > FORGETS_MAX:
            raise Violation(f"S1: producer {self.number} was forgotten by {self.topic_partition}: {answer.detail}")
        return deletes and self._refusals > REFUSALS_MAX

    def _begin_anew(self) -> None:
        """The outcome of the open batches is unknown. The next batches have another producer id."""
        for _, send, _ in self._queue:
            send.fate = Fate.INFO
        self._queue.clear()
        self._sent = self._sequence = self._refusals = 0
        self._round += 1
        self._last = None
        self._producer_id += 1_000

    def _again(self) -> None:
        """Forget the target, and resend all open batches in order."""
        self._round += 1
        self._sent = 0
        self._target = None
        self._retry_later()

    def _retry_later(self) -> None:
        number = self._round

        def retry() -> None:
            if number == self._round and not self.stopped:
                self._pump()

        self._clients.heap.schedule(self._clients.rng.uniform(0.02, 0.1), retry)

    def _forget(self, send: Send) -> None:
        position = next(i for i, (_, queued, _) in enumerate(self._queue) if queued is send)
        _, _, batch = self._queue.pop(position)
        self._last = send, batch
        if position < self._sent:
            self._sent -= 1
        self._pump()


class CarelessProducer(SimProducer):
    """See the module."""

    def __init__(self, number: int, topic_partition: TopicPartition, clients: Clients, plan: ProducerPlan) -> None:
        super().__init__(number, topic_partition, clients, plan)
        self._waiting = 0

    @property
    def waiting(self) -> int:
        return self._waiting

    def produce(self) -> None:
        target = self._clients.leader_of(self.topic_partition)
        if target is None or self._waiting >= WAITING_MAX:
            return
        send, batch = self._batch()
        self._waiting += 1
        self._request(target, send, batch, lambda answer: self._answered(send, answer))
        self._clients.heap.schedule(REQUEST_TIMEOUT, lambda: self._ended(send, Fate.INFO))

    def _answered(self, send: Send, answer: ProducedPartition) -> None:
        if not answer.error:
            send.base_offset = answer.base_offset
            self._ended(send, Fate.OK)
        else:
            self._ended(send, Fate.FAIL if CODES[answer.error].applied is Applied.NO else Fate.INFO)

    def _ended(self, send: Send, fate: Fate) -> None:
        if send.fate is None:
            send.fate = fate
            self._waiting -= 1
