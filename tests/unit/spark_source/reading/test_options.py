"""The options of the Spark source: Kafka's names and defaults; unknown, contradictory or meaningless
ones are refused.
"""

from __future__ import annotations

import json

import pytest

from raftlog.errors import InvalidRequest
from spark_source.options.values import EARLIEST, LATEST, duration_ms
from spark_source.reading.columns import DEFAULT, TYPES, choose, schema_text
from spark_source.reading.options import ALIASES, BATCH_ONLY, COMMON, STREAM_ONLY, SourceOptions, columns_of, parse
from tests.support.spark.session import ROOT

LEAST = {"raftlog.bootstrap.servers": "a:1", "subscribe": "orders"}


def stream(**options: str) -> SourceOptions:
    return parse(LEAST | options, streaming=True)


def batch(**options: str) -> SourceOptions:
    return parse(LEAST | options, streaming=False)


def refused(options: dict[str, str], *, streaming: bool = True) -> str:
    with pytest.raises(InvalidRequest) as raised:
        parse(options, streaming=streaming)
    assert raised.value.code == "invalid_config"
    return raised.value.detail


def test_every_option_is_in_the_documents() -> None:
    text = (ROOT / "docs/spark.md").read_text()
    for option in (*COMMON, *BATCH_ONLY, *STREAM_ONLY, *ALIASES):
        assert f"`{option}`" in text, option


def test_the_defaults_are_those_of_the_kafka_connector() -> None:
    assert stream().starting.everywhere == LATEST
    assert batch().starting.everywhere == EARLIEST
    assert batch().ending.everywhere == LATEST
    options = stream()
    assert options.fail_on_data_loss
    assert options.max_trigger_delay_ms == 15 * 60_000
    assert options.fetch_timeout_ms == 120_000
    assert options.columns == ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    assert (options.max_offsets_per_trigger, options.min_partitions, options.group) == (None, None, None)


def test_a_job_migrates_from_kafka_by_the_formats_name() -> None:
    kafka = {
        "kafka.bootstrap.servers": "a:1,b:2",
        "subscribe": "orders, payments",
        "startingOffsets": json.dumps({"orders": {"0": 23, "1": -2}, "payments": {"0": -1}}),
        "failOnDataLoss": "false",
        "maxOffsetsPerTrigger": "1000",
        "minOffsetsPerTrigger": "10",
        "maxTriggerDelay": "5m",
        "minPartitions": "8",
        "maxRecordsPerPartition": "500",
        "includeHeaders": "true",
        "kafkaConsumer.pollTimeoutMs": "1234",
        "fetchOffset.numRetries": "5",
        "fetchOffset.retryIntervalMs": "20000",
        "kafka.group.id": "lag",
    }
    options = parse({name.lower(): value for name, value in kafka.items()}, streaming=True)  # as Spark passes them
    assert options.cluster.bootstrap == "a:1,b:2"
    assert options.topics == ("orders", "payments")
    assert options.starting.offsets == {"orders": {0: 23, 1: EARLIEST}, "payments": {0: LATEST}}
    assert not options.fail_on_data_loss
    assert (options.max_offsets_per_trigger, options.min_offsets_per_trigger) == (1000, 10)
    assert options.max_trigger_delay_ms == 300_000
    assert (options.min_partitions, options.max_records_per_partition) == (8, 500)
    assert options.columns[-1] == "headers"
    assert (options.fetch_timeout_ms, options.request_timeout_ms) == (1234, 100_000)
    assert options.group == "lag"


def test_the_request_timeout_covers_an_election() -> None:
    assert stream(**{"fetchOffset.numRetries": "3"}).request_timeout_ms == 30_000
    assert stream(requestTimeoutMs="500").request_timeout_ms == 500


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("startingOffset", "earliest"),
        ("kafka.security.protocol", "SSL"),
        ("auto.offset.reset", "earliest"),
        ("groupIdPrefix", "x"),
        ("path", "orders"),
        ("topic", "orders"),
    ],
)
def test_unknown_options_are_refused_by_name(name: str, value: str) -> None:
    assert name in refused(LEAST | {name: value})


@pytest.mark.parametrize("name", BATCH_ONLY)
def test_batch_options_are_refused_in_streams(name: str) -> None:
    assert name in refused(LEAST | {name: "latest"})


@pytest.mark.parametrize("name", STREAM_ONLY)
def test_stream_options_are_refused_in_batches(name: str) -> None:
    assert name in refused(LEAST | {name: "1"}, streaming=False)


