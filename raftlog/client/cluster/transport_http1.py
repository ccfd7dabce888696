"""Requests to one broker by way of the HTTP API, where its data listener cannot be reached: a proxy, a firewall.

The messages are the same (`raftlog/wire.py`), each the body of a POST of its own. The node that answers need not be the
leader: it passes on what it does not lead. So nothing is lost but speed: a hop more, a copy more, no `sendfile`.

Requests of HTTP/1.1 overtake one another. An idempotent producer does not care, since the leader puts its batches back
in order (KIP-98's sequences; a few wait for those before them); batches without a sequence may change places.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from raftlog.config import MIB
from raftlog.errors import RaftlogError, RemoteProtocolError, RetriableError
from raftlog.model import Endpoint
from raftlog.ports import Buffer
from raftlog.wire import CONTENT_TYPE, ErrorResponse, Request, Response, decode_response, encode

from .api import HttpApi

CONGESTED_BYTES = 1 * MIB

logger = logging.getLogger("raftlog.client")


class _Sent(NamedTuple):
    task: asyncio.Task[tuple[Response, memoryview]]
    sent_at: float
    size: int


class ApiConnection:
    """As `BrokerConnection`, without a connection of its own."""

    def __init__(
        self,
        node_id: int,
        endpoint: Endpoint,
        api: HttpApi,
        on_drained: Callable[[], None],
        on_over: Callable[[ApiConnection], None],
    ) -> None:
        """`on_over` is called once, when it was retired (or closed) and everything is answered."""
        self.node_id = node_id
        self.endpoint = endpoint
        """Of the data listener that could not be reached."""
        self._api = api
        self._on_drained = on_drained
        self._on_over = on_over
        self._loop = asyncio.get_running_loop()
        self._sent: dict[int, _Sent] = {}
        self._next_id = 0
        self._waiting_bytes = 0
        self._retired = False

    @property
    def usable(self) -> bool:
        """Requests may be sent."""
        return not self._retired

    @property
    def congested(self) -> bool:
        """What waits here should not grow."""
        return self._waiting_bytes >= CONGESTED_BYTES

    @property
    def oldest_sent_at(self) -> float | None:
        """Loop time at which the request was sent that waits longest for its answer."""
        return next((sent.sent_at for sent in self._sent.values()), None)

    def request(
        self,
        path: str,
        make: Callable[[int], Request],
        body: Sequence[Buffer],
        *,
        timeout: float,
        answered: Callable[[Response, memoryview], None],
        lost: Callable[[RaftlogError], None],
        answer_expected: bool = True,
    ) -> None:
        """See `BrokerConnection.request`."""
        if self._retired:
            raise RetriableError("connection_lost", f"node {self.node_id} is not asked through the API any more")
        correlation_id = self._next_id
        self._next_id += 1
        head, *_ = encode(make(correlation_id))
        assert isinstance(head, bytes)
        message = b"".join([head, *body])

        asking = self._loop.create_task(self._ask(path, message, correlation_id, timeout))
        self._sent[correlation_id] = _Sent(asking, self._loop.time(), len(message))
        self._waiting_bytes += len(message)
        asking.add_done_callback(lambda _: self._over(correlation_id, answered, lost, answer_expected))

    def retire(self) -> None:
        """Nothing new is asked; what is under way is still answered."""
        if not self._retired:
            self._retired = True
            if not self._sent:
                self._loop.call_soon(self._on_over, self)

    def close(self, reason: str) -> None:
        """What is under way is lost; `reason` is as for a `BrokerConnection`."""
        self.retire()
        for sent in self._sent.values():
            sent.task.cancel(reason)

    async def _ask(self, path: str, message: bytes, correlation_id: int, timeout: float) -> tuple[Response, memoryview]:
        """Raises a `RaftlogError` where it is unknown what became of the request."""
        try:
            answer = await self._api.once(path, message, CONTENT_TYPE, timeout)
        except RaftlogError as error:
            if error.code in ("connection_lost", "outcome_unknown", "protocol_error"):
                raise
            return ErrorResponse(correlation_id, error.code, error.detail), memoryview(b"")
        response, batches = decode_response(answer)
        if response.correlation_id != correlation_id:
            raise RemoteProtocolError(f"an answer to another request: {response.correlation_id}, not {correlation_id}")
        return response, batches

    def _over(
        self,
        correlation_id: int,
        answered: Callable[[Response, memoryview], None],
        lost: Callable[[RaftlogError], None],
        answer_expected: bool,
    ) -> None:
        congested_before = self.congested
        sent = self._sent.pop(correlation_id)
        self._waiting_bytes -= sent.size
        error = RetriableError("connection_lost", "the client is closed") if sent.task.cancelled() else None
        failed = error or sent.task.exception()
        if failed is not None and not isinstance(failed, RaftlogError):  # a bug: whoever asked is told of a loss only
            logger.error("a request to node %d failed", self.node_id, exc_info=failed)
            failed = RetriableError("connection_lost", f"{type(failed).__name__}: {failed}")
        try:
            if not answer_expected:
                pass  # nobody asked
            elif failed is None:
                answered(*sent.task.result())
            else:
                lost(failed)
        finally:  # whatever the receiver does: those who wait for room, or for the end, would wait for ever
            if congested_before and not self.congested:
                self._on_drained()
            if self._retired and not self._sent:
                self._on_over(self)
