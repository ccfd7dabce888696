"""A broker of one node in memory, for tests of the HTTP API: `BrokerService` with a real `ClusterView`.

It keeps the rules on which the API relies: batches are checked as by a leader, offsets are dense, reads end at the high
watermark (here the log end), fetches wait. Tests can request failures: `fail` raises from a call, `partition_errors`
are the answers for a partition. `parts` selects how fetched bytes are handed over: from memory, as regions of a real
file, or as regions of a file without a descriptor. It counts regions that were handed out and not yet released.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Literal

import msgspec
import structlog

from http_api.service.audit import AuditService
from http_api.service.metrics import NodeSample
from http_api.service.plots import PlotService
from http_api.service.service import PartitionService
from metadata.view import BrokerChanged, ClusterView, PartitionChanged, TopicChanged, TopicRemoved
from partitions.producers.state import Duplicate, ProducerStates, RefusedSequence
from raftlog.api.cluster import FeatureLevelFinalized, HealthInfo, RollCheck
from raftlog.api.quorum import VotersChange
from raftlog.broker.changes.leases import GroupLeases
from raftlog.broker.instances.instances import HttpInstances
from raftlog.broker.instances.links import OwnerLinks
from raftlog.broker.instances.owner import InstanceOwner
from raftlog.broker.plots.plots import NoPlots
from raftlog.broker.security.access.request_access import GuardedAccess, OpenAccess
from raftlog.broker.security.audit.recent import NO_AUDIT
from raftlog.config import check_topic_name, majority, parse_topic_config
from raftlog.errors import InvalidRequest, RaftlogError, error_from_code
from raftlog.idempotency import is_keyed
from raftlog.metrics.catalogue import LOG_END, READY
from raftlog.metrics.measure import Family
from raftlog.model import (
    BrokerId,
    BrokerRecord,
    DirectoryId,
    Endpoint,
    Incarnation,
    LeaderEpoch,
    PartitionEpoch,
    PartitionRecord,
    ProducerEpoch,
    ProducerId,
    QuorumStatus,
    TopicId,
    TopicPartition,
    TopicRecord,
)
from raftlog.ports import FileRegion, Part
from raftlog.records.batch import RecordBatch, parse_header, stamp, validate
from raftlog.security.principals import Caller
from raftlog.system.clock import SystemClock
from raftlog.system.disk import LocalFile
from raftlog.version import FEATURE_LEVEL
from raftlog.wire import (
    DeletedPartition,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FoundOffset,
    OffsetQuery,
    OffsetsRequest,
    OffsetsResponse,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
from tests.support.partitions.manual import ManualClock

from .fake_broker_transactions import FakeBrokerTransactions
from .fake_caller_partitions import FakeCallerPartitions
from .fake_groups import FakeGroups
from .fake_security import FakeSecurity

NODE = BrokerId(1)
INCARNATION = Incarnation(7)
CLUSTER_ID = "fake-cluster"
LEADER_EPOCH = LeaderEpoch(3)


@dataclass
class FakeLog:
    """One partition: whole stamped batches, one after the other."""

    batches: list[bytes] = field(default_factory=list)
    end_offsets: list[int] = field(default_factory=list)
    log_start_offset: int = 0
    producers: ProducerStates = field(default_factory=ProducerStates)
    """The batches of idempotency keys."""

    @property
    def end_offset(self) -> int:
        return self.end_offsets[-1] if self.end_offsets else self.log_start_offset

    def append(self, batch: bytes) -> int:
        base_offset = self.end_offset
        stamped = b"".join(stamp(batch, base_offset, LEADER_EPOCH))
        self.batches.append(stamped)
        header = parse_header(stamped)
        self.end_offsets.append(header.end_offset)
        if is_keyed(header.producer_id):
            self.producers.append(header)
        return base_offset

    def from_offset(self, offset: int, max_bytes: int) -> list[bytes]:
        found: list[bytes] = []
        size = 0
        for batch in self.batches[bisect_right(self.end_offsets, offset) :]:
            if found and size + len(batch) > max_bytes:
                break
            found.append(batch)
            size += len(batch)
        return found


class FileWithoutDescriptor:
    """Like a simulated disk's file: bytes, and no descriptor for `sendfile`."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def pread(self, length: int, position: int) -> bytes:
        return self._content[position : position + length]

    def fileno(self) -> int:
        return -1


