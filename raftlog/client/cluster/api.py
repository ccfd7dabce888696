"""The HTTP API as a client calls it: any node answers, and a node that is slow or dead costs little time.

`any_node.py` decides which nodes are asked, and when. The first calls go to the bootstrap addresses; the nodes that the
cluster lists (`learn`) are asked, too. All of them speak HTTPS if a bootstrap address begins with `https://`, or if
no address has a scheme and there are both a credential and TLS settings. Every request carries the user's credential
(`connection_security.py`); redirections are not followed, since a credential goes only to addresses of the cluster.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import aiohttp
import msgspec

from raftlog.api.problems import Problem
from raftlog.errors import (
    ClientClosed,
    InvalidRequest,
    RaftlogError,
    RemoteProtocolError,
    RetriableError,
    error_from_code,
    is_shortage,
)
from raftlog.model import Endpoint
from raftlog.security.secrets import Secret
from raftlog.version import __version__

from .any_node import THROTTLED, AnyNode, NotSent, Throttled
from .connection_security import AUTHORIZATION, ConnectionSecurity

T = TypeVar("T")

CONNECT_TIMEOUT = 1.0
READ_TIMEOUT = 10.0
"""Seconds for reads that the quorum confirms."""
CHANGE_TIMEOUT = 15.0
MAX_ADDRESSES = 64
MAX_ANSWER_BYTES = 64 * 1024 * 1024
PLAIN, SECURE = "http://", "https://"
UNAUTHORIZED = 401
"""The status of `unauthenticated`: nothing was done, so the request may be repeated."""


class Companion(Protocol):
    """Connections that belong to the same user as an `HttpApi`."""

    async def close(self) -> None: ...


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


class Answer(NamedTuple):
    status: int
    body: bytes
    retry_after: float = 0.0
    """Seconds that the node asks to wait (`Retry-After`); 0: it does not say."""


def speaks_https(bootstrap: str | Sequence[str]) -> bool | None:
    """Return whether bootstrap addresses are of an API with TLS; None if no address begins with a scheme.

    Raises `InvalidRequest` if one begins with `https://` and another with `http://`.
    """
    texts = [text.strip() for text in (bootstrap.split(",") if isinstance(bootstrap, str) else bootstrap)]
    secure = [text for text in texts if text.startswith(SECURE)]
    plain = [text for text in texts if text.startswith(PLAIN)]
    if secure and plain:
        told = f"the bootstrap addresses {secure[0]!r} and {plain[0]!r} differ in TLS: all must be https:// or none"
        raise InvalidRequest("invalid_request", told)
    return bool(secure) if secure or plain else None


def parse_bootstrap(bootstrap: str | Sequence[str]) -> list[Endpoint]:
    """Parse `"host:port,host:port"`, or a list of such, into endpoints. Raises `InvalidRequest`."""
    texts = bootstrap.split(",") if isinstance(bootstrap, str) else bootstrap
    endpoints = [parse_endpoint(text) for text in texts if text.strip()]
    if not endpoints:
        raise InvalidRequest("invalid_request", "no bootstrap address: give host:port, separated by commas")
    return list(dict.fromkeys(endpoints))


def parse_endpoint(text: str) -> Endpoint:
    """Parse `host:port`, `[::1]:port`, `http://host:port` or `https://host:port`. Raises `InvalidRequest`."""
    address = text.strip().removeprefix(PLAIN).removeprefix(SECURE).rstrip("/")
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 65536:
        told = "it must be host:port, or https://host:port if the API uses TLS"
        raise InvalidRequest("invalid_request", f"{text!r} is not an address: {told}")
    return Endpoint(host, int(port))


def in_parts(rows: Sequence[T], size: int) -> list[list[T]]:
    """Return the rows in parts of the size that one request may have."""
    return [list(rows[start : start + size]) for start in range(0, len(rows), size)]


class HttpApi:
    """One user's connections to the API of a cluster.

    Belongs to one event loop; `close` it.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        security: ConnectionSecurity | None = None,
        *,
        https: bool | None = None,
        request_timeout: float | None = None,
    ) -> None:
        """`security` None: without TLS files, and with the credential of the environment, if there is one.

        `https` None: as the addresses say. `request_timeout`: seconds for each call, instead of its own.

        Raises `InvalidRequest`, also for a credential that must not be sent there.
        """
        self.security = security or ConnectionSecurity()
        named = speaks_https(bootstrap) if https is None else https
        self.https = self.security.prefers_https if named is None else named
        """Whether the API speaks TLS."""
        self.data_tls = self.security.data_tls(self.https)
        """The TLS of data connections, which are made elsewhere; None: they are plain."""
        if self.https:
            self.security.api_context()  # files that cannot be used are reported here, not by the first call
        self._bootstrap = parse_bootstrap(bootstrap)
        for endpoint in self._bootstrap:
            self.security.check(endpoint, tls=self.https)
        self._nodes = AnyNode(self._bootstrap)
        self._session: aiohttp.ClientSession | None = None
        self._fresh_session: aiohttp.ClientSession | None = None
        """The session for requests that must not be sent twice: a kept connection may close as it is reused.
        """
        self._closed = False
        self._request_timeout = request_timeout
        self.companions: dict[type, Companion] = {}
        """Other connections of this user by their class; they are closed with these."""
        self.last_error: RaftlogError | None = None
        """Error of the last attempt, if it failed; shown to callers that wait."""

    def of(self, *addresses: str) -> HttpApi:
        """Return other connections of the same user, to these addresses of the cluster; without any, to all nodes."""
        known = addresses or [str(one) for one in self.addresses]
        return HttpApi(known, self.security, https=self.https, request_timeout=self._request_timeout)

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
        self, method: str, path: str, kind: type[T] | None, body: Any = None, *, timeout: float = CHANGE_TIMEOUT
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
        timeout = self._request_timeout or timeout
        call = Call(method, path, sent, content_type, timeout, accept=accept)
        return await self._nodes.repeatable(
            lambda node: self._attempt(node, call), timeout=timeout, hedge_after=hedge_after
        )

    async def once(self, path: str, body: bytes, content_type: str, timeout: float) -> bytes:
        """POST a request that is resent only if it certainly was not processed; return the answer's body.

        Raises as `change` does.
        """
        return await self._once(Call("POST", path, body, content_type, timeout))

    async def reach(self, timeout: float = CONNECT_TIMEOUT) -> None:
        """Return as soon as one node has answered an HTTP request, however it did.

        Raises `RetriableError` (`connection_lost`) with the first node's reason, without retries, if none did.
        """
        call = Call("GET", "/v1/health", None, "", timeout)
        asking = [asyncio.ensure_future(self._exchange(node, call, None)) for node in self._nodes.nodes]
        first: RaftlogError | None = None
        try:
            for answer in asyncio.as_completed(asking):
                try:
                    await answer
                except RaftlogError as error:
                    first = first or error
                else:
                    return
        finally:
            for one in asking:
                one.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        assert first is not None, "there is an address"
        raise first

    # --- Nodes --------------------------------------------------------------------------------------------------------

    def learn(self, endpoints: Iterable[Endpoint]) -> None:
        """Add the cluster's nodes after the bootstrap addresses.

        If there are too many, nodes that the cluster no longer lists are dropped.
        """
        named, asked = list(dict.fromkeys(endpoints)), self._nodes.nodes
        wanted = [endpoint for endpoint in named if endpoint not in asked]
        former = [known for known in asked if known not in self._bootstrap and known not in named]
        too_many = len(asked) + len(wanted) - MAX_ADDRESSES
        for endpoint in former[: max(0, too_many)]:
            self._nodes.remove(endpoint)
        asked += wanted[: max(0, MAX_ADDRESSES - len(asked))]

    def prefer_another(self) -> None:
        """Start the next calls at another node: the preferred one may be stale, cut off from the quorum."""
        self._nodes.prefer_another()

    @property
    def addresses(self) -> tuple[Endpoint, ...]:
        return tuple(self._nodes.nodes)

    async def close(self) -> None:
        """Close all connections, also if one of them fails to, or if this call is cancelled. Twice is allowed."""
        self._closed = True
        sessions, companions = (self._session, self._fresh_session), tuple(self.companions.values())
        self._session = self._fresh_session = None
        self.companions.clear()
        async with AsyncExitStack() as stack:
            for part in (*filter(None, sessions), *companions):
                stack.push_async_callback(part.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    # --- Inside -------------------------------------------------------------------------------------------------------

    async def _once(self, call: Call) -> bytes:
        if self._request_timeout is not None:
            call = replace(call, timeout=self._request_timeout)
        return await self._nodes.once(lambda node: self._attempt(node, call), timeout=call.timeout)

    async def _attempt(self, node: Endpoint, call: Call) -> bytes:
        """Return the answer. Raises `NotSent`, its `RaftlogError`, or `connection_lost` if there is none."""
        try:
            credential = self.security.credential(node, tls=self.https)
            answer = await self._exchange(node, call, credential)
            if answer.status == UNAUTHORIZED and self.security.renewed(credential):
                answer = await self._exchange(node, call, self.security.credential(node, tls=self.https))
        except RaftlogError as error:
            self.last_error = error
            raise
        if answer.status < 500:
            self._nodes.heard_from(node)
        if answer.status >= 300 and answer.status not in call.accept:
            self.last_error = self._problem(node, answer)
            raise self.last_error
        self.last_error = None
        return answer.body

    async def _exchange(self, node: Endpoint, call: Call, credential: Secret | None) -> Answer:
        """Send one request to this node over HTTP, and return the answer.

        Raises `NotSent`, or a `RaftlogError` (`connection_lost`) if there is no answer. The simulator replaces this
        method with its own network.
        """
        url = f"{SECURE if self.https else PLAIN}{node}{call.path}"
        headers = {} if call.body is None else {"Content-Type": call.content_type}
        if credential is not None:
            headers[AUTHORIZATION] = credential.reveal()
        timeout = aiohttp.ClientTimeout(total=call.timeout, sock_connect=CONNECT_TIMEOUT)
        tls = self.security.api_context() if self.https else True  # with another context, no kept connection is used
        try:
            async with self._session_for(call).request(
                call.method, url, data=call.body, headers=headers, timeout=timeout, allow_redirects=False, ssl=tls
            ) as response:
                body = await response.content.read(MAX_ANSWER_BYTES)
                while not response.content.at_eof():
                    more = await response.content.read(MAX_ANSWER_BYTES)
                    body += more
                    if len(body) > MAX_ANSWER_BYTES:
                        raise RemoteProtocolError(f"the answer of {node} is longer than {MAX_ANSWER_BYTES} bytes")
                return Answer(response.status, body, _seconds(response.headers.get("Retry-After", "")))
        except aiohttp.ClientConnectorCertificateError as error:
            told = f"{node} has a certificate that is not accepted here: {error.certificate_error}"
            raise NotSent(f"{told}. Check tls_authority, and that the certificate names this host") from None
        except aiohttp.ClientConnectorSSLError as error:
            told = f"cannot connect to {node} with TLS: {_reason(error.os_error)}"
            raise NotSent(f"{told}. If its API has no TLS, the address is http://{node}") from None
        except aiohttp.ClientConnectorError as error:
            raise NotSent(f"cannot connect to {node}: {_reason(error.os_error)}") from None
        except aiohttp.ConnectionTimeoutError:
            raise NotSent(f"cannot connect to {node}: no answer in {CONNECT_TIMEOUT:g} s") from None
        except Exception as error:
            lost = (aiohttp.ClientError, TimeoutError, OSError, UnicodeError)  # the last: an invalid host name
            if not (isinstance(error, lost) or is_shortage(error)):
                raise
            raise RetriableError("connection_lost", f"{node}: {error or type(error).__name__}") from None

    def _session_for(self, call: Call) -> aiohttp.ClientSession:
        if self._closed:
            raise ClientClosed("this client is closed: create a new one")
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

    def _problem(self, node: Endpoint, answer: Answer) -> RaftlogError:
        status, body = answer.status, answer.body
        try:
            problem = msgspec.json.decode(body, type=Problem)
        except (msgspec.MsgspecError, ValueError):
            told = (
                f"{node} answered {status}, but not as a raftlog node: {body[:200].decode('utf-8', 'replace').strip()}"
            )
            # A 5xx may be a proxy's that lost the node, perhaps after it had forwarded the request.
            return RetriableError("connection_lost", told) if status >= 500 else RemoteProtocolError(told)
        if problem.code == THROTTLED:
            return Throttled(problem.detail or problem.title, answer.retry_after)
        return self.security.explained(error_from_code(problem.code, problem.detail or problem.title))

    @staticmethod
    def _decode(body: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.MsgspecError, ValueError) as error:
            raise RemoteProtocolError(f"the answer has an unexpected format: {error}") from None


def _reason(error: OSError) -> str:
    """Return the system's text. asyncio has another one for a refused connection, which names the address again."""
    return os.strerror(error.errno) if type(error.errno) is int and error.errno > 0 else error.strerror or str(error)


def _seconds(text: str) -> float:
    """Return the seconds of a `Retry-After` field; 0 for none, or for a date, which raftlog's nodes do not send."""
    return float(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0.0


def _encode(body: Any) -> bytes | None:
    return None if body is None else msgspec.json.encode(body)
