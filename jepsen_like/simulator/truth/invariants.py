"""The invariants that must hold after every event, over all nodes: S1-S7, S9.

The truth of a partition is every record that any leader ever had below its high watermark or acknowledged
(`committed_log.py`). After each event the affected node is compared with the truth:

* S1  an acknowledged batch is in the truth at its offset, once; each producer's batches are in order and without gaps.
  What a replica calls stable is on its disk (`durable.py`). Eligible replicas have the promised log start on disk after
  a deletion.
* S2  (offset, leader epoch) identifies one batch permanently, committed or not; offsets are dense, epochs do not fall.
* S3  a consumer saw only records of the truth, in order, without holes; no leader exposes less than an earlier one.
* S4  below its own high watermark, a replica has what the truth has there.
* S5  one (leader, incarnation) for each leader epoch; one quorum leader for each term.
* S6  every member of the quorum's ISR is in the maximal ISR of its leader, which has nothing below its high watermark
  that a member lacks; every running, registered, eligible member of the ISR (and of the commit set while the ISR is
  below the minimum or there is no leader) has every record of the truth on disk, and so has each new leader; a replica
  that joins the ISR has its leader's epoch start; the high watermark does not advance below `min.insync.replicas`.
* S7  every node applies the same events at the same index of the metadata log; the invariants of the image and of the
  engine hold (`agreement.py`); each record is valid by itself (`record_rules.py`).

The work is proportional to the changes: the quorum is checked after its own events, brokers after all others and after
events from the quorum, a replica when its offsets changed, a partition's members when its record or the truth changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from jepsen_like.simulator.brokers.history import History
from jepsen_like.simulator.brokers.node import SimNode
from jepsen_like.simulator.world.disk import SimDisk
from jepsen_like.simulator.world.violation import Violation
from metadata.view import BrokerChanged, ClusterView, MetadataEvent, TopicRemoved
from partitions.driver.driver import PartitionDriver
from partitions.replica.leader import Leader
from raftlog.model import NO_BROKER, BrokerId, PartitionRecord, TopicPartition

from .agreement import Agreement
from .client_truth import ClientTruth
from .committed_log import CommittedLog, batches_of
from .durable import missing_on_disk
from .mirror import LeaderMark, Mirror, Shape
from .partition_truth import PartitionTruth
from .record_rules import RecordRules
from .watched import WatchedDriver

NOTHING_ROTS = nullcontext()

LOOKS_AT_IMAGES = 4
"""Number of full checks from one check of every node's own image to the next: the images are equal."""


