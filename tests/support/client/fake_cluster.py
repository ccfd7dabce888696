"""A cluster in memory, for tests of the client: real HTTP/2 listeners and real HTTP APIs on free ports of this machine.

It keeps the rules on which a client relies. All nodes share the logs (replication always works); the leading node
appends, the others answer `not_leader`. A leader appends a producer's sequence once and only after its predecessor,
remembers the last five batches of each producer, and answers resends of those with their offsets.

Tests control the faults: `FakeNode.on_produce` and `on_fetch` are called for every request and return a `Fate`;
connections can be dropped, nodes killed and restarted, leaders moved.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aiohttp import web

from raftlog.errors import InvalidRequest, RaftlogError, error_from_code
from raftlog.http2.connection import Http2Stream
from raftlog.http2.listener import Http2Listener
from raftlog.model import LeaderEpoch, Offset
from raftlog.records.batch import RecordBatch, parse_header, stamp, validate
from raftlog.wire import (
    CONTENT_TYPE,
    FETCH_PATH,
    PRODUCE_PATH,
    TRANSACTIONS_PATH,
    ErrorResponse,
    FetchRequest,
    FoundOffset,
    OffsetsRequest,
    OffsetsResponse,
    ProducedPartition,
    ProduceRequest,
    ProduceResponse,
    SessionFetchRequest,
    TransactionRequest,
    decode_request,
    encode,
    split_body,
)
from tests.support.clusters.held_port import HOST, HeldPort

from .fake_fetches import FakeFetches
from .fake_transactions import FakeMarkers, FakeTransactions

WINDOW = 5


class ServerTls(NamedTuple):
    """The TLS contexts of a node's listeners."""

    api: ssl.SSLContext
    data: ssl.SSLContext


@dataclass(frozen=True)
class Fate:
    """The fate of one request: refused with `error`, or executed; then answered or not."""

    error: str = ""
    """A code: nothing is executed, and every partition gets this answer."""
    drop_before: bool = False
    """The connection breaks, and nothing is executed."""
    drop_after: bool = False
    """The request is executed, then the connection breaks: the answer is lost."""
    silent: bool = False
    """The request is executed and never answered."""
    ignore: bool = False
    """The request is neither executed nor answered (a stopped process)."""
    hold: asyncio.Event | None = None
    """The request is executed, and answered when the event is set."""
    throttle_ms: int = 0
    """The time that the answer tells the caller to wait."""


OK = Fate()


@dataclass
class FakePartition(FakeMarkers):
    """A log that all nodes share, and its leader."""

    number: int
    leader: int
    leader_epoch: int = 1
    batches: list[bytes] = field(default_factory=list)
    start_offset: int = 0
    end_offset: int = 0
    windows: dict[tuple[int, int], list[tuple[int, int, int]]] = field(default_factory=dict)
    open: dict[tuple[int, int], int] = field(default_factory=dict)
    aborted: list[tuple[int, int, int, int]] = field(default_factory=list)
    duplicates: int = 0
    """Resends that were answered from memory."""

    def append(self, batch: bytes | memoryview) -> int | str:
        """Append a batch; return the base offset, or an error's code."""
        header = validate(batch, max_batch_bytes=1 << 20)
        if header.producer_id >= 0:
            window = self.windows.setdefault((header.producer_id, header.producer_epoch), [])
            for sequence, count, offset in window:
                if (sequence, count) == (header.base_sequence, header.record_count):
                    self.duplicates += 1
                    return offset
            expected = window[-1][0] + window[-1][1] if window else 0
            if header.base_sequence != expected:
                return "out_of_order_sequence"
            window.append((header.base_sequence, header.record_count, self.end_offset))
            del window[:-WINDOW]
        offset = self.end_offset
        if header.is_transactional:
            self.open.setdefault((header.producer_id, header.producer_epoch), offset)
        self.put(b"".join(map(bytes, stamp(batch, Offset(offset), LeaderEpoch(self.leader_epoch)))))
        return offset

    def put(self, batch: bytes) -> None:
        """Append a batch that is stamped already."""
        self.batches.append(batch)
        self.end_offset = parse_header(batch).end_offset

    def read(self, offset: int, max_bytes: int, *, min_one_batch: bool, committed: bool = False) -> list[bytes]:
        found: list[bytes] = []
        for batch in self.batches:
            if committed and parse_header(batch).end_offset > self.last_stable_offset:
                break
            if parse_header(batch).end_offset > offset:
                if (found or not min_one_batch) and sum(map(len, found)) + len(batch) > max_bytes:
                    break
                found.append(batch)
        return found

    def values(self) -> list[bytes | None]:
        """Every record's value, in order."""
        return [v for batch in self.batches if not parse_header(batch).is_control for v in RecordBatch(batch).values()]

    def keys(self) -> list[bytes | None]:
        return [record.key for batch in self.batches for record in RecordBatch(batch).records()]


