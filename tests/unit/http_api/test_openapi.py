"""`openapi.json` and the code say the same: every route, parameter, schema and problem code is in both."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import msgspec
import pytest

from http_api.app import CONSOLE_ROUTES, MESSAGE_ROUTES, REST_PROXY_ROUTES, ROUTES, VIEWER_ROUTES, build_app
from http_api.live import stream
from http_api.records import page as records_out
from http_api.routes import (
    audit,
    deletions,
    explain,
    fetch,
    group_offsets,
    groups,
    offsets,
    plots,
    produce,
    timeline,
    topics,
)
from http_api.routes.cluster import OPENAPI
from http_api.streams import asked as stream_query
from http_api.streams import cursor
from http_api.web.limits import (
    DEFAULT_READ_BYTES,
    DEFAULT_READ_RECORDS,
    MAX_READ_BYTES,
    MAX_READ_RECORDS,
    MAX_RECORDS_PER_REQUEST,
)
from http_api.web.middleware import ALWAYS_ANSWERED
from http_api.web.problems import problem
from raftlog import json_values
from raftlog.api import audit as api_audit
from raftlog.api import cluster as api_cluster
from raftlog.api import explain as api_explain
from raftlog.api import groups as api_groups
from raftlog.api import leases as api_leases
from raftlog.api import moves as api_moves
from raftlog.api import partitions as api_partitions
from raftlog.api import plots as api_plots
from raftlog.api import problems as api_problems
from raftlog.api import quorum as api_quorum
from raftlog.api import records as api_records
from raftlog.api import scrubs as api_scrubs
from raftlog.api import security as api_security
from raftlog.api import timeline as api_timeline
from raftlog.api import topics as api_topics
from raftlog.api import transactions as api_transactions
from raftlog.config import (
    DEFAULT_PRODUCE_TIMEOUT_MS,
    MAX_FETCH_WAIT_MS,
    MAX_PARTITIONS_PER_TOPIC,
    MAX_PRODUCE_TIMEOUT_MS,
    TOPIC_CONFIG_NAMES,
)
from raftlog.errors import CODES, RaftlogError
from raftlog.model import QuorumStatus
from raftlog.security.acls import Operation, PatternType, Permission, ResourceType
from raftlog.wire import CONTENT_TYPE
from tests.support.client.fake_broker import FakeBroker

DOCUMENT: dict[str, Any] = msgspec.json.decode(OPENAPI)
METHODS = ("get", "head", "post", "put", "patch", "delete", "options")
OPERATIONS: dict[tuple[str, str], dict[str, Any]] = {
    (method.upper(), path): {**operation, "parameters": [*item.get("parameters", []), *operation.get("parameters", [])]}
    for path, item in DOCUMENT["paths"].items()
    for method, operation in item.items()
    if method in METHODS
}


def resolve(node: Any) -> Any:
    """Return the object that a `$ref` names."""
    while "$ref" in node:
        target: Any = DOCUMENT
        for name in node["$ref"].removeprefix("#/").split("/"):
            target = target[name]
        node = target
    return node


def every_ref(node: Any) -> list[str]:
    if isinstance(node, list):
        return [found for item in node for found in every_ref(item)]
    if not isinstance(node, dict):
        return []
    own = [node["$ref"]] if "$ref" in node else []
    return own + [found for item in node.values() for found in every_ref(item)]


def test_every_route_is_described_and_every_description_is_a_route() -> None:
    assert {(method, path) for method, path, _ in ROUTES} == set(OPERATIONS)


def test_the_application_has_the_routes_of_the_table() -> None:
    app = build_app(FakeBroker())
    found = {(route.method, route.resource.canonical) for route in app.router.routes() if route.resource}
    trailing = {(method, path) for method, path in found if path.startswith("/consumers/") and path.endswith("/")}
    assert {(method, path.removesuffix("/")) for method, path in trailing} <= found
    assert found - trailing == {
        (method, path)
        for method, path, _ in (*ROUTES, *REST_PROXY_ROUTES, *CONSOLE_ROUTES, *VIEWER_ROUTES, *MESSAGE_ROUTES)
    }


def test_messages_of_the_client_protocol_have_paths_of_their_own() -> None:
    """These routes are not part of the versioned JSON API."""
    assert not [path for _, path, _ in MESSAGE_ROUTES if path.startswith("/v1/")]


def test_every_problem_code_is_described_with_its_status_and_nothing_else_is() -> None:
    assert set(DOCUMENT["components"]["schemas"]["Problem"]["properties"]["code"]["enum"]) == set(CODES)
    statuses: dict[str, int] = {}
    used = {(int(status), ref) for operation in OPERATIONS.values() for status, ref in _problem_refs(operation)}
    status_of = {ref: status for status, ref in used}
    for name, response in DOCUMENT["components"]["responses"].items():
        ref = f"#/components/responses/{name}"
        codes = response["x-problem-codes"]
        assert len({CODES[code].status for code in codes}) == 1, name
        assert status_of.get(ref, CODES[codes[0]].status) == CODES[codes[0]].status, name
        assert ("Retry-After" in response["headers"]) is any(CODES[code].retriable for code in codes), name
        statuses.update({code: CODES[code].status for code in codes})
    assert statuses == {code: row.status for code, row in CODES.items()}


def _problem_refs(operation: dict[str, Any]) -> list[tuple[str, str]]:
    return [(status, told["$ref"]) for status, told in operation["responses"].items() if "$ref" in told]


def test_what_is_named_is_there_and_what_is_there_is_named() -> None:
    refs = every_ref(DOCUMENT)
    for ref in refs:
        assert resolve({"$ref": ref})
    # Requirements name their schemes without a path.
    refs += [f"#/components/securitySchemes/{name}" for one in DOCUMENT["security"] for name in one]
    for kind, components in DOCUMENT["components"].items():
        for name in components:
            # Only the router itself refuses a method: no operation lists it.
            assert f"#/components/{kind}/{name}" in refs or name == "MethodNotAllowed", name


def test_every_operation_needs_a_credential_except_those_for_load_balancers() -> None:
    schemes = DOCUMENT["components"]["securitySchemes"]
    assert {(found["type"], found.get("scheme")) for found in schemes.values()} == {
        ("http", "bearer"), ("http", "basic"), ("mutualTLS", None)
    }  # fmt: skip
    assert DOCUMENT["security"] == [{name: []} for name in schemes], "one of them suffices"
    for (method, path), operation in OPERATIONS.items():
        refusals = {"401", "429"} & set(operation["responses"])
        if path in ALWAYS_ANSWERED:
            assert operation["security"] == [] and not refusals, (method, path)
        else:
            assert "security" not in operation and refusals == {"401", "429"}, (method, path)
            assert "403" in operation["responses"]


def test_access_rules_have_the_values_of_the_code() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    for name, kind in (("AclOperation", Operation), ("ResourceType", ResourceType), ("PatternType", PatternType)):
        assert schemas[name]["enum"] == [member.value for member in kind]
    assert schemas["Permission"]["enum"] == [member.value for member in Permission]
    assert schemas["CreateAcls"]["properties"]["acls"]["maxItems"] == api_security.MAX_RULES_PER_REQUEST
    lifetime = schemas["CreateToken"]["properties"]["expires_in_ms"]
    assert lifetime["maximum"] == api_security.MAX_TOKEN_LIFETIME_MS


def test_operation_ids_are_unique() -> None:
    ids = [operation["operationId"] for operation in OPERATIONS.values()]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("key", OPERATIONS, ids=lambda key: " ".join(key))
def test_query_and_path_parameters_are_those_of_the_code(key: tuple[str, str]) -> None:
    declared = {
        ("POST", "/v1/topics/{topic}/records"): {*produce.QUERY, *produce.REPEATABLE},
        ("GET", "/v1/topics/{topic}/partitions/{partition}/records"): set(fetch.QUERY),
        ("GET", "/v1/topics/{topic}/partitions/{partition}/offsets"): set(offsets.QUERY),
        ("GET", "/v1/topics"): set(topics.QUERY),
        ("GET", "/v1/topics/{topic}"): set(topics.DESCRIBE_QUERY),
        ("DELETE", "/v1/topics/{topic}"): set(topics.DELETE_QUERY),
        ("POST", "/v1/topics/{topic}/delete-records"): set(deletions.QUERY),
        ("GET", "/v1/groups/{group}/offsets"): set(group_offsets.QUERY),
        ("DELETE", "/v1/groups/{group}/members/{member}"): {"incarnation"},
        ("GET", "/v1/positions"): {"prefix"},
        ("GET", "/v1/explain/topics/{topic}/partitions/{partition}"): set(explain.PARTITION_QUERY),
        ("GET", "/v1/explain/groups/{group}"): set(explain.GROUP_QUERY),
        ("GET", "/v1/timeline"): set(timeline.QUERY),
        ("GET", "/v1/audit"): set(audit.QUERY),
        ("GET", "/v1/groups"): set(groups.LIST_QUERY),
        ("GET", "/v1/topics/{topic}/offsets"): set(offsets.TOPIC_QUERY),
        ("GET", "/v1/events"): set(stream.REPEATABLE),
        ("GET", "/v1/stream"): {*stream_query.QUERY, *stream_query.REPEATABLE},
        **{("GET", f"/v1/plots/{of}"): set(plots.QUERY) for of in ("topics/{topic}", "groups/{group}", "nodes")},
        ("DELETE", "/v1/positions/{name}"): {"value"},
    }
    parameters = [resolve(parameter) for parameter in OPERATIONS[key]["parameters"]]
    assert {found["name"] for found in parameters if found["in"] == "query"} == declared.get(key, set())
    assert {found["name"] for found in parameters if found["in"] == "path"} == {
        part[1:-1] for part in key[1].split("/") if part.startswith("{")
    }


def parameter(method: str, path: str, name: str) -> dict[str, Any]:
    parameters = map(resolve, OPERATIONS[(method, path)]["parameters"])
    found = [each for each in parameters if each.get("name") == name]
    schema: dict[str, Any] = found[0]["schema"]
    return schema


def test_bounds_and_defaults_are_those_of_the_code() -> None:
    read = ("GET", "/v1/topics/{topic}/partitions/{partition}/records")
    assert parameter(*read, "max_bytes")["maximum"] == MAX_READ_BYTES
    assert parameter(*read, "max_bytes")["default"] == DEFAULT_READ_BYTES
    assert parameter(*read, "max_records")["maximum"] == MAX_READ_RECORDS
    assert parameter(*read, "max_records")["default"] == DEFAULT_READ_RECORDS
    assert parameter(*read, "max_wait_ms")["maximum"] == MAX_FETCH_WAIT_MS
    write = ("POST", "/v1/topics/{topic}/records")
    assert parameter(*write, "timeout_ms")["maximum"] == MAX_PRODUCE_TIMEOUT_MS
    changes, lines = parameter("GET", "/v1/timeline", "limit"), parameter("GET", "/v1/audit", "limit")
    assert (changes["maximum"], changes["default"]) == (api_timeline.MAX_CHANGES, timeline.DEFAULT_CHANGES)
    for of in ("topics/{topic}", "groups/{group}", "nodes"):
        minutes = parameter("GET", f"/v1/plots/{of}", "minutes")
        assert (minutes["maximum"], minutes["default"]) == (api_plots.MAX_MINUTES, plots.DEFAULT_MINUTES)
    assert (lines["maximum"], lines["default"]) == (api_audit.MAX_LINES, audit.DEFAULT_LINES)
    assert parameter(*write, "timeout_ms")["default"] == DEFAULT_PRODUCE_TIMEOUT_MS
    heartbeat = parameter("GET", "/v1/stream", "heartbeat_ms")
    assert (heartbeat["minimum"], heartbeat["maximum"]) == (
        stream_query.LEAST_HEARTBEAT_MS,
        stream_query.MOST_HEARTBEAT_MS,
    )
    assert heartbeat["default"] == stream_query.DEFAULT_HEARTBEAT_MS
    assert parameter("GET", "/v1/stream", "duration_ms")["maximum"] == stream_query.MAX_DURATION_MS
    assert parameter("GET", "/v1/stream", "topic")["maxItems"] == cursor.MAX_TOPICS
    assert parameter("GET", "/v1/stream", "offset")["maxItems"] == cursor.MAX_PARTITIONS
    assert parameter("GET", "/v1/stream", "cursor")["maxLength"] == cursor.MAX_CURSOR
    schemas = DOCUMENT["components"]["schemas"]
    assert schemas["Records"]["properties"]["records"]["maxItems"] == MAX_RECORDS_PER_REQUEST
    assert set(schemas["Configs"]["propertyNames"]["enum"]) == set(TOPIC_CONFIG_NAMES)
    assert schemas["CreateTopic"]["properties"]["partitions"]["maximum"] == MAX_PARTITIONS_PER_TOPIC
    assert schemas["CreateTopic"]["properties"]["replication_factor"]["maximum"] == api_topics.MAX_REPLICATION_FACTOR


SUBJECTS = (
    api_audit, api_partitions, api_plots, api_timeline,
    api_cluster, api_explain, api_groups, api_moves, api_problems, api_quorum, api_records, api_scrubs, api_security,
    api_leases,
    api_topics,
    api_transactions,
)  # fmt: skip
SCHEMA_NAMES = {
    "ClusterInfo": "Cluster",
    "GroupInfo": "GroupDescription",
    "GroupMemberInfo": "MemberDescription",
    "GroupOffsetInfo": "GroupOffset",
    "HealthInfo": "Health",
    "MembershipInfo": "Membership",
    "MoveInfo": "PlannedMove",
    "NamedPosition": "PositionDescription",
    "NodeInfo": "Node",
    "PartitionError": "BatchError",
    "PartitionInfo": "PartitionDescription",
    "PositionList": "Positions",
    "PositionValue": "NamedPosition",
    "QuotaFields": "QuotaLimits",
    "QuotaInfo": "Quota",
    "QuorumInfo": "Quorum",
    "ReassignmentInfo": "ReassignmentDescription",
    "ReplicaInfo": "Replica",
    "TokenInfo": "Token",
    "TransactionInfo": "TransactionDescription",
    "UserInfo": "User",
    "VotersChange": "VotersChanged",
}
"""Struct → schema, where the names differ."""
INLINE = {
    "AccessDecision",
    "AllocateProducer",
    "LeaseInfo",
    "Problem",
    "Producer",
    "RecordPosition",
    "ThrottleInfo",
    "Topics",
}
"""Structs that the document describes where they are used or does not show; of `ThrottleInfo` it describes the
subclass, and of problems the members of every kind as well."""
MODELS: dict[str, type[msgspec.Struct]] = {
    "Record": json_values.RecordIn,
    "Header": json_values.HeaderIn,
    "ReadRecord": records_out.ReadRecord,
    **{
        SCHEMA_NAMES.get(name, name): kind
        for subject in SUBJECTS
        for name, kind in vars(subject).items()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == subject.__name__
        if name not in INLINE
    },
}


def test_the_status_of_the_quorum_is_answered_as_it_is() -> None:
    fields = msgspec.structs.fields(api_quorum.QuorumInfo)
    names = [field.name for field in dataclasses.fields(QuorumStatus)]
    assert [*names, "next_producer_id"] == [field.name for field in fields]


@pytest.mark.parametrize("name", MODELS)
def test_schemas_have_the_members_of_the_models(name: str) -> None:
    schema = DOCUMENT["components"]["schemas"][name]
    fields = msgspec.structs.fields(MODELS[name])
    assert set(schema["properties"]) == {field.encode_name for field in fields}
    reads = MODELS[name].__struct_config__.forbid_unknown_fields
    assert schema.get("additionalProperties", True) is not reads
    if reads and name != "Header":
        assert set(schema.get("required", [])) == {field.encode_name for field in fields if field.required}


def test_the_raw_media_type_is_the_one_of_the_wire() -> None:
    for path in ("/v1/produce", "/v1/fetch", "/v1/offsets"):
        operation = OPERATIONS[("POST", path)]
        assert set(operation["requestBody"]["content"]) == {CONTENT_TYPE}
        assert set(operation["responses"]["200"]["content"]) == {CONTENT_TYPE}


def test_the_media_types_of_records_are_those_of_the_code() -> None:
    content = OPERATIONS[("POST", "/v1/topics/{topic}/records")]["requestBody"]["content"]
    assert set(content) <= set(produce.RECORD_TYPES)
    assert len(content) == 4


@pytest.mark.parametrize("code", CODES)
def test_a_problem_has_the_members_that_the_schema_requires(code: str) -> None:
    body = problem(RaftlogError(code, "why"), "an-id").body
    assert isinstance(body, bytes)
    document = msgspec.json.decode(body)
    schema = DOCUMENT["components"]["schemas"]["Problem"]
    assert set(schema["required"]) <= set(document) <= set(schema["properties"])


def test_shown_values_are_what_the_schema_allows() -> None:
    from raftlog.json_values import Shown

    assert {kind.__name__ for kind in get_args(Shown)} == {"str", "Raw", "Binary", "NoneType"}


def test_a_throttle_without_moves_is_described() -> None:
    """The partitions of a reassignment have errors of their own; this one concerns the whole request."""
    answers = OPERATIONS["POST", "/v1/cluster/reassignments"]["responses"]
    assert "no_reassignment_in_progress" in resolve(answers["409"])["x-problem-codes"]
