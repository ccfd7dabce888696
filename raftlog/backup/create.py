"""Creation of a backup: what the cluster has, read in the order that makes it consistent.

1. Committed offsets and named positions.
2. Topics and the high watermarks of their partitions: a consumer commits what it has read, and it reads below a high
   watermark, so no committed offset of step 1 lies beyond the end of step 2.
3. The batches up to those ends, as the leaders have them.
4. The next producer id, which is greater than every id in those batches.

Nothing is locked meanwhile. A transaction that is decided while step 2 runs may be complete in one partition and open
in another; a restore aborts what is open (`docs/backup.md`).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable

import msgspec

from raftlog.api.groups import GroupOffsets
from raftlog.api.topics import TopicDescription
from raftlog.client import Admin
from raftlog.client.cluster.api import READ_TIMEOUT, HttpApi
from raftlog.client.groups.api import group_path
from raftlog.errors import InvalidRequest, RaftlogError
from raftlog.version import __version__

from .batches import FileBuilder
from .chain import newest
from .cluster import ClusterLogs, LogRange, errors_of
from .format import (
    DEFAULT_FILE_BYTES,
    RESTORING,
    BackedUpGroup,
    BackedUpOffset,
    BackedUpPartition,
    BackedUpQuota,
    BackedUpSecurity,
    BackedUpTopic,
    BatchFile,
    LastBatch,
    Manifest,
    backup_name,
)
from .off_loop import OffLoop
from .progress import Progress
from .repository import Repository


class CreateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The choice of what to back up, and how."""

    topics: tuple[str, ...] = ()
    """By name; empty: all."""
    full: bool = False
    """Whether the backup continues no other one."""
    security: bool = False
    """Whether it has access rules, quotas and the names of users."""
    file_bytes: int = DEFAULT_FILE_BYTES
    parallel: int = 4
    """Partitions that are read at the same time."""


class _Source(msgspec.Struct, frozen=True):
    """A topic as it is when the backup begins, and the ranges of its partitions."""

    topic: TopicDescription
    ranges: dict[int, LogRange]
    previous: BackedUpTopic | None


