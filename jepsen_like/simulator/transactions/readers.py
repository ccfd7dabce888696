"""Simulated consumers with `read_committed`."""

from __future__ import annotations

from collections.abc import Callable

from jepsen_like.simulator.load.clients import REQUEST_TIMEOUT, Clients
from jepsen_like.simulator.world.network import bytes_of
from raftlog.model import TopicPartition
from raftlog.ports import Part
from raftlog.wire import FetchedPartition, FetchPartition, FetchRequest, FetchResponse

from .truth import TransactionTruth

FETCH_BYTES = 4096
WAIT_MS = 200


class CommittedReader:
    """Reads one partition from its start with `read_committed`, batch after batch from its leader."""

    def __init__(self, topic_partition: TopicPartition, clients: Clients, truth: TransactionTruth) -> None:
        self.topic_partition = topic_partition
        self.position = 0
        self.stopped = False
        self._clients = clients
        self._truth = truth
        self._leader_epoch = 0

    def poll(self, then: Callable[[], None]) -> None:
        """Fetch once; `then` is called at the end."""
        clients, tp, position = self._clients, self.topic_partition, self.position
        record = clients.record_of(tp)
        over = False

        def finish() -> None:
            nonlocal over
            if not over:
                over = True
                then()

        clients.heap.schedule(REQUEST_TIMEOUT, finish)
        if record is None or record.leader_epoch < self._leader_epoch:
            return
        self._leader_epoch = record.leader_epoch
        target = clients.node_of(record)
        if target is None:
            return
        wanted = FetchPartition(
            tp.topic_id, tp.partition, position, FETCH_BYTES, current_leader_epoch=self._leader_epoch
        )

        def deliver() -> None:
            assert target.broker is not None
            request = FetchRequest(1, WAIT_MS, 1, FETCH_BYTES, [wanted], isolation=1)
            target.broker.local.fetch(request, answered)

        def answered(response: FetchResponse, parts: list[Part]) -> None:
            body = b"".join(bytes_of(part) for part in parts)

            def hear() -> None:
                if self.position == position:
                    self._read(response.partitions[0], body)
                finish()

            clients.answer(target, hear)

        clients.send(target, deliver)

    def _read(self, answer: FetchedPartition, body: bytes) -> None:
        if answer.error == "offset_out_of_range" and self.position < answer.log_start_offset:
            self.position = answer.log_start_offset
        for batch in self._clients.sound_batches(body):
            header = batch.header
            if not header.is_control:
                self._truth.shown(self.topic_partition, header, answer.aborted)
            self.position = max(self.position, header.end_offset)
