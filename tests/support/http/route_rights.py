"""Every route of the HTTP API with the rights that it needs, and a request that is otherwise in order.

The table is written by hand: it has the promises of the API (`docs/http-api.md`), whatever the code does. A route that
is missing here fails the tests that enumerate the routes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from raftlog.records.batch import encode as encode_batch
from raftlog.security.acls import Operation, ResourceType
from raftlog.wire import (
    CONTENT_TYPE,
    TRANSACTIONS_PATH,
    FetchPartition,
    FetchRequest,
    InitializeRequest,
    OffsetQuery,
    OffsetsRequest,
    ProducePartition,
    ProduceRequest,
)
from raftlog.wire import encode as encode_message

TOPIC, GROUP, NAME, CLUSTER = (
    ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID, ResourceType.CLUSTER
)  # fmt: skip
READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = (
    Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE
)  # fmt: skip
DESCRIBE_CONFIGS, ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
IDEMPOTENT_WRITE = Operation.IDEMPOTENT_WRITE

Right = tuple[Operation, ResourceType]
JSON = "application/json"


class Case(msgspec.Struct, frozen=True):
    """One route."""

    needs: tuple[Right, ...] | str = ()
    """All rights that a request needs; `everybody`, `caller` (any authenticated one), `list` (shows what the caller
    may describe) or `stream` (any authenticated one; each watched document needs the rights of its own route)."""
    body: Any = None
    """JSON, or bytes of the client protocol."""
    query: str = ""
    names_in_body: bool = False
    """Whether the body names the resources: then it is read before the decision."""


TOPIC_ID = b"\x01" * 16
_BATCH = encode_batch([b"v"], base_timestamp_ms=1)


def raw(message: Any, *parts: bytes) -> bytes:
    """Return a message of the client protocol as a body."""
    (head,) = encode_message(message)
    assert isinstance(head, bytes)
    return head + b"".join(parts)


def cases(topic_id: bytes) -> dict[tuple[str, str], Case]:
    """Return the table; `topic_id` is that of topic `t`."""
    hex_id = topic_id.hex()
    produce = raw(ProduceRequest(0, -1, 1000, [ProducePartition(topic_id, 0, len(_BATCH))]), _BATCH)
    fetch = raw(FetchRequest(0, 0, 0, 1000, [FetchPartition(topic_id, 0, 0, 1000)]))
    offsets = raw(OffsetsRequest(0, [OffsetQuery(topic_id, 0, -1)]))
    partition = {"topic": "t", "partition": 0}
    output = {
        "producer_id": 12345,
        "producer_epoch": 0,
        "topics": [{"topic_id": hex_id, "end_offsets": [[0, 1]]}],
    }
    consumed = {"group": "g", "ranges": [{"topic_id": hex_id, "partition": 0, "start": -1, "end": 1}]}
    acl = {"principal": "User:bob", "operation": "read", "resource_type": "topic", "name": "t"}
    administrators = {
        ("GET", "/v1/cluster/reassignments"): (DESCRIBE, None),
        ("POST", "/v1/cluster/reassignments"): (ALTER, {"reassignments": [{**partition, "replicas": [1]}]}),
        ("POST", "/v1/cluster/plans"): (DESCRIBE, {}),
        ("POST", "/v1/cluster/elections"): (ALTER, {"partitions": [partition]}),
        ("DELETE", "/v1/cluster/brokers/{broker}"): (ALTER, None),
        ("GET", "/v1/cluster/brokers/{broker}/roll-check"): (DESCRIBE, None),
        ("GET", "/v1/replicas"): (DESCRIBE, None),
        ("GET", "/v1/scrub"): (DESCRIBE, None),
        ("POST", "/v1/scrub"): (ALTER, {}),
        ("GET", "/v1/quorum"): (DESCRIBE, None),
        ("GET", "/metrics"): (DESCRIBE, None),
        ("POST", "/v1/quorum/voters"): (ALTER, {"action": "add", "node": 3}),
        ("POST", "/v1/cluster/feature-level"): (ALTER, {"plan": True}),
        ("GET", "/v1/audit"): (ALTER, None),
        ("GET", "/v1/plots/nodes"): (DESCRIBE, None),
        ("GET", "/v1/users"): (DESCRIBE, None),
        ("POST", "/v1/users"): (ALTER, {"name": "carol"}),
        ("GET", "/v1/users/{user}"): (DESCRIBE, None),
        ("PATCH", "/v1/users/{user}"): (ALTER, {"superuser": False}),
        ("DELETE", "/v1/users/{user}"): (ALTER, None),
        ("GET", "/v1/users/{user}/tokens"): (DESCRIBE, None),
        ("POST", "/v1/users/{user}/tokens"): (ALTER, {}),
        ("DELETE", "/v1/users/{user}/tokens/{token}"): (ALTER, None),
        ("GET", "/v1/acls"): (DESCRIBE, None),
        ("POST", "/v1/acls"): (ALTER, {"acls": [acl]}),
        ("POST", "/v1/acls/delete"): (ALTER, {"dry_run": True}),
        ("POST", "/v1/acls/check"): (DESCRIBE, acl),
        ("GET", "/v1/quotas"): (DESCRIBE, None),
        ("PUT", "/v1/quotas/{entity}"): (ALTER, {"connections": 5}),
        ("DELETE", "/v1/quotas/{entity}"): (ALTER, None),
    }
    topics: dict[tuple[str, str], Case] = {
        ("GET", "/v1/topics"): Case("list"),
        ("POST", "/v1/topics"): Case(((CREATE, TOPIC),), {"name": "new"}, names_in_body=True),
        ("GET", "/v1/topics/{topic}"): Case(((DESCRIBE, TOPIC),)),
        ("PATCH", "/v1/topics/{topic}"): Case(((ALTER_CONFIGS, TOPIC),), {"set": {}}),
        ("DELETE", "/v1/topics/{topic}"): Case(((DELETE, TOPIC),)),
        ("POST", "/v1/topics/{topic}/partitions"): Case(((ALTER, TOPIC),), {"count": 3}),
        ("POST", "/v1/topics/{topic}/delete-records"): Case(
            ((DELETE, TOPIC),), {"partitions": [{"partition": 0, "before": "latest"}]}
        ),
        ("POST", "/v1/topics/{topic}/records"): Case(((WRITE, TOPIC),), {"records": [{"value": 1}]}),
        ("GET", "/v1/topics/{topic}/partitions/{partition}/records"): Case(((READ, TOPIC),)),
        ("GET", "/v1/topics/{topic}/partitions/{partition}/offsets"): Case(((DESCRIBE, TOPIC),)),
        ("POST", "/v1/produce"): Case(((WRITE, TOPIC),), produce),
        ("GET", "/v1/stream"): Case(((READ, TOPIC),), query="topic=t&start=earliest&duration_ms=100"),
        ("POST", "/v1/fetch"): Case(((READ, TOPIC),), fetch),
        ("POST", "/v1/offsets"): Case(((DESCRIBE, TOPIC),), offsets),
        ("GET", "/v1/explain/topics/{topic}/partitions/{partition}"): Case(((DESCRIBE, TOPIC),)),
        ("GET", "/v1/plots/topics/{topic}"): Case(((DESCRIBE, TOPIC),)),
        ("GET", "/v1/topics/{topic}/offsets"): Case(((DESCRIBE, TOPIC),)),
        ("POST", "/v1/producers"): Case(((IDEMPOTENT_WRITE, CLUSTER),)),
    }
    groups: dict[tuple[str, str], Case] = {
        ("GET", "/v1/groups"): Case("list"),
        ("GET", "/v1/groups/{group}"): Case(((DESCRIBE, GROUP),)),
        ("DELETE", "/v1/groups/{group}"): Case(((DELETE, GROUP),)),
        ("GET", "/v1/explain/groups/{group}"): Case(((DESCRIBE, GROUP),)),
        ("GET", "/v1/plots/groups/{group}"): Case(((DESCRIBE, GROUP),)),
        ("POST", "/v1/groups/{group}/members"): Case(((READ, GROUP), (READ, TOPIC)), {"topics": ["t"]}),
        ("DELETE", "/v1/groups/{group}/members/{member}"): Case(((READ, GROUP),), query="incarnation=1"),
        ("POST", "/v1/groups/{group}/members/{member}/heartbeat"): Case(((READ, GROUP),), {"incarnation": 1}),
        ("GET", "/v1/groups/{group}/offsets"): Case(((DESCRIBE, GROUP),)),
        ("POST", "/v1/groups/{group}/offsets"): Case(
            ((READ, GROUP), (READ, TOPIC)), {"offsets": [{**partition, "offset": 0}]}
        ),
        ("POST", "/v1/groups/{group}/offsets/delete"): Case(
            ((DELETE, GROUP), (READ, TOPIC)), {"topics": [{"topic": "t"}]}
        ),
        ("POST", "/v1/groups/{group}/seek"): Case(
            ((READ, GROUP), (READ, TOPIC)), {"to": "earliest", "topics": [{"topic": "t"}]}
        ),
    }
    groups |= {
        ("POST", "/v1/groups/{group}/leases"): Case(((READ, GROUP), (READ, TOPIC)), {"topics": ["t"]}),
        ("GET", "/v1/groups/{group}/leases"): Case(((DESCRIBE, GROUP),)),
        ("POST", "/v1/groups/{group}/leases/{lease}/acknowledge"): Case(((READ, GROUP),), {"offset": 1}),
        ("POST", "/v1/groups/{group}/leases/{lease}/renew"): Case(((READ, GROUP),), {}),
        ("DELETE", "/v1/groups/{group}/leases/{lease}"): Case(((READ, GROUP),)),
    }
    transactions: dict[tuple[str, str], Case] = {
        ("GET", "/v1/transactions"): Case("list"),
        ("POST", "/v1/transactions/initialize"): Case(((WRITE, NAME),), {"transactional_id": "x"}, names_in_body=True),
        ("POST", "/v1/transactions/blocks"): Case(((WRITE, NAME),), {"name": "n", "count": 1}, names_in_body=True),
        ("DELETE", "/v1/transactions/blocks/{name}"): Case(((WRITE, NAME),)),
        ("POST", "/v1/transactions/commit"): Case(
            ((IDEMPOTENT_WRITE, CLUSTER), (WRITE, TOPIC), (READ, GROUP), (READ, TOPIC), (WRITE, NAME)),
            {
                "transactions": [output],
                "group_offsets": [consumed],
                "positions": [{"name": "n", "current": -1, "new": 1}],
            },
            names_in_body=True,
        ),
        ("POST", "/v1/transactions/abort"): Case(
            ((IDEMPOTENT_WRITE, CLUSTER),),
            {"transactions": [{"producer_id": 12345, "producer_epoch": 0}]},
            names_in_body=True,
        ),
        ("GET", "/v1/transactions/{transactional_id}"): Case(((DESCRIBE, NAME),)),
        ("GET", "/v1/explain/transactions/{transactional_id}"): Case(((DESCRIBE, NAME),)),
        ("GET", "/v1/positions"): Case("list"),
        ("GET", "/v1/positions/{name}"): Case(((DESCRIBE, NAME),)),
        ("DELETE", "/v1/positions/{name}"): Case(((WRITE, NAME),), query="value=1"),
        ("POST", TRANSACTIONS_PATH): Case(((WRITE, NAME),), raw(InitializeRequest(0, "x", 1000)), names_in_body=True),
    }
    rest_proxy: dict[tuple[str, str], Case] = {
        ("GET", "/openapi/rest-proxy.json"): Case("caller"),
        ("GET", "/brokers"): Case("caller"),
        ("GET", "/topics"): Case("list"),
        ("GET", "/topics/{topic}"): Case(((DESCRIBE, TOPIC),)),
        ("POST", "/topics/{topic}"): Case(((WRITE, TOPIC),), {"records": [{"value": "MQ=="}]}),
        ("GET", "/topics/{topic}/partitions"): Case(((DESCRIBE, TOPIC),)),
        ("GET", "/topics/{topic}/partitions/{partition}"): Case(((DESCRIBE, TOPIC),)),
        ("POST", "/topics/{topic}/partitions/{partition}"): Case(((WRITE, TOPIC),), {"records": [{"value": "MQ=="}]}),
        ("GET", "/topics/{topic}/partitions/{partition}/offsets"): Case(((DESCRIBE, TOPIC),)),
        ("GET", "/topics/{topic}/partitions/{partition}/records"): Case(((READ, TOPIC),), query="offset=0&timeout=0"),
    }
    describe_topic, describe_group = Case(((DESCRIBE, TOPIC),)), Case(((DESCRIBE, GROUP),))
    kafka_acl = {
        "resource_type": "TOPIC", "resource_name": "t", "pattern_type": "LITERAL", "principal": "User:carol",
        "host": "*", "operation": "READ", "permission": "ALLOW",
    }  # fmt: skip
    record = {"value": {"type": "STRING", "data": "v"}}
    v3: dict[str, Case] = {
        "GET ": Case("caller"),
        "GET /brokers": Case("caller"),
        "GET /brokers/{broker}": Case("caller"),
        "GET /topics": Case("list"),
        "POST /topics": Case(((CREATE, TOPIC),), {"topic_name": "new"}, names_in_body=True),
        "GET /topics/-/partitions/-/reassignment": Case("list"),
        "GET /topics/{topic}": describe_topic,
        "PATCH /topics/{topic}": Case(((ALTER, TOPIC),), {"partitions_count": 3}),
        "DELETE /topics/{topic}": Case(((DELETE, TOPIC),)),
        "POST /topics/{topic}/records": Case(((WRITE, TOPIC),), record),
        "POST /topics/{topic}/records:batch": Case(((WRITE, TOPIC),), {"entries": [{"id": "1", **record}]}),
        "GET /topics/{topic}/configs": Case(((DESCRIBE_CONFIGS, TOPIC),)),
        "POST /topics/{topic}/configs:alter": Case(((ALTER_CONFIGS, TOPIC),), {"data": []}),
        "GET /topics/{topic}/configs/{config}": Case(((DESCRIBE_CONFIGS, TOPIC),)),
        "PUT /topics/{topic}/configs/{config}": Case(((ALTER_CONFIGS, TOPIC),), {"value": "1000"}),
        "DELETE /topics/{topic}/configs/{config}": Case(((ALTER_CONFIGS, TOPIC),)),
        "GET /topics/{topic}/partitions/-/reassignment": describe_topic,
        "GET /topics/{topic}/partitions": describe_topic,
        "GET /topics/{topic}/partitions/{partition}": describe_topic,
        "GET /topics/{topic}/partitions/{partition}/replicas": describe_topic,
        "GET /topics/{topic}/partitions/{partition}/replicas/{broker}": describe_topic,
        "GET /topics/{topic}/partitions/{partition}/reassignment": describe_topic,
        "GET /consumer-groups": Case("list"),
        "GET /consumer-groups/{group}": describe_group,
        "GET /consumer-groups/{group}/consumers": describe_group,
        "GET /consumer-groups/{group}/consumers/{consumer}": describe_group,
        "GET /consumer-groups/{group}/consumers/{consumer}/assignments": describe_group,
        "GET /consumer-groups/{group}/consumers/{consumer}/assignments/{topic}/partitions/{partition}": describe_group,
        "GET /consumer-groups/{group}/lags": describe_group,
        "GET /consumer-groups/{group}/lags/{topic}/partitions/{partition}": describe_group,
        "GET /consumer-groups/{group}/lag-summary": describe_group,
        "GET /acls": Case(((DESCRIBE, CLUSTER),)),
        "POST /acls": Case(((ALTER, CLUSTER),), kafka_acl),
        "DELETE /acls": Case(((ALTER, CLUSTER),), query="principal=User:carol"),
    }
    on_group = ((READ, GROUP),)
    with_topic = ((READ, GROUP), (READ, TOPIC))
    v2_partitions, instance = (
        {"partitions": [{"topic": "t", "partition": 0}]},
        "/consumers/{group}/instances/{instance}",
    )
    v2_offsets = {"offsets": [{"topic": "t", "partition": 0, "offset": 0}]}
    rest_proxy |= {
        ("POST", "/consumers/{group}"): Case(on_group, {"name": "m"}),
        ("DELETE", instance): Case(on_group),
        ("POST", f"{instance}/subscription"): Case(with_topic, {"topics": ["t"]}),
        ("GET", f"{instance}/subscription"): Case(on_group),
        ("DELETE", f"{instance}/subscription"): Case(on_group),
        ("POST", f"{instance}/assignments"): Case(with_topic, v2_partitions),
        ("GET", f"{instance}/assignments"): Case(on_group),
        ("POST", f"{instance}/positions"): Case(with_topic, v2_offsets),
        ("POST", f"{instance}/positions/beginning"): Case(with_topic, v2_partitions),
        ("POST", f"{instance}/positions/end"): Case(with_topic, v2_partitions),
        ("GET", f"{instance}/records"): Case(on_group, query="timeout=0"),
        ("POST", f"{instance}/offsets"): Case(with_topic, v2_offsets),
        ("GET", f"{instance}/offsets"): Case(with_topic, query="topic=t&partition=0"),
    }
    rest_proxy[("GET", "/v3/clusters")] = Case("caller")
    for key, case in v3.items():
        method, _, path = key.partition(" ")
        rest_proxy[(method, "/v3/clusters/{cluster}" + path)] = case
    return {
        **rest_proxy,
        **topics,
        **groups,
        **transactions,
        **{key: Case(((operation, CLUSTER),), body) for key, (operation, body) in administrators.items()},
        ("GET", "/v1/cluster"): Case("caller"),
        ("GET", "/v1/timeline"): Case("list"),
        ("GET", "/v1/cluster/partitions"): Case("list"),
        ("GET", "/v1/events"): Case("stream"),
        ("GET", "/v1/identity"): Case("caller"),
        ("GET", "/openapi.json"): Case("caller"),
        ("GET", "/"): Case("caller"),
        **{
            (method, f"/v1/{name}"): Case("everybody")
            for method in ("GET", "HEAD")
            for name in ("health", "live", "ready")
        },
    }


def filled(path: str, **names: str) -> str:
    """Return a path with names in place of its variables."""
    values = {
        "topic": "t",
        "partition": "0",
        "group": "g",
        "member": "m",
        "name": "n",
        "transactional_id": "x",
        "user": "bob",
        "token": "abcdefghijkl",
        "entity": "User:bob",
        "broker": "1",
        "cluster": "fake-cluster",
        "config": "retention.ms",
        "consumer": "m",
        "instance": "m",
        "lease": f"{bytes(16).hex()}-0-{7:016x}",
        "file": "viewer.js" if path.startswith("/docs") else "app.js",
        **names,
    }
    return path.format(**values)


def content_type_of(body: Any) -> str:
    return CONTENT_TYPE if isinstance(body, bytes) else JSON


def ways_to(right: Right) -> Sequence[Right]:
    """Return the rights of which each gives this one."""
    operation, kind = right
    ways = [right, (Operation.ALL, kind)]
    if operation is DESCRIBE_CONFIGS:
        ways.append((ALTER_CONFIGS, kind))
    if operation is DESCRIBE:
        ways += [(implying, kind) for implying in (READ, WRITE, DELETE, ALTER)]
    if right == (CREATE, TOPIC):
        ways.append((CREATE, CLUSTER))
    if operation is IDEMPOTENT_WRITE:
        ways.append((WRITE, TOPIC))
    return ways