def test_exactly_one_option_selects_the_topics() -> None:
    servers = {"raftlog.bootstrap.servers": "a:1"}
    assert "not none" in refused(servers)
    assert "subscribe and assign" in refused(LEAST | {"assign": '{"orders": [0]}'})
    assert parse(servers | {"subscribePattern": "o.*"}, streaming=True).pattern == "o.*"
    assigned = parse(servers | {"assign": '{"orders": [1, 0, 1]}'}, streaming=True).assigned
    assert assigned == {"orders": (1, 0)}


def test_a_timestamp_takes_precedence_over_timestamps_and_those_over_offsets() -> None:
    by_partition = json.dumps({"orders": {"0": 5}})
    options = stream(startingOffsets="earliest", startingOffsetsByTimestamp=by_partition)
    assert options.starting.timestamps == {"orders": {0: 5}} and options.starting.error_without_match
    options = stream(
        startingOffsetsByTimestamp=by_partition,
        startingTimestamp="7",
        startingOffsetsByTimestampStrategy="LATEST",
    )
    assert options.starting.timestamp_ms == 7 and not options.starting.error_without_match
    assert batch(endingTimestamp="9").ending.timestamp_ms == 9
    assert not batch(endingOffsetsByTimestamp=by_partition).ending.error_without_match


@pytest.mark.parametrize(
    ("options", "streaming"),
    [
        ({"startingOffsets": "latest"}, False),
        ({"startingOffsets": '{"orders": {"0": -1}}'}, False),
        ({"endingOffsets": "earliest"}, False),
        ({"endingOffsets": '{"orders": {"0": -2}}'}, False),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, True),
        ({"startingOffsets": '{"orders": {"0": 1.5}}'}, True),
        ({"startingOffsets": '{"orders": {"0": true}}'}, True),
        ({"startingOffsets": '{"orders": {"zero": 1}}'}, True),
        ({"startingOffsets": '{"orders": {"0": 1, "0": 2}}'}, True),
        ({"startingOffsets": '{"orders": [0]}'}, True),
        ({"startingOffsets": "[]"}, True),
        ({"startingOffsets": "yesterday"}, True),
        ({"startingOffsets": ""}, True),
        ({"startingOffsetsByTimestamp": '{"orders": {"0": -1}}'}, True),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, True),
        ({"startingTimestamp": "2026-01-01"}, True),
        ({"maxOffsetsPerTrigger": "0"}, True),
        ({"maxOffsetsPerTrigger": "many"}, True),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, True),
        ({"maxTriggerDelay": "soon"}, True),
        ({"maxTriggerDelay": "5 weeks"}, True),
        ({"failOnDataLoss": "maybe"}, True),
        ({"includeHeaders": "1"}, True),
        ({"columns": "key, valu"}, True),
        ({"columns": "value", "includeHeaders": "true"}, True),
        ({"subscribe": " , "}, True),
        ({"kafka.bootstrap.servers": "b:2"}, True),
    ],
)
def test_an_invalid_value_is_reported_with_its_option(options: dict[str, str], streaming: bool) -> None:
    detail = refused(LEAST | options, streaming=streaming)
    assert any(name in detail or ALIASES.get(name, name) in detail for name in options)


def test_the_same_option_may_be_given_by_two_names() -> None:
    assert parse(LEAST | {"kafka.bootstrap.servers": "a:1"}, streaming=True).cluster.bootstrap == "a:1"


@pytest.mark.parametrize(
    ("text", "expected"), [("15m", 900_000), ("2 min", 120_000), ("250", 250), ("10S", 10_000), ("1d", 86_400_000)]
)
def test_durations_are_sparks(text: str, expected: int) -> None:
    assert duration_ms("maxTriggerDelay", text) == expected


def test_columns_are_selected_in_the_given_order() -> None:
    assert choose(("offset", "VALUE"), include_headers=False) == ("offset", "value")
    assert choose(None, include_headers=False) == DEFAULT
    assert choose(None, include_headers=True) == tuple(TYPES)
    assert columns_of({"Columns": "timestamptype"}) == ("timestampType",)
    assert schema_text(("offset", "key")) == "offset BIGINT, key BINARY"


def test_no_option_has_two_kinds() -> None:
    names = [*COMMON, *BATCH_ONLY, *STREAM_ONLY]
    assert len(names) == len({name.lower() for name in names})
    assert set(ALIASES.values()) <= set(names)
