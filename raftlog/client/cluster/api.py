"""The HTTP API as a client calls it: any node answers, and a node that is slow or dead costs little time.

A call goes to the node that answered last. If repeating it is harmless, the next node is asked as well after
`HEDGE_AFTER` without an answer (a stopped process still accepts connections, so waiting for it would take longer than
failing over), then the others, round by round until the deadline. A node that answers other calls meanwhile is slow,
not stopped: it gets `PATIENCE` times as long, because doubling late requests overloads a busy cluster.

If repeating is not harmless (creating or deleting a topic), nodes are tried one after the other, and only while it is
certain that nothing was applied; a lost answer is `outcome_unknown`.

The first calls go to the bootstrap addresses; the nodes that the cluster lists (`learn`) are asked, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ssl import SSLContext
from typing import Any, TypeVar

import aiohttp
import msgspec

from raftlog.errors import (
    Applied,
    InvalidRequest,
    RaftlogError,
    RemoteProtocolError,
    RetriableError,
    error_from_code,
    is_shortage,
)
from raftlog.model import Endpoint
from raftlog.version import __version__

T = TypeVar("T")

HEDGE_AFTER = 0.2
PATIENCE = 5
CONNECT_TIMEOUT = 1.0
ROUND_PAUSE = 0.05
MAX_ADDRESSES = 64
MAX_ANSWER_BYTES = 64 * 1024 * 1024


class _Problem(msgspec.Struct):
    """An RFC 9457 problem document."""

    code: str
    detail: str = ""
    title: str = ""


class NotSent(Exception):
    """The request never reached the node."""


class _Unanswered(aiohttp.ClientError):
    """The node accepted the connection and closed it without an answer."""


async def _send_once(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Keep aiohttp from resending a DELETE or PUT whose connection is lost before the answer.

    A resent change that had been applied would be reported as refused, or, if the node is gone, as never sent.
    """
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _Unanswered(str(error) or type(error).__name__) from error


@dataclass(frozen=True, slots=True)
class Call:
    method: str
    path: str
    body: bytes | None
    content_type: str
    timeout: float
    fresh: bool = False
    """Whether to use a new connection."""
    accept: tuple[int, ...] = ()
    """Statuses above 299 that count as an answer."""
    hedge_after: float | None = None
    """Seconds after which the next node is asked as well; None: `HEDGE_AFTER`."""


def parse_bootstrap(bootstrap: str | Sequence[str]) -> list[Endpoint]:
    """Parse `"host:port,host:port"`, or a list of such, into endpoints. Raises `InvalidRequest`."""
    texts = bootstrap.split(",") if isinstance(bootstrap, str) else bootstrap
    endpoints = [parse_endpoint(text) for text in texts if text.strip()]
    if not endpoints:
        raise InvalidRequest("invalid_request", "no bootstrap address: give host:port, separated by commas")
    return list(dict.fromkeys(endpoints))


def parse_endpoint(text: str) -> Endpoint:
    """Parse `host:port`, `[::1]:port` or `http://host:port`. Raises `InvalidRequest`."""
    address = text.strip().removeprefix("http://").rstrip("/")
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidRequest("invalid_request", f"{text!r} is not an address: it must be host:port")
    return Endpoint(host, int(port))


def blames_caller(error: RaftlogError) -> bool:
    """Whether the request itself is wrong, so that every node would refuse it.

    Failures of the cluster and bugs of a node do not count.
    """
    return not error.retriable and error.status < 500


def is_busy(silent: float, waited: float, hedge_after: float) -> bool:
    """Whether a node is slow rather than stopped.

    `silent`: seconds since it last answered any call; `waited`: seconds that this call has waited.
    """
    return silent < hedge_after and waited < PATIENCE * hedge_after