class Truth:
    """Checks a world; raises `Violation`."""

    def __init__(self, nodes: Sequence[SimNode], history: History) -> None:
        self._nodes = {node.node_id: node for node in nodes}
        self.clients = ClientTruth(history, self.of)
        self.rules = RecordRules()
        self.partitions: dict[TopicPartition, PartitionTruth] = {}
        self.checks: Counter[str] = Counter()
        """How often each of the rarer checks had something to check: a check that never has shows nothing."""
        self.lost = 0
        """Number of records of topics with `flush=os` that winners of recovery elections did not have stable."""
        self.agreement = Agreement()
        self._looks = 0
        """Number of full checks."""
        self._mirrors: dict[BrokerId, dict[PartitionDriver, Mirror]] = {node.node_id: {} for node in nodes}
        """The mirrors of each node's present life."""
        self._moved: dict[TopicPartition, None] = {}
        """Partitions whose truth or record changed during this event."""
        self._touched = WatchedDriver.touched
        self.rotting: list[SimDisk] = []
        """Disks with damage under a running process."""

    # --- Hooks ---

    def follow(self, node: SimNode) -> None:
        """Watch what a newly started process applies."""
        assert node.broker is not None and node.registration is not None
        self.rules.registering(node.registration)
        self._mirrors[node.node_id] = {}
        view, node_id, last = node.broker.view, node.node_id, 0

        def applied(index: int, events: Sequence[MetadataEvent]) -> None:
            nonlocal last
            if index == last + 1:
                self.agreement.check_events(node_id, index, events)
                self._first_heard(index, events)
            last = index
            self._learn(view, events)

        view.subscribe(applied)

    def after_event(self, node: SimNode | None) -> None:
        """Check after an event of `node`, or of the world."""
        if node is not None:
            quorum = node.quorum
            if quorum is not None and quorum.ran:
                quorum.ran = False
                self.agreement.check_quorum(node)
        if not self._touched and not self._moved:
            return
        if self.rotting:
            with self.as_written():
                self._look_at_touched()
        else:
            self._look_at_touched()

    def _look_at_touched(self) -> None:
        for driver in WatchedDriver.take_touched():
            owner = self._nodes[driver.node_id]
            if owner.broker is not None and owner.broker.manager.driver(driver.topic_partition) is driver:
                self._look_at(owner, driver)
        if self._moved:
            self._look_at_moved()

    def _look_at_moved(self) -> None:
        moved, self._moved = self._moved, {}
        for topic_partition in moved:
            self._check_members(self.partitions[topic_partition])

    def look_around(self) -> None:
        """Check everything, as if all of it had changed, so that no change escapes for long."""
        own_images = not self._looks % LOOKS_AT_IMAGES
        self._looks += 1
        with self.as_written():
            for node in self._nodes.values():
                if node.running and node.broker is not None:
                    if own_images:
                        self.agreement.check_image(node)
                    for driver in node.broker.manager.drivers.values():
                        driver.check_invariants()
                        self._look_at(node, driver)
            self._moved = dict.fromkeys(self.partitions)
            self._look_at_moved()

    def as_written(self) -> AbstractContextManager[object]:
        """Show damaged disks in their original state meanwhile: a replica has a damaged record until the damage is
        found.
        """
        return _turned(self.rotting) if self.rotting else NOTHING_ROTS

    def acknowledged(self, node: SimNode, topic_partition: TopicPartition, end_offset: int) -> None:
        """Record that the node acknowledges everything below this offset, whatever happens to its leadership next."""
        if node.broker is not None:
            driver = node.broker.manager.drivers.get(topic_partition)
            if driver is None:
                raise Violation(f"S1: node {node.node_id} acknowledges for {topic_partition}, which it does not have")
            with self.as_written():
                self._extend(self.of(topic_partition), driver, end_offset)

    def deleted(self, node: SimNode, topic_partition: TopicPartition, start_offset: int) -> None:
        """Record that the node reports everything below this offset as deleted."""
        driver = node.broker.manager.drivers.get(topic_partition) if node.broker is not None else None
        if driver is None:
            raise Violation(f"S1: node {node.node_id} deletes of {topic_partition}, which it does not have")
        self.of(topic_partition).deleted(driver.leader_epoch, start_offset)
        self._moved[topic_partition] = None

    def of(self, topic_partition: TopicPartition) -> PartitionTruth:
        """Return the truth of the partition."""
        known = self.partitions.get(topic_partition)
        if known is None:
            topic = self.rules.topics.get(topic_partition.topic_id)
            configs = dict(topic.configs) if topic is not None else {}
            log = CommittedLog(compacts="compact" in configs.get("cleanup.policy", ""))
            known = PartitionTruth(topic_partition, log, may_lose=configs.get("flush") == "os")
            self.partitions[topic_partition] = known
        return known

    # --- The quorum's word ---

    def _first_heard(self, index: int, events: Sequence[MetadataEvent]) -> None:
        """Record an entry when the first node applies it."""
        for recovered in self.rules.applied(index, events):
            self.checks["recovery elections"] += 1
            partition = self.of(recovered.record.topic_partition)
            if partition.may_lose:
                partition.losing = recovered.record.leader_epoch

    def _learn(self, view: ClusterView, events: Sequence[MetadataEvent]) -> None:
        for event in events:
            if isinstance(event, BrokerChanged):
                self._moved |= dict.fromkeys(self.partitions)  # A member may be another process now.
                continue
            record = getattr(event, "record", None)
            if isinstance(record, PartitionRecord):
                if record.topic_partition.topic_id in self.rules.removed:
                    continue  # A lagging node reports the past of a deleted topic.
                partition = self.of(record.topic_partition)
                if partition.record is None or record.partition_epoch > partition.record.partition_epoch:
                    if partition.record is not None:
                        self._check_joined(partition.record, record)
                    partition.record = record
                    self._moved[record.topic_partition] = None
            elif isinstance(event, TopicRemoved):
                for topic_partition, partition in self.partitions.items():
                    if topic_partition.topic_id == event.topic_id:
                        partition.record = None

    # --- Replicas ---

    def _look_at(self, node: SimNode, driver: PartitionDriver) -> None:
        """Check one replica, as far as it has changed."""
        log, replica = driver.log, driver.replica
        leader, record = replica.leader, replica.record
        version = -1 if record is None else record.partition_epoch
        numbers = (
            log.log_start_offset, log.log_end_offset, log.stable_end_offset, replica.high_watermark, version, leader
        )  # fmt: skip
        mirror = self._mirror_of(node.node_id, driver)
        before = mirror.shape
        if numbers == before or replica.offline or log.failed is not None:
            return
        shape = Shape._make(numbers)
        partition = self.of(driver.topic_partition)
        if before is None or shape.covers_other_than(before):
            mirror.refresh(driver, partition.name, compacts=partition.log.compacts)
        if not partition.may_lose and (before is None or shape.promises_other_than(before)):
            self._check_durable(node, driver, mirror)
        if leader is not None:
            self._look_at_leader(node, partition, driver, leader, mirror)
        wrong = mirror.compare(partition.log, min(shape.high_watermark, partition.log.end_offset))
        if wrong:
            raise Violation(f"S4: node {node.node_id} {wrong} of {driver.topic_partition}")
        mirror.shape = shape
        if before is None or shape.may_lack(before):
            self._moved[driver.topic_partition] = None

    def _mirror_of(self, node_id: BrokerId, driver: PartitionDriver) -> Mirror:
        mirrors = self._mirrors[node_id]
        mirror = mirrors.get(driver)
        if mirror is None:
            mirror = mirrors[driver] = Mirror()
        return mirror

    def _check_durable(self, node: SimNode, driver: PartitionDriver, mirror: Mirror) -> None:
        """S1: acknowledgements and elections count what a replica calls stable."""
        log = driver.log
        start, end = log.log_start_offset, log.stable_end_offset
        wrong = missing_on_disk(node.disk, log.path, start, end, log.epochs, mirror.durable)
        if wrong:
            raise Violation(
                f"S1: node {node.node_id} calls {driver.topic_partition} stable up to {end}, and on its disk {wrong}"
            )

    def _look_at_leader(
        self, node: SimNode, partition: PartitionTruth, driver: PartitionDriver, leader: Leader, mirror: Mirror
    ) -> None:
        epoch, record = leader.leader_epoch, leader.record
        before, mark = mirror.leader_mark, LeaderMark(leader, leader.high_watermark, record.partition_epoch)
        mirror.leader_mark = mark
        newest = partition.led_by(epoch, (record.leader, record.leader_incarnation))
        if before is None or before.leader is not leader:
            if partition.losing is not None and epoch >= partition.losing:
                self.lost += partition.lose(mirror, driver.log.stable_end_offset)
                self._compare_anew(partition)
            if newest and partition.losing is None:
                self.checks["elected"] += bool(partition.log.batches)
                wrong = mirror.compare(partition.log, partition.log.end_offset)
                if wrong:
                    raise Violation(f"S6: the elected node {node.node_id} {wrong} of {partition.topic_partition}")
        else:
            self.checks["below the minimum"] += partition.check_floor(leader, before)
        exposed = leader.exposed_high_watermark
        if exposed is not None:
            partition.exposes(epoch, exposed)
            topic_id, config = partition.topic_partition.topic_id, driver.log.config
            partition.shortened |= topic_id in self.rules.bounded or config.retention_bytes >= 0
            partition.begins_at(epoch, driver.log.log_start_offset)
        if mark != before:
            self._check_counted(node, partition, leader)
            self._extend(partition, driver, leader.high_watermark)

    def _compare_anew(self, partition: PartitionTruth) -> None:
        """Compare every replica again from where the truth ends after a loss: other records may be committed there."""
        for mirrors in self._mirrors.values():
            for driver, mirror in mirrors.items():
                if driver.topic_partition == partition.topic_partition:
                    mirror.compare_anew_from(partition.log.end_offset)

    def _extend(self, partition: PartitionTruth, driver: PartitionDriver, end_offset: int) -> None:
        truth = partition.log
        if end_offset > truth.end_offset:
            if driver.log.log_start_offset > truth.end_offset:
                raise Violation(f"S1: {driver} begins above what was seen to be committed, {truth.end_offset}")
            for view in batches_of(driver, truth.end_offset, end_offset):
                truth.extend(view)
            self._moved[partition.topic_partition] = None

    # --- Members ---

    def _counts(self, viewer: SimNode, member: BrokerId, topic_partition: TopicPartition) -> PartitionDriver | None:
        """Return a member's replica, if it runs as the incarnation that the viewer's view shows."""
        node = self._nodes[member]
        if not node.running or node.broker is None or viewer.broker is None:
            return None
        registered = viewer.broker.view.broker(member)
        driver = node.broker.manager.drivers.get(topic_partition)
        if registered is None or registered.incarnation != node.broker.incarnation or driver is None:
            return None
        return None if driver.replica.offline or driver.log.failed is not None else driver

    def _check_counted(self, node: SimNode, partition: PartitionTruth, leader: Leader) -> None:
        """S6: records below the high watermark are on the disk of every replica that is, or may be, in the ISR; and no
        replica counts in an epoch that it does not know.
        """
        for member in leader.maximal_isr:
            if leader._followers.stable_end_of(member) is None:
                continue  # Its reports are from an earlier life: it does not count before a report of this one.
            driver = self._counts(node, member, partition.topic_partition)
            if driver is None or driver.leader_epoch > leader.leader_epoch:
                continue
            if driver.leader_epoch < leader.leader_epoch:
                raise Violation(
                    f"S6: node {member} counts for {leader} of {partition.topic_partition}, and is in epoch "
                    f"{driver.leader_epoch}"
                )
            self.checks["counted beyond the ISR"] += member not in leader.record.isr
            if driver.log.stable_end_offset < leader.high_watermark:
                raise Violation(
                    f"S6: node {member} counts for {leader} of {partition.topic_partition}, and has stable only "
                    f"{driver.log.stable_end_offset}"
                )

    def _check_joined(self, before: PartitionRecord, record: PartitionRecord) -> None:
        """S6: a replica that joins the ISR has everything that its leader had at the beginning of the epoch."""
        leading = self._nodes.get(record.leader)
        if record.leader_epoch != before.leader_epoch or leading is None:
            return
        driver = self._counts(leading, record.leader, record.topic_partition)
        leader = driver.replica.leader if driver is not None else None
        if leader is None or leader.leader_epoch != record.leader_epoch:
            return
        for member in sorted(set(record.isr) - set(before.isr)):
            joined = self._counts(leading, member, record.topic_partition)
            if joined is None:
                continue
            if leader._followers.stable_end_of(member) is None:
                raise Violation(f"S6: node {member} joined the ISR of {record}, and was not in contact in this life")
            if joined.leader_epoch != record.leader_epoch:
                continue
            self.checks["joined"] += leader.epoch_start_offset > 0
            if joined.log.stable_end_offset < leader.epoch_start_offset:
                raise Violation(f"S6: node {member} joined the ISR of {record} without the start of {leader}")

    def _check_members(self, partition: PartitionTruth) -> None:
        """S6: every replica that may be elected has every committed record on disk."""
        record, truth = partition.record, partition.log
        if record is None:
            return
        self._check_maximal_isr(partition, record)
        if not truth.batches or partition.losing is not None:
            return
        below = len([m for m in record.isr if m not in record.not_eligible]) < record.min_insync_replicas
        members = set(record.isr) | (set(record.commit_set) if below or record.leader == NO_BROKER else set())
        for member in sorted(members - set(record.not_eligible)):
            driver = self._counts(self._nodes[member], member, record.topic_partition)
            if driver is None:
                continue
            self.checks["members of the commit set alone"] += member not in record.isr
            self.checks["members below a promised start"] += partition.promised_start > 0
            if driver.log.stable_end_offset < truth.end_offset:
                raise Violation(
                    f"S6: node {member} may be elected by {record}, but has {record.topic_partition} only up to "
                    f"{driver.log.stable_end_offset} of {truth.end_offset}"
                )
            if driver.log.stable_start_offset < partition.promised_start:
                raise Violation(
                    f"S1: node {member} may be elected by {record}, and would begin at "
                    f"{driver.log.stable_start_offset}: all below {partition.promised_start} was reported as deleted"
                )
            mirror = self._mirror_of(member, driver)
            mirror.refresh(driver, partition.name, compacts=truth.compacts)
            wrong = mirror.compare(truth, truth.end_offset)
            if wrong:
                raise Violation(f"S6: node {member} may be elected by {record}, and {wrong}")

    def _check_maximal_isr(self, partition: PartitionTruth, record: PartitionRecord) -> None:
        """S6: a leader that is not deposed counts every member of the quorum's ISR."""
        node = self._nodes.get(record.leader)
        driver = (
            node.broker.manager.drivers.get(record.topic_partition) if node and node.running and node.broker else None
        )
        leader = driver.replica.leader if driver else None
        if leader is not None and leader.leader_epoch == record.leader_epoch:
            uncounted = set(record.isr) - set(leader.maximal_isr)
            if uncounted:
                raise Violation(f"S6: the leader of {record} does not count on {sorted(uncounted)}, only on {leader}")
            assert node is not None
            self._check_counted(node, partition, leader)


@contextmanager
def _turned(disks: Sequence[SimDisk]) -> Iterator[None]:
    for disk in disks:
        disk.turn()
    try:
        yield
    finally:
        for disk in disks:
            disk.turn()
