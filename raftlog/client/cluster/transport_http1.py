"""Requests to one broker through the HTTP API, if its data listener is unreachable: a proxy, a firewall.

The messages are the same (`raftlog/wire.py`), each as the body of its own POST. The node that answers need not be the
leader: it forwards requests for partitions that it does not lead. The only cost is speed: one more hop, one more copy,
no `sendfile`.

HTTP/1.1 requests may overtake one another. That does not affect an idempotent producer, since the leader restores the
order of its batches (KIP-98's sequences; a few batches wait for those before them); batches without a sequence number
may be reordered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from raftlog.config import MIB
from raftlog.errors import RaftlogError, RemoteProtocolError, RetriableError
from raftlog.model import Endpoint
from raftlog.wire import CONTENT_TYPE, ErrorResponse, Response, decode_response, encode

from .api import HttpApi
from .broker_request import BrokerRequest

CONGESTED_BYTES = 1 * MIB

logger = logging.getLogger("raftlog.client")


class _Sent(NamedTuple):
    request: BrokerRequest
    task: asyncio.Task[tuple[Response, memoryview]]
    sent_at: float
    size: int


class ApiConnection:
    """Requests through the API, with the interface of `BrokerConnection`."""

    def __init__(
        self,
        node_id: int,
        endpoint: Endpoint,
        api: HttpApi,
        on_drained: Callable[[], None],
        on_over: Callable[[ApiConnection], None],
    ) -> None:
        """`on_over` is called once, when it is retired or closed and no request is in flight."""
        self.node_id = node_id
        self.endpoint = endpoint
        """Address of the data listener that could not be reached."""
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
        """Whether requests may be sent."""
        return not self._retired

    @property
    def congested(self) -> bool:
        """Whether the requests in flight have reached their limit of bytes."""
        return self._waiting_bytes >= CONGESTED_BYTES

    @property
    def throttled(self) -> bool:
        """Always false: over HTTP, a caller over its quota is refused, and the request itself waits."""
        return False

    @property
    def oldest_sent_at(self) -> float | None:
        """Loop time at which the longest waiting request was sent."""
        return next((sent.sent_at for sent in self._sent.values()), None)

    def request(self, request: BrokerRequest) -> None:
        """Send a request, as `BrokerConnection.request` does."""
        if self._retired:
            raise RetriableError("connection_lost", f"requests to node {self.node_id} no longer go through the API")
        correlation_id = self._next_id
        self._next_id += 1
        head, *_ = encode(request.make(correlation_id))
        assert isinstance(head, bytes)
        message = b"".join([head, *request.body])

        asking = self._loop.create_task(self._ask(request.path, message, correlation_id, request.timeout))
        self._sent[correlation_id] = _Sent(request, asking, self._loop.time(), len(message))
        self._waiting_bytes += len(message)
        asking.add_done_callback(lambda _: self._over(correlation_id))

    def retire(self) -> None:
        """Take no new requests; those in flight are still answered."""
        if not self._retired:
            self._retired = True
            if not self._sent:
                self._loop.call_soon(self._on_over, self)

    def close(self, reason: str) -> None:
        """Cancel the requests in flight. `reason` is as for a `BrokerConnection`."""
        self.retire()
        for sent in self._sent.values():
            sent.task.cancel(reason)

    async def _ask(self, path: str, message: bytes, correlation_id: int, timeout: float) -> tuple[Response, memoryview]:
        """Send the request. Raises a `RaftlogError` if its outcome is unknown."""
        try:
            answer = await self._api.once(path, message, CONTENT_TYPE, timeout)
        except RaftlogError as error:
            if error.code in ("connection_lost", "outcome_unknown", "protocol_error"):
                raise
            return ErrorResponse(correlation_id, error.code, error.detail), memoryview(b"")
        response, batches = decode_response(answer)
        if response.correlation_id != correlation_id:
            raise RemoteProtocolError(
                f"the answer belongs to another request: {response.correlation_id}, not {correlation_id}"
            )
        return response, batches

    def _over(self, correlation_id: int) -> None:
        congested_before = self.congested
        sent = self._sent.pop(correlation_id)
        self._waiting_bytes -= sent.size
        error = RetriableError("connection_lost", "the client is closed") if sent.task.cancelled() else None
        failed = error or sent.task.exception()
        if failed is not None and not isinstance(failed, RaftlogError):  # a bug: the caller sees it as a loss
            logger.error("a request to node %d failed", self.node_id, exc_info=failed)
            failed = RetriableError("connection_lost", f"{type(failed).__name__}: {failed}")
        try:
            if not sent.request.answer_expected:
                pass
            elif failed is None:
                sent.request.answered(*sent.task.result())
            else:
                sent.request.lost(failed)
        finally:  # if a callback raises, waiters for room or for the end must not wait forever
            if congested_before and not self.congested:
                self._on_drained()
            if self._retired and not self._sent:
                self._on_over(self)
