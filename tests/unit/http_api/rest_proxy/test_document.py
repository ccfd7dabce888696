"""The OpenAPI document of the REST Proxy API and the code say the same."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from http_api.app import REST_PROXY_ROUTES
from http_api.rest_proxy.document import OPENAPI
from http_api.rest_proxy.errors import V3_CODES, RestError, status_and_code
from http_api.rest_proxy.v2 import consumer_reads, consumers, embedded, produce, records, topics
from http_api.rest_proxy.v2.media_types import EMBEDDED, V2_TYPE, type_of
from http_api.rest_proxy.v3 import acls as v3_acls
from http_api.rest_proxy.v3 import cluster as v3_cluster
from http_api.rest_proxy.v3 import configs as v3_configs
from http_api.rest_proxy.v3 import entries as v3_entries
from http_api.rest_proxy.v3 import groups as v3_groups
from http_api.rest_proxy.v3 import partitions as v3_partitions
from http_api.rest_proxy.v3 import records as v3_records
from http_api.rest_proxy.v3 import resources as v3_resources
from http_api.rest_proxy.v3 import topics as v3_topics
from http_api.web.limits import DEFAULT_READ_BYTES, MAX_READ_BYTES, MAX_RECORDS_PER_REQUEST
from raftlog.config import MAX_FETCH_WAIT_MS
from raftlog.errors import CODES, RaftlogError

DOCUMENT: dict[str, Any] = msgspec.json.decode(OPENAPI)
OPERATIONS: dict[tuple[str, str], dict[str, Any]] = {
    (method.upper(), path): {**operation, "parameters": [*item.get("parameters", []), *operation.get("parameters", [])]}
    for path, item in DOCUMENT["paths"].items()
    for method, operation in item.items()
    if method != "parameters"
}
_CLUSTER = "/v3/clusters/{cluster}"
_GROUP = f"{_CLUSTER}/consumer-groups/{{group}}"
_PAGED = (
    f"{_CLUSTER}/brokers", f"{_CLUSTER}/topics", f"{_CLUSTER}/topics/-/partitions/-/reassignment",
    f"{_CLUSTER}/topics/{{topic}}/configs", f"{_CLUSTER}/topics/{{topic}}/partitions",
    f"{_CLUSTER}/topics/{{topic}}/partitions/-/reassignment",
    f"{_CLUSTER}/topics/{{topic}}/partitions/{{partition}}/replicas", f"{_CLUSTER}/consumer-groups",
    f"{_GROUP}/consumers", f"{_GROUP}/consumers/{{consumer}}/assignments", f"{_GROUP}/lags",
)  # fmt: skip
QUERIES: dict[tuple[str, str], set[str]] = {
    ("GET", "/topics/{topic}/partitions/{partition}/records"): set(records.QUERY),
    ("GET", "/consumers/{group}/instances/{instance}/records"): set(consumer_reads.QUERY),
    ("GET", "/consumers/{group}/instances/{instance}/offsets"): set(consumers.OFFSETS_QUERY),
    ("GET", f"{_CLUSTER}/acls"): set(v3_acls.QUERY),
    ("DELETE", f"{_CLUSTER}/acls"): set(v3_acls.QUERY),
    **{("GET", path): set(v3_resources.PAGE_QUERY) for path in _PAGED},
}
MODELS: dict[str, type[msgspec.Struct]] = {
    "Brokers": topics.Brokers,
    "Topic": topics.TopicDocument,
    "Partition": topics.PartitionDocument,
    "Replica": topics.PartitionReplica,
    "Offsets": topics.PartitionOffsets,
    "ProduceRequest": embedded.ProduceDocument,
    "ProduceRecord": embedded.RecordIn,
    "ProduceHeader": embedded.HeaderIn,
    "ProduceResponse": produce.ProduceOutcome,
    "ProduceEntry": produce.RecordOutcome,
    "Record": embedded.RecordOut,
    "RecordHeader": embedded.HeaderOut,
    "Error": RestError,
    **{
        name: getattr(consumers, name)
        for name in (
            "CreateConsumer",
            "ConsumerCreated",
            "Subscribe",
            "Subscription",
            "NamedPartition",
            "NamedPartitions",
            "OffsetIn",
            "TimeIn",
            "SeekTo",
            "CommitOffsets",
            "OffsetOut",
            "CommittedOffsets",
        )
    },
    "Metadata": v3_resources.Metadata,
    "ListMetadata": v3_resources.ListMetadata,
    "Related": v3_resources.Related,
    "Cluster": v3_cluster.ClusterResource,
    "BrokerV3": v3_cluster.BrokerResource,
    "TopicV3": v3_topics.TopicResource,
    "CreateTopic": v3_topics.CreateTopic,
    "Config": v3_topics.ConfigIn,
    "AlterTopic": v3_topics.AlterTopic,
    "TopicConfig": v3_configs.ConfigResource,
    "SetConfig": v3_configs.SetConfig,
    "AlterConfigs": v3_configs.AlterConfigs,
    "ConfigChange": v3_configs.ConfigChange,
    "PartitionV3": v3_partitions.PartitionResource,
    "ReplicaV3": v3_partitions.ReplicaResource,
    "Reassignment": v3_partitions.ReassignmentResource,
    "ConsumerGroup": v3_groups.GroupResource,
    "ConsumerV3": v3_groups.ConsumerResource,
    "Assignment": v3_groups.AssignmentResource,
    "Lag": v3_groups.LagResource,
    "LagSummary": v3_groups.LagSummaryResource,
    "Acl": v3_acls.AclResource,
    "CreateAcl": v3_acls.CreateAcl,
    "Entry": v3_entries.EntryIn,
    "EntryData": v3_entries.DataIn,
    "EntryHeader": v3_entries.HeaderIn,
    "DataSize": v3_entries.DataOut,
    "BatchEntry": v3_records.BatchEntry,
    "ProduceBatch": v3_records.ProduceBatch,
    "BatchOutcome": v3_records.BatchOutcome,
    "Appended": v3_records.Appended,
    "Failed": v3_records.Failed,
}
LISTS = {name for name in DOCUMENT["components"]["schemas"] if name.endswith("List")}
OTHERS = {"RecordAnswer", "RemovedAcls"}
"""Schemas that no struct has by itself."""


def resolve(node: Any) -> Any:
    while "$ref" in node:
        target: Any = DOCUMENT
        for name in node["$ref"].removeprefix("#/").split("/"):
            target = target[name]
        node = target
    return node


def test_every_route_is_described_and_every_description_is_a_route() -> None:
    assert {(method, path) for method, path, _ in REST_PROXY_ROUTES} == set(OPERATIONS)
    ids = [operation["operationId"] for operation in OPERATIONS.values()]
    assert len(ids) == len(set(ids))


def test_every_component_is_used_and_every_reference_leads_to_one() -> None:
    named = set(re.findall(rb'"#/components/(\w+)/(\w+)"', OPENAPI))
    for kind, components in DOCUMENT["components"].items():
        if kind != "securitySchemes":
            assert {name.encode() for name in components} == {name for of, name in named if of == kind.encode()}


@pytest.mark.parametrize("key", OPERATIONS, ids=lambda key: " ".join(key))
def test_query_and_path_parameters_are_those_of_the_code(key: tuple[str, str]) -> None:
    parameters = [resolve(parameter) for parameter in OPERATIONS[key]["parameters"]]
    assert {found["name"] for found in parameters if found["in"] == "query"} == QUERIES.get(key, set())
    assert {found["name"] for found in parameters if found["in"] == "path"} == set(re.findall(r"\{(\w+)\}", key[1]))


@pytest.mark.parametrize("name", MODELS)
def test_schemas_have_the_members_of_the_models(name: str) -> None:
    schema = DOCUMENT["components"]["schemas"][name]
    fields = msgspec.structs.fields(MODELS[name])
    assert set(schema["properties"]) == {field.encode_name for field in fields}
    reads = MODELS[name].__struct_config__.forbid_unknown_fields
    assert schema.get("additionalProperties", True) is not reads
    if reads:
        assert set(schema.get("required", [])) == {field.encode_name for field in fields if field.required}


def test_every_schema_is_one_of_a_model() -> None:
    assert set(MODELS) | LISTS | OTHERS == set(DOCUMENT["components"]["schemas"])
    for name in LISTS:
        assert DOCUMENT["components"]["schemas"][name]["properties"]["data"]["items"]["$ref"].endswith(name[:-4])


def test_bounds_are_those_of_the_code() -> None:
    parameters = map(resolve, OPERATIONS["GET", "/topics/{topic}/partitions/{partition}/records"]["parameters"])
    read = {each["name"]: each["schema"] for each in parameters}
    assert (read["max_bytes"]["maximum"], read["max_bytes"]["default"]) == (MAX_READ_BYTES, DEFAULT_READ_BYTES)
    assert (read["timeout"]["maximum"], read["timeout"]["default"]) == (MAX_FETCH_WAIT_MS, records.DEFAULT_WAIT_MS)
    listed = DOCUMENT["components"]["schemas"]["ProduceRequest"]["properties"]["records"]
    assert listed["maxItems"] == MAX_RECORDS_PER_REQUEST


def test_the_media_types_are_those_of_the_code() -> None:
    formats = {type_of(one) for one in EMBEDDED}
    accepted = set(OPERATIONS["POST", "/topics/{topic}"]["requestBody"]["content"])
    assert formats | {V2_TYPE} < accepted
    read = OPERATIONS["GET", "/topics/{topic}/partitions/{partition}/records"]["responses"]["200"]["content"]
    assert set(read) == formats | {V2_TYPE}


@pytest.mark.parametrize("codes", [{}, V3_CODES], ids=["version 2", "version 3"])
@pytest.mark.parametrize("code", CODES)
def test_every_error_has_a_number_that_begins_with_its_status_or_is_one_of_kafkas(
    code: str, codes: dict[str, tuple[int, int]]
) -> None:
    status, number = status_and_code(RaftlogError(code, "why"), codes)
    assert number in (status, 50002, 50003) or number // 100 == status
    assert 400 <= status < 600
    assert (status >= 500) is (CODES[code].status >= 500)


def test_the_numbers_of_every_status_are_described() -> None:
    described: dict[int, set[int]] = {}
    for operation in OPERATIONS.values():
        for status, told in operation["responses"].items():
            if "$ref" in told:
                described.setdefault(int(status), set()).update(resolve(told)["x-error-codes"])
    for code in CODES:
        status, number = status_and_code(RaftlogError(code, ""))
        if status in described:
            assert number in described[status], code
