"""Valid conversations with each port as bytes, in the pieces in which a client sends them.

HTTP/2's bytes come from the transport's own sans-I/O core, and messages from the wire module: what a client sends.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from http_api.app import MESSAGE_ROUTES, ROUTES
from metadata.quorum import protocol as qp
from partitions.replication import protocol as rp
from raftlog.broker.requests.forwarding import FORWARD_PATH
from raftlog.http2.core import ConnectionCore
from raftlog.http2.limits import Http2Limits
from raftlog.ports import FileRegion
from raftlog.records.batch import encode as encode_batch
from raftlog.wire import (
    FETCH_PATH,
    GROUPS_PATH,
    PRODUCE_PATH,
    TRANSACTIONS_PATH,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    FetchPartition,
    FetchRequest,
    GroupHeartbeat,
    GroupHeartbeatsRequest,
    GroupOffsetsRequest,
    InitializeRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    MemberHeartbeatRequest,
    OffsetQuery,
    OffsetsRequest,
    ProducePartition,
    ProduceRequest,
    Request,
    SessionFetchRequest,
    SlotToFetch,
    encode,
)
from tests.support.clusters.attack import lying_batches
from tests.support.clusters.forged import (
    Present,
    appends,
    is_credible,
    quorum_frames,
    replication_frames,
    replication_hello,
)
from tests.support.http.route_rights import cases, content_type_of, filled

PORTS = ("api", "data", "peers")
TOPIC = "t"
"""The topic that the captures name. The canary's topic is in none of them."""

ADMINISTRATIVE = (
    ("DELETE", "/v1/cluster/brokers/{broker}"),
    ("POST", "/v1/quorum/voters"),
    ("POST", "/v1/topics/{topic}/partitions"),
    ("DELETE", "/v1/topics/{topic}"),
    ("PUT", "/v1/quotas/{entity}"),
)
"""Left out where everybody is an administrator: a mutation of them may be a valid change that harms."""


@dataclass(frozen=True)
class Capture:
    """One conversation. `head` is sent as it is, and makes the node listen; the pieces after it are mutated, too."""

    name: str
    pieces: tuple[bytes, ...]


def captures(port: str, now: Present, *, host: str, authorization: str = "", plain: bool) -> list[Capture]:
    """Return the conversations with a port. `authorization`: the value of that header field; empty: there is none."""
    if port == "api":
        return _api(now, host, authorization, plain=plain)
    streams = _client_streams(now) if port == "data" else _peer_streams(now)
    return [
        Capture(f"{path} {number}", _http2(path, messages, host, authorization))
        for number, (path, messages) in enumerate(streams)
    ]


def _api(now: Present, host: str, authorization: str, *, plain: bool) -> list[Capture]:
    found = []
    table = cases(now.topic_id)
    for method, path, _ in (*ROUTES, *MESSAGE_ROUTES):
        if plain and (method, path) in ADMINISTRATIVE:
            continue
        case = table[method, path]
        body = b"" if case.body is None else case.body
        body = body if isinstance(body, bytes) else msgspec.json.encode(body)
        target = filled(path) + (f"?{case.query}" if case.query else "")
        fields = [f"Host: {host}", *([f"Authorization: {authorization}"] if authorization else [])]
        if body:
            fields += [f"Content-Type: {content_type_of(case.body)}", f"Content-Length: {len(body)}"]
        head = "\r\n".join([f"{method} {target} HTTP/1.1", *fields, "", ""]).encode()
        chunked = head.replace(f"Content-Length: {len(body)}".encode(), b"Transfer-Encoding: chunked")
        found.append(Capture(f"{method} {path}", (head, body, head, body)))
        if body:
            found.append(
                Capture(f"{method} {path} chunked", (chunked, b"%x\r\n%b\r\n" % (len(body), body), b"0\r\n\r\n"))
            )
    return found


