"""One HTTP/2 connection per broker, and on it one stream for each kind of request.

A stream lives as long as its connection. Requests go out on it in order, any number ahead of their answers, and reach
the broker in that order; answers are matched by correlation id. Each request ends in exactly one of two calls:
`answered`, or `lost` with a `connection_lost` error, after which its outcome is unknown (`unsupported_version` if the
broker does not serve requests of that kind; then the request had no effect). If a request has no answer by
its deadline, the connection is aborted, since the outcome of the requests behind it is unknown, too.

An answer may demand a pause of a caller that is over its quota (KIP-219): until its end, the owner of a `throttled`
connection sends nothing there, and the time of requests in flight, which wait at the broker, does not run. A request
that expects no answer is answered only if it is refused; it is lost, and a short pause follows.

A broker that sends GOAWAY (it is shutting down) gets no new requests; those in flight are still answered.

If no data listener was ever reached although the API is reachable, requests go through the API (`transport_http1.py`),
and HTTP/2 is retried from time to time. This never happens if the client or the data listener requires TLS and the API
is plain HTTP.

Every stream carries the user's credential. A broker checks it before it reads requests, so a refused stream has carried
out nothing, and its requests are answered with the refusal. A stream whose credential ends meanwhile is ended by the
broker, and the next request opens another one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from raftlog.config import MIB
from raftlog.errors import InvalidRequest, RaftlogError, RemoteProtocolError, RetriableError, error_from_code
from raftlog.http2.connection import Http2Connection, Http2Stream
from raftlog.http2.dialer import connect
from raftlog.http2.limits import Http2Limits
from raftlog.http2.tls_accept import PLAIN_REFUSED
from raftlog.model import Endpoint
from raftlog.security.secrets import Secret
from raftlog.wire import ErrorResponse, ThrottledResponse, decode_response, encode

from .api import HttpApi
from .attempts import failed_by_bug
from .broker_request import BrokerRequest
from .connection_security import AUTHORIZATION, UNAUTHENTICATED, UNAUTHORIZED, ConnectionSecurity
from .transport_http1 import ApiConnection

logger = logging.getLogger("raftlog.client")

LOST = "connection_lost"
NOT_SERVED = 404
DIAL_BACKOFF_MIN = 0.02
DIAL_BACKOFF_MAX = 0.5
CONGESTED_BYTES = 1 * MIB
DEADLINE_CHECK = 0.25
"""Seconds between checks of the deadlines."""
MAX_THROTTLE = 60.0
"""The longest pause that a broker may demand, in seconds: twice that of a raftlog node."""
REFUSED_PAUSE = 1.0
"""The pause after the refusal of a request without an answer, in seconds: nothing else slows its caller down."""
FALL_BACK_AFTER = 3
"""Attempts to reach a data listener, before any was ever reached, after which the API is used."""
HTTP2_AGAIN_FIRST, HTTP2_AGAIN_LAST = 1.0, 30.0
"""Seconds before HTTP/2 is retried after a fallback, first and at most: the broker may just have been starting."""


@dataclass(slots=True)
class _Pending:
    request: BrokerRequest
    sent_at: float


class BrokerConnection:
    """A connection to one broker."""

    def __init__(
        self,
        node_id: int,
        endpoint: Endpoint,
        connection: Http2Connection,
        security: ConnectionSecurity,
        on_change: Callable[[int], None],
        *,
        tls: bool,
    ) -> None:
        """`tls`: whether the connection uses TLS. `on_change` is that of `Transport`."""
        self.node_id = node_id
        self.endpoint = endpoint
        self._security = security
        self._tls = tls
        self._credentials: dict[str, Secret | None] = {}
        """The credential of the newest stream, by path."""
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._streams: dict[str, Http2Stream] = {}
        self._pending: dict[int, _Pending] = {}
        """Requests in flight by correlation id, in the order of sending."""
        self._next_id = 0
        self._last_unanswered = -1
        """The newest request that expects no answer."""
        self._going_away = False
        self._timer: asyncio.TimerHandle | None = None
        self._on_change = on_change
        self._throttle_over = float("-inf")
        """Loop time at which the latest pause that the broker demanded ends."""
        self._pause: asyncio.TimerHandle | None = None
        """The timer of a pause, as long as it lasts."""
        connection.on_goaway = self._on_goaway

    @property
    def usable(self) -> bool:
        """Whether requests may be sent."""
        return not self._going_away and not self._connection.closed

    @property
    def congested(self) -> bool:
        """Whether the send queue is full, because the broker reads more slowly than it is sent to.

        The end of congestion is reported to the owner of `Transport` as a change.
        """
        return self._connection.queued_bytes >= CONGESTED_BYTES

    @property
    def throttled(self) -> bool:
        """Whether the broker lets this caller's next requests wait, so that none should be sent.

        The end is reported as that of congestion is.
        """
        return self._pause is not None

    @property
    def oldest_sent_at(self) -> float | None:
        """Loop time at which the longest waiting request was sent, or began to count after a pause."""
        return next((self._waits_since(pending) for pending in self._pending.values()), None)

    def request(self, request: BrokerRequest) -> None:
        """Send a request.

        Raises a `RaftlogError` (`connection_lost`, `overloaded`, `body_too_large`) if nothing was sent.
        """
        if not self.usable:
            raise RetriableError("connection_lost", f"the connection to node {self.node_id} is closed")
        stream = self._streams.get(request.path)
        if stream is None or stream.closed:
            stream = self._streams[request.path] = self._open(request.path)
        correlation_id = self._next_id
        self._next_id += 1
        stream.send(encode(request.make(correlation_id), request.body))  # callbacks come in later turns of the loop
        if request.answer_expected:
            self._pending[correlation_id] = _Pending(request, self._loop.time())
            if self._timer is None:
                self._timer = self._loop.call_later(DEADLINE_CHECK, self._check_deadlines)
        else:
            self._last_unanswered = correlation_id

    def close(self, reason: str) -> None:
        """Close the connection; requests in flight are lost."""
        self._connection.close(reason)

    # --- StreamHandler ------------------------------------------------------------------------------------------------

    def on_message(self, stream: Http2Stream, message: memoryview) -> None:
        response, body = decode_response(message)
        if isinstance(response, ErrorResponse) and response.correlation_id < 0:
            if response.error in (UNAUTHENTICATED, UNAUTHORIZED):
                logger.info("node %d ended the stream %s: %s", self.node_id, stream.path, response.error)
                stream.reset()
                return
            raise RemoteProtocolError(
                f"node {self.node_id} could not read a request: {response.error}: {response.detail}"
            )
        pending = self._pending.pop(response.correlation_id, None)
        if pending is None and isinstance(response, ErrorResponse) and response.correlation_id <= self._last_unanswered:
            if not self.throttled:
                logger.warning("node %d refused a request that has no answer: %s", self.node_id, response.error)
            self._throttle(REFUSED_PAUSE)
            return
        if pending is None or pending.request.path != stream.path:
            raise RemoteProtocolError(f"an answer without a request: {response.correlation_id} on {stream.path}")
        if isinstance(response, ThrottledResponse) and response.throttle_ms:
            self._throttle(min(response.throttle_ms / 1000, MAX_THROTTLE))
        pending.request.answered(response, body)
        self._close_if_finished()

    def on_ended(self, stream: Http2Stream) -> None:
        stream.reset()

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        if self._streams.get(stream.path) is stream:
            del self._streams[stream.path]
        if stream.refusal is not None and stream.status != NOT_SERVED:
            self._refuse(stream.path, self._why_refused(stream.path, stream.refusal))
            return
        refused = stream.status == NOT_SERVED
        self._lose(lambda request: request.path == stream.path, reason, "unsupported_version" if refused else LOST)

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _open(self, path: str) -> Http2Stream:
        credential = self._security.credential(self.endpoint, tls=self._tls)
        headers = {} if credential is None else {AUTHORIZATION: credential.reveal()}
        self._credentials[path] = credential
        return self._connection.open_stream(path, headers, self)

    def _why_refused(self, path: str, refusal: RaftlogError) -> RaftlogError:
        """Return the refusal as requests get it: temporary, if there is another credential to try."""
        if refusal.code == UNAUTHENTICATED:
            try:
                if self._security.renewed(self._credentials.get(path)):
                    return RetriableError(LOST, "the token file has another token, which is used from now on")
            except InvalidRequest as error:
                return error
        return self._security.explained(refusal)

    def _refuse(self, path: str, error: RaftlogError) -> None:
        """Answer the requests of a stream that the broker did not accept."""
        for number, pending in list(self._pending.items()):
            if pending.request.path == path:
                del self._pending[number]
                refused = ErrorResponse(number, error.code, f"node {self.node_id} at {self.endpoint}: {error.detail}")
                pending.request.answered(refused, memoryview(b""))
        self._close_if_finished()

    def gone(self, reason: str) -> None:
        """Fail the requests in flight after the end of the connection."""
        for timer in filter(None, (self._timer, self._pause)):
            timer.cancel()
        self._timer = self._pause = None
        self._lose(lambda _: True, reason)

    def _throttle(self, seconds: float) -> None:
        self._throttle_over = max(self._throttle_over, self._loop.time() + seconds)
        if self._pause is not None:
            self._pause.cancel()
        self._pause = self._loop.call_at(self._throttle_over, self._throttled_long_enough)

    def _throttled_long_enough(self) -> None:
        self._pause = None
        self._on_change(self.node_id)

    def _waits_since(self, pending: _Pending) -> float:
        return max(pending.sent_at, self._throttle_over)

    def _lose(self, concerned: Callable[[BrokerRequest], bool], reason: str, code: str = LOST) -> None:
        lost = [number for number, pending in self._pending.items() if concerned(pending.request)]
        for pending in [self._pending.pop(number) for number in lost]:
            pending.request.lost(error_from_code(code, f"node {self.node_id} at {self.endpoint}: {reason}"))

    def _on_goaway(self, connection: Http2Connection, reason: str) -> None:
        self._going_away = True
        self._close_if_finished()

    def _close_if_finished(self) -> None:
        if self._going_away and not self._pending:
            self._connection.close("all answers are there")

    def _check_deadlines(self) -> None:
        now = self._loop.time()
        self._timer = self._loop.call_later(DEADLINE_CHECK, self._check_deadlines) if self._pending else None
        late = next(
            (one for one in self._pending.values() if now - self._waits_since(one) >= one.request.timeout), None
        )
        if late is not None:
            self._connection.abort(f"no answer on {late.request.path} for {now - late.sent_at:.1f} s")


Connection: TypeAlias = BrokerConnection | ApiConnection


class Transport:
    """Connections to the brokers that the client uses.

    Belongs to one event loop.
    """

    def __init__(
        self,
        on_change: Callable[[int], None],
        api: HttpApi,
        on_failed: Callable[[RaftlogError], None] = lambda error: None,
    ) -> None:
        """Configure the callbacks.

        `on_change(node_id)` is called when a connection is established, could not be established, has drained its send
        queue, is throttled no longer, or is closed; `on_failed` is called before it with the error of a failed attempt.
        """
        self._on_change = on_change
        self._api = api
        self._tls = api.data_tls
        self._on_failed = on_failed
        self._connections: dict[int, Connection] = {}
        """The newest connection to each broker."""
        self._all: dict[Connection, None] = {}
        self._http2_works = False
        """Whether an HTTP/2 connection was ever established."""
        self._none_left = asyncio.Event()
        self._dialing: dict[int, asyncio.Task[None]] = {}
        self._probing: dict[ApiConnection, asyncio.Task[None]] = {}
        self._failures: dict[int, int] = {}
        self._closed = False

    def connection(self, node_id: int) -> Connection | None:
        """Return a usable connection to this broker, if there is one."""
        connection = self._connections.get(node_id)
        return connection if connection is not None and connection.usable else None

    def connections(self) -> list[Connection]:
        """Return all open connections, including those that only finish their requests."""
        return list(self._all)

    def late(self, since: float) -> list[int]:
        """Return the brokers with a request unanswered since before this loop time."""
        asked = [(connection.node_id, connection.oldest_sent_at) for connection in self._all]
        return [node_id for node_id, sent_at in asked if sent_at is not None and sent_at <= since]

    def dial(self, node_id: int, endpoint: Endpoint) -> None:
        """Connect to this broker at this address, unless that is done already, without waiting."""
        if self._closed or node_id in self._dialing:
            return
        known = self._connections.get(node_id)
        if known is not None and known.usable:
            if known.endpoint == endpoint:
                return
            known.close(f"node {node_id} moved to {endpoint}")
        self._dialing[node_id] = asyncio.get_running_loop().create_task(self._dial(node_id, endpoint))

    async def close(self) -> None:
        """Close all connections; requests in flight are lost."""
        self._closed = True
        self._none_left.clear()
        for connection in self.connections():
            connection.close("the client is closed")
        tasks = [*self._dialing.values(), *self._probing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._all:
            await self._none_left.wait()  # a second at most, even if the broker is stopped

    async def _dial(self, node_id: int, endpoint: Endpoint) -> None:
        failures = self._failures.get(node_id, 0)
        try:
            if failures:
                await asyncio.sleep(min(DIAL_BACKOFF_MIN * 2 ** min(failures - 1, 10), DIAL_BACKOFF_MAX))
            self._use(await self._connect(node_id, endpoint))
            self._failures.pop(node_id, None)
        except RetriableError as error:
            self._failures[node_id] = failures + 1
            self._on_failed(error)
            # No fallback from TLS to plain HTTP.
            unreachable = self._api.https or (self._tls is None and PLAIN_REFUSED not in error.detail)
            if failures + 1 >= FALL_BACK_AFTER and not self._http2_works and unreachable:
                self._fall_back(node_id, endpoint)
        except InvalidRequest as error:
            self._failures[node_id] = failures + 1
            self._on_failed(error)
        except Exception as error:  # without this, the missing connection would be reported to no caller
            logger.exception("connecting to node %d failed", node_id)
            self._failures[node_id] = failures + 1
            self._on_failed(failed_by_bug(error))
        finally:
            self._dialing.pop(node_id, None)
        self._on_change(node_id)

    async def _connect(self, node_id: int, endpoint: Endpoint) -> BrokerConnection:
        """Connect over HTTP/2. Raises `RetriableError`, or `InvalidRequest` for a credential that must not go there."""
        self._api.security.check(endpoint, tls=self._tls is not None)
        made: list[BrokerConnection] = []

        def on_closed(_: Http2Connection, reason: str) -> None:
            if made:
                self._gone(made[0], reason)

        connection = await connect(
            endpoint.host, endpoint.port, limits=Http2Limits(), ssl=self._tls, on_closed=on_closed
        )
        if connection.closed:
            raise RetriableError("connection_lost", "closed at once")
        tls = self._tls is not None
        made.append(BrokerConnection(node_id, endpoint, connection, self._api.security, self._on_change, tls=tls))
        connection.on_drained = lambda: self._on_change(node_id)
        self._http2_works = True
        return made[0]

    def _use(self, connection: Connection) -> None:
        self._connections[connection.node_id] = connection
        self._all[connection] = None

    def _fall_back(self, node_id: int, endpoint: Endpoint) -> None:
        connection = ApiConnection(
            node_id, endpoint, self._api, lambda: self._on_change(node_id), lambda over: self._gone(over, "retired")
        )
        self._use(connection)
        self._probing[connection] = asyncio.get_running_loop().create_task(self._probe(connection))

    async def _probe(self, fallback: ApiConnection) -> None:
        """Retry HTTP/2 until it reaches this broker or the fallback is replaced."""
        pause = HTTP2_AGAIN_FIRST
        while fallback.usable:
            await asyncio.sleep(pause)
            pause = min(2 * pause, HTTP2_AGAIN_LAST)
            try:
                better = await self._connect(fallback.node_id, fallback.endpoint)
            except RetriableError:
                continue  # meanwhile, requests take the API
            except Exception:  # any other error would end the retries
                logger.exception("connecting to node %d failed", fallback.node_id)
                continue  # meanwhile, requests take the API
            if self._connections.get(fallback.node_id) is fallback:
                self._use(better)
                fallback.retire()
                self._on_change(fallback.node_id)
            else:
                better.close("another connection is open")
            return

    def _gone(self, connection: Connection, reason: str) -> None:
        if self._connections.get(connection.node_id) is connection:
            del self._connections[connection.node_id]
        self._all.pop(connection, None)
        if not self._all:
            self._none_left.set()
        if isinstance(connection, ApiConnection):
            self._probing.pop(connection).cancel()
        else:
            connection.gone(reason)
        if not self._closed:
            self._on_change(connection.node_id)