class BackupCreation:
    """One run of `raftlog backup create`. Belongs to one event loop."""

    def __init__(
        self,
        admin: Admin,
        api: HttpApi,
        repository: Repository,
        options: CreateOptions,
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
        self._name = ""

    async def run(self) -> Manifest:
        """Write a backup and return its manifest. Raises a `RaftlogError`; the backup is incomplete then."""
        names = await self._off_loop(self._repository.names)
        self._name = backup_name(names.next_number, secrets.token_hex(4))
        previous, digest = None, None
        last = None if self._options.full else newest(names.complete)
        if last is not None:
            previous, digest = await self._off_loop(lambda: self._repository.manifest(last))
        cluster = await self._admin.cluster()
        if previous is not None and previous.cluster_id != cluster.cluster_id:
            told = f"backup {previous.name} is of cluster {previous.cluster_id}, this is {cluster.cluster_id}"
            raise InvalidRequest("invalid_request", f"{told}: use another place, or --full")
        groups = await self._groups()
        positions = await self._admin.list_positions()
        if positions.more:
            self._progress.warn(f"only the first {len(positions.positions)} named positions are backed up")
        sources = await self._sources(previous)
        topics = await self._copy(sources)
        security = await self._security() if self._options.security else None
        quorum = await self._admin.quorum()
        if quorum.next_producer_id is None:
            raise InvalidRequest("unsupported_version", "a node is too old for backups: upgrade all nodes first")
        manifest = Manifest(
            name=self._name,
            previous=None if previous is None else previous.name,
            previous_sha256=digest,
            created_ms=time.time_ns() // 1_000_000,
            version=__version__,
            cluster_id=cluster.cluster_id,
            feature_level=cluster.feature_level,
            next_producer_id=max(
                quorum.next_producer_id,
                0 if previous is None else previous.next_producer_id,
                1 + max(_greatest_ids(topics), default=-1),
            ),
            topics=topics,
            groups=groups,
            positions=positions.positions,
            security=security,
        )
        await self._off_loop(lambda: self._repository.complete(manifest))
        return manifest

    # --- Metadata -----------------------------------------------------------------------------------------------------

    async def _groups(self) -> list[BackedUpGroup]:
        found = []
        for group in await self._admin.list_groups():
            try:
                told = await self._api.get(f"{group_path(group.group)}/offsets", GroupOffsets, timeout=READ_TIMEOUT)
            except InvalidRequest as error:
                if error.code != "unknown_group":
                    raise
                continue  # deleted meanwhile
            offsets = [
                BackedUpOffset(one.topic, one.topic_id, one.partition, one.offset, one.metadata)
                for one in told.offsets
                if one.offset is not None
            ]
            found.append(BackedUpGroup(group.group, offsets))
        return found

    async def _security(self) -> BackedUpSecurity:
        quotas = [BackedUpQuota(one.entity, one.limits) for one in await self._admin.list_quotas()]
        users = [one.name for one in await self._admin.list_users()]
        return BackedUpSecurity(await self._admin.list_acls(), quotas, users)

    async def _sources(self, previous: Manifest | None) -> list[_Source]:
        known = {} if previous is None else {topic.id: topic for topic in previous.topics}
        summaries = await self._admin.list_topics()
        missing = sorted(set(self._options.topics) - {one.name for one in summaries})
        if missing:
            raise InvalidRequest("unknown_topic", f"there is no topic {missing[0]!r}")
        found = []
        for summary in summaries:
            if self._options.topics and summary.name not in self._options.topics:
                continue
            try:
                topic = await self._admin.describe_topic(summary.name)
                ranges = await self._logs.ranges(topic.id_bytes, range(topic.partition_count))
            except InvalidRequest as error:
                self._skip(summary.name, error)
                continue
            found.append(_Source(topic, ranges, known.get(topic.id)))
        return found

    def _skip(self, topic: str, error: RaftlogError) -> None:
        """Leave out a topic that was deleted meanwhile."""
        if error.code != "unknown_topic":
            raise error
        self._progress.warn(f"topic {topic} was deleted meanwhile, and is not in the backup")

    # --- Batches ------------------------------------------------------------------------------------------------------

    async def _copy(self, sources: Iterable[_Source]) -> list[BackedUpTopic]:
        slots = asyncio.Semaphore(self._options.parallel)
        copied = [await self._copy_topic(source, slots) for source in sources]
        return [one for one in copied if one is not None]

    async def _copy_topic(self, source: _Source, slots: asyncio.Semaphore) -> BackedUpTopic | None:
        """Copy a topic; None if it was deleted meanwhile."""
        topic = source.topic
        if RESTORING in (topic.overrides or ()):
            self._progress.warn(f"topic {topic.name} is being restored: the backup has what is there so far")
        errors: list[RaftlogError] = []
        try:
            async with asyncio.TaskGroup() as tasks:
                numbers = range(topic.partition_count)
                copying = [tasks.create_task(self._copy_partition(source, number, slots)) for number in numbers]
        except* RaftlogError as group:
            errors = errors_of(group)
        if errors:
            self._skip(topic.name, next((one for one in errors if one.code != "unknown_topic"), errors[0]))
            return None
        return BackedUpTopic(
            name=topic.name,
            id=topic.id,
            created_index=topic.created_index,
            replication_factor=topic.replication_factor,
            configs={name: topic.configs[name] for name in topic.overrides or () if name != RESTORING},
            partitions=[task.result() for task in copying],
        )

    async def _copy_partition(self, source: _Source, number: int, slots: asyncio.Semaphore) -> BackedUpPartition:
        async with slots:
            span = source.ranges[number]
            before = await self._continued(source, number)
            builder = FileBuilder(self._options.file_bytes)
            builder.last = None if before is None else before.last
            start = span.start if before is None else max(span.start, before.end_offset)
            copy = _Copy(source.topic, number, start, max(span.end, start), log_start=span.start)
            while copy.offset < copy.end:
                await self._copy_some(copy, builder)
            await self._store(copy, builder)
            return BackedUpPartition(
                partition=number,
                log_start_offset=copy.log_start,
                end_offset=copy.end,
                continues=before is not None,
                last=builder.last,
                greatest_producer_id=builder.greatest_producer_id,
                files=copy.files,
            )

    async def _copy_some(self, copy: _Copy, builder: FileBuilder) -> None:
        """Copy the next batches."""
        topic_id = copy.topic.id_bytes
        try:
            batches = await self._logs.fetch(topic_id, copy.partition, copy.offset)
        except InvalidRequest as error:
            if error.code != "offset_out_of_range":
                raise
            span = (await self._logs.ranges(topic_id, [copy.partition]))[copy.partition]
            if span.start <= copy.offset:
                raise
            # Retention has deleted what was to be read next.
            await self._store(copy, builder)
            copy.offset = copy.log_start = span.start
            copy.end = max(copy.end, span.start)
            return
        for header, batch in batches:
            if header.base_offset >= copy.end:
                break
            if not builder.has_room(batch):
                await self._store(copy, builder)
            if builder.end_offset not in (None, header.base_offset):
                told = f"{copy.topic.name}/{copy.partition}: a batch begins at {header.base_offset}"
                raise InvalidRequest("corrupt_batch", f"{told}, the one before it ends at {builder.end_offset}")
            builder.add(header, batch)
            copy.offset = header.end_offset
            copy.end = max(copy.end, copy.offset)
            self._progress.advance(len(batch), header.end_offset - header.base_offset)

    async def _store(self, copy: _Copy, builder: FileBuilder) -> None:
        taken = builder.take()
        if taken is not None:
            file, data = taken
            await self._off_loop(
                lambda: self._repository.write_batches(self._name, copy.topic.id, copy.partition, file, data)
            )
            copy.files.append(file)

    async def _continued(self, source: _Source, number: int) -> BackedUpPartition | None:
        """Return the partition of the previous backup that this one continues; None if it is read as a whole.

        A compacted log is always read as a whole: compaction may have removed a tombstone before a backup saw it, and
        then older files would bring the deleted record back.
        """
        previous, topic = source.previous, source.topic
        if previous is None or number >= len(previous.partitions):
            return None
        if previous.compacts or "compact" in topic.configs.get("cleanup.policy", ""):
            return None
        before, span = previous.partitions[number], source.ranges[number]
        last = before.last
        if span.end < before.end_offset:
            told = f"ends at {span.end}, before the end {before.end_offset} of the previous backup"
        elif last is None or span.start > last.base_offset or await self._still_has(topic, number, last):
            return before
        else:
            told = f"has another batch at {last.base_offset} than the previous backup"
        self._progress.warn(f"{topic.name}/{number} {told}: it is read as a whole")
        return None

    async def _still_has(self, topic: TopicDescription, number: int, last: LastBatch) -> bool:
        try:
            batches = await self._logs.fetch(topic.id_bytes, number, last.base_offset)
        except InvalidRequest as error:
            if error.code == "offset_out_of_range":
                return True  # Retention has deleted it meanwhile; nothing contradicts the backup.
            raise
        header, _ = batches[0]
        return (header.base_offset, header.crc) == (last.base_offset, last.crc)


class _Copy(msgspec.Struct):
    """The progress of one partition."""

    topic: TopicDescription
    partition: int
    offset: int
    """The next offset to read."""
    end: int
    log_start: int
    files: list[BatchFile] = []


def _greatest_ids(topics: Iterable[BackedUpTopic]) -> Iterable[int]:
    return (one.greatest_producer_id for topic in topics for one in topic.partitions)
