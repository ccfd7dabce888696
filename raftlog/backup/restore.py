"""Restoring a backup to a cluster: the same batches at the same offsets, the same producers, groups and positions.

1. Each topic is created with the setting `restoring`: no producer writes to it, nothing of it expires.
2. Each partition gets the batches of the backup, in order. A batch is appended only if it begins at the end of the log,
   so none is there twice, however often this is repeated.
3. Groups get their committed offsets, and named positions their values.
4. The setting is removed, and the topics are ordinary ones.

If it is stopped anywhere, the same call goes on: what is there already is compared with the backup, batch by batch. A
topic that is there and not being restored is compared as well, and nothing of it is changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import msgspec

from raftlog.api.groups import CommitOffsets, OffsetToCommit
from raftlog.api.topics import CreateTopic, TopicDescription
from raftlog.client import Admin
from raftlog.client.cluster.api import CHANGE_TIMEOUT, HttpApi, in_parts
from raftlog.client.groups.api import group_path
from raftlog.config import MIB
from raftlog.errors import InvalidRequest, RaftlogError, RemoteProtocolError, error_from_code
from raftlog.records.batch import BatchHeader, parse_header
from raftlog.records.batch_filter import hole
from raftlog.wire import PRODUCE_PATH, ProducePartition, ProduceRequest, ProduceResponse

from .batches import is_same, read_file
from .chain import PartitionFiles, StoredFile, files_of
from .cluster import PATIENCE_SECONDS, PAUSE_SECONDS, ClusterLogs, LogRange, errors_of, patiently
from .format import RESTORING, BackedUpTopic, Manifest, data_path
from .off_loop import OffLoop
from .progress import Progress
from .repository import Repository
from .verify import clamped_offsets

RESTORE_FEATURE_LEVEL = 7
REQUEST_BYTES = 2 * MIB
REQUEST_BATCHES = 500
PRODUCE_TIMEOUT_MS = 25_000
OFFSETS_PER_REQUEST = 1_000
LONGEST_HOLE = 2**31 - 1
"""The most offsets that one batch can stand for."""
ALL = -1
"""`acks`: every in-sync replica has the batch on disk."""


class RestoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The choice of what to restore, and how."""

    backup: str | None = None
    """By name; None: the newest."""
    topics: tuple[str, ...] = ()
    """By name; empty: all."""
    replication_factor: int | None = None
    """Of all topics; None: as they had, or the number of nodes if that is less."""
    groups: bool = True
    """Whether groups and named positions are restored."""
    security: bool = False
    parallel: int = 4


class Restored(msgspec.Struct, kw_only=True):
    """The result."""

    backup: str
    topics: int = 0
    partitions: int = 0
    appended_bytes: int = 0
    compared_bytes: int = 0
    """Of batches that were there already."""
    groups: int = 0
    offsets: int = 0
    positions: int = 0
    acls: int = 0
    quotas: int = 0
    users_without_credentials: list[str] = []


class _Target(msgspec.Struct, frozen=True):
    """A partition of the cluster, and the files from which it is restored."""

    topic: TopicDescription
    log: PartitionFiles
    hole_producer_id: int

    @property
    def is_restoring(self) -> bool:
        return RESTORING in (self.topic.overrides or ())

    @property
    def name(self) -> str:
        return f"{self.log.topic}/{self.log.partition}"


Batch = tuple[BatchHeader, memoryview]


