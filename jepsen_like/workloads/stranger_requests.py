"""Everything that a stranger asks of a node: a valid request for each route of the API, and for each path of the data
listener. Pure.

Everything that a stranger would make has `MARK` in its name, and its records have the value `VALUE`, so that whatever
came of a request is found in the cluster. Nothing here would do harm beyond that if it were carried out once.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from raftlog.model import ProducerEpoch, ProducerId
from raftlog.records.batch import encode as encode_batch
from raftlog.transactions import TransactionKey
from raftlog.wire import (
    FETCH_PATH,
    GROUPS_PATH,
    PRODUCE_PATH,
    TRANSACTIONS_PATH,
    AbortRequest,
    CommitOffsetsRequest,
    CommitRequest,
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
    OffsetToCommit,
    OpenBlockRequest,
    PositionMove,
    ProducePartition,
    ProduceRequest,
    RemovePositionRequest,
    Request,
    RetireBlockRequest,
    SessionFetchRequest,
    SlotToFetch,
    TransactionOutput,
    encode,
)

MARK = "intruder"
VALUE = -1_666
"""No workload writes negative numbers."""
FORWARD_PATH, REPLICATION_PATH, QUORUM_PATH = "/raftlog.forward", "/raftlog.replication", "/raftlog.quorum"
NODE_LINKS = (REPLICATION_PATH, QUORUM_PATH, "/raftlog.instances", "/raftlog.explain", "/raftlog.plots")
NODE_PATHS = (FORWARD_PATH, *NODE_LINKS)
TO_USERS = (
    "/",
    "/v1/identity",
    "/openapi.json",
    "/openapi/rest-proxy.json",
    "/v1/cluster",
    "/brokers",
    "/v3/clusters",
    "/v1/events",
    "/v1/no-such-path",
)
"""Answered to every user: itself, the paths, the addresses of the nodes, and that there is no such path."""
OPEN_PATHS = ("/v1/health", "/v1/live", "/v1/ready")
"""Answered to everybody, without details."""

API, DATA = "api", "data"
_LEASE = f"{bytes(16).hex()}-0-{7:016x}"
_KEY = TransactionKey(ProducerId(1), ProducerEpoch(0))


@dataclass(frozen=True, slots=True)
class Door:
    """One request at one place of a node."""

    listener: str
    """`API` or `DATA`."""
    path: str
    method: str = "POST"
    content: bytes = b""
    """The body of an HTTP request, or the message of a stream."""
    media_type: str = "application/json"
    name: str = ""
    to_users: bool = False
    """Whether every user is answered, whatever its rules are."""
    by_nodes: bool = False
    """Whether only nodes may use it."""

    def __str__(self) -> str:
        return f"{self.method} {self.path}{' ' if self.name else ''}{self.name}"


def api_doors(topic: str, topic_id: str, cluster_id: str) -> list[Door]:
    """Return a request for each route but the two that are open to everybody."""
    found = [
        Door(API, path, method, b"" if body is None else msgspec.json.encode(body))
        for method, path, body in (*_of_api(topic), *_of_rest_proxy(topic, cluster_id))
    ]
    for door in data_doors(bytes.fromhex(topic_id), forwarded=False):
        if door.name in ("ProduceRequest", "FetchRequest", "OffsetsRequest"):
            path = {"ProduceRequest": PRODUCE_PATH, "FetchRequest": FETCH_PATH}.get(door.name, "/v1/offsets")
            found.append(Door(API, path, "POST", door.content, "application/vnd.raftlog.v1"))
    cluster = f"/v3/clusters/{cluster_id}"
    paths = (*TO_USERS, cluster, f"{cluster}/brokers", f"{cluster}/brokers/0")
    own = [Door(API, path, "GET", to_users=True) for path in paths]
    return found + own


def _of_api(topic: str) -> list[tuple[str, str, Any]]:
    """Return method, path and document of each."""
    moves = {"topic": topic, "partition": 0}
    offsets = [{"topic": topic, "partition": 0, "offset": 0}]
    commit = {"positions": [{"name": MARK, "current": -1, "new": 1}]}
    return [
        ("GET", "/v1/topics", None),
        ("POST", "/v1/topics", {"name": MARK, "partitions": 1}),
        ("POST", "/v1/topics", {"name": MARK, "restored_producer_ids_below": 2**60}),
        ("GET", f"/v1/topics/{topic}", None),
        ("PATCH", f"/v1/topics/{topic}", {"set": {"max.message.bytes": "1000000"}}),
        ("DELETE", f"/v1/topics/{topic}", None),
        ("POST", f"/v1/topics/{topic}/partitions", {"count": 1_000}),
        ("POST", f"/v1/topics/{topic}/delete-records", {"partitions": [{"partition": 0, "before": "latest"}]}),
        ("POST", f"/v1/topics/{topic}/records", {"records": [{"value": str(VALUE), "partition": 0}]}),
        ("GET", f"/v1/topics/{topic}/partitions/0/records?offset=0", None),
        ("GET", f"/v1/topics/{topic}/partitions/0/offsets", None),
        ("GET", f"/v1/stream?topic={topic}&start=earliest&duration_ms=100", None),
        ("POST", "/v1/producers", {}),
        ("GET", f"/v1/explain/topics/{topic}/partitions/0", None),
        ("GET", f"/v1/explain/groups/{MARK}", None),
        ("GET", f"/v1/explain/transactions/{MARK}", None),
        ("GET", "/v1/groups", None),
        ("GET", f"/v1/groups/{MARK}", None),
        ("DELETE", f"/v1/groups/{MARK}", None),
        ("POST", f"/v1/groups/{MARK}/members", {"topics": [topic]}),
        ("DELETE", f"/v1/groups/{MARK}/members/{MARK}?incarnation=1", None),
        ("POST", f"/v1/groups/{MARK}/members/{MARK}/heartbeat", {"incarnation": 1}),
        ("GET", f"/v1/groups/{MARK}/offsets", None),
        ("POST", f"/v1/groups/{MARK}/offsets", {"offsets": offsets}),
        ("POST", f"/v1/groups/{MARK}/offsets/delete", {"topics": [{"topic": topic}]}),
        ("POST", f"/v1/groups/{MARK}/leases", {"topics": [topic]}),
        ("GET", f"/v1/groups/{MARK}/leases", None),
        ("POST", f"/v1/groups/{MARK}/leases/{_LEASE}/acknowledge", {}),
        ("POST", f"/v1/groups/{MARK}/leases/{_LEASE}/renew", {}),
        ("DELETE", f"/v1/groups/{MARK}/leases/{_LEASE}", None),
        ("POST", f"/v1/groups/{MARK}/seek", {"to": "earliest", "topics": [{"topic": topic}]}),
        ("GET", "/v1/transactions", None),
        ("POST", "/v1/transactions/initialize", {"transactional_id": MARK}),
        ("POST", "/v1/transactions/blocks", {"count": 1, "name": MARK}),
        ("DELETE", f"/v1/transactions/blocks/{MARK}", None),
        ("POST", "/v1/transactions/commit", commit),
        ("POST", "/v1/transactions/abort", {"transactions": [{"producer_id": 1, "producer_epoch": 0}]}),
        ("GET", f"/v1/transactions/{MARK}", None),
        ("GET", "/v1/positions", None),
        ("GET", f"/v1/positions/{MARK}", None),
        ("DELETE", f"/v1/positions/{MARK}?value=1", None),
        ("GET", "/v1/cluster/reassignments", None),
        ("POST", "/v1/cluster/reassignments", {"partitions": [{**moves, "replicas": [0]}]}),
        ("POST", "/v1/cluster/plans", {"drain": [0]}),
        ("POST", "/v1/cluster/elections", {"partitions": [moves]}),
        ("DELETE", "/v1/cluster/brokers/0", None),
        ("GET", "/v1/cluster/brokers/0/roll-check", None),
        ("GET", "/v1/replicas", None),
        ("GET", "/metrics", None),
        ("GET", "/v1/scrub", None),
        ("POST", "/v1/scrub", {}),
        ("GET", "/v1/quorum", None),
        ("POST", "/v1/cluster/feature-level", {"level": 1}),
        ("POST", "/v1/quorum/voters", {"node_id": 99}),
        *_of_security(topic),
        *[("GET", f"/v1/plots/{of}", None) for of in (f"topics/{topic}", f"groups/{MARK}", "nodes")],
        *[("GET", path, None) for path in (f"/v1/topics/{topic}/offsets", "/v1/cluster/partitions")],
        ("GET", "/v1/timeline", None),
        ("GET", "/v1/audit", None),
    ]  # fmt: skip


def _of_security(topic: str) -> list[tuple[str, str, Any]]:
    """Return those about users, tokens, rules and quotas."""
    rule = {"principal": f"User:{MARK}", "operation": "all", "resource_type": "topic", "name": "*"}
    return [
        ("GET", "/v1/users", None),
        ("POST", "/v1/users", {"name": MARK, "superuser": True}),
        ("GET", "/v1/users/admin", None),
        ("PATCH", "/v1/users/admin", {"password": "a password of an intruder"}),
        ("DELETE", "/v1/users/admin", None),
        ("GET", "/v1/users/admin/tokens", None),
        ("POST", "/v1/users/admin/tokens", {"description": MARK}),
        ("DELETE", "/v1/users/admin/tokens/aaaaaaaaaaaa", None),
        ("GET", "/v1/acls", None),
        ("POST", "/v1/acls", {"acls": [rule]}),
        ("POST", "/v1/acls/delete", {"resource_type": "topic"}),
        ("POST", "/v1/acls/check", {"principal": "User:admin", "operation": "read", "resource_type": "topic",
                                    "name": topic}),
        ("GET", "/v1/quotas", None),
        ("PUT", f"/v1/quotas/User:{MARK}", {"requests_per_second": 1}),
        ("DELETE", "/v1/quotas/User:admin", None),
    ]  # fmt: skip


def _of_rest_proxy(topic: str, cluster_id: str) -> list[tuple[str, str, Any]]:
    """Return method, path and document of each."""
    encoded = base64.b64encode(str(VALUE).encode()).decode()
    instance, partitions = f"/consumers/{MARK}/instances/{MARK}", {"partitions": [{"topic": topic, "partition": 0}]}
    return [
        ("GET", "/topics", None),
        ("GET", f"/topics/{topic}", None),
        ("POST", f"/topics/{topic}", {"records": [{"value": encoded}]}),
        ("GET", f"/topics/{topic}/partitions", None),
        ("GET", f"/topics/{topic}/partitions/0", None),
        ("POST", f"/topics/{topic}/partitions/0", {"records": [{"value": encoded}]}),
        ("GET", f"/topics/{topic}/partitions/0/offsets", None),
        ("GET", f"/topics/{topic}/partitions/0/records?offset=0", None),
        ("POST", f"/consumers/{MARK}", {"name": MARK}),
        ("DELETE", instance, None),
        ("POST", f"{instance}/subscription", {"topics": [topic]}),
        ("GET", f"{instance}/subscription", None),
        ("DELETE", f"{instance}/subscription", None),
        ("POST", f"{instance}/assignments", partitions),
        ("GET", f"{instance}/assignments", None),
        ("POST", f"{instance}/positions", {"offsets": [{"topic": topic, "partition": 0, "offset": 0}]}),
        ("POST", f"{instance}/positions/beginning", partitions),
        ("POST", f"{instance}/positions/end", partitions),
        ("GET", f"{instance}/records?timeout=0", None),
        ("POST", f"{instance}/offsets", {"offsets": [{"topic": topic, "partition": 0, "offset": 0}]}),
        ("GET", f"{instance}/offsets?topic={topic}&partition=0", None),
        *[(method, f"/v3/clusters/{cluster_id}{path}", body) for method, path, body in _of_version_3(topic)],
    ]  # fmt: skip


def _of_version_3(topic: str) -> list[tuple[str, str, Any]]:
    """Return method, path below the cluster and document of each."""
    record = {"partition_id": 0, "value": {"type": "STRING", "data": str(VALUE)}}
    of_topic, group = f"/topics/{topic}", f"/consumer-groups/{MARK}"
    consumer = f"{group}/consumers/{MARK}"
    rule = {
        "resource_type": "TOPIC",
        "resource_name": "*",
        "pattern_type": "LITERAL",
        "principal": f"User:{MARK}",
        "host": "*",
        "operation": "READ",
        "permission": "ALLOW",
    }
    return [
        ("GET", "/topics", None),
        ("POST", "/topics", {"topic_name": MARK}),
        ("GET", "/topics/-/partitions/-/reassignment", None),
        ("GET", of_topic, None),
        ("PATCH", of_topic, {"partitions_count": 1_000}),
        ("DELETE", of_topic, None),
        ("POST", f"{of_topic}/records", record),
        ("POST", f"{of_topic}/records:batch", {"entries": [{"id": "1", **record}]}),
        ("GET", f"{of_topic}/configs", None),
        ("POST", f"{of_topic}/configs:alter", {"data": [{"name": "max.message.bytes", "value": "1000000"}]}),
        ("GET", f"{of_topic}/configs/retention.ms", None),
        ("PUT", f"{of_topic}/configs/max.message.bytes", {"value": "1000000"}),
        ("DELETE", f"{of_topic}/configs/max.message.bytes", None),
        ("GET", f"{of_topic}/partitions/-/reassignment", None),
        ("GET", f"{of_topic}/partitions", None),
        ("GET", f"{of_topic}/partitions/0", None),
        ("GET", f"{of_topic}/partitions/0/replicas", None),
        ("GET", f"{of_topic}/partitions/0/replicas/0", None),
        ("GET", f"{of_topic}/partitions/0/reassignment", None),
        ("GET", "/consumer-groups", None),
        ("GET", group, None),
        ("GET", f"{group}/consumers", None),
        ("GET", consumer, None),
        ("GET", f"{consumer}/assignments", None),
        ("GET", f"{consumer}/assignments/{topic}/partitions/0", None),
        ("GET", f"{group}/lags", None),
        ("GET", f"{group}/lags/{topic}/partitions/0", None),
        ("GET", f"{group}/lag-summary", None),
        ("GET", "/acls", None),
        ("POST", "/acls", rule),
        ("DELETE", "/acls?resource_type=TOPIC", None),
    ]  # fmt: skip


def data_doors(topic_id: bytes, *, forwarded: bool) -> list[Door]:
    """Return a message for each request of each path; `forwarded`: on the path of other nodes, with a caller."""
    batch = bytes(encode_batch([str(VALUE).encode()], base_timestamp_ms=0))
    group, within = GROUPS_PATH, 1_000
    targets = [ProducePartition(topic_id, 0, len(batch))]
    asked: list[tuple[str, Request, Sequence[bytes]]] = [
        (PRODUCE_PATH, ProduceRequest(1, -1, within, targets), [batch]),
        (PRODUCE_PATH, ProduceRequest(1, -1, within, targets, restored=True), [batch]),
        (FETCH_PATH, fetch_request(topic_id, 1), ()),
        (FETCH_PATH, OffsetsRequest(1, [OffsetQuery(topic_id, 0, -1)]), ()),
    ]
    if forwarded:
        heartbeats = GroupHeartbeatsRequest(1, [GroupHeartbeat(MARK, MARK, 1)])
        deleted = DeleteRecordsRequest(1, within, [DeleteRecordsPartition(topic_id, 0, -1)])
        asked += [("", heartbeats, ()), ("", deleted, ())]
        head = superuser_head()
        return [
            Door(DATA, FORWARD_PATH, "POST", before + _packed(request, body), name=type(request).__name__ + told,
                 by_nodes=True)
            for _, request, body in asked
            for before, told in ((head, " of a superuser"), (b"", " without a caller"))
        ]  # fmt: skip
    slots = [SlotToFetch(1, topic_id, 0, 0, 1 << 16)]
    output = TransactionOutput(_KEY.producer_id, _KEY.producer_epoch, ())
    asked += [
        (FETCH_PATH, SessionFetchRequest(1, 1, True, 0, 1, 1 << 20, slots), ()),
        (group, JoinGroupRequest(1, MARK, MARK, "", MARK, [], ".*", "uniform", 9_000, 9_000), ()),
        (group, MemberHeartbeatRequest(1, MARK, MARK, 1, 1), ()),
        (group, LeaveGroupRequest(1, MARK, MARK, 1), ()),
        (group, CommitOffsetsRequest(1, MARK, "", 0, 0, [OffsetToCommit(topic_id, 0, 1)]), ()),
        (group, GroupOffsetsRequest(1, MARK), ()),
        (TRANSACTIONS_PATH, InitializeRequest(1, MARK, 60_000), ()),
        (TRANSACTIONS_PATH, OpenBlockRequest(1, MARK, 1, 60_000), ()),
        (TRANSACTIONS_PATH, OpenBlockRequest(1, "", 1, 60_000), ()),
        (TRANSACTIONS_PATH, RetireBlockRequest(1, MARK), ()),
        (TRANSACTIONS_PATH, CommitRequest(1, (), positions=(PositionMove(MARK, -1, 1),)), ()),
        (TRANSACTIONS_PATH, CommitRequest(1, (output,)), ()),
        (TRANSACTIONS_PATH, AbortRequest(1, (_KEY,)), ()),
        (TRANSACTIONS_PATH, RemovePositionRequest(1, MARK, 1), ()),
    ]
    return [
        Door(DATA, path, "POST", _packed(request, body), name=type(request).__name__) for path, request, body in asked
    ]


def node_doors(topic_id: bytes) -> list[Door]:
    """Return messages for the paths of other nodes."""
    others = [Door(DATA, path, "POST", b"\x93\xa7hello.1", by_nodes=True) for path in NODE_LINKS]
    return [*data_doors(topic_id, forwarded=True), *others]


def fetch_request(topic_id: bytes, number: int, *, wait_ms: int = 0, partitions: int = 1) -> FetchRequest:
    """Return a fetch from the beginning of some partitions."""
    wanted = [FetchPartition(topic_id, partition, 0, 1 << 12) for partition in range(partitions)]
    return FetchRequest(number, wait_ms, 1, 1 << 16, wanted)


def superuser_head() -> bytes:
    """Return the part that goes before a forwarded message, written as a forged one: the administrator's."""
    packed = msgspec.msgpack.encode(["caller.1", "admin", [], "127.0.0.1", True, "token"])
    return len(packed).to_bytes(4, "big") + packed


def traces(documents: Mapping[str, Any]) -> list[str]:
    """Return what bears the mark in the cluster's documents, by name."""
    return [name for name, document in documents.items() if MARK in msgspec.json.encode(document).decode()]


def _packed(request: Request, body: Sequence[bytes]) -> bytes:
    return b"".join(map(bytes, encode(request, body)))  # type: ignore[arg-type]
