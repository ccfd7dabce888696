"""The cluster and its metadata quorum as this node knows them."""

from __future__ import annotations

from metadata.quorum.port import MetadataQuorum
from raftlog.broker.wiring import Broker
from raftlog.metrics import catalogue as names
from raftlog.metrics.measure import Family
from raftlog.model import NO_BROKER, NO_INCARNATION

from .partitions import Steps

MAX_OPEN = 1_000
"""The most open transactions that are counted, the oldest of each partition first."""


class ClusterNumbers:
    """Collects what the view, the quorum and the transactions show. All calls are made on the broker's loop."""

    def __init__(self, broker: Broker, quorum: MetadataQuorum) -> None:
        self._broker = broker
        self._quorum = quorum

    @property
    def ready(self) -> bool:
        """Whether the node takes part: registered, not fenced, and with a leader of the quorum."""
        broker = self._broker
        record = broker.view.broker(broker.identity.node_id)
        registered = broker.incarnation != NO_INCARNATION and record is not None
        return (
            registered
            and record is not None
            and record.incarnation == broker.incarnation
            and not record.fenced
            and self._quorum.status().leader != NO_BROKER
        )

    @property
    def under_replicated(self) -> int:
        """Partitions with a leader and with replicas out of sync."""
        tally = self._broker.view.tally
        return len(tally.under_replicated) + len(tally.below_minimum)

    def collect(self) -> Steps:
        """Yield the families, in steps."""
        view, node_id = self._broker.view, self._broker.identity.node_id
        brokers = view.brokers()
        tally = view.tally
        yield Family.of(names.READY, int(self.ready))
        yield Family.of(names.BROKERS, len(brokers))
        yield Family.of(names.FENCED_BROKERS, sum(one.fenced for one in brokers))
        yield Family.of(names.PARTITIONS_OFFLINE, len(tally.without_leader))
        yield Family.of(names.UNDER_MIN_ISR, len(tally.below_minimum))
        yield Family.of(names.UNDER_REPLICATED, self.under_replicated)
        yield Family.of(names.REASSIGNING, view.reassigning_count)
        yield Family.of(names.ELECTIONS, tally.elections[node_id])
        yield Family.of(names.ISR_SHRINKS, tally.isr_shrinks[node_id])
        yield Family.of(names.ISR_EXPANSIONS, tally.isr_expansions[node_id])
        yield Family.of(names.VIEW_INDEX, view.index)
        yield None
        yield from self._quorum_numbers()
        yield from self._transactions()

    def _quorum_numbers(self) -> Steps:
        status = self._quorum.status()
        yield Family.of(names.QUORUM_TERM, status.term)
        yield Family.of(names.QUORUM_LEADER, status.leader)
        yield Family.of(names.QUORUM_COMMIT, status.commit_index)
        yield Family.of(names.QUORUM_LAST, status.last_index)
        yield Family.of(names.QUORUM_APPLIED, status.applied_index)
        yield Family.of(names.QUORUM_VOTERS, len(status.voters))
        yield Family.of(names.QUORUM_FORGETFUL, len(status.forgetful))
        lags = [((str(node),), max(0, status.last_index - at)) for node, at in sorted(status.match_index.items())]
        yield Family(names.QUORUM_LAG, list(lags) if status.leader == status.node_id else [])

    def _transactions(self) -> Steps:
        found = self._broker.manager.transactions.open_transactions(MAX_OPEN)
        now = self._broker.clock.monotonic()
        oldest = max((now - one.seen_since for one in found if one.seen_since is not None), default=0.0)
        yield Family.of(names.TRANSACTIONS, len(found))
        yield Family.of(names.TRANSACTION_AGE, oldest)
