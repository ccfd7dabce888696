"""A running HTTP API in front of a fake broker, and a client for it: whole answers, problems, raw sockets."""

from __future__ import annotations

import asyncio
import io
import re
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from http_api.app import build_app, start_api
from http_api.rest_proxy import document as rest_proxy
from http_api.rest_proxy.errors import V3_CODES, status_and_code
from http_api.rest_proxy.v2.media_types import V2_TYPE
from http_api.routes.cluster import OPENAPI
from http_api.web.bodies import JSON_TYPE
from http_api.web.context import CONTEXT, ApiContext
from http_api.web.limits import Limits
from http_api.web.server import ApiRunner
from raftlog.errors import CODES, RaftlogError
from raftlog.http2 import Http2Limits, Http2Listener
from raftlog.http2.limits import DEFAULT_WINDOW
from raftlog.system.tls_door import ContextSource
from tests.support.client.fake_broker import FakeBroker

PATIENCE_S = 10.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return msgspec.json.decode(self.body)

    def problem(self, code: str) -> dict[str, Any]:
        """Check that it is a well-formed problem document with this code, or the REST Proxy's error for it, and return
        it."""
        for media_type, codes in ((V2_TYPE, {}), (JSON_TYPE, V3_CODES)):
            if self.headers["Content-Type"].startswith(media_type):
                return self._rest_error(code, codes)
        assert self.headers["Content-Type"].startswith("application/problem+json"), self
        document: dict[str, Any] = self.document
        assert document["code"] == code, document
        row = CODES[code]
        assert self.status == document["status"] == row.status
        assert document["type"] == f"urn:raftlog:problem:{code}"
        assert document["retriable"] is row.retriable
        assert ("Retry-After" in self.headers) is row.retriable
        assert document["request_id"] == self.headers["X-Request-Id"]
        assert document["title"] and document["detail"]
        return document

    def _rest_error(self, code: str, codes: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
        document: dict[str, Any] = self.document
        assert set(document) == {"error_code", "message"} and document["message"], document
        assert (self.status, document["error_code"]) == status_and_code(RaftlogError(code, ""), codes), document
        assert ("Retry-After" in self.headers) is CODES[code].retriable
        return {**document, "detail": document["message"]}


OPERATIONS = [
    (method.upper(), re.compile(re.sub(r"\{[^}]*\}", "[^/]+", path)), set(operation["responses"]))
    for document in (OPENAPI, rest_proxy.OPENAPI)
    for path, item in msgspec.json.decode(document)["paths"].items()
    for method, operation in item.items()
    if method != "parameters"
]


def is_documented(method: str, path: str, status: int) -> bool:
    """Whether the OpenAPI documents have the status for the request; True for requests that they do not have."""
    plain = path.partition("?")[0]
    found = [statuses for verb, pattern, statuses in OPERATIONS if verb == method and pattern.fullmatch(plain)]
    return not found or any(str(status) in statuses for statuses in found)


class Api:
    """A running API, whose answers must have statuses that `openapi.json` describes."""

    def __init__(self, broker: FakeBroker, runner: ApiRunner, port: int, session: aiohttp.ClientSession) -> None:
        self.broker = broker
        self.runner = runner
        self.context: ApiContext = runner.app[CONTEXT]
        self.port = port
        self.session = session

    @property
    def connections(self) -> int:
        """Open connections, in the server's view."""
        assert self.runner.server is not None
        return len(self.runner.server.connections)

    async def call(self, method: str, path: str, **options: Any) -> Answer:
        """Send one request, with aiohttp's options; returns the whole answer."""
        async with self.session.request(method, path, **options) as response:
            answer = Answer(response.status, response.headers, await response.read())
        assert is_documented(method, path, answer.status), f"{method} {path}: {answer.status} is not in openapi.json"
        return answer

    async def get(self, path: str, **options: Any) -> Answer:
        return await self.call("GET", path, **options)

    async def post(self, path: str, body: Any = None, content_type: str = "application/json", **options: Any) -> Answer:
        """`body`: bytes are sent as they are, everything else as JSON."""
        data: Any = body
        if body is not None and not hasattr(body, "__aiter__"):
            # A file, since aiohttp warns of large bytes.
            data = io.BytesIO(body if isinstance(body, bytes) else msgspec.json.encode(body))
        headers = {"Content-Type": content_type, **options.pop("headers", {})}
        return await self.call("POST", path, data=data, headers=headers, **options)

    async def raw(self, request: bytes, *, patience_s: float = PATIENCE_S) -> bytes:
        """Send bytes to the port, and return everything that arrives until the server closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request)
            async with asyncio.timeout(patience_s):
                return await reader.read()
        finally:
            writer.transport.abort()

    async def is_well(self) -> None:
        """Check that the server works, and holds nothing of completed requests."""
        assert (await self.get("/v1/ready")).status == 200
        await eventually(lambda: self.context.held_bytes == 0 and self.context.requests_under_way == 0)


@asynccontextmanager
async def running_listener(api: Api) -> AsyncIterator[int]:
    """The same API at a listener of HTTP/2, as a node's data listener; yields its port."""
    listener = Http2Listener({}, limits=Http2Limits(unaccepted_window_bytes=DEFAULT_WINDOW))
    listener.exchanges = api.runner.accept_exchange
    try:
        yield await listener.start("127.0.0.1", 0)
    finally:
        await listener.close(0.0)


@asynccontextmanager
async def running_api(
    broker: FakeBroker,
    *,
    limits: Limits | None = None,
    ssl_context: ssl.SSLContext | ContextSource | None = None,
    client_ssl: ssl.SSLContext | bool = True,
    **options: Any,
) -> AsyncIterator[Api]:
    """`options` go to `build_app`. When the test is over nothing may be held, and no region of a file."""
    app = build_app(broker, limits=limits, **options)
    runner, port = await start_api(app, "127.0.0.1", 0, ssl_context=ssl_context)
    scheme = "http" if ssl_context is None else "https"
    connector = aiohttp.TCPConnector(ssl=client_ssl, limit=0)
    try:
        async with aiohttp.ClientSession(f"{scheme}://127.0.0.1:{port}", connector=connector) as session:
            yield Api(broker, runner, port, session)
    finally:
        await runner.cleanup()
        broker.close()
    assert broker.regions_held == 0
    assert app[CONTEXT].held_bytes == 0


async def eventually(holds: Callable[[], bool], *, patience_s: float = PATIENCE_S) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(patience_s):
        while not holds():  # noqa: ASYNC110 - no event tells when the other side changes
            await asyncio.sleep(0.005)
