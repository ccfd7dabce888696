"""Crowds of short-lived producers: hundreds of producers, each of which writes one or two batches to a partition and
ends.

Programs that make a producer for each call behave like this (a serverless function, a command line). The partition's
producer state then overflows or expires, while some of the producers still have batches of unknown outcome: a process
that was paused after a send continues later, and resends. No batch may be in the log twice (S1).

A member is the product's own `Sequencer` with a producer id from a counter, behind the simulated network: the client's
code decides what to send, to mark, to resend under another producer id or to give up.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from jepsen_like.simulator.brokers.history import Fate, Send
from raftlog.client.producing.batch import Batch
from raftlog.client.producing.partition_queue import Delivered, Outcome
from raftlog.client.producing.sequencer import Sequencer
from raftlog.errors import CODES, Applied, RetriableError, error_from_code
from raftlog.model import TopicPartition
from raftlog.records.batch import encode
from raftlog.wire import ProducedPartition, ProducePartition, ProduceRequest, ProduceResponse

from .clients import REQUEST_TIMEOUT, Clients

FIRST_ID = 1_000_000
"""Greater than the ids of all other producers."""
DELIVERY_TIMEOUT = 12.0
PRODUCE_TIMEOUT_MS = 800
LOOK_SECONDS = 0.15
NAME = "crowded"
"""The topic's name in the sequencer; its one partition is number 0."""
REQUEST_BYTES = 1 << 20


class CrowdMember:
    """One producer of a crowd. See the module."""

    def __init__(
        self, number: int, topic_partition: TopicPartition, keys: int, clients: Clients, ids: Iterator[int], stop: float
    ) -> None:
        """`keys`: the number of different keys; 0: none. `stop`: seconds for which the process is paused after it sent
        its first batch, and receives nothing; 0: it is not.
        """
        self._number = number
        self._partition = topic_partition
        self._keys = keys
        self._clients = clients
        self._ids = ids
        self._stop = stop
        self._stopped_until = 0.0
        self._rng = random.Random(f"{number}/crowd")
        self._open: dict[int, tuple[Batch[Send], int]] = {}
        """Unanswered attempts by number."""
        self._attempts = 0
        self._sequencer: Sequencer[Send] = Sequencer(
            idempotent=True, delivery_timeout=DELIVERY_TIMEOUT, random=self._rng
        )
        self._sequencer.grant_identity(next(ids), 0)

    def begin(self) -> None:
        """Write this member's batches."""
        for _ in range(self._rng.choice((1, 1, 2))):
            self._sequencer.enqueue(self._batch())
        self._look()

    def _batch(self) -> Batch[Send]:
        now, sends = self._clients.heap.now, self._clients.history.sends
        values: list[bytes | None] = [f"{self._number}:{len(sends)}".encode()]
        send = Send(self._number, self._partition, tuple(values), now, -1)
        sends.append(send)
        batch: Batch[Send] = Batch(NAME, 0, 1000, send, now, self._clients.wall_ms())
        batch.values = values
        if self._keys:
            batch.keys = [f"key-{self._rng.randrange(self._keys)}".encode()]
        return batch

    # --- Time --------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Send what is due, again and again until every batch has an outcome."""
        clients, now = self._clients, self._clients.heap.now
        if now >= self._stopped_until:
            if self._stopped_until:
                self._stopped_until = 0.0
                self._lose(list(self._open), "the process stood still")
            if self._sequencer.identity_wanted:
                self._sequencer.grant_identity(next(self._ids), 0)
            self._decide(self._sequencer.expire(now))
            self._sequencer.wake(now)
            record = clients.record_of(self._partition)
            if record is not None:
                self._sequencer.stale_topics.clear()
                self._sequencer.set_leader(NAME, 0, record.leader, record.leader_epoch)
            self._pump()
        if any(self._sequencer.unfinished()):
            clients.heap.schedule(self._rng.uniform(0.5, 1.5) * LOOK_SECONDS, self._look)

    def _pump(self) -> None:
        now = self._clients.heap.now
        for leader in self._sequencer.leaders():
            for batch in self._sequencer.take(leader, now, REQUEST_BYTES):
                self._request(leader, batch)
                if self._stop:
                    self._stopped_until, self._stop = now + self._stop, 0.0

    # --- Requests ----------------------------------------------------------------------------------------------------

    def _request(self, leader: int, batch: Batch[Send]) -> None:
        clients, partition = self._clients, self._partition
        target = next((node for node in clients.nodes if node.node_id == leader), None)
        self._attempts += 1
        number = self._attempts
        self._open[number] = batch, batch.attempt
        clients.heap.schedule(REQUEST_TIMEOUT, lambda: self._lose([number], "no answer"))
        if target is None:
            return
        packed = encode(
            batch.values,
            keys=batch.keys,
            base_timestamp_ms=batch.timestamp_ms,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
        )
        part = ProducePartition(partition.topic_id, partition.partition, len(packed), batch.resent)
        request = ProduceRequest(number, -1, PRODUCE_TIMEOUT_MS, [part])

        def deliver() -> None:
            assert target.broker is not None
            target.broker.local.produce(request, [memoryview(packed)], answered)

        def answered(response: ProduceResponse) -> None:
            answer = response.partitions[0]
            if not answer.error:
                clients.truth.acknowledged(target, partition, answer.base_offset + batch.count)
            clients.answer(target, lambda: self._hear(number, answer))

        clients.send(target, deliver)

    def _hear(self, number: int, answer: ProducedPartition) -> None:
        if self._clients.heap.now < self._stopped_until or number not in self._open:
            return
        batch, attempt = self._open.pop(number)
        if not answer.error:
            outcomes = self._sequencer.acknowledged(batch, attempt, answer.base_offset, answer.log_append_time_ms)
        else:
            error = error_from_code(answer.error, answer.detail, answer.leader)
            outcomes = self._sequencer.refused(batch, attempt, error, self._clients.heap.now)
        self._decide(outcomes)

    def _lose(self, numbers: list[int], why: str) -> None:
        if self._clients.heap.now < self._stopped_until:
            return
        for number in numbers:
            if number in self._open:
                lost = RetriableError("connection_lost", why)
                self._sequencer.lost(*self._open.pop(number), lost, self._clients.heap.now)

    def _decide(self, outcomes: list[Outcome[Send]]) -> None:
        for outcome in outcomes:
            send = outcome.batch.delivery
            if isinstance(outcome, Delivered):
                send.fate, send.base_offset = Fate.OK, outcome.base_offset
            else:
                send.fate = Fate.FAIL if CODES[outcome.error.code].applied is Applied.NO else Fate.INFO


def gather(
    rng: random.Random,
    topic_partition: TopicPartition,
    keys: int,
    clients: Clients,
    ids: Iterator[int],
    numbers: Iterator[int],
    wanted: Callable[[], bool],
) -> None:
    """Start a crowd's producers on this partition at random times within seconds, while `wanted`."""
    seconds = rng.choice((0.5, 2.0))
    for _ in range(rng.choice((30, 100, 300))):
        stop = rng.uniform(0.5, 8.0) if rng.random() < 0.1 else 0.0
        member = CrowdMember(next(numbers), topic_partition, keys, clients, ids, stop)

        def begin(member: CrowdMember = member) -> None:
            if wanted():
                member.begin()

        clients.heap.schedule(rng.uniform(0.0, seconds), begin)