def _client_streams(now: Present) -> list[tuple[str, list[bytes]]]:
    topic = now.topic_id
    batch = encode_batch([b"one", b"two"], base_timestamp_ms=1_700_000_000_000)
    member = ("fuzz-group", "member-1")

    def produce(*batches: bytes) -> bytes:
        parts = [ProducePartition(topic, 0, len(one)) for one in batches]
        return _message(ProduceRequest(1, -1, 1000, parts), *batches)

    return [
        (PRODUCE_PATH, [produce(batch), produce(batch, batch)]),
        *((PRODUCE_PATH, [produce(lie)]) for lie in lying_batches().values()),
        (FETCH_PATH, [_message(FetchRequest(2, 50, 1, 100_000, [FetchPartition(topic, 0, 0, 100_000)]))] * 2),
        (FETCH_PATH, [
            _message(SessionFetchRequest(3, 0, True, 50, 1, 100_000, [SlotToFetch(0, topic, 0, 0, 100_000)])),
            _message(SessionFetchRequest(4, 1, False, 50, 1, 100_000, [], [0])),
        ]),
        (FETCH_PATH, [_message(OffsetsRequest(5, [OffsetQuery(topic, 0, when) for when in (-1, -2, 5)]))]),
        (GROUPS_PATH, [
            _message(JoinGroupRequest(6, *member, "", "fuzz", [TOPIC], "", "", 10_000, 10_000)),
            _message(MemberHeartbeatRequest(7, *member, 1, 1)),
            _message(GroupOffsetsRequest(8, "fuzz-group")),
            _message(LeaveGroupRequest(9, *member, 1)),
        ]),
        (TRANSACTIONS_PATH, [_message(InitializeRequest(10, "fuzz-id", 1000))]),
    ]  # fmt: skip


def _peer_streams(now: Present) -> list[tuple[str, list[bytes]]]:
    streams: list[tuple[str, list[bytes]]] = []
    for node in (1, 2, 77):
        frames = [one for one in (*quorum_frames(node, now), *appends(now)) if not is_credible(one)]
        hello = qp.encode(qp.Hello(1, now.cluster_id, node, now.directory_id, "127.0.0.1", 1))
        streams += [(qp.QUORUM_PATH, [hello, *some]) for some in _in_threes(frames)]
        opening = replication_hello(node, now)
        streams += [(rp.REPLICATION_PATH, [opening, *some]) for some in _in_threes(replication_frames(now))]
    topic = now.topic_id
    batch = encode_batch([b"one"], base_timestamp_ms=1_700_000_000_000)
    forwarded: list[bytes] = [
        _message(ProduceRequest(1, -1, 1000, [ProducePartition(topic, 0, len(batch))], True), batch),
        _message(FetchRequest(2, 50, 1, 1000, [FetchPartition(topic, 0, 0, 1000)], forwarded=True)),
        _message(OffsetsRequest(3, [OffsetQuery(topic, 0, -1)], True)),
        _message(DeleteRecordsRequest(4, 1000, [DeleteRecordsPartition(topic, 0, 0)], True)),
        _message(GroupHeartbeatsRequest(5, [GroupHeartbeat("fuzz-group", "member-1", 1)])),
    ]
    return [*streams, (FORWARD_PATH, forwarded)]


def _in_threes(frames: Sequence[bytes]) -> list[Sequence[bytes]]:
    return [frames[start : start + 3] for start in range(0, len(frames), 3)]


def _message(request: Request, *batches: bytes) -> bytes:
    return _joined(encode(request, batches))


def _http2(path: str, messages: Iterable[bytes], host: str, authorization: str) -> tuple[bytes, ...]:
    """Return the bytes of a connection with one stream: a piece for each frame group that the core makes."""
    core = ConnectionCore(client=True, limits=Http2Limits(), now=0.0)
    pieces = [_joined(core.take_output(2**30))]
    headers = [("authorization", authorization)] if authorization else []
    stream = core.open_stream(path, host, "http", headers)
    core.outbox.max_frame_bytes = 2**24 - 1
    core.outbox.window = stream.send_window = 2**31 - 1
    pieces.append(_joined(core.take_output(2**30)))
    for message in messages:
        core.send(stream, [message])
        pieces.append(_joined(core.take_output(2**30)))
    core.end(stream)
    pieces.append(_joined(core.take_output(2**30)))
    return tuple(pieces)


def _joined(parts: Iterable[object]) -> bytes:
    assert not any(isinstance(part, FileRegion) for part in parts)
    return b"".join(bytes(part) for part in parts)  # type: ignore[call-overload]


def any_of(found: Sequence[Capture], rng: random.Random) -> Capture:
    """Return a random conversation."""
    return found[rng.randrange(len(found))]
