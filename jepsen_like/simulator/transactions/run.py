"""Transactions in a simulated cluster (`jepsen_like/simulator/cluster/run.py`).

Brokers, quorum, network, disks, faults, topics, and other producers and consumers are those of a cluster. Applications
write transactions, and readers read with read_committed (S13). Every invariant of a cluster is checked too: a seed that
passes here has also run a whole cluster.

At the end (S10) every open transaction is decided, every committed one has its markers, and read_committed readers
reach the high watermark of every partition.
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from dataclasses import replace
from unittest import mock

from jepsen_like.simulator.brokers.node import SimNode
from jepsen_like.simulator.cluster.directed import direct
from jepsen_like.simulator.cluster.liveness import LIVENESS_SECONDS
from jepsen_like.simulator.cluster.run import LOOK_EVERY, SimulatedWorld, Verdict, run_world
from jepsen_like.simulator.cluster.schedule import CREATE_AT, ClusterSchedule, draw
from jepsen_like.simulator.load.live_topic import LiveTopic
from jepsen_like.simulator.world.violation import Violation
from raftlog.broker.changes import transaction_pieces, transactions
from raftlog.model import TopicPartition

from .clients import SimApplication
from .node import TransactionNode
from .readers import CommittedReader
from .truth import TransactionTruth

APPLICATIONS = 4
READ_PAUSE_SECONDS = 0.15
TOPIC_SECONDS = 0.5
STAGED_BYTES = 128
"""The size of a part in some seeds, in bytes: one output, or the offsets of one group."""


class TransactionWorld(SimulatedWorld):
    """The world of one run."""

    node_kind = TransactionNode

    def __init__(self, schedule: ClusterSchedule) -> None:
        self.transactions = TransactionTruth()
        self.readers: dict[TopicPartition, CommittedReader] = {}
        super().__init__(schedule)
        rng = random.Random(f"{schedule.seed}/transactions")
        names = ["", "", *(f"application-{rng.randrange(2)}" for _ in range(APPLICATIONS - 2))]
        self.applications = [
            SimApplication(
                10_000 + number,
                name,
                self.clients,
                self.transactions,
                self._writable,
                random.Random(f"{schedule.seed}/transactions/{number}"),
            )
            for number, name in enumerate(names)
        ]
        for application in self.applications:
            self.heap.schedule(2.0 + rng.random(), application.run)
        self.heap.schedule(CREATE_AT + TOPIC_SECONDS, self._have_a_topic)

    def start(self, node: SimNode) -> None:
        super().start(node)
        if node.running and node.broker is not None:
            view = node.broker.view
            view.subscribe(lambda index, events: self.transactions.applied(index, events, view))

    def _have_a_topic(self) -> None:
        """Where transactions can write, if all of the schedule's topics are compacted or may lose records. Those are
        made as in any cluster."""
        if not self.operations.producing:
            return
        if not any(_keeps_everything(topic) for topic in self.operations.topics.values()):
            self.operations.create_for_transactions(random.Random(f"{self.seed}/transactions/topic/{self.heap.now}"))
        self.heap.schedule(TOPIC_SECONDS, self._have_a_topic)

    def _writable(self) -> list[TopicPartition]:
        """Partitions of topics that keep what they acknowledge, and take records without keys."""
        found = []
        for topic in self.operations.topics.values():
            known = self.truth.rules.topics.get(topic.topic_id)
            if known is not None and _keeps_everything(topic):
                found += [TopicPartition(topic.topic_id, number) for number in range(known.partition_count)]
        for topic_partition in found:
            if topic_partition not in self.readers:
                reader = CommittedReader(topic_partition, self.clients, self.transactions)
                self.readers[topic_partition] = reader
                self._keep_reading(reader)
        return found

    def _keep_reading(self, reader: CommittedReader) -> None:
        def consume() -> None:
            if reader.topic_partition.topic_id in self.operations.topics:
                reader.poll(consume_soon)

        def consume_soon() -> None:
            self.heap.schedule(READ_PAUSE_SECONDS, consume)

        self.heap.schedule(READ_PAUSE_SECONDS, consume)

    # --- Liveness ----------------------------------------------------------------------------------------------------

    def _require_progress(self, healed: float) -> None:
        for application in self.applications:
            application.stopped = True
        super()._require_progress(healed)
        at = self.heap.now
        while True:
            lacking = self._missing()
            if not lacking:
                return
            if at >= healed + 2 * LIVENESS_SECONDS:
                raise Violation(f"S10: {2 * LIVENESS_SECONDS:.0f} s after everything healed: {'; '.join(lacking[:5])}")
            at += LOOK_EVERY
            self._run_until(at)

    def checks(self) -> dict[str, int]:
        return super().checks() | {f"transactions {name}": count for name, count in self.transactions.counts.items()}

    def _missing(self) -> list[str]:
        found = [f"application {one.number} is busy" for one in self.applications if one.busy]
        for topic_partition, reader in self.readers.items():
            end = self.truth.of(topic_partition).log.end_offset
            if topic_partition.topic_id in self.operations.topics and reader.position < end:
                found.append(f"a reader of what is committed is at {reader.position} of {end} in {topic_partition}")
        for node in self.nodes:
            if node.broker is not None:
                waiting = node.broker.view.transactions.partitions_with_ends()
                found += [f"node {node.node_id} waits for the marker of a commit in {one}" for one in waiting]
        return found


def _keeps_everything(topic: LiveTopic) -> bool:
    return not topic.compacts and ("flush", "os") not in topic.configs


def run_schedule(schedule: ClusterSchedule) -> Verdict:
    """Run a schedule. In every other seed small commits are divided and staged like large ones."""
    with ExitStack() as stack:
        if schedule.seed % 2:
            stack.enter_context(mock.patch.object(transaction_pieces, "MAX_CHANGE_BYTES", STAGED_BYTES))
            stack.enter_context(mock.patch.object(transactions, "INLINE_OFFSETS", 0))
        return run_world(TransactionWorld, schedule)


def run_transaction_seed(seed: int, seconds: float, *, faulty: bool = True) -> Verdict:
    """Draw the schedule of a seed and run it."""
    return run_schedule(replace(direct(draw(seed, seconds, faulty=faulty)), transactions=True))
