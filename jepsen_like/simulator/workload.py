"""Simulated producers and consumers: the public request path (`LocalRequests`) behind a network that loses answers.

A producer sends uniquely valued batches to one partition, a few in flight, idempotent and with `acks=all`. A request
or an answer may be lost when a process dies or a link is cut; it then sends the same batch again, in order, until it is
acknowledged. A consumer reads one partition from the start, wherever it is led.

What is *not* here: judging what they saw (`invariants.py`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from raftlog.errors import CODES, RaftlogError
from raftlog.model import PartitionRecord, TopicPartition
from raftlog.ports import Part
from raftlog.record_batch import RecordBatch, encode, split_batches
from raftlog.wire import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)

from .heap import EventHeap
from .history import Fate, History, Read, Send
from .network import CLIENT, bytes_of
from .node import SimNode

REQUEST_TIMEOUT = 1.0


@dataclass(slots=True)
class Clients:
    """What producers and consumers share."""

    heap: EventHeap
    nodes: list[SimNode]
    rng: random.Random
    history: History
    cuts: set[tuple[int, int]]
    on_acknowledged: Callable[[SimNode, TopicPartition, int], None]
    """Told, at that very moment, that this node acknowledges everything below this offset with `acks=all`."""

    def latency(self) -> float:
        return self.rng.uniform(0.0002, 0.003)

    def leader_of(self, topic_partition: TopicPartition) -> SimNode | None:
        record = self.record_of(topic_partition)
        return self.node_of(record) if record is not None else None

    def node_of(self, record: PartitionRecord) -> SimNode | None:
        """The leader that the record names."""
        return next((node for node in self.nodes if node.node_id == record.leader), None)

    def record_of(self, topic_partition: TopicPartition) -> PartitionRecord | None:
        """As one node chosen at random sees it, which may be out of date."""
        running = [node for node in self.nodes if node.running and node.broker is not None]
        if not running:
            return None
        asked = self.rng.choice(running)
        return asked.broker.view.partition(topic_partition) if asked.broker else None

    def reachable(self, node: SimNode) -> bool:
        """Whether a request arrives."""
        return (CLIENT, int(node.node_id)) not in self.cuts

    def heard(self, node: SimNode) -> bool:
        """Whether an answer arrives: what was done for it is done all the same."""
        return (int(node.node_id), CLIENT) not in self.cuts


class SimProducer:
    """One idempotent producer of one partition.

    Invariant: batches are sent and sent again in the order of `_queue`.
    Invariant: none is sent that is `in_flight` or more after the oldest without an answer: a leader remembers only the
    last five batches of a producer, and must still know the oldest when it is sent again.
    """

    def __init__(self, number: int, topic_partition: TopicPartition, clients: Clients, *, in_flight: int) -> None:
        self.number = number
        self.topic_partition = topic_partition
        self._clients = clients
        self._in_flight = in_flight
        self._queue: list[tuple[int, Send, bytes]] = []
        """Not yet answered, in order; each with its number."""
        self._batches = 0
        self._sent = 0
        """So many of the queue are on their way."""
        self._round = 0
        """Answers of an earlier round are late: what they answered was sent again since."""
        self._sequence = 0
        self._values = 0
        self._target: SimNode | None = None
        self._target_starts = 0
        self.stopped = False
        self.idle = True

    def produce(self) -> None:
        """Make one more batch and send what may be sent."""
        clients = self._clients
        count = clients.rng.randrange(1, 5)
        values = tuple(f"{self.number}:{self._values + i}".encode() for i in range(count))
        self._values += count
        send = Send(self.number, self.topic_partition, values, clients.heap.now, -1)
        batch = encode(
            values,
            base_timestamp_ms=1_700_000_000_000,
            producer_id=1000 + self.number,
            producer_epoch=0,
            base_sequence=self._sequence,
        )
        self._sequence += count
        clients.history.sends.append(send)
        self._queue.append((self._batches, send, bytes(batch)))
        self._batches += 1
        self._pump()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def _pump(self) -> None:
        while self._sent < len(self._queue) and self._queue[self._sent][0] < self._queue[0][0] + self._in_flight:
            target = self._target
            if target is None or not target.running or target.starts != self._target_starts:
                target = self._target = self._clients.leader_of(self.topic_partition)
                if target is None:
                    self._retry_later()
                    return
                self._target_starts = target.starts
            _, send, batch = self._queue[self._sent]
            self._sent += 1
            self._request(target, send, batch)

    def _request(self, target: SimNode, send: Send, batch: bytes) -> None:
        clients, number = self._clients, self._round
        request = ProduceRequest(
            1,
            -1,
            800,
            [ProducePartition(self.topic_partition.topic_id, self.topic_partition.partition, len(batch))],
        )

        def deliver() -> None:
            if target.running and target.broker is not None and clients.reachable(target):
                target.broker.local.produce(request, [memoryview(batch)], answer_later)

        def answer_later(response: ProduceResponse) -> None:
            answer = response.partitions[0]
            if not answer.error:
                clients.on_acknowledged(target, self.topic_partition, answer.base_offset + len(send.values))
            if clients.heard(target):
                clients.heap.schedule(clients.latency(), lambda: self._answered(number, send, response))

        clients.heap.schedule(clients.latency(), deliver, target.life)
        clients.heap.schedule(REQUEST_TIMEOUT, lambda: self._timed_out(number, send))

    def _answered(self, number: int, send: Send, response: ProduceResponse) -> None:
        answer = response.partitions[0]
        if not answer.error:
            # Late or not: it is acknowledged.
            if send.fate is None:
                send.fate, send.base_offset = Fate.OK, answer.base_offset
                self._forget(send)
            return
        if number != self._round or send.fate is not None:
            return
        # A broker that is behind does not know the topic yet; one sequence out of order follows another's loss.
        if not CODES[answer.error].retriable and answer.error not in {"unknown_topic", "out_of_order_sequence"}:
            raise RaftlogError("internal_error", f"producer {self.number}: {answer.error} {answer.detail}")
        if not self.stopped:
            self._again()

    def _timed_out(self, number: int, send: Send) -> None:
        if number == self._round and send.fate is None:
            self._again()

    def _again(self) -> None:
        """Forget who was asked and send everything again, in order."""
        self._round += 1
        self._sent = 0
        self._target = None
        self._retry_later()

    def _retry_later(self) -> None:
        number = self._round
        delay = self._clients.rng.uniform(0.02, 0.1)

        def retry() -> None:
            if number == self._round and not self.stopped:
                self._pump()

        self._clients.heap.schedule(delay, retry)

    def _forget(self, send: Send) -> None:
        position = next(i for i, (_, queued, _) in enumerate(self._queue) if queued is send)
        del self._queue[position]
        if position < self._sent:
            self._sent -= 1
        self._pump()


class SimConsumer:
    """Reads one partition from its start, again and again."""

    def __init__(self, number: int, topic_partition: TopicPartition, clients: Clients) -> None:
        self.number = number
        self.topic_partition = topic_partition
        self.position = 0
        self._leader_epoch = 0
        """The newest that was heard of: an older leader must not be believed about what there is (KIP-320)."""
        self._clients = clients
        self.stopped = False

    def poll(self, then: Callable[[], None]) -> None:
        """One fetch; `then` when it is over, however it ended."""
        clients = self._clients
        record = clients.record_of(self.topic_partition)
        target = None
        if record is not None and record.leader_epoch >= self._leader_epoch:
            self._leader_epoch = record.leader_epoch
            target = clients.node_of(record)
        over = False

        def finish() -> None:
            nonlocal over
            if not over:
                over = True
                then()

        clients.heap.schedule(REQUEST_TIMEOUT, finish)
        if target is None:
            return
        request = FetchRequest(
            1,
            200,
            1,
            4096,
            [
                FetchPartition(
                    self.topic_partition.topic_id,
                    self.topic_partition.partition,
                    self.position,
                    4096,
                    current_leader_epoch=self._leader_epoch,
                )
            ],
        )

        def deliver() -> None:
            if target.running and target.broker is not None and clients.reachable(target):
                target.broker.local.fetch(request, answer_later)

        def answer_later(response: FetchResponse, parts: list[Part]) -> None:
            body = b"".join(bytes_of(part) for part in parts)
            if clients.heard(target):
                clients.heap.schedule(clients.latency(), lambda: self._answered(response, body, finish))

        clients.heap.schedule(clients.latency(), deliver, target.life)

    def _answered(self, response: FetchResponse, body: bytes, finish: Callable[[], None]) -> None:
        answer = response.partitions[0]
        records = []
        for view in split_batches(body):
            batch = RecordBatch(view)
            records += [
                (offset, value or b"")
                for offset, value in zip(batch.offsets(), batch.values(), strict=True)
                if offset >= self.position
            ]
        if records:
            self.position = records[-1][0] + 1
            self._clients.history.reads.append(
                Read(self.number, self.topic_partition, self._clients.heap.now, tuple(records), answer.high_watermark)
            )
        if answer.error == "offset_out_of_range":
            raise RaftlogError("internal_error", f"consumer {self.number} at {self.position}: {answer.detail}")
        finish()