class Restoration:
    """One run of `raftlog backup restore`. Belongs to one event loop."""

    def __init__(
        self,
        admin: Admin,
        api: HttpApi,
        repository: Repository,
        options: RestoreOptions,
        progress: Progress,
        off_loop: OffLoop,
    ) -> None:
        self._admin = admin
        self._api = api
        self._logs = ClusterLogs(api)
        self._repository = repository
        self._options = options
        self._progress = progress
        self._off_loop = off_loop

    async def run(self) -> Restored:
        """Restore a backup. Raises a `RaftlogError`; the same call goes on where this one ended."""
        name = await self._off_loop(lambda: self._repository.choose(self._options.backup))
        chain = await self._off_loop(lambda: self._repository.chain(name))
        manifest, logs = chain[0], files_of(chain)
        cluster = await self._admin.cluster()
        if cluster.feature_level < RESTORE_FEATURE_LEVEL:
            told = f"topics are restored from feature level {RESTORE_FEATURE_LEVEL} on, and the cluster is at"
            raise InvalidRequest(
                "unsupported_version",
                f"{told} {cluster.feature_level}: finalize the upgrade (raftlog cluster finalize)",
            )
        result = Restored(backup=name)
        topics = self._chosen(manifest)
        described = await self._topics(topics, manifest, logs, nodes=len(cluster.nodes))
        await self._partitions(manifest, described, logs, result)
        if self._options.groups:
            await self._groups(manifest, described, logs, result)
            await self._positions(manifest, result)
        if self._options.security and manifest.security is not None:
            await self._security(manifest, result)
        for topic in described.values():
            if RESTORING in (topic.overrides or ()):
                await self._admin.alter_topic(topic.name, remove=[RESTORING])
            result.topics += 1
        return result

    # --- Topics -------------------------------------------------------------------------------------------------------

    def _chosen(self, manifest: Manifest) -> list[BackedUpTopic]:
        wanted = self._options.topics
        missing = sorted(set(wanted) - {topic.name for topic in manifest.topics})
        if missing:
            raise InvalidRequest("unknown_topic", f"there is no topic {missing[0]!r} in backup {manifest.name}")
        return [topic for topic in manifest.topics if not wanted or topic.name in wanted]

    async def _topics(
        self,
        topics: Sequence[BackedUpTopic],
        manifest: Manifest,
        logs: Mapping[tuple[str, int], PartitionFiles],
        *,
        nodes: int,
    ) -> dict[str, TopicDescription]:
        """Create the topics that are missing, and describe all.

        Those with idempotent producers come first: the cluster must not have granted any producer id before.
        """
        there = {one.name for one in await self._admin.list_topics()}
        below = {
            topic.name: manifest.next_producer_id
            if any(logs[topic.name, one.partition].greatest_producer_id >= 0 for one in topic.partitions)
            else 0
            for topic in topics
        }
        found = {}
        for topic in sorted(topics, key=lambda topic: -below[topic.name]):
            if topic.name not in there:
                factor = self._options.replication_factor or min(topic.replication_factor, nodes)
                body = CreateTopic(
                    topic.name,
                    len(topic.partitions),
                    factor,
                    dict(topic.configs),
                    restored_producer_ids_below=below[topic.name],
                )
                await self._api.change("POST", "/v1/topics", TopicDescription, body, timeout=CHANGE_TIMEOUT * 2)
            described = await self._admin.describe_topic(topic.name)
            if described.partition_count != len(topic.partitions):
                raise InvalidRequest(
                    "topic_exists",
                    f"topic {topic.name} exists with {described.partition_count} partitions, and the backup's has "
                    f"{len(topic.partitions)}: it is not a restored one",
                )
            found[topic.name] = described
        return found

    # --- Batches ------------------------------------------------------------------------------------------------------

    async def _partitions(
        self,
        manifest: Manifest,
        topics: Mapping[str, TopicDescription],
        logs: Mapping[tuple[str, int], PartitionFiles],
        result: Restored,
    ) -> None:
        slots = asyncio.Semaphore(self._options.parallel)
        targets = []
        for (name, _), log in logs.items():
            if name in topics:
                ids = int(topics[name].configs.get(RESTORING, "0"))
                targets.append(_Target(topics[name], log, ids - 1 if ids > 0 else -1))

        async def restore(target: _Target) -> None:
            async with slots:
                await _PartitionRestoration(
                    self._logs, self._admin, self._repository, self._off_loop, self._progress, target, result
                ).run()
                result.partitions += 1

        try:
            async with asyncio.TaskGroup() as tasks:
                for target in targets:
                    tasks.create_task(restore(target))
        except* RaftlogError as group:
            errors = errors_of(group)
        else:
            errors = []
        if errors:
            raise next((one for one in errors if not one.retriable), errors[0])

    # --- Metadata -----------------------------------------------------------------------------------------------------

    async def _groups(
        self,
        manifest: Manifest,
        topics: Mapping[str, TopicDescription],
        logs: dict[tuple[str, int], PartitionFiles],
        result: Restored,
    ) -> None:
        clamped = {}
        for name, one, end in clamped_offsets(manifest, logs):
            if one.topic in topics:
                told = f"group {name}: {one.topic}/{one.partition} was committed at {one.offset}, beyond its log"
                self._progress.warn(f"{told}: it is set to {end}")
                clamped[name, one.topic, one.partition] = end
        for group in manifest.groups:
            offsets = []
            for row in group.offsets:
                log = logs.get((row.topic, row.partition))
                if row.topic not in topics or log is None or log.topic_id != row.topic_id:
                    continue
                offset = clamped.get((group.group, row.topic, row.partition), row.offset)
                topic_id = topics[row.topic].id
                offsets.append(OffsetToCommit(row.partition, offset, topic_id=topic_id, metadata=row.metadata))
            if offsets and await self._commit(group.group, offsets):
                result.groups += 1
                result.offsets += len(offsets)

    async def _commit(self, group: str, offsets: Sequence[OffsetToCommit]) -> bool:
        """Commit offsets of a group without members. Committed offsets never fall: a repetition changes nothing."""
        path = f"{group_path(group)}/offsets"
        try:
            for part in in_parts(offsets, OFFSETS_PER_REQUEST):
                body = CommitOffsets(part)
                await patiently(partial(self._api.change, "POST", path, None, body, timeout=CHANGE_TIMEOUT))
        except InvalidRequest as error:
            if not (await self._admin.describe_group(group)).members:
                raise
            self._progress.warn(f"group {group} has members already, and keeps its offsets: {error.detail}")
            return False
        return True

    async def _positions(self, manifest: Manifest, result: Restored) -> None:
        for position in manifest.positions:
            current = await self._admin.position(position.name)
            if current is None or current < position.value:
                move = {"name": position.name, "current": -1 if current is None else current, "new": position.value}
                await self._api.change(
                    "POST", "/v1/transactions/commit", None, {"positions": [move]}, timeout=CHANGE_TIMEOUT
                )
            result.positions += 1

    async def _security(self, manifest: Manifest, result: Restored) -> None:
        assert manifest.security is not None
        for part in in_parts(manifest.security.acls, 1_000):
            result.acls += len(await self._admin.create_acls(part))
        for quota in manifest.security.quotas:
            await self._admin.set_quota(quota.entity, quota.limits)
            result.quotas += 1
        known = {one.name for one in await self._admin.list_users()}
        result.users_without_credentials = [name for name in manifest.security.users if name not in known]