class FakeTopics:
    """`TopicService`."""

    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker

    async def create(
        self, name: str, partition_count: int, replication_factor: int | None, configs: Mapping[str, str]
    ) -> None:
        self._broker._raise_if_asked("create_topic")
        check_topic_name(name)
        parse_topic_config(configs)
        if self._broker.view.topic(name) is not None:
            raise InvalidRequest("topic_exists", f"topic {name!r} exists")
        if replication_factor not in {None, 1}:
            raise InvalidRequest("invalid_request", "there is one broker")
        self._broker.add_topic(name, partition_count, configs)

    async def restore(
        self,
        name: str,
        partition_count: int,
        replication_factor: int | None,
        configs: Mapping[str, str],
        producer_ids_below: int,
    ) -> None:
        await self.create(name, partition_count, replication_factor, {**configs, "restoring": str(producer_ids_below)})

    async def delete(self, name: str, meant: TopicId | None = None) -> None:
        self._broker._raise_if_asked("delete_topic")
        topic = self._broker._topic(name)
        assert meant in (None, topic.topic_id)
        self._broker._event(TopicRemoved(topic.topic_id, name))

    async def alter(self, name: str, assign: Mapping[str, str], remove: Sequence[str]) -> None:
        topic = self._broker._topic(name)
        configs = {key: value for key, value in topic.configs if key not in remove} | dict(assign)
        parse_topic_config(configs)
        self._broker._event(TopicChanged(replace(topic, configs=tuple(sorted(configs.items())))))

    async def add_partitions(self, name: str, partition_count: int) -> None:
        topic = self._broker._topic(name)
        if partition_count < topic.partition_count:
            raise InvalidRequest("invalid_request", "partitions are never taken away")
        self._broker.grow(name, partition_count)


class FakeMetrics:
    """`MetricsService` of a node with a few numbers."""

    def __init__(self) -> None:
        self.families: list[Family | None] = [Family.of(READY, 1), None, Family(LOG_END, [(("t", "0"), 7)])]
        self.collections = 0

    def collect(self) -> Iterator[Family | None]:
        self.collections += 1
        yield from self.families

    def sample(self) -> NodeSample:
        numbers = dict.fromkeys(NodeSample.__struct_fields__, 0)
        return msgspec.convert(numbers, NodeSample)


class FakeQuorum:
    """`QuorumService`."""

    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker

    async def finalize_feature_level(self, level: int | None, *, plan: bool) -> FeatureLevelFinalized:
        self._broker._raise_if_asked("finalize_feature_level")
        before, after = self._broker.view.feature_level, level or FEATURE_LEVEL
        if not plan:
            self._broker.view.feature_level = after
        return FeatureLevelFinalized(not plan, before, after)

    async def change_voters(self, action: Literal["add", "remove"], node_id: int, *, plan: bool) -> VotersChange:
        self._broker._raise_if_asked("change_voters")
        before = self._broker.voters
        after = tuple(sorted({*before, BrokerId(node_id)} if action == "add" else {*before} - {BrokerId(node_id)}))
        if not plan:
            self._broker.voters = after
        survive_before, survive = (len(voters) - majority(len(voters)) for voters in (before, after))
        index = None if plan else 7
        return VotersChange(not plan, list(before), list(after), survive_before, survive, index)

    async def status(self) -> QuorumStatus:
        self._broker._raise_if_asked("quorum_status")
        return QuorumStatus(NODE, NODE, 4, 10, 9, 11, self._broker.voters, {NODE: 11, BrokerId(2): 10})


