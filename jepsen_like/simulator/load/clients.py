"""The common part of simulated producers and consumers: the public request path (`LocalRequests`) behind a network that
loses requests and answers.

A client asks the leader that is named by the view of a random node, which may be stale.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from jepsen_like.simulator.brokers.history import History
from jepsen_like.simulator.brokers.node import SimNode
from jepsen_like.simulator.truth.invariants import Truth
from jepsen_like.simulator.world.heap import EventHeap
from jepsen_like.simulator.world.network import CLIENT
from jepsen_like.simulator.world.violation import Violation
from raftlog.errors import CorruptBatch
from raftlog.model import PartitionRecord, TopicPartition
from raftlog.records.batch import RecordBatch, check_crc, split_batches

REQUEST_TIMEOUT = 1.0

FIRST_TIMESTAMP_MS = 1_700_000_000_000
"""Wall-clock time at virtual time 0."""


@dataclass(slots=True)
class Clients:
    """The world from the clients' side."""

    heap: EventHeap
    nodes: list[SimNode]
    rng: random.Random
    history: History
    truth: Truth
    cuts: set[tuple[int, int]]
    producers_expire: bool = False
    """Brokers may forget a producer within a run."""
    exceptions: bool = False
    """Nodes may answer `internal_error` after an unexpected exception; the fate of a batch is unknown then."""

    def latency(self) -> float:
        return self.rng.uniform(0.0002, 0.003)

    def wall_ms(self) -> int:
        """Producers have correct clocks."""
        return FIRST_TIMESTAMP_MS + int(self.heap.now * 1000)

    def leader_of(self, topic_partition: TopicPartition) -> SimNode | None:
        record = self.record_of(topic_partition)
        return self.node_of(record) if record is not None else None

    def node_of(self, record: PartitionRecord) -> SimNode | None:
        """The leader that the record names."""
        return next((node for node in self.nodes if node.node_id == record.leader), None)

    def record_of(self, topic_partition: TopicPartition) -> PartitionRecord | None:
        """The record in the view of a random node, which may be stale."""
        running = [node for node in self.nodes if node.running and node.broker is not None]
        if not running:
            return None
        asked = self.rng.choice(running)
        return asked.broker.view.partition(topic_partition) if asked.broker else None

    def send(self, target: SimNode, deliver: Callable[[], None]) -> None:
        """Send a request: it arrives if the node is still the same process, and reachable."""

        def arrive() -> None:
            if target.running and target.broker is not None and (CLIENT, int(target.node_id)) not in self.cuts:
                deliver()

        self.heap.schedule(self.latency(), arrive, target.life)

    def answer(self, target: SimNode, hear: Callable[[], None]) -> None:
        """Send an answer. The node has handled the request even if the answer is lost."""
        if (int(target.node_id), CLIENT) not in self.cuts:
            self.heap.schedule(self.latency(), hear)

    def sound_batches(self, body: bytes) -> Iterator[RecordBatch]:
        """The batches of an answer up to the first damaged one, at which every client stops; the client fetches that
        one again (S3).
        """
        try:
            for view in split_batches(body):
                check_crc(view)
                yield RecordBatch(view)
        except CorruptBatch as error:
            if not self.truth.rotting:
                raise Violation(f"S3: a consumer was sent damaged bytes, and no disk rots: {error.detail}") from None
            self.history.damaged_answers += 1
