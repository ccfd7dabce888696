"""`openapi.json` and the code say the same: every route, parameter, schema and problem code is in both."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from http_api.app import ROUTES, build_app
from http_api.models import groups as models_groups
from http_api.models import moves as models_moves
from http_api.models import scrubs as models_scrubs
from http_api.models import topics as models
from http_api.models import transactions as models_transactions
from http_api.records import page as records_out
from http_api.records import parse as records_in
from http_api.routes import cluster, deletions, fetch, group_offsets, offsets, produce, topics, voters
from http_api.routes.cluster import OPENAPI
from http_api.web.limits import (
    DEFAULT_PRODUCE_TIMEOUT_MS,
    DEFAULT_READ_BYTES,
    DEFAULT_READ_RECORDS,
    MAX_READ_BYTES,
    MAX_READ_RECORDS,
    MAX_RECORDS_PER_REQUEST,
)
from http_api.web.problems import problem
from raftlog.config import MAX_FETCH_WAIT_MS, MAX_PARTITIONS_PER_TOPIC, MAX_PRODUCE_TIMEOUT_MS, TOPIC_CONFIG_NAMES
from raftlog.errors import CODES, RaftlogError
from raftlog.wire import CONTENT_TYPE
from tests.support.fake_broker import FakeBroker

DOCUMENT: dict[str, Any] = msgspec.json.decode(OPENAPI)
METHODS = ("get", "head", "post", "put", "patch", "delete", "options")
OPERATIONS: dict[tuple[str, str], dict[str, Any]] = {
    (method.upper(), path): {**operation, "parameters": [*item.get("parameters", []), *operation.get("parameters", [])]}
    for path, item in DOCUMENT["paths"].items()
    for method, operation in item.items()
    if method in METHODS
}


def resolve(node: Any) -> Any:
    """What a `$ref` names."""
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
    assert {(route.method, route.resource.canonical) for route in app.router.routes() if route.resource} == {
        (method, path) for method, path, _ in ROUTES
    }


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
    for kind, components in DOCUMENT["components"].items():
        for name in components:
            # Only the router itself refuses a method: no operation lists it.
            assert f"#/components/{kind}/{name}" in refs or name == "MethodNotAllowed", name


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
        ("DELETE", "/v1/positions/{name}"): {"value"},
    }
    parameters = [resolve(parameter) for parameter in OPERATIONS[key]["parameters"]]
    assert {found["name"] for found in parameters if found["in"] == "query"} == declared.get(key, set())
    assert {found["name"] for found in parameters if found["in"] == "path"} == {
        part[1:-1] for part in key[1].split("/") if part.startswith("{")
    }


def parameter(method: str, path: str, name: str) -> dict[str, Any]:
    found = [each for each in OPERATIONS[(method, path)]["parameters"] if each.get("name") == name]
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
    assert parameter(*write, "timeout_ms")["default"] == DEFAULT_PRODUCE_TIMEOUT_MS
    schemas = DOCUMENT["components"]["schemas"]
    assert schemas["Records"]["properties"]["records"]["maxItems"] == MAX_RECORDS_PER_REQUEST
    assert set(schemas["Configs"]["propertyNames"]["enum"]) == set(TOPIC_CONFIG_NAMES)
    assert schemas["CreateTopic"]["properties"]["partitions"]["maximum"] == MAX_PARTITIONS_PER_TOPIC
    assert schemas["CreateTopic"]["properties"]["replication_factor"]["maximum"] == models.MAX_REPLICATION_FACTOR


MODELS: dict[str, type[msgspec.Struct]] = {
    "CreateTopic": models.CreateTopic,
    "AlterTopic": models.AlterTopic,
    "AddPartitions": models.AddPartitions,
    "DeleteRecords": models.DeleteRecords,
    "DeleteBefore": models.DeleteBefore,
    "PartitionDeletion": models.PartitionDeletion,
    "DeletedRecords": models.DeletedRecords,
    "TopicSummary": models.TopicSummary,
    "TopicDescription": models.TopicDescription,
    "PartitionDescription": models.PartitionDescription,
    "Node": models.Node,
    "Cluster": models.Cluster,
    "Health": models.Health,
    "OffsetRange": models.OffsetRange,
    "OffsetOfTime": models.OffsetOfTime,
    "ProducedBatch": models.ProducedBatch,
    "ProducedRecords": models.ProducedRecords,
    "Record": records_in.RecordIn,
    "Header": records_in.HeaderIn,
    "ReadRecord": records_out.ReadRecord,
    "ReadRecords": fetch._Records,
    "Reassignment": models_moves.Reassignment,
    "Throttle": models_moves.Throttle,
    "AlterReassignments": models_moves.AlterReassignments,
    "Plan": models_moves.Plan,
    "NamedPartition": models_moves.NamedPartition,
    "Elect": models_moves.Elect,
    "PartitionOutcome": models_moves.PartitionOutcome,
    "PartitionOutcomes": models_moves.PartitionOutcomes,
    "ReassignmentDescription": models_moves.ReassignmentDescription,
    "Reassignments": models_moves.Reassignments,
    "PlannedMove": models_moves.PlannedMove,
    "PlannedMoves": models_moves.PlannedMoves,
    "Replica": models_moves.Replica,
    "Replicas": models_moves.Replicas,
    "StartScrub": models_scrubs.StartScrub,
    "ScrubFinding": models_scrubs.ScrubFinding,
    "Scrub": models_scrubs.Scrub,
    **{
        name: getattr(models_groups, name)
        for name in (
            "JoinGroup",
            "AssignedTopic",
            "ReleasedTopic",
            "Heartbeat",
            "Membership",
            "GroupSummary",
            "Groups",
            "MemberDescription",
            "GroupDescription",
            "GroupOffset",
            "GroupOffsets",
            "OffsetToCommit",
            "CommitOffsets",
            "SeekTopic",
            "SeekGroup",
            "SoughtOffset",
            "SoughtGroup",
        )
    },
    **{
        name: getattr(models_transactions, name)
        for name in (
            "InitializeProducer",
            "OpenBlock",
            "ProducerIdBlock",
            "NamedTransaction",
            "OutputTopic",
            "TransactionOutput",
            "ConsumedRange",
            "ConsumedOffsets",
            "PositionMove",
            "CommitTransactions",
            "AbortTransactions",
            "ProducerKey",
            "EndedTransactions",
            "TransactionPartition",
            "TransactionDescription",
            "Transactions",
            "NamedPosition",
        )
    },
    "ChangeVoters": voters.ChangeVoters,
    "FinalizeFeatureLevel": cluster.FinalizeFeatureLevel,
    "FeatureLevelFinalized": cluster.FeatureLevelFinalized,
    "VotersChanged": voters.VotersChanged,
}


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
