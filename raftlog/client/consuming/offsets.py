"""Lookup of offsets by position or time, and of readers' start offsets.

Any node takes the request and forwards it to the leaders.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from raftlog.client.cluster.api import HttpApi, in_parts
from raftlog.client.cluster.attempts import attempt, cancel
from raftlog.errors import RaftlogError, RemoteProtocolError, error_from_code
from raftlog.wire import (
    CONTENT_TYPE,
    TIMESTAMP_LATEST,
    ErrorResponse,
    FoundOffset,
    OffsetQuery,
    OffsetsRequest,
    OffsetsResponse,
    decode_response,
    encode,
)

from .reader import PartitionReader, query_timestamp

PAUSE = 0.1
LOOKUPS_PER_REQUEST = 1_000
"""Offsets in one request: a node takes at most `MAX_PARTITIONS_PER_REQUEST`, and must answer within its timeout."""


async def request_offsets(
    api: HttpApi, asked: Sequence[OffsetQuery], isolation: int, *, timeout: float
) -> list[FoundOffset]:
    """Have any node look up offsets, and return the answers in order, some of which may be errors.

    `timeout`: seconds for each request of `LOOKUPS_PER_REQUEST` offsets.
    """
    found: list[FoundOffset] = []
    for part in in_parts(asked, LOOKUPS_PER_REQUEST):
        found += await _one_request(api, part, isolation, timeout)
    return found


async def _one_request(api: HttpApi, asked: Sequence[OffsetQuery], isolation: int, timeout: float) -> list[FoundOffset]:
    message = b"".join(map(bytes, encode(OffsetsRequest(0, list(asked), isolation=isolation))))  # type: ignore[arg-type]
    answer = await api.repeatable("POST", "/v1/offsets", raw=message, content_type=CONTENT_TYPE, timeout=timeout)
    response, _ = decode_response(answer)
    if isinstance(response, ErrorResponse):
        raise error_from_code(response.error, response.detail)
    answered = response.partitions if isinstance(response, OffsetsResponse) else []
    if [(one.topic_id, one.partition) for one in answered] != [(one.topic_id, one.partition) for one in asked]:
        raise RemoteProtocolError("the answer does not match the offsets request")
    if any(found.error == "metadata_behind" for found in answered):
        api.prefer_another()
    return answered


async def query_offsets(
    api: HttpApi, topic_id: bytes, queries: Sequence[tuple[int, int]], isolation: int = 0, *, timeout: float = 5.0
) -> list[FoundOffset]:
    """Look up offsets for (partition, timestamp in ms), and return the answers in order.

    The timestamp may be `wire.TIMESTAMP_LATEST` or `TIMESTAMP_EARLIEST`. With `isolation` 1, the latest is the last
    stable offset, and no record beyond it is found. Raises the error of the first partition that has one.
    """
    asked = [OffsetQuery(topic_id, partition, timestamp_ms) for partition, timestamp_ms in queries]
    answered = await request_offsets(api, asked, isolation, timeout=timeout)
    for found in answered:
        if found.error:
            raise error_from_code(found.error, found.detail, found.leader)
    return answered


async def find_offsets(
    api: HttpApi, topic_id: bytes, queries: Sequence[tuple[int, int]], isolation: int = 1
) -> dict[int, int]:
    """Return offsets by partition; the end offset if no record is that late."""
    answers = await query_offsets(api, topic_id, queries, isolation)
    found = {answer.partition: answer.offset for answer in answers}
    later = [partition for partition, offset in found.items() if offset < 0]
    if later:
        ends = await query_offsets(api, topic_id, [(partition, TIMESTAMP_LATEST) for partition in later], isolation)
        found.update({answer.partition: answer.offset for answer in ends})
    return found


class StartFinder:
    """Looks up readers' start offsets, with retries.

    Belongs to one event loop; `close` it.
    """

    def __init__(
        self, api: HttpApi, found: Callable[[], None], failed: Callable[[RaftlogError], None], isolation: int
    ) -> None:
        """`found` is called when readers have their offsets, `failed` after every failed attempt."""
        self._api = api
        self._found = found
        self._failed = failed
        self._isolation = isolation
        self._task: asyncio.Task[None] | None = None

    def find(self, topic_id: bytes, readers: Iterable[PartitionReader]) -> None:
        """Start a lookup, without waiting. A call during a lookup has no effect: `found` is called soon."""
        lost = [reader for reader in readers if reader.looking_for is not None]
        if self._task is None and lost:
            self._task = asyncio.get_running_loop().create_task(self._run(topic_id, lost))

    async def close(self) -> None:
        await cancel(self._task)

    async def _run(self, topic_id: bytes, readers: list[PartitionReader]) -> None:
        asked = [(reader, reader.version, str(reader.looking_for)) for reader in readers]
        queries = [(reader.partition, query_timestamp(start)) for reader, _, start in asked]
        finding = find_offsets(self._api, topic_id, queries, self._isolation)
        offsets = await attempt(finding, "looking for offsets", self._failed, pause=PAUSE)
        self._task = None
        if offsets is not None:
            for reader, version, _ in asked:
                if reader.version == version:
                    reader.found(offsets[reader.partition])
        self._found()
