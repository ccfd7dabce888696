"""A simulated node with the product's transactions: their requests, batches, reports and expiry run on its ports."""

from __future__ import annotations

from jepsen_like.simulator.brokers.node import SimNode, SimQuorum, TraceLogger
from jepsen_like.simulator.world.heap import Life, SimScheduler, SimWorker
from raftlog.broker.changes.transactions import Transactions
from raftlog.broker.service import transactions_of
from raftlog.broker.wiring import Broker
from raftlog.model import BrokerId

WORK_SECONDS = (0.0001, 0.003)
"""The time that a job takes on a worker thread."""


class TransactionNode(SimNode):
    """See `SimNode`."""

    transactions: Transactions

    def open_to_clients(self, life: Life, broker: Broker, quorum: SimQuorum) -> None:
        self.transactions = transactions_of(
            broker,
            quorum,
            self.clock,
            SimScheduler(self.heap, life),
            SimWorker(self.heap, life, self.random, lambda: self.random.uniform(*WORK_SECONDS)),
            self.random,
            TraceLogger(self._trace, int(self.node_id), self._on_violation),
        )

    def quorum_led_by(self, leader: BrokerId) -> None:
        if self.broker is not None:
            self.broker.view.controller = leader
            self.transactions.wake()
