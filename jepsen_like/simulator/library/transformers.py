"""Applications that consume, transform and produce in transactions, with the client library (S13): each record of the
input becomes one record of the output, and the transaction also moves the group's offsets.
"""

from __future__ import annotations

import asyncio
from typing import Any

from jepsen_like.simulator.world.violation import Violation
from raftlog.client.consuming.records import ConsumerRecord
from raftlog.client.groups.consumer import GroupConsumer
from raftlog.client.producer import Producer
from raftlog.client.transactions.transaction import Transaction, TransactionState
from raftlog.errors import CODES, RaftlogError
from raftlog.model import TopicId, TopicPartition

from .clients import AGAIN_SECONDS, DELIVERY_TIMEOUT_MS, REQUEST_TIMEOUT_MS, Application
from .topic_lives import Acknowledged
from .transformed_truth import TRANSFORMERS, Attempt, TransformedTruth

TRANSACTION_MS = 8_000
DECISION_SECONDS = 6.0
RECORDS_MAX = 10
"""The most records of one transaction."""
LASTS_SECONDS = (0.0, 0.0, 0.2, 1.0)
"""Seconds between the two halves of a transaction, and before its commit."""


class TransformerApplication(Application):
    """See the module."""

    def __init__(
        self,
        *made: Any,
        topics: tuple[str, ...],
        output: str,
        transactional_id: str | None,
        transformed: TransformedTruth,
    ) -> None:
        super().__init__(*made)
        self._topics = topics
        self._output = output
        self._transactional_id = transactional_id
        self._transformed = transformed
        self._number = 0
        self._taken: dict[TopicPartition, set[int]] = {}
        """The records received since the last commit, by offset."""
        self.leaves = False

    async def run(self) -> None:
        producer = Producer(
            self.bootstrap,
            linger_ms=0.0,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            transactional_id=self._transactional_id,
            transaction_timeout_ms=TRANSACTION_MS,
        )
        member = self.member(TRANSFORMERS, self._topics, enable_auto_commit=False)
        try:
            while not self.leaves:
                records = await self._poll(member)
                if records and not await self._transform(producer, member, records):
                    return
        finally:
            await member.close(processed=False)
            await producer.close()

    async def _poll(self, member: GroupConsumer) -> list[ConsumerRecord]:
        try:
            records = await self.take(member, RECORDS_MAX)
        except RaftlogError as error:
            self.truth.counts[f"poll {error.code}"] += 1
            if not CODES[error.code].retriable:
                raise Violation(f"S10: member {self.name} stops permanently: {error}") from None
            await asyncio.sleep(AGAIN_SECONDS)
            return []
        ids = {(one.topic, one.partition): one.topic_id for one in member.positions}
        for record in records:
            topic_id = ids.get((record.topic, record.partition))
            if topic_id is None:
                raise Violation(f"S8: member {self.name} was handed {record}, of what it does not read")
            place = TopicPartition(TopicId(bytes.fromhex(topic_id)), record.partition)
            self._taken.setdefault(place, set()).add(record.offset)
        return records

    async def _transform(self, producer: Producer, member: GroupConsumer, records: list[ConsumerRecord]) -> bool:
        """Returns whether this process continues: it ends if another process uses its transactional id."""
        transaction, attempt, code = producer.transaction(timeout=DECISION_SECONDS), None, ""
        try:
            async with transaction:
                attempt = Attempt(transaction.key, {place: set(of) for place, of in self._taken.items()})
                await self._write(transaction, attempt, len(records))
                consumed = member.consumed()
                for one in consumed.ranges:
                    place = TopicPartition(TopicId(bytes.fromhex(one.topic_id)), one.partition)
                    attempt.moves[place] = one.start, one.end
                transaction.send_offsets(member)
                self._transformed.attempted(attempt)
        except RaftlogError as error:
            code = error.code
        while transaction.state is TransactionState.UNKNOWN and code != "producer_fenced":
            await asyncio.sleep(AGAIN_SECONDS)
            try:
                await transaction.commit(timeout=DECISION_SECONDS)
            except RaftlogError as error:
                code = error.code
        if code == "producer_fenced":
            self.truth.counts["transactions fenced"] += 1
            return False
        if transaction.state is TransactionState.COMMITTED:
            assert attempt is not None
            self._transformed.told_committed(attempt)
            self._taken = {}
            return True
        if attempt is not None:
            self._transformed.told_refused(attempt, code)
        await self._go_back(member)
        return True

    async def _write(self, transaction: Transaction, attempt: Attempt, count: int) -> None:
        """Raises what `send_and_wait` raises."""
        values = [f"{self.name}:{self._number + number}".encode() for number in range(count)]
        self._number += count
        for value in values:
            self._transformed.writes(attempt, value)
        half = count // 2
        for some in (values[:half], values[half:]):
            sends = [self.loop.create_task(transaction.send_and_wait(self._output, value)) for value in some]
            for value, told in zip(some, await asyncio.gather(*sends), strict=True):
                attempt.written.append(Acknowledged(self._output, told.partition, told.offset, value))
            await asyncio.sleep(self.rng.choice(LASTS_SECONDS))

    async def _go_back(self, member: GroupConsumer) -> None:
        """Seek to the group's committed offsets, as soon as a coordinator answers."""
        while True:
            try:
                await member.seek_to_committed()
            except RaftlogError as error:
                self.truth.counts[f"seek {error.code}"] += 1
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                self._taken = {}
                return
