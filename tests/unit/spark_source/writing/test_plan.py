"""A sink's decisions, without Spark and without a cluster: options, columns, rows, names, commits (S1, S13)."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.errors import InvalidRequest, InvariantViolation, RemoteProtocolError
from raftlog.model import Offset, ProducerEpoch, ProducerId, TopicId, TopicPartition
from raftlog.transactions import TransactionKey
from raftlog.wire import TransactionOutput
from spark_source.writing import options as sink_options
from spark_source.writing.columns import HEADERS_TYPE, SinkColumns, find
from spark_source.writing.names import IDS_PER_BLOCK, BatchJob, MicroBatch, blocks_between, place
from spark_source.writing.options import SinkOptions, parse
from spark_source.writing.publication import MAX_BLOCKS, MAX_OUTPUTS, Written, blocks_of, publication
from spark_source.writing.rows import Rows, records, split

LEAST = {"raftlog.bootstrap.servers": "a:1"}
WORK = MicroBatch("q", "sink", 7)


def stream(**options: str) -> SinkOptions:
    return parse(LEAST | options, streaming=True)


def refused(**options: str) -> str:
    with pytest.raises(InvalidRequest) as raised:
        parse(LEAST | options, streaming=True)
    return raised.value.detail


# --- Options ----------------------------------------------------------------------------------------------------------


def test_defaults_are_the_safe_choice() -> None:
    options = stream()
    assert options.exactly_once and options.sink_name == "sink" and options.topic is None
    assert options.compression == "none" and not options.include_headers
    assert options.transaction_timeout_ms == 300_000
    assert parse(LEAST, streaming=False).transaction_timeout_ms == 900_000


def test_a_sink_migrates_from_kafka_by_the_formats_name() -> None:
    options = parse(
        {
            "kafka.bootstrap.servers": "a:1,b:2",
            "topic": "out",
            "kafka.compression.type": "ZSTD",
            "kafka.delivery.timeout.ms": "5000",
            "kafka.transaction.timeout.ms": "60000",
            "checkpointlocation": "/somewhere",
            "queryname": "mine",
        },
        streaming=True,
    )
    assert (options.cluster.bootstrap, options.topic, options.compression) == ("a:1,b:2", "out", "zstd")
    assert (options.delivery_timeout_ms, options.transaction_timeout_ms) == (5_000, 60_000)


def test_invalid_options_are_named() -> None:
    assert "option topics is not known" in refused(topics="a")
    assert "topics are named by the option topic" in refused(path="/tmp/a")
    assert "that is for reading" in refused(subscribe="a")
    assert "every in-sync replica" in refused(**{"kafka.acks": "1"})
    assert "only kafka.bootstrap.servers, kafka.compression.type" in refused(**{"kafka.linger.ms": "5"})
    assert "option exactlyOnce takes true or false" in refused(exactlyOnce="maybe")
    assert "option compression takes one of none, gzip" in refused(compression="rar")
    assert "option transactionTimeoutMs takes a whole number from 1000 to 3600000" in refused(transactionTimeoutMs="1")
    assert "there are no transactions" in refused(transactionTimeoutMs="2000", exactlyOnce="false")
    assert "sinkName is for streaming" in refused(sinkName="a", exactlyOnce="false")
    assert "option sinkName: a sink's name has" in refused(sinkName="a/b")
    assert refused(topic="a b")
    with pytest.raises(InvalidRequest, match=r"bootstrap\.servers is missing"):
        parse({}, streaming=True)


def test_every_option_is_in_the_documents() -> None:
    from tests.support.spark.session import ROOT

    text = (ROOT / "docs/spark.md").read_text()
    for option in (*sink_options.KNOWN, *sink_options.ALIASES):
        assert f"`{option}`" in text, option


# --- Columns ----------------------------------------------------------------------------------------------------------

ALL = [("key", "binary"), ("value", "string"), ("headers", HEADERS_TYPE), ("topic", "string"), ("partition", "int")]


def test_the_columns_are_the_kafka_connectors_in_any_order_and_case() -> None:
    assert find(ALL, None, True) == SinkColumns(value=1, key=0, headers=2, topic=3, partition=4)
    assert find(ALL, "out", False) == SinkColumns(value=1, key=0, headers=2, topic=None, partition=4)
    assert find([("VALUE", "binary")], "out", False) == SinkColumns(0, None, None, None, None)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ([], "there is no column value"),
        ([("key", "string")], "there is no column value (binary or string); make it one: to_json(struct(*)) AS value"),
        ([("value", "bigint")], "column value is bigint, but must be binary or string; make it one: to_json"),
        (
            [("value", "string"), ("partition", "bigint")],
            "partition is bigint, but must be int; cast it: CAST(partition",
        ),
        ([("value", "string"), ("headers", "map<string,string>")], "headers is map<string,string>"),
        ([("value", "string"), ("offset", "bigint")], "leave it out with drop('offset')"),
        ([("value", "string"), ("Value", "string")], "two columns value"),
        ([("value", f"struct<{'a' * 500}:int>")], "aaa..., but must be"),
    ],
)
def test_other_columns_are_refused_with_the_remedy(fields: Sequence[tuple[str, str]], told: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        find(fields, "out", False)
    assert told in raised.value.detail
    assert len(raised.value.detail) < 400


def test_the_topic_must_be_named_and_requested_headers_must_exist() -> None:
    with pytest.raises(InvalidRequest, match="give the option topic, or a column topic"):
        find([("value", "string")], None, False)
    with pytest.raises(InvalidRequest, match="includeHeaders requires a column headers"):
        find([("value", "string")], "out", True)


# --- Rows -------------------------------------------------------------------------------------------------------------


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def listed(rows: Rows) -> tuple[str, int | None, list[object]]:
    return rows.topic, rows.partition, rows.values.to_pylist()


def test_rows_go_to_their_topics_and_partitions_in_order() -> None:
    columns = find([("value", "binary"), ("topic", "string"), ("partition", "int")], None, False)
    rows = batch(
        value=pa.array([b"%d" % n for n in range(6)]),
        topic=pa.array(["a", "b", "a", "a", "b", "a"]),
        partition=pa.array([0, None, 1, 0, 2, 0], pa.int32()),
    )
    assert [listed(one) for one in split(rows, columns, None)] == [
        ("a", 0, [b"0", b"3", b"5"]),
        ("a", 1, [b"2"]),
        ("b", None, [b"1"]),
        ("b", 2, [b"4"]),
    ]
    # The option takes precedence over the column.
    columns = find([("value", "binary"), ("topic", "string"), ("partition", "int")], "c", False)
    assert {(one.topic, one.partition) for one in split(rows, columns, "c")} == {("c", p) for p in (0, 1, 2, None)}
    assert list(split(rows.slice(0, 0), columns, "c")) == []


def test_rows_without_a_topic_or_with_a_bad_one_are_refused() -> None:
    columns = find([("value", "binary"), ("topic", "string")], None, False)
    with pytest.raises(InvalidRequest, match="column topic is null"):
        list(split(batch(value=pa.array([b"a"]), topic=pa.array([None], pa.string())), columns, None))
    with pytest.raises(InvalidRequest):
        list(split(batch(value=pa.array([b"a"]), topic=pa.array(["a b"])), columns, None))


def test_headers_are_pairs_and_rows_without_any_are_columns() -> None:
    columns = find([("value", "string"), ("key", "string"), ("headers", HEADERS_TYPE)], "out", True)
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    pairs = [[("a", b"1"), ("a", None)], None, []]

    def rows(headers: list[list[tuple[str, bytes | None]] | None]) -> pa.RecordBatch:
        told = [None if one is None else [{"key": k, "value": v} for k, v in one] for one in headers]
        count = len(headers)
        return batch(
            value=pa.array(["v"] * count), key=pa.array([None] * count, pa.string()), headers=pa.array(told, kind)
        )

    (found,) = split(rows(pairs), columns, "out")
    assert list(records(found)) == [(b"v", None, [("a", b"1"), ("a", None)]), (b"v", None, []), (b"v", None, [])]
    (found,) = split(rows([None, []]), columns, "out")
    assert found.headers is None and found.keys is None
    (found,) = split(rows([[(None, b"1")]]), columns, "out")  # type: ignore[list-item]
    with pytest.raises(InvalidRequest, match="header without a key"):
        list(records(found))


# --- Names ------------------------------------------------------------------------------------------------------------

NUMBERS = st.integers(0, 10**12)


@given(NUMBERS, NUMBERS, st.integers(0, 3), st.integers(0, 3))
def test_no_two_attempts_have_one_producer_id_s1(one: int, other: int, batch_one: int, batch_other: int) -> None:
    first, second = MicroBatch("q", "sink", batch_one).work, MicroBatch("q", "sink", batch_other).work
    same = one == other and batch_one == batch_other
    assert (place(first, one) == place(second, other)) == same
    assert 0 <= place(first, one).number_in_block < IDS_PER_BLOCK


def test_names_identify_their_owner() -> None:
    assert WORK.position == "spark/q/sink"
    assert place(WORK.work, 1_002) == ("spark/q/sink/7/1", 2)
    assert place(BatchJob("j").work, 3) == ("spark/job/j/0", 3)
    assert WORK.attempts not in (WORK.position, WORK.work)


@given(NUMBERS, st.integers(0, 3_000))
def test_the_blocks_between_two_attempts_are_all_of_theirs(first: int, more: int) -> None:
    numbers = range(first, first + more + 1)
    assert blocks_between("w", numbers) == list(dict.fromkeys(place("w", number).block for number in numbers))
    assert blocks_between("w", range(5, 5)) == []


# --- What is committed ------------------------------------------------------------------------------------------------


def output(producer_id: int) -> TransactionOutput:
    key = TransactionKey(ProducerId(producer_id), ProducerEpoch(0))
    return TransactionOutput.of(key, {TopicPartition(TopicId(b"1" * 16), 0): Offset(5)})


def written(
    number: int, producer_id: int | None = None, rows: int = 1, work: MicroBatch | BatchJob | None = WORK
) -> Written:
    return Written(work, number, None if producer_id is None else output(producer_id), rows)


def test_winners_are_committed_with_the_position_and_their_block_ends_s13() -> None:
    wanted = publication([written(3, 103, 5), Written(WORK), written(1, 101, 4)], 7)
    assert wanted is not None
    assert wanted.outputs == (output(103), output(101))
    assert wanted.blocks == ("spark/q/sink/7/0",)
    assert wanted.work == WORK
    assert wanted.rows == 9


def test_blocks_between_winners_end_too_and_are_bounded() -> None:
    assert blocks_of([written(999, 1), written(2_000, 2)]) == tuple(f"spark/q/sink/7/{part}" for part in (0, 1, 2))
    assert len(blocks_of([written(0, 1), written(10**9, 2)])) == MAX_BLOCKS
    assert blocks_of([None, Written(WORK)]) == ()


def test_a_micro_batch_without_rows_moves_the_position_and_one_without_tasks_does_nothing() -> None:
    wanted = publication([Written(WORK), Written(WORK)], 7)
    assert wanted is not None and wanted.outputs == () and wanted.blocks == () and wanted.work == WORK
    assert publication([], 7) is None


def test_a_batch_query_has_no_position() -> None:
    wanted = publication([written(5, 1, work=BatchJob("j"))], None)
    assert wanted is not None and wanted.blocks == ("spark/job/j/0",)


def test_without_transactions_there_is_nothing_to_decide() -> None:
    assert publication([Written(None, rows=3)], 7) is None


def test_an_inconsistent_commit_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="did not report"):
        publication([written(1, 1), None], 7)
    with pytest.raises(RemoteProtocolError, match="commits micro-batch 8"):
        publication([written(1, 1)], 8)
    with pytest.raises(RemoteProtocolError, match="for several"):
        publication([written(1, 1), written(2, 2, work=MicroBatch("q", "sink", 6))], 7)
    with pytest.raises(InvariantViolation, match="the same producer id"):
        publication([written(1, 1), written(2, 1)], 7)
    with pytest.raises(InvalidRequest, match="install the same on both"):
        publication([Written(WORK, 1, output(1), 1, "0.0.1")], 7)
    with pytest.raises(InvalidRequest, match="coalesce"):
        publication([written(n, n) for n in range(MAX_OUTPUTS + 1)], 7)