@dataclass
class FakeTopic:
    """A topic with its partitions."""

    name: str
    partitions: list[FakePartition]
    id: bytes = field(default_factory=lambda: os.urandom(16))
    configs: dict[str, str] = field(default_factory=dict)
    created_index: int = 0


class FakeCluster:
    """`async with FakeCluster(nodes=3) as cluster`."""

    def __init__(self, nodes: int = 1, tls: ServerTls | None = None) -> None:
        """`tls`: both listeners of each node speak it."""
        self.nodes = {number: FakeNode(self, number) for number in range(1, nodes + 1)}
        self.tls = tls
        self.accepted: set[str] | None = None
        """The accepted values of the `authorization` header; None: every request is accepted."""
        self.allowed = True
        """Whether rules allow what authenticated callers do; reading the cluster's nodes is always allowed."""
        self.carried: list[tuple[str, str]] = []
        """Method and path of each API request, or the path of each stream → its `authorization` header."""
        self.topics: dict[str, FakeTopic] = {}
        self.producer_ids = 0
        self.created = 0
        """Topics so far."""
        self.transactions = FakeTransactions(self)
        self.describes = 0
        self.changed = asyncio.Event()
        """Set and replaced whenever a request has arrived, or a stream has closed."""

    async def __aenter__(self) -> FakeCluster:
        for node in self.nodes.values():
            await node.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in self.nodes.values():
            await node.kill()
            node.release_ports()

    @property
    def bootstrap(self) -> str:
        scheme = "" if self.tls is None else "https://"
        return ",".join(f"{scheme}{node.api_address}" for node in self.nodes.values())

    def check(self, what: str, authorization: str | None) -> None:
        """Authenticate and authorize a request. Raises `InvalidRequest`."""
        self.carried.append((what, authorization or ""))
        if self.accepted is not None and authorization not in self.accepted:
            raise InvalidRequest("unauthenticated", "the request carries no valid credential")
        if not self.allowed and what != "GET /v1/cluster":
            raise InvalidRequest("authorization_failed", f"no rule allows {what}")

    def create_topic(self, name: str, partitions: int = 1, configs: dict[str, str] | None = None) -> FakeTopic:
        made = [FakePartition(p, sorted(self.nodes)[p % len(self.nodes)]) for p in range(partitions)]
        self.created += 1
        topic = self.topics[name] = FakeTopic(name, made, configs=configs or {}, created_index=self.created)
        return topic

    def matching(self, pattern: str) -> list[FakeTopic]:
        """The topics whose whole names match."""
        return [topic for name, topic in self.topics.items() if re.fullmatch(pattern, name)]

    def topic_by_id(self, topic_id: bytes) -> FakeTopic | None:
        return next((topic for topic in self.topics.values() if topic.id == topic_id), None)

    def move_leader(self, topic: str, partition: int, leader: int) -> None:
        moved = self.topics[topic].partitions[partition]
        moved.leader, moved.leader_epoch = leader, moved.leader_epoch + 1

    async def until(self, condition: Callable[[], object], seconds: float = 5.0) -> None:
        """Wait for a condition that a request brings about."""
        async with asyncio.timeout(seconds):
            while not condition():
                await self.changed.wait()

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class FakeNode:
    """One node: its data listener and its API."""

    def __init__(self, cluster: FakeCluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.api_address = ""
        self.data_address = ""
        self.produces: list[ProduceRequest] = []
        self.fetches: list[FetchRequest] = []
        """The requested fetches, with a session or without: only the partitions that the request named."""
        self.fetching = FakeFetches(self)
        self.on_produce: Callable[[ProduceRequest], Fate] = lambda _: OK
        self.on_fetch: Callable[[FetchRequest], Fate] = lambda _: OK
        self.api_hangs = False
        """The API accepts requests and never answers."""
        self.api_problem: dict[str, Any] | None = None
        """The API's answer in place of its own."""
        self.api_calls: list[str] = []
        self.behind: dict[str, FakeTopic] = {}
        """Deleted topics by name that this node, cut off from the quorum, still describes and serves; a caller that
        knows another topic of the name gets `metadata_behind`."""
        self.heedless = False
        """The node describes them even to such callers."""
        self._ports: list[HeldPort] = []
        self._listener: Http2Listener | None = None
        self._runner: web.AppRunner | None = None
        self._streams: dict[Http2Stream, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # --- Life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start at two ports: free ones the first time; the node keeps them after `kill`, until `release_ports`."""
        api, data = HeldPort(), HeldPort()
        self._ports += [api, data]
        self.api_address, self.data_address = str(api), str(data)
        tls = self.cluster.tls
        acceptors = dict.fromkeys((PRODUCE_PATH, FETCH_PATH, TRANSACTIONS_PATH), self._accept)
        self._listener = Http2Listener(acceptors, ssl=None if tls is None else tls.data)
        await self._listener.start(HOST, data.number)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._api)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, HOST, api.number, ssl_context=None if tls is None else tls.api).start()

    async def kill(self) -> None:
        """End like after SIGKILL: no GOAWAY, and no further answers."""
        self.drop_connections()
        listener, self._listener = self._listener, None
        runner, self._runner = self._runner, None
        if listener is not None:
            await listener.close(0.0)
        if runner is not None:
            await runner.cleanup()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def release_ports(self) -> None:
        for port in self._ports:
            port.release()

    async def stop_gracefully(self) -> None:
        """Send GOAWAY; requests in flight are answered."""
        assert self._listener is not None
        listener, self._listener = self._listener, None
        await listener.close(2.0)

    def streams(self) -> list[Http2Stream]:
        """All streams that clients have open."""
        return list(self._streams)

    def drop_connections(self) -> None:
        for stream in list(self._streams):
            stream.connection.abort("dropped by the test")

    def topic_by_id(self, topic_id: bytes) -> FakeTopic | None:
        """The topic in this node's view."""
        old = next((topic for topic in self.behind.values() if topic.id == topic_id), None)
        return old or self.cluster.topic_by_id(topic_id)

    # --- Data ---------------------------------------------------------------------------------------------------------

    def _accept(self, stream: Http2Stream) -> FakeNode:
        self.cluster.check(stream.path, None if stream.authorization is None else stream.authorization.reveal())
        self._streams[stream] = None
        return self

    def on_message(self, stream: Http2Stream, message: memoryview) -> None:
        request, body = decode_request(message)
        asyncio.get_running_loop().call_soon(self.cluster.wake)
        if isinstance(request, ProduceRequest):
            self.produces.append(request)
            self._produce(stream, request, split_body(body, [part.length for part in request.partitions]))
        elif isinstance(request, FetchRequest):
            self.fetches.append(request)
            self._spawn(self.fetching.answer(stream, request))
        elif isinstance(request, SessionFetchRequest):
            self._spawn(self.fetching.answer_in_session(stream, request))
        elif isinstance(request, TransactionRequest):
            self._spawn(self._change(stream, request))

    def on_ended(self, stream: Http2Stream) -> None:
        stream.end()

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        self._streams.pop(stream, None)
        self.fetching.sessions.pop(stream, None)
        self.cluster.wake()

    def _produce(self, stream: Http2Stream, request: ProduceRequest, batches: Sequence[memoryview]) -> None:
        fate = self.on_produce(request)
        if fate.drop_before:
            stream.connection.abort("dropped by the test")
        if fate.drop_before or fate.ignore:
            return
        answers = []
        for part, batch in zip(request.partitions, batches, strict=True):
            error, offset = fate.error, -1
            if not error:
                error, offset = self._append(part.topic_id, part.partition, batch)
            answers.append(ProducedPartition(part.topic_id, part.partition, error, "from the fake", offset))
        self.cluster.wake()
        if fate.drop_after:
            stream.connection.abort("dropped by the test")
        elif not fate.silent and request.acks != 0:
            response = ProduceResponse(request.correlation_id, answers, fate.throttle_ms)
            self._spawn(self._answer(stream, response, fate.hold))

    def _append(self, topic_id: bytes, number: int, batch: memoryview) -> tuple[str, int]:
        topic = self.topic_by_id(topic_id)
        if topic is None:
            return "unknown_topic", -1
        partition = topic.partitions[number]
        if partition.leader != self.number:
            return "not_leader", -1
        limit = int(topic.configs.get("max.message.bytes", 1 << 20))
        if len(batch) > limit:
            return "batch_too_large", -1
        try:
            answer = partition.append(batch)
        except RaftlogError as error:
            return error.code, -1
        return (answer, -1) if isinstance(answer, str) else ("", answer)

    async def _answer(self, stream: Http2Stream, response: ProduceResponse, hold: asyncio.Event | None) -> None:
        if hold is not None:
            await hold.wait()
        if not stream.closed:
            stream.send(encode(response))

    async def _change(self, stream: Http2Stream, request: TransactionRequest) -> None:
        response = await self.cluster.transactions.answer(request)
        if response is None:
            stream.connection.abort("the answer is lost")
        elif not stream.closed:
            stream.send(encode(response))

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- API ----------------------------------------------------------------------------------------------------------

    async def _api(self, request: web.Request) -> web.Response:
        self.api_calls.append(f"{request.method} {request.path}")
        self.cluster.wake()
        if self.api_hangs:
            await asyncio.sleep(3600)
        if self.api_problem is not None:
            return web.json_response(self.api_problem, status=self.api_problem["status"])
        try:
            self.cluster.check(f"{request.method} {request.path}", request.headers.get("Authorization"))
            return await self._route(request)
        except RaftlogError as error:
            problem = {"code": error.code, "detail": error.detail, "status": error.status, "title": "no"}
            return web.json_response(problem, status=error.status, content_type="application/problem+json")

    async def _route(self, request: web.Request) -> web.Response:
        method, path = request.method, request.path.removeprefix("/v1/").split("/")
        if (method, path) == ("GET", ["cluster"]):
            return web.json_response(self._cluster())
        if (method, path) == ("POST", ["producers"]):
            self.cluster.producer_ids += 1
            return web.json_response({"producer_id": self.cluster.producer_ids, "producer_epoch": 0})
        if (method, path) == ("POST", ["offsets"]):
            return self._offsets(await request.read())
        if (method, request.path) == ("POST", TRANSACTIONS_PATH):
            return await self._transaction(request)
        if (method, path) == ("GET", ["topics"]):
            pattern = request.query.get("pattern", ".*")
            return web.json_response({"topics": [self._summary(one) for one in self.cluster.matching(pattern)]})
        if method == "GET" and path[0] == "topics" and len(path) == 2:
            self.cluster.describes += 1
            topic = self.behind.get(path[1]) or self.cluster.topics.get(path[1])
            if topic is None:
                raise InvalidRequest("unknown_topic", f"there is no topic {path[1]!r}")
            told = request.query.get("topic_id", topic.id.hex())
            if path[1] in self.behind and told != topic.id.hex() and not self.heedless:
                return web.json_response({"code": "metadata_behind", "detail": "cut off"}, status=503)
            return web.json_response(self.describe(topic))
        raise InvalidRequest("not_found", request.path)

    async def _transaction(self, request: web.Request) -> web.Response:
        asked, _ = decode_request(await request.read())
        assert isinstance(asked, TransactionRequest)
        response = await self.cluster.transactions.answer(asked)
        if response is None:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if isinstance(response, ErrorResponse):
            raise error_from_code(response.error, response.detail)
        return web.Response(body=b"".join(map(bytes, encode(response))), content_type=CONTENT_TYPE)  # type: ignore[arg-type]

    @staticmethod
    def _summary(topic: FakeTopic) -> dict[str, Any]:
        count = len(topic.partitions)
        return {"name": topic.name, "id": topic.id.hex(), "partition_count": count, "replication_factor": 1}

    def _cluster(self) -> dict[str, Any]:
        nodes = [
            {"id": node.number, "api": node.api_address, "data": node.data_address, "rack": "", "fenced": False,
             "incarnation": 1}
            for node in self.cluster.nodes.values()
        ]  # fmt: skip
        return {"cluster_id": "fake", "version": "0", "feature_level": 1, "controller": 1, "nodes": nodes}

    def describe(self, topic: FakeTopic) -> dict[str, Any]:
        numbers = sorted(self.cluster.nodes)
        partitions = [
            {"partition": p.number, "leader": None if p.leader < 0 else p.leader, "leader_epoch": p.leader_epoch,
             "partition_epoch": p.leader_epoch, "replicas": numbers, "isr": numbers, "commit_set": numbers,
             "not_eligible": [], "min_insync_replicas": 1}
            for p in topic.partitions
        ]  # fmt: skip
        return {
            "name": topic.name, "id": topic.id.hex(), "partition_count": len(partitions),
            "replication_factor": len(numbers), "configs": topic.configs, "partitions": partitions,
            "created_index": topic.created_index,
        }  # fmt: skip

    def _offsets(self, message: bytes) -> web.Response:
        request, _ = decode_request(message)
        assert isinstance(request, OffsetsRequest)
        found = []
        for asked in request.partitions:
            topic = self.topic_by_id(asked.topic_id)
            if topic is None:
                found.append(FoundOffset(asked.topic_id, asked.partition, "unknown_topic", "gone"))
                continue
            partition = topic.partitions[asked.partition]
            offset, time_ms = self._find(partition, asked.timestamp_ms)
            offset = min(offset, partition.last_stable_offset) if request.isolation else offset
            found.append(
                FoundOffset(asked.topic_id, asked.partition, "", "", offset, time_ms, partition.leader_epoch, 1)
            )
        body = b"".join(map(bytes, encode(OffsetsResponse(request.correlation_id, found))))  # type: ignore[arg-type]
        return web.Response(body=body, content_type=CONTENT_TYPE)

    @staticmethod
    def _find(partition: FakePartition, timestamp_ms: int) -> tuple[int, int]:
        if timestamp_ms < 0:
            return (partition.end_offset if timestamp_ms == -1 else partition.start_offset), -1
        for batch in map(RecordBatch, partition.batches):
            for offset, time_ms in zip(batch.offsets(), batch.timestamps_ms(), strict=True):
                if time_ms >= timestamp_ms:
                    return offset, time_ms
        return -1, -1
