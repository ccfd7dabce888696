"""Batches of a cluster as they are on disk, read and appended through any of its nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from raftlog.client.cluster.api import HttpApi
from raftlog.client.consuming.offsets import query_offsets
from raftlog.config import MIB
from raftlog.errors import RaftlogError, RemoteProtocolError, RetriableError, error_from_code
from raftlog.records.batch import BatchHeader, check_crc, split_batches
from raftlog.wire import (
    CONTENT_TYPE,
    FETCH_PATH,
    TIMESTAMP_EARLIEST,
    TIMESTAMP_LATEST,
    ErrorResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    Request,
    Response,
    decode_response,
    encode,
)

FETCH_BYTES = 4 * MIB
PATIENCE_SECONDS = 60.0
"""Time without progress after which a partition's error ends the work: several failovers fit."""
PAUSE_SECONDS = 0.25
REQUEST_SECONDS = 30.0
READ_UNCOMMITTED = 0

T = TypeVar("T")


class LogRange(msgspec.Struct, frozen=True):
    """The offsets of a partition: its log start and its high watermark."""

    start: int
    end: int


class ClusterLogs:
    """The logs of a cluster's partitions. Belongs to one event loop."""

    def __init__(self, api: HttpApi) -> None:
        self._api = api

    async def ranges(self, topic_id: bytes, partitions: Sequence[int]) -> dict[int, LogRange]:
        """Return the ranges of partitions, from start to high watermark. Raises after `PATIENCE_SECONDS`."""
        queries = [(one, at) for one in partitions for at in (TIMESTAMP_EARLIEST, TIMESTAMP_LATEST)]

        async def ask() -> dict[int, LogRange]:
            answers = await query_offsets(self._api, topic_id, queries, READ_UNCOMMITTED, timeout=REQUEST_SECONDS)
            pairs = zip(answers[::2], answers[1::2], strict=True)
            return {start.partition: LogRange(start.offset, end.offset) for start, end in pairs}

        return await patiently(ask)

    async def fetch(self, topic_id: bytes, partition: int, offset: int) -> list[tuple[BatchHeader, memoryview]]:
        """Return batches from the one that holds `offset` on, checked against their CRCs.

        Raises `InvalidRequest` (`offset_out_of_range`), and other errors after `PATIENCE_SECONDS`.
        """
        target = FetchPartition(topic_id, partition, offset, FETCH_BYTES)
        request = FetchRequest(0, 500, 1, FETCH_BYTES, [target], READ_UNCOMMITTED)

        async def ask() -> list[tuple[BatchHeader, memoryview]]:
            response, body = await self.ask(FETCH_PATH, request)
            if not isinstance(response, FetchResponse) or len(response.partitions) != 1:
                raise RemoteProtocolError("the answer does not match the fetch request")
            (told,) = response.partitions
            if told.error:
                raise error_from_code(told.error, told.detail, told.leader)
            batches = [(check_crc(batch), batch) for batch in split_batches(body)]
            if not batches:
                raise RetriableError("offset_not_available", f"offset {offset} cannot be read yet")
            return batches

        return await patiently(ask)

    async def ask(
        self, path: str, request: Request, body: Sequence[memoryview] = (), *, is_repeatable: bool = True
    ) -> tuple[Response, memoryview]:
        """Send a message of the client protocol to any node, and return the answer. Raises `RaftlogError`."""
        message = b"".join(bytes(part) if isinstance(part, memoryview) else part for part in encode(request, body))  # type: ignore[misc]
        if is_repeatable:
            answer = await self._api.repeatable(
                "POST",
                path,
                raw=message,
                content_type=CONTENT_TYPE,
                timeout=REQUEST_SECONDS,
                hedge_after=REQUEST_SECONDS,
            )
        else:
            answer = await self._api.once(path, message, CONTENT_TYPE, REQUEST_SECONDS)
        response, content = decode_response(answer)
        if isinstance(response, ErrorResponse):
            raise error_from_code(response.error, response.detail)
        return response, content


async def patiently(ask: Callable[[], Awaitable[T]], patience: float = PATIENCE_SECONDS) -> T:
    """Repeat a call that changes nothing while its error may pass, at most `patience` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience
    while True:
        try:
            return await ask()
        except RaftlogError as error:
            if not error.retriable or loop.time() >= deadline:
                raise
        await asyncio.sleep(PAUSE_SECONDS)


def errors_of(group: BaseExceptionGroup[RaftlogError]) -> list[RaftlogError]:
    """Return the errors of a group of tasks."""
    found: list[RaftlogError] = []
    for one in group.exceptions:
        found += errors_of(one) if isinstance(one, BaseExceptionGroup) else [one]
    return found
