"""What must be true after every event, of everything that all nodes together know: S1-S7.

`Truth` is the committed log of each partition as the world has seen it: whatever any leader ever exposed below its high
watermark or acknowledged. It only grows. After each event the node that ran it is compared with the truth:

* S2, S4 whatever a replica has below its own high watermark is what the truth has there.
* S3     a consumer saw only what is in the truth, in order; no leader exposes less than one of an earlier epoch did.
* S5     one (leader, incarnation) for each (partition, leader epoch); one quorum leader for each term.
* S1     an acknowledged batch is in the truth at its offset, once.
* S6     whoever the quorum has in the ISR is in the maximal ISR of its leader, which counts on all of them;
         every running, registered, eligible member of ISR (and of the commit set while the ISR is below the minimum or
         nobody leads) has every record of the truth on its disk, by (offset, epoch, CRC), not by bare offset.
* S7     every node applies the same events at the same index of the metadata log.

Work is proportional to what changed: the quorum is looked at after its own events, brokers after all others and when
the quorum told them something, a replica when its offsets moved, a partition's members when its record or the truth
moved. What is *not* here: liveness (`run.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from metadata.view import ClusterView, MetadataEvent
from partitions.driver import PartitionDriver
from raftlog.model import NO_BROKER, BrokerId, Incarnation, LeaderEpoch, Offset, PartitionRecord, TopicPartition
from raftlog.ports import Part
from raftlog.record_batch import RecordBatch, split_batches

from .history import Fate, History, Send
from .network import bytes_of
from .node import SimNode
from .violation import Violation

READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Batch:
    """What identifies a committed batch."""

    base_offset: int
    end_offset: int
    leader_epoch: int
    crc: int


@dataclass(slots=True)
class CommittedLog:
    """The truth of one partition."""

    batches: list[Batch] = field(default_factory=list)
    by_base: dict[int, Batch] = field(default_factory=dict)
    values: dict[int, bytes] = field(default_factory=dict)
    """Offset → value."""
    offsets: dict[bytes, int] = field(default_factory=dict)
    """Value → offset: values are unique, so a second one is a duplicate."""

    @property
    def end_offset(self) -> int:
        return self.batches[-1].end_offset if self.batches else 0

    def extend(self, view: memoryview) -> None:
        """The next committed batch."""
        batch = RecordBatch(view)
        header = batch.header
        known = Batch(header.base_offset, header.end_offset, header.leader_epoch, header.crc)
        if header.base_offset != self.end_offset:
            raise Violation(f"S2: committed batch at {header.base_offset}, the committed log ends at {self.end_offset}")
        self.batches.append(known)
        self.by_base[known.base_offset] = known
        for offset, value in zip(batch.offsets(), batch.values(), strict=True):
            assert value is not None
            if value in self.offsets:
                raise Violation(f"S1: {value!r} is committed at {self.offsets[value]} and again at {offset}")
            self.values[offset] = value
            self.offsets[value] = offset


@dataclass(slots=True)
class ReplicaMark:
    """How a replica looked when it was last compared."""

    shape: tuple[object, ...] = ()
    verified_end: int = 0
    """Below this it was found equal to the truth; falls with truncation."""


class Truth:
    """Checks a world; raises `Violation`."""

    def __init__(self, nodes: Sequence[SimNode], history: History) -> None:
        self._nodes = {node.node_id: node for node in nodes}
        self._history = history
        self.logs: dict[TopicPartition, CommittedLog] = {}
        self._leaders: dict[tuple[TopicPartition, LeaderEpoch], tuple[BrokerId, Incarnation]] = {}
        self._exposed: dict[TopicPartition, dict[LeaderEpoch, tuple[int, int]]] = {}
        """For each leader epoch the first and the last high watermark that its leader exposed."""
        self._terms: dict[int, BrokerId] = {}
        self._applied: dict[int, int] = {}
        """Index of the metadata log → hash of the events that it brought."""
        self._marks: dict[tuple[BrokerId, TopicPartition], ReplicaMark] = {}
        self._records: dict[TopicPartition, PartitionRecord] = {}
        """The newest that any node has seen: the quorum's word."""
        self._moved: dict[TopicPartition, None] = {}
        """Partitions whose truth or record moved during this event."""
        self._sends_open: list[Send] = []
        self._sends_seen = 0
        self._reads_checked = 0
        self._quorum_marks: dict[BrokerId, tuple[object, ...]] = {}

    # --- Hooks ---

    def follow(self, node: SimNode) -> None:
        """Watch what a newly started process applies."""
        assert node.broker is not None
        view, node_id, last = node.broker.view, node.node_id, 0

        def applied(index: int, events: Sequence[MetadataEvent]) -> None:
            nonlocal last
            if index == last + 1:
                self._check_applied(node_id, index, events)
            last = index
            self._learn(view, events)

        view.subscribe(applied)

    def after_event(self, node: SimNode) -> None:
        """`node` has just handled something."""
        if node.running and node.broker is not None and node.quorum is not None:
            quorum_ran, broker_ran = node.what_happened()
            if quorum_ran:
                self._check_quorum(node)
            if broker_ran:
                node.broker.check_invariants()
                for topic_partition, driver in node.broker.manager.drivers.items():
                    self._look_at(node, topic_partition, driver)
        moved, self._moved = self._moved, {}
        for topic_partition in moved:
            self._check_members(topic_partition)

    def acknowledged(self, node: SimNode, topic_partition: TopicPartition, end_offset: int) -> None:
        """The node acknowledges everything below this offset now, whatever becomes of its leadership next."""
        if node.broker is not None:
            driver = node.broker.manager.drivers.get(topic_partition)
            if driver is None:
                raise Violation(f"S1: node {node.node_id} acknowledges for {topic_partition}, which it does not have")
            self._extend(topic_partition, driver, end_offset)

    def check_clients(self) -> None:
        """Acknowledgements and reads since the last call."""
        self._sends_open += self._history.sends[self._sends_seen :]
        self._sends_seen = len(self._history.sends)
        for send in self._sends_open:
            if send.fate is Fate.OK:
                self._check_acknowledged(send)
        self._sends_open = [send for send in self._sends_open if send.fate is None]
        for read in self._history.reads[self._reads_checked :]:
            log = self.logs.get(read.topic_partition, CommittedLog())
            for offset, value in read.records:
                if log.values.get(offset) != value:
                    raise Violation(
                        f"S3: consumer {read.consumer} saw {value!r} at {read.topic_partition} offset {offset}; "
                        f"the truth there is {log.values.get(offset)!r}"
                    )
        self._reads_checked = len(self._history.reads)

    # --- Inside ---

    def _check_quorum(self, node: SimNode) -> None:
        assert node.quorum is not None
        status = node.quorum.node.status()
        mark = (node.life, status.leader, status.term, status.commit_index, status.applied_index, status.last_index)
        if self._quorum_marks.get(node.node_id) == mark:
            return
        self._quorum_marks[node.node_id] = mark
        node.quorum.node.check_invariants()
        if status.leader == node.node_id:
            first = self._terms.setdefault(status.term, node.node_id)
            if first != node.node_id:
                raise Violation(f"S7: nodes {first} and {node.node_id} both lead the quorum in term {status.term}")

    def _check_applied(self, node_id: BrokerId, index: int, events: Sequence[MetadataEvent]) -> None:
        fingerprint = hash(repr(events))
        if self._applied.setdefault(index, fingerprint) != fingerprint:
            raise Violation(f"S7: node {node_id} applied something else at index {index}: {events}")

    def _learn(self, view: ClusterView, events: Sequence[MetadataEvent]) -> None:
        for event in events:
            record = getattr(event, "record", None)
            if isinstance(record, PartitionRecord):
                topic_partition = record.topic_partition
                known = self._records.get(topic_partition)
                if known is None or record.partition_epoch > known.partition_epoch:
                    self._records[topic_partition] = record
                    self._moved[topic_partition] = None

    def _look_at(self, node: SimNode, topic_partition: TopicPartition, driver: PartitionDriver) -> None:
        log, replica = driver.log, driver.replica
        exposed = replica.leader.exposed_high_watermark if replica.leader else None
        ends = (log.log_start_offset, log.log_end_offset, log.stable_end_offset)
        shape = (driver, replica.leader, ends, exposed, replica.high_watermark, replica.offline)
        mark = self._marks.setdefault((node.node_id, topic_partition), ReplicaMark())
        if shape == mark.shape or replica.offline:
            return
        if not mark.shape or mark.shape[0] is not driver:
            mark.verified_end = 0
        mark.shape = shape
        mark.verified_end = min(mark.verified_end, log.log_end_offset)
        if replica.leader is not None:
            leader = replica.leader.record
            holder = (leader.leader, leader.leader_incarnation)
            first = self._leaders.setdefault((topic_partition, leader.leader_epoch), holder)
            if first != holder:
                raise Violation(f"S5: {topic_partition} epoch {leader.leader_epoch} is led by {first} and by {holder}")
            if exposed is not None:
                self._check_exposed(topic_partition, leader.leader_epoch, exposed)
        truth = self._extend(topic_partition, driver, exposed or 0)
        end = min(replica.high_watermark, truth.end_offset)
        self._compare(node, topic_partition, driver, mark, end, "S4")
        self._moved[topic_partition] = None

    def _check_exposed(self, topic_partition: TopicPartition, epoch: LeaderEpoch, exposed: int) -> None:
        """S3: the high watermark that consumers see falls neither within an epoch nor from one to the next, whoever of
        two leaders has not heard yet that it is deposed."""
        spans = self._exposed.setdefault(topic_partition, {})
        first, last = spans.get(epoch, (exposed, exposed))
        spans[epoch] = first, exposed
        before = max((high for earlier, (_, high) in spans.items() if earlier < epoch), default=0)
        after = min((low for later, (low, _) in spans.items() if later > epoch), default=exposed)
        if not max(before, last) <= exposed <= after:
            raise Violation(
                f"S3: {topic_partition} epoch {epoch} exposes {exposed}; it exposed {last} before, earlier epochs "
                f"{before}, later ones began with {after}"
            )

    def _extend(self, topic_partition: TopicPartition, driver: PartitionDriver, end_offset: int) -> CommittedLog:
        truth = self.logs.setdefault(topic_partition, CommittedLog())
        if end_offset > truth.end_offset:
            for view in batches_of(driver, truth.end_offset, end_offset):
                truth.extend(view)
            self._moved[topic_partition] = None
        return truth

    def _compare(
        self,
        node: SimNode,
        topic_partition: TopicPartition,
        driver: PartitionDriver,
        mark: ReplicaMark,
        end: int,
        law: str,
    ) -> None:
        """The replica agrees with the truth in [verified, end)."""
        start = max(mark.verified_end, driver.log.log_start_offset)
        if start >= end:
            return
        truth = self.logs[topic_partition]
        position = start
        for view in batches_of(driver, start, end):
            header = RecordBatch(view).header
            mine = Batch(header.base_offset, header.end_offset, header.leader_epoch, header.crc)
            if truth.by_base.get(header.base_offset) != mine:
                raise Violation(
                    f"{law}: node {node.node_id} has {mine} of {topic_partition}, "
                    f"committed is {truth.by_base.get(header.base_offset)}"
                )
            position = header.end_offset
        if position < end:
            raise Violation(f"{law}: node {node.node_id} lacks [{position}, {end}) of {topic_partition}")
        mark.verified_end = position

    def _check_members(self, topic_partition: TopicPartition) -> None:
        """S6: whoever may be elected has every committed record on disk."""
        record = self._records.get(topic_partition)
        if record is not None:
            self._check_maximal_isr(record)
        truth = self.logs.get(topic_partition)
        if record is None or truth is None or not truth.batches:
            return
        below = len([m for m in record.isr if m not in record.not_eligible]) < record.min_insync_replicas
        members = set(record.isr) | (set(record.commit_set) if below or record.leader == NO_BROKER else set())
        for member in sorted(members - set(record.not_eligible)):
            node = self._nodes[member]
            if not node.running or node.broker is None:
                continue
            registered = node.broker.view.broker(member)
            driver = node.broker.manager.drivers.get(topic_partition)
            if registered is None or registered.incarnation != node.broker.incarnation or driver is None:
                continue
            if driver.replica.offline:
                continue
            if driver.log.stable_end_offset < truth.end_offset:
                raise Violation(
                    f"S6: node {member} may be elected by {record}, but has {topic_partition} only up to "
                    f"{driver.log.stable_end_offset} of {truth.end_offset}"
                )
            mark = self._marks.setdefault((node.node_id, topic_partition), ReplicaMark())
            self._compare(node, topic_partition, driver, mark, truth.end_offset, "S6")

    def _check_maximal_isr(self, record: PartitionRecord) -> None:
        """S6: a leader that has not been deposed counts on everybody whom the quorum takes to be in sync."""
        node = self._nodes.get(record.leader)
        driver = (
            node.broker.manager.drivers.get(record.topic_partition) if node and node.running and node.broker else None
        )
        leader = driver.replica.leader if driver else None
        if leader is not None and leader.leader_epoch == record.leader_epoch:
            uncounted = set(record.isr) - set(leader.maximal_isr)
            if uncounted:
                raise Violation(f"S6: the leader of {record} does not count on {sorted(uncounted)}, only on {leader}")

    def _check_acknowledged(self, send: Send) -> None:
        truth = self.logs.get(send.topic_partition, CommittedLog())
        for position, value in enumerate(send.values):
            offset = send.base_offset + position
            if truth.values.get(offset) != value:
                raise Violation(
                    f"S1: {value!r} was acknowledged at {send.topic_partition} offset {offset}; committed there is "
                    f"{truth.values.get(offset)!r}"
                )


def batches_of(driver: PartitionDriver, start: int, end: int) -> Iterator[memoryview]:
    """Whole batches of a replica's log from `start`, none beyond `end`."""
    while start < end:
        found = driver.log.read(Offset(start), Offset(end), READ_BYTES)
        if found.load is not None:
            found = found.load()
        if found.next_offset <= start:
            raise Violation(f"{driver} has a hole at {start}, its log ends at {driver.log.log_end_offset}")
        start = found.next_offset
        yield from split_batches(_joined(found.parts))


def _joined(parts: Sequence[Part]) -> bytes:
    return b"".join(bytes_of(part) for part in parts)
