"""A driver's view of the cluster: topics, the bounds of their logs, offsets of times, and notification of new records.

Requests go to any node over the HTTP API; each covers all partitions, and completes or fails within a deadline. A
partition whose leader is unreachable fails alone.

`wait_for_news` is a long poll: a tiny fetch at the known ends, which leaders answer when a record arrives. So an idle
query sends a request every few seconds, not sixty times a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from raftlog import wire
from raftlog.api.groups import GroupPartition
from raftlog.api.topics import TopicDescription
from raftlog.client.admin import find_topics
from raftlog.client.cluster.api import HttpApi
from raftlog.client.cluster.metadata import check_partition, topic_path
from raftlog.client.consuming.offsets import request_offsets
from raftlog.client.groups.api import GroupApi
from raftlog.config import MAX_PARTITIONS_PER_TOPIC, check_topic_name
from raftlog.errors import InvalidRequest, RaftlogError, RemoteProtocolError, RetriableError, error_from_code
from raftlog.patterns import full_matcher
from spark_source.reading.log_bounds import PartitionBounds
from spark_source.reading.options import SourceOptions
from spark_source.reading.starting import TimeQuery

READ_COMMITTED = 1
CONCURRENT_REQUESTS = 8
LISTED_FROM = 16
"""More topics than this are listed rather than described one by one."""
QUERIES_PER_REQUEST = 5_000
POLLED_PARTITIONS = 5_000
"""The number of partitions that a long poll watches; changes of others are found by the next request."""
POLL_BYTES = 4_096
"""More than the number of leaders, or the broker would take an empty answer as sufficient."""
POLL_GRACE_S = 3.0
NO_TOPIC = "0" * 32
"""No topic has this id: a request with it and a name makes the node ask the quorum for the topic of that name."""
RETRY_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class ReadTopic:
    """A topic that is read, with the partitions that are read."""

    name: str
    topic_id: str
    partitions: tuple[int, ...]


Place: TypeAlias = tuple[str, int]
"""(topic id, partition)."""


class Cluster:
    """The cluster as one query's driver sees it. Belongs to one event loop. Every call raises a `RaftlogError`."""

    def __init__(self, api: HttpApi, options: SourceOptions) -> None:
        """The caller keeps the ownership of `api`."""
        self._options = options
        self._api = api
        self._timeout = options.request_timeout_ms / 1000
        self._ids: dict[str, str] = {}
        """Name → id of the topics that were described last, or that a checkpoint names."""
        self._counts: dict[str, int] = {}
        """Id → the known number of partitions, which never decreases."""

    def ask_another(self) -> None:
        """Send the next request to another node: the one that answered last may be stale."""
        self._api.prefer_another()

    # --- Topics -------------------------------------------------------------------------------------------------------

    def expect(self, topic_ids: Mapping[str, str], partitions: Mapping[str, Iterable[int]] | None = None) -> None:
        """Record the topics that a checkpoint or a driver knows. A node that knows others by these names must first
        confirm with the quorum that they are the present ones. `partitions`: some of their partitions."""
        for name, topic_id in topic_ids.items():
            self._ids.setdefault(name, topic_id)
            least = min(max((partitions or {}).get(name, ()), default=-1) + 1, MAX_PARTITIONS_PER_TOPIC)
            self._counts[topic_id] = max(self._counts.get(topic_id, 0), least)

    async def subscribed(self) -> dict[str, ReadTopic]:
        """Return name → topic for the topics that the options name and that exist. Raises `unknown_partition` for an
        assigned partition that its topic does not have."""
        options = self._options
        if options.pattern is not None:
            found = await self._listed(options.pattern)
            fits = full_matcher(options.pattern)
            return await self._made_sure(found, [*found, *(name for name in self._ids if fits(name))])
        assigned = options.assigned
        topics = await self.named(options.topics if assigned is None else tuple(assigned))
        if assigned is None:
            return topics
        for name, topic in topics.items():
            for partition in assigned[name]:
                check_partition(name, partition, len(topic.partitions))
        return {name: ReadTopic(name, topic.topic_id, assigned[name]) for name, topic in topics.items()}

    async def named(self, names: Sequence[str] | None) -> dict[str, ReadTopic]:
        """Return these topics with all their partitions, without those that do not exist."""
        found: dict[str, ReadTopic] = {}
        wanted = dict.fromkeys(names or ())
        if len(wanted) > LISTED_FROM:
            found = {name: topic for name, topic in (await self._listed(None)).items() if name in wanted}
        return await self._made_sure(found, wanted)

    async def _listed(self, pattern: str | None) -> dict[str, ReadTopic]:
        listed = await find_topics(self._api, pattern, timeout=self._timeout)
        return {one.name: self._whole(one.name, one.id, one.partition_count) for one in listed}

    async def _made_sure(self, listed: Mapping[str, ReadTopic], wanted: Iterable[str]) -> dict[str, ReadTopic]:
        """Confirm a listing, which may come from a stale node: when a topic is requested by name and known id, the node
        catches up with the quorum before it answers that there is none, or another one."""
        limit = asyncio.Semaphore(CONCURRENT_REQUESTS)
        sure = {name: topic for name, topic in listed.items() if self._ids.get(name, topic.topic_id) == topic.topic_id}
        asked = [self._describe(name, limit) for name in dict.fromkeys(wanted) if name not in sure]
        found = sure | {topic.name: topic for topic in await asyncio.gather(*asked) if topic is not None}
        self._ids.update({name: topic.topic_id for name, topic in found.items()})
        known = set(self._ids.values())
        self._counts = {topic_id: count for topic_id, count in self._counts.items() if topic_id in known}
        return found

    async def _describe(self, name: str, limit: asyncio.Semaphore) -> ReadTopic | None:
        path = topic_path(check_topic_name(name), self._ids.get(name, NO_TOPIC))
        async with limit:
            try:
                found = await self._api.get(path, TopicDescription, timeout=self._timeout)
            except InvalidRequest as error:
                if error.code == "unknown_topic":
                    self._ids.pop(name, None)
                    return None
                raise
        return self._whole(name, found.id, found.partition_count)

    def _whole(self, name: str, topic_id: str, partition_count: int) -> ReadTopic:
        """Return the topic with all partitions, including those that a stale node does not know."""
        count = self._counts[topic_id] = max(self._counts.get(topic_id, 0), partition_count)
        return ReadTopic(name, topic_id, tuple(range(count)))

    # --- Offsets ------------------------------------------------------------------------------------------------------

    async def bounds(self, topics: Mapping[str, ReadTopic]) -> dict[Place, PartitionBounds | RaftlogError]:
        """Return the bounds of each partition, or the error of its leader."""
        places = [(topic.topic_id, partition) for topic in topics.values() for partition in topic.partitions]
        queries = [
            wire.OffsetQuery(bytes.fromhex(topic_id), partition, timestamp)
            for topic_id, partition in places
            for timestamp in (wire.TIMESTAMP_EARLIEST, wire.TIMESTAMP_LATEST)
        ]
        answers = await self._offsets(queries)
        found: dict[Place, PartitionBounds | RaftlogError] = {}
        for place, start, end in zip(places, answers[::2], answers[1::2], strict=True):
            error = _error(start) or _error(end)
            found[place] = error or PartitionBounds(start.offset, max(start.offset, end.offset))
        return found

    async def times(self, topics: Mapping[str, ReadTopic], queries: Sequence[TimeQuery]) -> dict[TimeQuery, int]:
        """Return the first offset at or after each time, -1 if there is none. Retries until the deadline."""
        deadline = asyncio.get_running_loop().time() + self._timeout
        asked = [
            wire.OffsetQuery(bytes.fromhex(topics[one.topic].topic_id), one.partition, one.timestamp_ms)
            for one in queries
        ]
        while True:
            answers = await self._offsets(asked)
            errors = [error for answer in answers if (error := _error(answer)) is not None]
            if not errors:
                return {query: answer.offset for query, answer in zip(queries, answers, strict=True)}
            if not errors[0].retriable or asyncio.get_running_loop().time() >= deadline:
                raise errors[0]
            await asyncio.sleep(RETRY_PAUSE_S)

    async def _offsets(self, queries: Sequence[wire.OffsetQuery]) -> list[wire.FoundOffset]:
        found: list[wire.FoundOffset] = []
        for first in range(0, len(queries), QUERIES_PER_REQUEST):
            part = queries[first : first + QUERIES_PER_REQUEST]
            found += await request_offsets(self._api, part, READ_COMMITTED, timeout=self._timeout)
        return found

    async def wait_for_news(self, ends: Mapping[Place, int], wait_s: float) -> bool:
        """Wait until a record lies above one of these ends, or another change is worth a request. Returns False if
        nothing happened for `wait_s` seconds."""
        asked = [
            wire.FetchPartition(bytes.fromhex(topic_id), partition, end, POLL_BYTES)
            for (topic_id, partition), end in list(ends.items())[:POLLED_PARTITIONS]
        ]
        request = wire.FetchRequest(0, int(wait_s * 1000), 1, POLL_BYTES, asked, READ_COMMITTED)
        message = b"".join(map(bytes, wire.encode(request)))  # type: ignore[arg-type]
        answer = await self._api.once("/v1/fetch", message, wire.CONTENT_TYPE, wait_s + POLL_GRACE_S)
        response, _ = wire.decode_response(answer)
        if isinstance(response, wire.ErrorResponse):
            raise error_from_code(response.error, response.detail)
        if not isinstance(response, wire.FetchResponse):
            raise RemoteProtocolError("the answer is not that of a fetch request")
        return any(one.length or one.error for one in response.partitions)

    # --- Groups -------------------------------------------------------------------------------------------------------

    async def commit(self, group: str, offsets: Mapping[GroupPartition, int]) -> None:
        """Commit offsets without a membership: a group with members refuses it."""
        await GroupApi(self._api, group).commit(offsets, timeout=self._timeout)


def _error(found: wire.FoundOffset) -> RaftlogError | None:
    if found.error:
        return error_from_code(found.error, found.detail, found.leader)
    return None if found.offset >= -1 else RetriableError("offset_not_available", f"{found.offset} is no offset")
