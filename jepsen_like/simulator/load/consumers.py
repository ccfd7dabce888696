"""Simulated consumers: each reads one partition batch after batch from its leader, and sometimes seeks.

A seek looks for an offset by a timestamp. If a consumer's position was deleted, it continues at the log start.
"""

from __future__ import annotations

from collections.abc import Callable

from jepsen_like.simulator.brokers.history import Read
from jepsen_like.simulator.brokers.node import SimNode
from jepsen_like.simulator.world.network import bytes_of
from jepsen_like.simulator.world.violation import Violation
from raftlog.model import TopicPartition
from raftlog.ports import Part
from raftlog.wire import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FoundOffset,
    OffsetQuery,
    OffsetsRequest,
    OffsetsResponse,
)

from .clients import REQUEST_TIMEOUT, Clients

FETCH_BYTES = 4096
WAIT_MS = 200


class SimConsumer:
    """Reads one partition from its start, repeatedly."""

    def __init__(self, number: int, topic_partition: TopicPartition, clients: Clients) -> None:
        self.number = number
        self.topic_partition = topic_partition
        self.position = 0
        self.stopped = False
        self._clients = clients
        self._leader_epoch = 0
        """The newest known leader epoch: a client must not believe an older leader about the end of the log
        (KIP-320).
        """

    def poll(self, then: Callable[[], None]) -> None:
        """Fetch once; `then` is called at the end, whatever the result."""
        clients, tp, position = self._clients, self.topic_partition, self.position
        target = self._leader()
        over = False

        def finish() -> None:
            nonlocal over
            if not over:
                over = True
                then()

        clients.heap.schedule(REQUEST_TIMEOUT, finish)
        if target is None:
            return
        wanted = FetchPartition(
            tp.topic_id, tp.partition, position, FETCH_BYTES, current_leader_epoch=self._leader_epoch
        )

        def deliver() -> None:
            assert target.broker is not None
            target.broker.local.fetch(FetchRequest(1, WAIT_MS, 1, FETCH_BYTES, [wanted]), answered)

        def answered(response: FetchResponse, parts: list[Part]) -> None:
            body = b"".join(bytes_of(part) for part in parts)

            def hear() -> None:
                if self.position == position:
                    self._read(response.partitions[0], body)
                finish()

            clients.answer(target, hear)

        clients.send(target, deliver)

    def seek(self, timestamp_ms: int) -> None:
        """Continue with the first record at or after this time, if there is one."""
        clients, tp = self._clients, self.topic_partition
        target = self._leader()
        if target is None:
            return

        def deliver() -> None:
            assert target.broker is not None
            query = OffsetQuery(tp.topic_id, tp.partition, timestamp_ms)
            target.broker.local.offsets(OffsetsRequest(1, [query]), answered)

        def answered(response: OffsetsResponse) -> None:
            clients.answer(target, lambda: self._found(response.partitions[0], timestamp_ms))

        clients.send(target, deliver)

    def _leader(self) -> SimNode | None:
        record = self._clients.record_of(self.topic_partition)
        if record is None or record.leader_epoch < self._leader_epoch:
            return None
        self._leader_epoch = record.leader_epoch
        return self._clients.node_of(record)

    def _read(self, answer: FetchedPartition, body: bytes) -> None:
        position = self.position
        records: list[tuple[int, bytes | None]] = []
        for batch in self._clients.sound_batches(body):
            if batch.header.is_control:
                self.position = max(self.position, batch.header.end_offset)
                continue
            rows = zip(batch.offsets(), batch.values(), strict=True)
            records += [(offset, value) for offset, value in rows if offset >= position]
            # Compaction may have left an empty batch.
            self.position = max(self.position, batch.header.end_offset)
        if records:
            now, marks = self._clients.heap.now, (answer.high_watermark, position)
            self._clients.history.reads.append(Read(self.number, self.topic_partition, now, tuple(records), *marks))
        if answer.error == "offset_out_of_range":
            self._out_of_range(answer)

    def _out_of_range(self, answer: FetchedPartition) -> None:
        """The position was deleted, or lost in a way that `flush=os` allows; it is wrong for no other reason (S3)."""
        if self.position < answer.log_start_offset:
            self.position = answer.log_start_offset
        elif self.position > answer.high_watermark and self._clients.truth.of(self.topic_partition).may_lose:
            self.position = answer.high_watermark
        else:
            raise Violation(f"S3: consumer {self.number} at {self.position} of {self.topic_partition}: {answer}")

    def _found(self, found: FoundOffset, timestamp_ms: int) -> None:
        """S3: a record that a search by time finds is committed and not too early, and no earlier record qualifies."""
        if found.error or found.offset < 0:
            return
        partition = self._clients.truth.of(self.topic_partition)
        committed = partition.log.records
        record = committed.get(found.offset)
        late = record is not None and record.timestamp_ms >= timestamp_ms
        passed_over = () if partition.log.compacts else range(partition.start_offset, found.offset)
        if not late or any(o in committed and committed[o].timestamp_ms >= timestamp_ms for o in passed_over):
            if not partition.may_lose:
                raise Violation(f"S3: {found} was found for {timestamp_ms} in {self.topic_partition}: {record}")
            return
        self._clients.history.searches += 1
        self.position = found.offset