class HttpApi:
    """One user's connections to the API of a cluster.

    Belongs to one event loop; `close` it.
    """

    def __init__(self, bootstrap: str | Sequence[str], data_ssl: SSLContext | None = None) -> None:
        """`data_ssl` is for data listeners, whose connections are made elsewhere; the API itself is plain HTTP."""
        self.data_ssl = data_ssl
        self._bootstrap = parse_bootstrap(bootstrap)
        self._addresses = list(self._bootstrap)
        """Nodes to ask; the one that answered last is first."""
        self._answered: dict[Endpoint, float] = {}
        """Loop time of each node's last answer that was not its own failure."""
        self._session: aiohttp.ClientSession | None = None
        self._fresh_session: aiohttp.ClientSession | None = None
        """The session for requests that must not be sent twice: a kept connection may close as it is reused.
        """
        self._closed = False
        self.last_error: RaftlogError | None = None
        """Error of the last attempt, if it failed; shown to callers that wait."""

    # --- Calls --------------------------------------------------------------------------------------------------------

    async def get(self, path: str, kind: type[T], *, accept: tuple[int, ...] = (), timeout: float = 5.0) -> T:
        """Return the decoded answer.

        Raises a `RaftlogError`; `connection_lost` if no node answers in time.
        """
        return self._decode(await self.repeatable("GET", path, accept=accept, timeout=timeout), kind)

    async def post(
        self, path: str, kind: type[T], body: Any = None, *, timeout: float = 5.0, hedge_after: float | None = None
    ) -> T:
        """POST an idempotent request and return the decoded answer."""
        answer = await self.repeatable("POST", path, body=body, timeout=timeout, hedge_after=hedge_after)
        return self._decode(answer, kind)

    async def change(
        self, method: str, path: str, kind: type[T] | None, body: Any = None, *, timeout: float = 15.0
    ) -> T:
        """Send a request that must not happen twice. `kind` None: the answer has no body.

        Raises `outcome_unknown` if the answer is lost.
        """
        answer = await self._once(Call(method, path, _encode(body), "application/json", timeout, fresh=True))
        return self._decode(answer, kind) if kind is not None else None  # type: ignore[return-value]

    async def repeatable(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        raw: bytes | None = None,
        content_type: str = "application/json",
        accept: tuple[int, ...] = (),
        timeout: float = 5.0,
        hedge_after: float | None = None,
    ) -> bytes:
        """Return the body of the first node's answer. `raw` is an encoded request body."""
        sent = raw if raw is not None else _encode(body)
        call = Call(method, path, sent, content_type, timeout, accept=accept, hedge_after=hedge_after)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        last: RaftlogError | None = None
        while True:
            try:
                return await self._any_node(call, deadline, last)
            except RaftlogError as error:
                last = self._more_telling(last, error)
                if not error.retriable or loop.time() + ROUND_PAUSE >= deadline:
                    raise last from None
            await asyncio.sleep(ROUND_PAUSE)

    async def once(self, path: str, body: bytes, content_type: str, timeout: float) -> bytes:
        """POST a request that is resent only if it certainly was not processed; return the answer's body.

        Raises as `change` does.
        """
        return await self._once(Call("POST", path, body, content_type, timeout))

    # --- Nodes --------------------------------------------------------------------------------------------------------

    def learn(self, endpoints: Iterable[Endpoint]) -> None:
        """Add the cluster's nodes after the bootstrap addresses.

        If there are too many, nodes that the cluster no longer lists are dropped.
        """
        named = list(dict.fromkeys(endpoints))
        wanted = [endpoint for endpoint in named if endpoint not in self._addresses]
        former = [known for known in self._addresses if known not in self._bootstrap and known not in named]
        too_many = len(self._addresses) + len(wanted) - MAX_ADDRESSES
        for endpoint in former[: max(0, too_many)]:
            self._addresses.remove(endpoint)
            self._answered.pop(endpoint, None)
        self._addresses += wanted[: max(0, MAX_ADDRESSES - len(self._addresses))]

    def prefer_another(self) -> None:
        """Start the next calls at another node: the preferred one may be stale, cut off from the quorum."""
        self._addresses.append(self._addresses.pop(0))

    @property
    def addresses(self) -> tuple[Endpoint, ...]:
        return tuple(self._addresses)

    async def close(self) -> None:
        self._closed = True
        for session in (self._session, self._fresh_session):
            if session is not None:
                await session.close()
        self._session = self._fresh_session = None

    # --- Inside -------------------------------------------------------------------------------------------------------

    async def _any_node(self, call: Call, deadline: float, last: RaftlogError | None) -> bytes:
        """Ask all nodes in one round: the next one whenever an answer is late or failed.

        `last`: the error of the previous round, which says more than that this one ran out of time.
        """
        loop = asyncio.get_running_loop()
        hedge_after = HEDGE_AFTER if call.hedge_after is None else call.hedge_after
        waiting = list(self._addresses)
        running: dict[asyncio.Task[bytes], Endpoint] = {}
        asked, asked_at, busy = waiting[0], loop.time(), False
        try:
            while waiting or running:
                if waiting and not busy:
                    asked, asked_at = waiting.pop(0), loop.time()
                    running[asyncio.create_task(self._attempt(asked, call))] = asked
                left = deadline - loop.time()
                if left <= 0:
                    break
                patience = min(hedge_after, left) if waiting else left
                done, _ = await asyncio.wait(running, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                busy = not done and self._is_busy(asked, hedge_after, loop.time() - asked_at)
                for task in [one for one in running if one in done]:  # a set has no order
                    node = running.pop(task)
                    try:
                        answer = task.result()
                    except NotSent as error:
                        last = self._more_telling(last, RetriableError("connection_lost", str(error)))
                    except RaftlogError as error:
                        if blames_caller(error):
                            raise
                        last = self._more_telling(last, error)
                    else:
                        self._prefer(node)
                        return answer
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        shown = ", ".join(map(str, self._addresses[:8]))
        raise last or RetriableError("connection_lost", f"no answer from {shown} within {call.timeout:g} s")

    def _is_busy(self, node: Endpoint, hedge_after: float, waited: float) -> bool:
        silent = asyncio.get_running_loop().time() - self._answered.get(node, float("-inf"))
        return is_busy(silent, waited, hedge_after)

    async def _once(self, call: Call) -> bytes:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + call.timeout
        while True:
            last: RaftlogError | None = None
            for node in list(self._addresses):
                try:
                    answer = await self._attempt(node, call)
                except NotSent as error:
                    last = self._more_telling(last, RetriableError("connection_lost", str(error)))
                except RaftlogError as error:
                    if error.code == "connection_lost":
                        unknown = (
                            f"{node} received the request and did not answer: {error.detail}. It may have been applied"
                        )
                        raise RetriableError("outcome_unknown", unknown) from None
                    if not error.retriable or error.applied is not Applied.NO:
                        raise
                    last = self._more_telling(last, error)
                else:
                    self._prefer(node)
                    return answer
            assert last is not None
            if loop.time() + ROUND_PAUSE >= deadline:
                raise last
            await asyncio.sleep(ROUND_PAUSE)

    async def _attempt(self, node: Endpoint, call: Call) -> bytes:
        """Raise `NotSent`, the `RaftlogError` of the answer, or `connection_lost` if there is none."""
        try:
            status, body = await self._exchange(node, call)
        except NotSent as error:
            self.last_error = RetriableError("connection_lost", str(error))
            raise
        except RaftlogError as error:
            self.last_error = error
            raise
        if status < 500:
            self._answered[node] = asyncio.get_running_loop().time()
        if status >= 300 and status not in call.accept:
            self.last_error = self._problem(node, status, body)
            raise self.last_error
        return body

    async def _exchange(self, node: Endpoint, call: Call) -> tuple[int, bytes]:
        """Send one request to this node over HTTP, and return the answer's status and body.

        Raises `NotSent`, or a `RaftlogError` (`connection_lost`) if there is no answer. The simulator replaces this
        method with its own network.
        """
        url = f"http://{node}{call.path}"
        headers = {} if call.body is None else {"Content-Type": call.content_type}
        timeout = aiohttp.ClientTimeout(total=call.timeout, sock_connect=CONNECT_TIMEOUT)
        try:
            async with self._session_for(call).request(
                call.method, url, data=call.body, headers=headers, timeout=timeout
            ) as response:
                body = await response.content.read(MAX_ANSWER_BYTES)
                while not response.content.at_eof():
                    more = await response.content.read(MAX_ANSWER_BYTES)
                    body += more
                    if len(body) > MAX_ANSWER_BYTES:
                        raise RemoteProtocolError(f"the answer of {node} is longer than {MAX_ANSWER_BYTES} bytes")
                return response.status, body
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NotSent(f"cannot connect to {node}: {error}") from None
        except (aiohttp.ClientError, TimeoutError, OSError, UnicodeError) as error:  # the last: an invalid host name
            raise RetriableError("connection_lost", f"{node}: {error or type(error).__name__}") from None
        except (RuntimeError, MemoryError) as error:
            if not is_shortage(error):
                raise
            raise RetriableError("connection_lost", f"{node}: {error or type(error).__name__}") from None

    def _session_for(self, call: Call) -> aiohttp.ClientSession:
        if self._closed:
            raise RetriableError("shutting_down", "this client is closed")
        headers = {"User-Agent": f"raftlog/{__version__}"}
        if call.fresh:
            if self._fresh_session is None:
                connector = aiohttp.TCPConnector(force_close=True)
                self._fresh_session = aiohttp.ClientSession(
                    connector=connector, headers=headers, middlewares=(_send_once,)
                )
            return self._fresh_session
        if self._session is None:
            self._session = aiohttp.ClientSession(headers=headers)
        return self._session

    def _prefer(self, node: Endpoint) -> None:
        self.last_error = None
        if self._addresses[0] != node and node in self._addresses:  # it may have been dropped meanwhile
            self._addresses.remove(node)
            self._addresses.insert(0, node)

    @staticmethod
    def _more_telling(known: RaftlogError | None, error: RaftlogError) -> RaftlogError:
        """Return the error to report: a node's answer rather than a failure to reach another node."""
        if known is not None and error.code == "connection_lost" and known.code != "connection_lost":
            return known
        return error

    @staticmethod
    def _problem(node: Endpoint, status: int, body: bytes) -> RaftlogError:
        try:
            problem = msgspec.json.decode(body, type=_Problem)
        except (msgspec.MsgspecError, ValueError):
            told = f"{node} answered {status}, not as raftlog does: {body[:200].decode('utf-8', 'replace').strip()}"
            # A 5xx may be a proxy's that lost the node, perhaps after it had forwarded the request.
            return RetriableError("connection_lost", told) if status >= 500 else RemoteProtocolError(told)
        return error_from_code(problem.code, problem.detail or problem.title)

    @staticmethod
    def _decode(body: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.MsgspecError, ValueError) as error:
            raise RemoteProtocolError(f"the answer has an unexpected format: {error}") from None


def _encode(body: Any) -> bytes | None:
    return None if body is None else msgspec.json.encode(body)