class FakeBroker:
    """`BrokerService`."""

    def __init__(self, parts: Literal["memory", "file", "no descriptor"] = "memory") -> None:
        self.view = ClusterView()
        self.topics = FakeTopics(self)
        self.quorum = FakeQuorum(self)
        self.groups = FakeGroups(self.view, self._event, self._catch_up)
        self.transactions = FakeBrokerTransactions(self.groups)
        owner = InstanceOwner(
            NODE,
            self.view,
            self.groups,  # type: ignore[arg-type]
            self,
            lambda: INCARNATION,
            self.catch_up,
            SystemClock(),
            structlog.get_logger(),
            timeout_s=60,
        )
        self.instances = HttpInstances(
            NODE,
            self.view,
            self.groups,  # type: ignore[arg-type]
            owner,
            OwnerLinks(lambda node: None),
            lambda: INCARNATION,
            self.catch_up,
            SystemClock(),
        )
        """The product's own, with one broker."""
        self.lease_clock = ManualClock()
        self.leases = GroupLeases(self.view, self.groups, self.catch_up, self.lease_clock, Random(1))  # type: ignore[arg-type]
        self.metrics = FakeMetrics()
        self.security = FakeSecurity(self._event, self._catch_up)
        self.access: OpenAccess | GuardedAccess = OpenAccess()
        self.recent_audit: AuditService = NO_AUDIT
        self.explain: Any = None
        """Tests of explanations bring one."""
        self.plots: PlotService = NoPlots()
        self.parts = parts
        self.logs: dict[TopicPartition, FakeLog] = {}
        self.fail: dict[str, Exception] = {}
        """Method → the exception that it raises."""
        self.partition_errors: dict[int, str] = {}
        """Partition number, of any topic → the error code of its answers."""
        self.health_now = HealthInfo(True, [])
        self.roll_reasons: list[str] = []
        self.voters: tuple[BrokerId, ...] = (NODE, BrokerId(2))
        self.knows_cluster = True
        self.quorum_answers = True
        self.unseen: list[Callable[[], object]] = []
        """Decisions of the quorum that the view does not show yet."""
        self.hang = asyncio.Event()
        """While it is not set, produce requests wait."""
        self.hang.set()
        self.produced: list[ProduceRequest] = []
        self.fetches_waiting = 0
        self.fetches_cancelled = 0
        self.regions_held = 0
        self._appended = asyncio.Event()
        self._producer_ids = 0
        self._index = 0
        self._scratch = -1
        self._event(
            BrokerChanged(
                BrokerRecord(
                    NODE,
                    INCARNATION,
                    DirectoryId(bytes(16)),
                    1,
                    Endpoint("127.0.0.1", 9640),
                    Endpoint("127.0.0.1", 9641),
                    "rack-a",
                    False,
                    1,
                )
            )
        )

    # --- For tests ---------------------------------------------------------------------------------------------------

    def add_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> TopicRecord:
        topic_id = TopicId(len(self.view.topics()).to_bytes(2, "big") + os.urandom(14))
        settings = tuple(sorted((configs or {}).items()))
        topic = TopicRecord(topic_id, name, partitions, 1, settings, created_index=self.view.index + 1)
        self._event(TopicChanged(topic), *self._new_partitions(topic, 0))
        return topic

    def create_again(self, name: str) -> TopicRecord:
        """Delete the topic, and create another of its name."""
        self._event(TopicRemoved(self._topic(name).topic_id, name))
        return self.add_topic(name)

    def grow(self, name: str, partition_count: int) -> None:
        topic = self._topic(name)
        grown = replace(topic, partition_count=partition_count)
        self._event(TopicChanged(grown), *self._new_partitions(grown, topic.partition_count))

    def set_leader(self, name: str, partition: int, leader: int) -> None:
        """-1: there is no leader."""
        topic = self.view.topic(name)
        assert topic is not None
        record = self.view.partition(TopicPartition(topic.topic_id, partition))
        assert record is not None
        self._event(PartitionChanged(msgspec.structs.replace(record, leader=BrokerId(leader))))

    def log(self, name: str, partition: int = 0) -> FakeLog:
        topic = self.view.topic(name)
        assert topic is not None
        return self.logs[TopicPartition(topic.topic_id, partition)]

    def appended(self, name: str) -> int:
        """Return the batches in all partitions of a topic."""
        topic = self.view.topic(name)
        assert topic is not None
        return sum(len(self.log(name, number).batches) for number in range(topic.partition_count))

    def append(self, name: str, batch: bytes, partition: int = 0) -> int:
        """Put a batch into a log as it is, such as a control batch."""
        offset = self.log(name, partition).append(batch)
        self._wake()
        return offset

    def close(self) -> None:
        if self._scratch >= 0:
            os.close(self._scratch)

    def _event(self, *events: object) -> None:
        self._index += 1
        self.view.on_events(self._index, events)  # type: ignore[arg-type]

    def _new_partitions(self, topic: TopicRecord, first: int) -> list[PartitionChanged]:
        changed = []
        for number in range(first, topic.partition_count):
            partition = TopicPartition(topic.topic_id, number)
            self.logs[partition] = FakeLog()
            me = (NODE,)
            record = PartitionRecord(
                partition, me, NODE, Incarnation(7), LEADER_EPOCH, PartitionEpoch(5), me, me, min_insync_replicas=1
            )
            changed.append(PartitionChanged(record))
        return changed

    def _wake(self) -> None:
        self._appended.set()
        self._appended = asyncio.Event()

    def _raise_if_asked(self, call: str) -> None:
        if call in self.fail:
            raise self.fail[call]

    def _log_of(self, topic_id: bytes, partition: int) -> FakeLog:
        if self.partition_errors.get(partition):
            raise error_from_code(self.partition_errors[partition], "as the test asked", 2)
        if self.view.topic_by_id(TopicId(topic_id)) is None:
            raise InvalidRequest("unknown_topic", f"no topic {topic_id.hex()}")
        log = self.logs.get(TopicPartition(TopicId(topic_id), partition))
        if log is None:
            raise InvalidRequest("unknown_partition", f"no partition {partition}")
        return log

    # --- BrokerService -----------------------------------------------------------------------------------------------

    @property
    def node_id(self) -> BrokerId:
        return NODE

    @property
    def cluster_id(self) -> str:
        return CLUSTER_ID

    async def catch_up(self) -> bool:
        return self._catch_up()

    def _catch_up(self) -> bool:
        while self.quorum_answers and self.unseen:
            self.unseen.pop(0)()
        return self.quorum_answers

    def as_caller(self, caller: Caller) -> PartitionService:
        guard = self.access.guard
        return self if guard is None else FakeCallerPartitions(self, guard, caller)

    async def produce(self, request: ProduceRequest, batches: Sequence[memoryview]) -> ProduceResponse:
        self._raise_if_asked("produce")
        self.produced.append(request)
        await self.hang.wait()
        answers = [self._produce_one(asked, batch) for asked, batch in zip(request.partitions, batches, strict=True)]
        self._wake()
        if request.acks == 0:
            answers = []
        return ProduceResponse(request.correlation_id, answers)

    def _produce_one(self, asked: ProducePartition, batch: memoryview) -> ProducedPartition:
        try:
            log = self._log_of(asked.topic_id, asked.partition)
            config = self.view.topic_config(TopicId(asked.topic_id))
            assert config is not None
            header = validate(batch, max_batch_bytes=config.max_message_bytes)
            if is_keyed(header.producer_id):
                match log.producers.check(header):
                    case Duplicate(first):
                        return ProducedPartition(asked.topic_id, asked.partition, base_offset=first.base_offset)
                    case RefusedSequence(code, detail):
                        raise InvalidRequest(code, detail)
            if asked.expected_end_offset not in (-1, log.end_offset):
                code, detail, end = "log_end_moved", f"the log ends at {log.end_offset}", log.end_offset
                return ProducedPartition(asked.topic_id, asked.partition, code, detail, log_end_offset=end)
            return ProducedPartition(asked.topic_id, asked.partition, base_offset=log.append(bytes(batch)))
        except RaftlogError as error:
            return ProducedPartition(asked.topic_id, asked.partition, error.code, error.detail)

    async def fetch(self, request: FetchRequest) -> tuple[FetchResponse, list[Part]]:
        self._raise_if_asked("fetch")
        deadline = asyncio.get_running_loop().time() + request.max_wait_ms / 1000
        while True:
            answers, batches = self._fetch_once(request)
            size = sum(map(len, batches))
            left = deadline - asyncio.get_running_loop().time()
            if size >= request.min_bytes or left <= 0 or any(answer.error for answer in answers):
                return FetchResponse(request.correlation_id, answers), [self.part(batch) for batch in batches]
            await self._wait(left)

    async def _wait(self, seconds: float) -> None:
        self.fetches_waiting += 1
        try:
            # Not `wait_for`: before Python 3.12 it swallows a cancellation that comes together with the event.
            async with asyncio.timeout(seconds):
                await self._appended.wait()
        except TimeoutError:
            return
        except asyncio.CancelledError:
            self.fetches_cancelled += 1
            raise
        finally:
            self.fetches_waiting -= 1

    def _fetch_once(self, request: FetchRequest) -> tuple[list[FetchedPartition], list[bytes]]:
        answers, batches = [], []
        for asked in request.partitions:
            answer, found = self._fetch_one(asked)
            answers.append(answer)
            batches += found
        return answers, batches

    def _fetch_one(self, asked: FetchPartition) -> tuple[FetchedPartition, list[bytes]]:
        try:
            log = self._log_of(asked.topic_id, asked.partition)
        except RaftlogError as error:
            return FetchedPartition(asked.topic_id, asked.partition, error.code, error.detail), []
        known = FetchedPartition(
            asked.topic_id,
            asked.partition,
            high_watermark=log.end_offset,
            last_stable_offset=log.end_offset,
            log_start_offset=log.log_start_offset,
            leader_epoch=LEADER_EPOCH,
        )
        if not log.log_start_offset <= asked.offset <= log.end_offset:
            detail = f"offset {asked.offset} is not within {log.log_start_offset}..{log.end_offset}"
            return _replace(known, error="offset_out_of_range", detail=detail), []
        found = log.from_offset(asked.offset, asked.max_bytes)
        return _replace(known, length=sum(map(len, found))), found

    def part(self, batch: bytes) -> Part:
        if self.parts == "memory":
            return memoryview(batch)
        self.regions_held += 1
        released = False

        def release() -> None:
            nonlocal released
            assert not released, "a region was released twice"
            released = True
            self.regions_held -= 1

        if self.parts == "no descriptor":
            file: Any = FileWithoutDescriptor(b"before" + batch)
            return FileRegion(file, len(b"before"), len(batch), release)
        if self._scratch < 0:
            self._scratch = os.open(tempfile.gettempdir(), os.O_TMPFILE | os.O_RDWR)
            os.write(self._scratch, b"before")
        position = os.fstat(self._scratch).st_size
        os.pwrite(self._scratch, batch, position)
        return FileRegion(LocalFile(self._scratch, "scratch", set()), position, len(batch), release)

    async def offsets(self, request: OffsetsRequest) -> OffsetsResponse:
        self._raise_if_asked("offsets")
        return OffsetsResponse(request.correlation_id, [self._find(asked) for asked in request.partitions])

    def _find(self, asked: OffsetQuery) -> FoundOffset:
        try:
            log = self._log_of(asked.topic_id, asked.partition)
        except RaftlogError as error:
            return FoundOffset(asked.topic_id, asked.partition, error.code, error.detail)
        offset, timestamp = -1, -1
        if asked.timestamp_ms == -1:
            offset = log.end_offset
        elif asked.timestamp_ms == -2:
            offset = log.log_start_offset
        else:
            for batch in map(RecordBatch, log.batches):
                for at, time in zip(batch.offsets(), batch.timestamps_ms(), strict=True):
                    if time >= asked.timestamp_ms and offset < 0:
                        offset, timestamp = at, time
        return FoundOffset(
            asked.topic_id, asked.partition, offset=offset, timestamp_ms=timestamp, leader_epoch=LEADER_EPOCH
        )

    async def delete_records(self, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        self._raise_if_asked("delete_records")
        return DeleteRecordsResponse(request.correlation_id, [self._delete(asked) for asked in request.partitions])

    def _delete(self, asked: DeleteRecordsPartition) -> DeletedPartition:
        try:
            log = self._log_of(asked.topic_id, asked.partition)
        except RaftlogError as error:
            return DeletedPartition(asked.topic_id, asked.partition, error.code, error.detail)
        before = log.end_offset if asked.before < 0 else asked.before
        if before > log.end_offset:
            detail = f"{before} is not within {log.log_start_offset}..{log.end_offset}"
            return DeletedPartition(asked.topic_id, asked.partition, "offset_out_of_range", detail)
        log.log_start_offset = max(log.log_start_offset, before)
        return DeletedPartition(asked.topic_id, asked.partition, log_start_offset=log.log_start_offset)

    def _topic(self, name: str) -> TopicRecord:
        topic = self.view.topic(name)
        if topic is None:
            raise InvalidRequest("unknown_topic", f"there is no topic {name!r}")
        return topic

    async def allocate_producer_id(self, principal: str = "") -> tuple[ProducerId, ProducerEpoch]:
        self._raise_if_asked("allocate_producer_id")
        self._producer_ids += 1
        return ProducerId(self._producer_ids), ProducerEpoch(0)

    async def roll_check(self, node: BrokerId) -> RollCheck:
        self._raise_if_asked("roll_check")
        return RollCheck(node, not self.roll_reasons, list(self.roll_reasons))

    def health(self) -> HealthInfo:
        self._raise_if_asked("health")
        return self.health_now


def _replace(answer: FetchedPartition, **changes: object) -> FetchedPartition:
    return msgspec.structs.replace(answer, **changes)
