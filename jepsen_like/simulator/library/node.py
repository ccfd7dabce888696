"""A simulated node for client libraries: the product's HTTP/2 data listener and API handlers on virtual time.

The product's own code are the router, consumer groups with their coordinator, transactions, the topic administrator,
the forwarder, every handler of the API and the checks before it (`http_api/web/middleware.py`). Only aiohttp is
missing, which would carry the same requests as bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from multidict import CIMultiDict, MultiDict

from http_api.app import ROUTES
from http_api.web.context import CONTEXT, ApiContext
from http_api.web.hosts import HostPolicy
from http_api.web.limits import Limits
from http_api.web.middleware import Handler, bounded
from http_api.web.problems import problem
from jepsen_like.simulator.brokers.node import SimQuorum, TraceLogger
from jepsen_like.simulator.transactions.node import TransactionNode
from jepsen_like.simulator.world.disk import SimulatedCrash
from jepsen_like.simulator.world.heap import Life, SimScheduler, SimWorker
from jepsen_like.simulator.world.violation import Violation
from raftlog.broker.changes.groups import Groups
from raftlog.broker.metrics.node_metrics import NodeMetrics
from raftlog.broker.metrics.process import ProcessSources
from raftlog.broker.requests.data_listener import data_acceptors
from raftlog.broker.requests.forwarding import Forwarder
from raftlog.broker.requests.request_counts import RequestCounts
from raftlog.broker.security.access.request_access import OpenAccess
from raftlog.broker.security.passwords.hashing import PasswordHashing
from raftlog.broker.service import Router, groups_of
from raftlog.broker.wiring import Broker
from raftlog.errors import InvalidRequest, RaftlogError
from raftlog.model import BrokerId, Endpoint
from raftlog.system.shared_histogram import SharedHistogram
from raftlog.system.thread_times import ThreadTimes

from .loop import VirtualLoop
from .network import API, DATA, REACHES, ApiAnswer, ApiListener, ApiRequest, DataListener, Reach

REQUEST_ID = "simulated"


class LibraryNode(TransactionNode):
    """See `SimNode`."""

    loop: VirtualLoop | None = None
    _groups: Groups | None = None

    def open_to_clients(self, life: Life, broker: Broker, quorum: SimQuorum) -> None:
        self.close_to_clients()
        super().open_to_clients(life, broker, quorum)
        loop = self.loop = VirtualLoop(self.heap, life, self._callback_failed)  # type: ignore[abstract]
        REACHES[loop] = Reach(self.network, int(self.node_id))
        forwarder = Forwarder(self._data_address)
        log = TraceLogger(self._trace, int(self.node_id), self._on_violation)
        scheduler = SimScheduler(self.heap, life)
        worker = SimWorker(self.heap, life, self.random, lambda: self.random.uniform(0.0001, 0.003))
        counts = RequestCounts(self.clock.monotonic)
        with loop.entered():
            self._groups = groups_of(broker, quorum, forwarder, self.clock, scheduler, worker, log)
            sources = ProcessSources(
                requests=counts,
                sync_seconds=SharedHistogram(),
                writer=broker.manager.writer,
                room=broker.room,
                threads=ThreadTimes(),
            )
            router = Router(
                broker,
                quorum,
                forwarder,
                self.random,
                self._groups,
                self.transactions,
                OpenAccess(),
                PasswordHashing(worker).hash,
                NodeMetrics(broker, quorum, scheduler, log, broker.config.metrics, sources),
            )
            context = ApiContext(router, HostPolicy.of((), ()), Limits(), self.clock.wall_ms)
        acceptors = data_acceptors(
            broker.local, self._groups, self.transactions.ask, lambda: not self.stopping, counts=counts
        )
        self.network.listen(self.node_id, DATA, life, DataListener(acceptors))
        front = ApiFront(loop, context, self._callback_failed)
        self.network.listen(self.node_id, API, life, ApiListener(front.answer))

    def close_to_clients(self) -> None:
        """Called when the process is replaced or the world ends."""
        if self.loop is not None:
            REACHES.pop(self.loop, None)

    def quorum_led_by(self, leader: BrokerId) -> None:
        super().quorum_led_by(leader)
        if self.broker is None or self.loop is None or self._groups is None:
            return
        with self.loop.entered():
            self._groups.wake()

    def _data_address(self, peer: BrokerId) -> Endpoint | None:
        record = None if self.broker is None else self.broker.view.broker(peer)
        return None if record is None else record.data

    def _callback_failed(self, error: BaseException) -> None:
        """Raise the error outside all product code, so nothing catches it."""

        def raise_it() -> None:
            raise error

        self.heap.schedule(0.0, raise_it, self.life)


class ApiFront:
    """Answers API requests to one process."""

    def __init__(self, loop: VirtualLoop, context: ApiContext, failed: Callable[[BaseException], None]) -> None:
        self._loop = loop
        self._app = {CONTEXT: context}
        self._context = context
        self._failed = failed

    def answer(self, asked: ApiRequest, tell: Callable[[ApiAnswer], None]) -> None:
        """Answer the request through `tell` at some later time."""
        self._loop.create_task(self._answer(asked, tell))

    async def _answer(self, asked: ApiRequest, tell: Callable[[ApiAnswer], None]) -> None:
        try:
            response = await self._respond(asked)
        except RaftlogError as error:
            response = _told(problem(error, REQUEST_ID))
        except (SimulatedCrash, Violation, AssertionError, LookupError, TypeError, ValueError, AttributeError) as error:
            self._failed(error)
            return
        tell(response)

    async def _respond(self, asked: ApiRequest) -> ApiAnswer:
        request = VirtualRequest(asked, self._app)
        try:
            response = await bounded(request, request.handler, self._context)  # type: ignore[arg-type]
        finally:
            self._context.release(request)  # type: ignore[arg-type]
        return _told(response)


def _told(response: Any) -> ApiAnswer:
    """A response with its whole body; the library requests no streamed ones."""
    return ApiAnswer(response.status, response.body or b"")


class _Content:
    """A body that came with its headers."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def is_eof(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def read_nowait(self) -> bytes:
        return self._body


class VirtualRequest(dict[Any, Any]):
    """A request with the part of aiohttp's interface that the API's handlers use."""

    charset = None
    remote = "127.0.0.1"
    transport = None
    protocol = None
    keep_alive = True

    def __init__(self, asked: ApiRequest, app: dict[Any, Any]) -> None:
        super().__init__()
        parts = urlsplit(asked.path)
        self.method, self.path, self.raw_path, self.app = asked.method, unquote(parts.path), asked.path, app
        self.query = MultiDict(parse_qsl(parts.query, keep_blank_values=True))
        self.headers = CIMultiDict({"Content-Type": asked.content_type} if asked.body is not None else {})
        self.content_length = None if asked.body is None else len(asked.body)
        self.content = _Content(asked.body or b"")
        self.handler, self.match_info = _route(asked.method, parts.path)

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)


def _route(method: str, path: str) -> tuple[Handler, dict[str, str]]:
    """Raises `InvalidRequest` (`not_found`)."""
    for pattern, handler in _routes(method):
        found = pattern.fullmatch(path)
        if found is not None:
            return handler, {name: unquote(text) for name, text in found.groupdict().items()}
    raise InvalidRequest("not_found", f"there is no {path}")


@cache
def _routes(method: str) -> list[tuple[re.Pattern[str], Handler]]:
    return [
        (re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(path))), handler)
        for of_method, path, handler in ROUTES
        if of_method == method
    ]
