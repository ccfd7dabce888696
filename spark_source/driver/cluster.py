"""What a driver asks of a cluster: topics, where their logs begin and end, offsets of times, and whether there is news.

Questions go to any node, over the HTTP API; each asks about all partitions at once, and is answered or fails within a
deadline. A partition whose leader cannot be asked just now fails alone.

`wait_for_news` is a long poll: a fetch at the ends that are known, for hardly any bytes, which the leaders answer when
a record comes. So a query that has nothing to do asks every few seconds, not sixty times a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from raftlog.client.admin import find_topics
from raftlog.client.cluster.api import HttpApi
from raftlog.client.cluster.metadata import TopicDescription, check_partition, topic_path
from raftlog.client.groups.api import GroupApi, GroupPartition
from raftlog.config import MAX_PARTITIONS_PER_TOPIC, check_topic_name
from raftlog.errors import InvalidRequest, RaftlogError, RemoteProtocolError, RetriableError, error_from_code
from raftlog.patterns import full_matcher
from raftlog.wire import (
    CONTENT_TYPE,
    TIMESTAMP_EARLIEST,
    TIMESTAMP_LATEST,
    ErrorResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FoundOffset,
    OffsetQuery,
    OffsetsRequest,
    OffsetsResponse,
    Request,
    Response,
    decode_response,
    encode,
)
from spark_source.reading.log_bounds import PartitionBounds
from spark_source.reading.options import SourceOptions
from spark_source.reading.starting import TimeQuery

READ_COMMITTED = 1
CONCURRENT_REQUESTS = 8
LISTED_FROM = 16
"""More topics than that are not asked for one by one."""
QUERIES_PER_REQUEST = 5_000
POLLED_PARTITIONS = 5_000
"""A long poll watches so many; news of others comes with the next question."""
POLL_BYTES = 4_096
"""More than there are leaders, or the broker takes an empty answer for enough."""
POLL_GRACE_S = 3.0
NO_TOPIC = "0" * 32
"""No topic has this id: a node that is asked for it by a name asks the quorum which one has the name."""
RETRY_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class ReadTopic:
    """A topic that is read, and which of its partitions."""

    name: str
    topic_id: str
    partitions: tuple[int, ...]


Place: TypeAlias = tuple[str, int]
"""(topic id, partition)."""


class Cluster:
    """Belongs to one event loop. Every call raises a `RaftlogError`."""

    def __init__(self, api: HttpApi, options: SourceOptions) -> None:
        """`api` stays its maker's."""
        self._options = options
        self._api = api
        self._timeout = options.request_timeout_ms / 1000
        self._ids: dict[str, str] = {}
        """By name: the topics that were described last, or that a checkpoint tells of."""
        self._counts: dict[str, int] = {}
        """By id: how many partitions each of them had, at least. They never become fewer."""

    def ask_another(self) -> None:
        """The node that answered last may be behind the others: the next question goes to another one."""
        self._api.prefer_another()

    # --- Topics -------------------------------------------------------------------------------------------------------

    def expect(self, topic_ids: Mapping[str, str], partitions: Mapping[str, Iterable[int]] | None = None) -> None:
        """A checkpoint, or a driver, knows these topics by their names. A node that knows others makes sure that they
        are the present ones before it says so. `partitions`: some of those that they have."""
        for name, topic_id in topic_ids.items():
            self._ids.setdefault(name, topic_id)
            least = min(max((partitions or {}).get(name, ()), default=-1) + 1, MAX_PARTITIONS_PER_TOPIC)
            self._counts[topic_id] = max(self._counts.get(topic_id, 0), least)

    async def subscribed(self) -> dict[str, ReadTopic]:
        """The topics that the options name, by name; without those that are not there. Raises `unknown_partition` for
        an assigned partition that its topic does not have."""
        options = self._options
        if options.pattern is not None:
            listed = await find_topics(self._api, options.pattern, timeout=self._timeout)
            found = {one.name: self._whole(one.name, one.id, one.partition_count) for one in listed}
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
        """These topics with all their partitions, without those that are not there."""
        found: dict[str, ReadTopic] = {}
        wanted = dict.fromkeys(names or ())
        if len(wanted) > LISTED_FROM:
            listed = await find_topics(self._api, None, timeout=self._timeout)
            found = {
                one.name: self._whole(one.name, one.id, one.partition_count) for one in listed if one.name in wanted
            }
        return await self._made_sure(found, wanted)

    async def _made_sure(self, listed: Mapping[str, ReadTopic], wanted: Iterable[str]) -> dict[str, ReadTopic]:
        """A node that lists topics may be behind. One that is asked for a topic, by its name and the id that is known,
        makes sure before it knows none, or another one."""
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
        """With all partitions, those included that a node which is behind does not know."""
        count = self._counts[topic_id] = max(self._counts.get(topic_id, 0), partition_count)
        return ReadTopic(name, topic_id, tuple(range(count)))

    # --- Offsets ------------------------------------------------------------------------------------------------------

    async def bounds(self, topics: Mapping[str, ReadTopic]) -> dict[Place, PartitionBounds | RaftlogError]:
        """Where each partition begins and ends, or why its leader did not say."""
        places = [(topic.topic_id, partition) for topic in topics.values() for partition in topic.partitions]
        queries = [
            OffsetQuery(bytes.fromhex(topic_id), partition, timestamp)
            for topic_id, partition in places
            for timestamp in (TIMESTAMP_EARLIEST, TIMESTAMP_LATEST)
        ]
        answers = await self._offsets(queries)
        found: dict[Place, PartitionBounds | RaftlogError] = {}
        for place, start, end in zip(places, answers[::2], answers[1::2], strict=True):
            error = _error(start) or _error(end)
            found[place] = error or PartitionBounds(start.offset, max(start.offset, end.offset))
        return found

    async def times(self, topics: Mapping[str, ReadTopic], queries: Sequence[TimeQuery]) -> dict[TimeQuery, int]:
        """The first offset at or after each time; -1 where there is none. Tries until the deadline."""
        deadline = asyncio.get_running_loop().time() + self._timeout
        asked = [
            OffsetQuery(bytes.fromhex(topics[one.topic].topic_id), one.partition, one.timestamp_ms) for one in queries
        ]
        while True:
            answers = await self._offsets(asked)
            errors = [error for answer in answers if (error := _error(answer)) is not None]
            if not errors:
                return {query: answer.offset for query, answer in zip(queries, answers, strict=True)}
            if not errors[0].retriable or asyncio.get_running_loop().time() >= deadline:
                raise errors[0]
            await asyncio.sleep(RETRY_PAUSE_S)

    async def _offsets(self, queries: Sequence[OffsetQuery]) -> list[FoundOffset]:
        found: list[FoundOffset] = []
        for first in range(0, len(queries), QUERIES_PER_REQUEST):
            part = list(queries[first : first + QUERIES_PER_REQUEST])
            message = _packed(OffsetsRequest(0, part, isolation=READ_COMMITTED))
            answer = await self._api.repeatable(
                "POST", "/v1/offsets", raw=message, content_type=CONTENT_TYPE, timeout=self._timeout
            )
            response = _response(answer)
            answered = response.partitions if isinstance(response, OffsetsResponse) else []
            if [(one.topic_id, one.partition) for one in answered] != [(one.topic_id, one.partition) for one in part]:
                raise RemoteProtocolError("the answer is not that of an offsets request")
            found += answered
        if any(one.error == "metadata_behind" for one in found):
            self.ask_another()
        return found

    async def wait_for_news(self, ends: Mapping[Place, int], wait_s: float) -> bool:
        """Until a record lies above one of these ends, or something else is worth asking about; false when nothing
        happened for `wait_s` seconds."""
        asked = [
            FetchPartition(bytes.fromhex(topic_id), partition, end, POLL_BYTES)
            for (topic_id, partition), end in list(ends.items())[:POLLED_PARTITIONS]
        ]
        request = FetchRequest(0, int(wait_s * 1000), 1, POLL_BYTES, asked, READ_COMMITTED)
        answer = await self._api.once("/v1/fetch", _packed(request), CONTENT_TYPE, wait_s + POLL_GRACE_S)
        response = _response(answer)
        if not isinstance(response, FetchResponse):
            raise RemoteProtocolError("the answer is not that of a fetch request")
        return any(one.length or one.error for one in response.partitions)

    # --- Groups -------------------------------------------------------------------------------------------------------

    async def commit(self, group: str, offsets: Mapping[GroupPartition, int]) -> None:
        """Without a member: a group that has any refuses it."""
        await GroupApi(self._api, group).commit(offsets, timeout=self._timeout)


def _packed(request: Request) -> bytes:
    return b"".join(map(bytes, encode(request)))  # type: ignore[arg-type]


def _response(answer: bytes) -> Response:
    response, _ = decode_response(answer)
    if isinstance(response, ErrorResponse):
        raise error_from_code(response.error, response.detail)
    return response


def _error(found: FoundOffset) -> RaftlogError | None:
    if found.error:
        return error_from_code(found.error, found.detail, found.leader)
    return None if found.offset >= -1 else RetriableError("offset_not_available", f"{found.offset} is no offset")
