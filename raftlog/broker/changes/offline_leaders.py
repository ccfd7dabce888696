"""Transfer of leaderships that this broker cannot exercise (S10): its replica is out of service, or its disk is short
of space.

The quorum would not notice, because the broker is alive. So the broker itself proposes the election of another member
of the ISR. If there is none, a replica that was reopened requests a new leader epoch for itself (`RenewLeadership`). A
proposal may get lost, or be refused because the record changed or the candidate died meanwhile, and there may be no
candidate yet. So remaining cases are checked again every `LOOK_AGAIN_SECONDS`, a bounded number at a time. A replica
that is out of service leaves the ISR by falling behind its new leader.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from metadata.commands.cluster import MAX_ELECTIONS_PER_COMMAND, ElectLeaders
from metadata.commands.fields import Election
from metadata.commands.replicas import RENEWAL_FEATURE_LEVEL, RenewLeadership
from metadata.quorum.port import Outcome, Propose
from metadata.view import ClusterView
from raftlog.model import BrokerId, Incarnation, PartitionRecord, TopicPartition
from raftlog.ports import Logger, Scheduler, Timer

LOOK_AGAIN_SECONDS = 1.0


class OfflineLeaders:
    """The leaderships to transfer of one broker. All calls are made on its loop.

    Invariant: at most one command is in flight.
    """

    def __init__(
        self,
        node_id: BrokerId,
        view: ClusterView,
        scheduler: Scheduler,
        propose: Propose,
        is_offline: Callable[[TopicPartition], bool],
        waits_for_epoch: Callable[[TopicPartition], bool],
        incarnation: Callable[[], Incarnation],
        logger: Logger,
    ) -> None:
        """`is_offline`: whether this broker's replica is out of service now. `waits_for_epoch`: whether it is in
        service again and may lead in a later leader epoch. `incarnation`: that of this process.

        A leadership of a replica for which neither holds is transferred only to a member with enough disk space,
        because this broker is short of it.
        """
        self._node_id = node_id
        self._view = view
        self._scheduler = scheduler
        self._propose = propose
        self._is_offline = is_offline
        self._waits_for_epoch = waits_for_epoch
        self._incarnation = incarnation
        self._logger = logger
        self._due: dict[TopicPartition, None] = {}
        self._later: dict[TopicPartition, None] = {}
        """Partitions to check again: proposed, or without a candidate."""
        self._proposing = False
        self._next_look: Timer | None = None
        self._soon = False
        """Whether the next check is due at once."""

    def on_offline(self, topic_partition: TopicPartition, reason: str) -> None:
        """Handle a replica that went out of service, or was elected although it is."""
        self.give_up(topic_partition)

    def give_up(self, topic_partition: TopicPartition) -> None:
        """Transfer the leadership of this partition, if another replica can lead it."""
        self._later.pop(topic_partition, None)
        self._due[topic_partition] = None
        self._look_soon()

    def _look_soon(self) -> None:
        if self._proposing or self._soon:
            return
        if self._next_look is not None:
            self._next_look.cancel()
        self._soon = True
        self._next_look = self._scheduler.call_later(0.0, self._look)

    def _look(self) -> None:
        self._next_look = None
        self._soon = False
        if not self._due:
            self._due, self._later = self._later, {}
        some = list(self._due)[:MAX_ELECTIONS_PER_COMMAND]
        try:
            self._look_at(some)
        except BaseException:
            # The loop reports the error. These partitions still need a transfer.
            self._proposing = False
            self._later.update(dict.fromkeys(some))
            self._look_again()
            raise

    def _look_at(self, some: Sequence[TopicPartition]) -> None:
        elections = []
        renewals = []
        for topic_partition in some:
            self._due.pop(topic_partition, None)
            record = self._view.partition(topic_partition)
            if record is None or record.leader != self._node_id:
                continue
            offline = self._is_offline(topic_partition)
            if not offline and not self._is_short(self._node_id):
                continue
            election = self._election(record, offline=offline)
            if election is not None or offline:
                self._later[topic_partition] = None
            if election is not None:
                elections.append(election)
            elif self._waits_for_epoch(topic_partition):
                if self._view.feature_level < RENEWAL_FEATURE_LEVEL:
                    self._later[topic_partition] = None  # An older node may not support it until the upgrade is final.
                else:
                    renewals.append(record)
        if elections:
            self._proposing = True
            self._propose(ElectLeaders(tuple(elections)), self._answered)
        elif renewals:
            for record in renewals[1:]:
                self._due[record.topic_partition] = None  # One per command, as soon as the previous one is answered.
            self._renew(renewals[0])
        else:
            self._look_again()

    def _renew(self, record: PartitionRecord) -> None:
        self._proposing = True
        tp = record.topic_partition
        renewal = RenewLeadership(tp.topic_id, tp.partition, self._node_id, self._incarnation(), record.leader_epoch)
        self._propose(renewal, self._answered)

    def _answered(self, outcome: Outcome) -> None:
        self._proposing = False
        self._look_again()
        self._logger.info("leaderships_given_up", fate=outcome.fate.value, result=str(outcome.result))

    def _look_again(self) -> None:
        if self._due:
            self._look_soon()
        elif self._later:
            self._next_look = self._scheduler.call_later(LOOK_AGAIN_SECONDS, self._look)

    def _election(self, record: PartitionRecord, *, offline: bool) -> Election | None:
        """Return the election of the first other replica that may lead without loss, preferably one with disk space."""
        tp = record.topic_partition
        able = [
            candidate
            for candidate in record.replicas
            if candidate != self._node_id
            and candidate in record.isr
            and candidate not in record.not_eligible
            and self._view.alive(candidate)
        ]
        roomy = [candidate for candidate in able if not self._is_short(candidate)]
        for candidate in roomy or (able if offline else []):
            broker = self._view.broker(candidate)
            if broker is not None:
                return Election(tp.topic_id, tp.partition, candidate, broker.incarnation, record.partition_epoch)
        return None

    def _is_short(self, broker_id: BrokerId) -> bool:
        broker = self._view.broker(broker_id)
        return broker is not None and broker.short_of_room