class _PartitionRestoration:
    """The restoration of one partition."""

    def __init__(
        self,
        logs: ClusterLogs,
        admin: Admin,
        repository: Repository,
        off_loop: OffLoop,
        progress: Progress,
        target: _Target,
        result: Restored,
    ) -> None:
        self._logs = logs
        self._admin = admin
        self._repository = repository
        self._off_loop = off_loop
        self._progress = progress
        self._target = target
        self._log = target.log
        self._result = result
        self._topic_id = target.topic.id_bytes
        self._there: list[Batch] = []
        """Batches of the cluster that are still to be compared."""

    async def run(self) -> None:
        span = await self._range()
        if not self._target.is_restoring:
            self._check_restored(span)
        for batch in holes_up_to(self._log.first_offset, self._target.hole_producer_id):
            span = await self._place([batch], span)
        for stored in self._log.files:
            batches = await self._read(stored)
            for part in in_requests(batches):
                span = await self._place(part, span)
        if span.end != self._log.end_offset and self._target.is_restoring:
            raise self._differs(f"it ends at {span.end}, not at {self._log.end_offset}")
        if self._target.is_restoring and span.start < self._log.log_start_offset:
            where = {self._log.partition: self._log.log_start_offset}
            await patiently(lambda: self._admin.delete_records(self._target.topic.name, where))

    def _check_restored(self, span: LogRange) -> None:
        """Check a topic that was there already: it may be one whose restore was completed."""
        if span.end < self._log.end_offset or span.start > self._log.end_offset:
            raise InvalidRequest(
                "topic_exists",
                f"topic {self._target.topic.name} exists, and is neither being restored nor the backup's: "
                f"partition {self._log.partition} has the offsets {span.start} to {span.end}",
            )

    async def _read(self, stored: StoredFile) -> list[Batch]:
        log = self._log
        where = f"{stored.backup}/{data_path(log.topic_id, log.partition, stored.file)}"

        def read() -> list[Batch]:
            data = self._repository.read_batches(stored.backup, log.topic_id, log.partition, stored.file)
            return list(read_file(stored.file, data, where))

        return await self._off_loop(read)

    # --- Placing ------------------------------------------------------------------------------------------------------

    async def _place(self, batches: list[Batch], span: LogRange) -> LogRange:
        """Compare the batches that are there with the cluster's, and append the others. Returns the range after it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_SECONDS
        while True:
            left = [one for one in batches if one[0].base_offset >= span.end]
            for header, batch in batches[: len(batches) - len(left)]:
                if header.end_offset > span.end:
                    raise self._differs(f"a batch at {header.base_offset} ends at {span.end}")
                if header.base_offset >= span.start:
                    await self._compare(header, batch)
                self._count(header, batch, appended=False)
            if not left:
                return span
            try:
                await self._append(left)
            except RaftlogError as error:
                if not _may_pass(error) or loop.time() >= deadline:
                    raise
                await asyncio.sleep(PAUSE_SECONDS)
                span = await self._range()
                # Some may have been appended all the same: they are compared.
                self._there.clear()
                batches = left
                continue
            for header, batch in left:
                self._count(header, batch, appended=True)
            return LogRange(span.start, left[-1][0].end_offset)

    async def _append(self, batches: Sequence[Batch]) -> None:
        """Append batches that begin at the end of the log. Raises if it is not certain that all were appended."""
        log = self._log
        targets = [ProducePartition(self._topic_id, log.partition, len(batch)) for _, batch in batches]
        request = ProduceRequest(0, ALL, PRODUCE_TIMEOUT_MS, targets, restored=True)
        answer, _ = await self._logs.ask(PRODUCE_PATH, request, [batch for _, batch in batches], is_repeatable=False)
        if not isinstance(answer, ProduceResponse) or len(answer.partitions) != len(batches):
            raise RemoteProtocolError("the answer does not match the request")
        for (header, _), told in zip(batches, answer.partitions, strict=True):
            if told.error:
                raise error_from_code(told.error, f"{self._target.name}: {told.detail}", told.leader)
            if told.base_offset != header.base_offset:
                raise self._differs(f"a batch of {header.base_offset} was appended at {told.base_offset}")

    async def _compare(self, header: BatchHeader, batch: memoryview) -> None:
        """Compare a batch with the cluster's at the same offset. Raises `InvalidRequest` if they differ."""
        while self._there and self._there[0][0].end_offset <= header.base_offset:
            self._there.pop(0)
        if not self._there:
            self._there = await self._logs.fetch(self._topic_id, self._log.partition, header.base_offset)
        its_header, its = self._there[0]
        if not is_same(batch, its):
            told = f"the batch at {header.base_offset} is another one there, at {its_header.base_offset}"
            raise self._differs(told)

    async def _range(self) -> LogRange:
        return (await self._logs.ranges(self._topic_id, [self._log.partition]))[self._log.partition]

    def _count(self, header: BatchHeader, batch: memoryview, *, appended: bool) -> None:
        if appended:
            self._result.appended_bytes += len(batch)
        else:
            self._result.compared_bytes += len(batch)
        self._progress.advance(len(batch), header.end_offset - header.base_offset)

    def _differs(self, why: str) -> InvalidRequest:
        told = f"{self._target.name} of the cluster is not a restored part of the backup: {why}"
        if self._target.is_restoring:
            told += "; to restore it again, delete the topic first"
        return InvalidRequest("topic_exists", told)


def _may_pass(error: RaftlogError) -> bool:
    """Whether an append may succeed later. The log may have grown by an attempt whose answer was lost."""
    return error.retriable or error.code == "offset_out_of_range"


def holes_up_to(end_offset: int, producer_id: int) -> Iterator[Batch]:
    """Yield batches without records for the offsets before the backup's first one. Producers with ids up to this one
    may have written there."""
    offset = 0
    while offset < end_offset:
        end = min(offset + LONGEST_HOLE, end_offset)
        data = hole(offset, end, 0, -1, producer_id)
        yield parse_header(data), memoryview(data)
        offset = end


def in_requests(batches: Sequence[Batch]) -> Iterator[list[Batch]]:
    """Yield the batches in parts that fit into one request."""
    part: list[Batch] = []
    size = 0
    for header, batch in batches:
        if part and (size + len(batch) > REQUEST_BYTES or len(part) >= REQUEST_BATCHES):
            yield part
            part, size = [], 0
        part.append((header, batch))
        size += len(batch)
    if part:
        yield part
