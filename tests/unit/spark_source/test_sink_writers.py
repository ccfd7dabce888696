"""The writers that Spark sends to its tasks: only a task's local properties tell which micro-batch it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.types import BinaryType, StructField, StructType

from raftlog.errors import InvalidRequest, RemoteProtocolError
from spark_source import sink
from spark_source.sink import BATCH_ID, QUERY_ID, RUN_ID, StreamSink, batch_sink
from spark_source.writing.names import MicroBatch

OPTIONS = {"raftlog.bootstrap.servers": "127.0.0.1:1", "topic": "t", "sinkName": "named"}


class Context:
    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = properties

    def getLocalProperty(self, name: str) -> str | None:
        return self._properties.get(name)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    monkeypatch.setattr(sink, "_write", lambda *arguments: found.append(arguments))
    return found


def writer() -> StreamSink:
    return StreamSink(OPTIONS, [("value", "binary")])


@pytest.mark.parametrize(("run", "known_as"), [({RUN_ID: "run"}, "run"), ({}, "")])
def test_a_task_writes_for_its_micro_batch(
    monkeypatch: pytest.MonkeyPatch, written: list[tuple[Any, ...]], run: dict[str, str], known_as: str
) -> None:
    context = Context({QUERY_ID: "query", BATCH_ID: "17", **run})
    monkeypatch.setattr(sink, "_context", lambda: context)
    rows: Any = iter(())
    writer().write(rows)
    ((options, columns, work, of, batches),) = written
    assert work == MicroBatch("query", "named", 17, known_as)
    assert (options.topic, options.sink_name) == ("t", "named") and columns is not None
    assert of is context and batches is rows


@pytest.mark.parametrize("missing", [QUERY_ID, BATCH_ID])
def test_a_task_that_spark_does_not_tell_its_micro_batch_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, written: list[tuple[Any, ...]], missing: str
) -> None:
    told = {name: value for name, value in ((QUERY_ID, "query"), (BATCH_ID, "17")) if name != missing}
    monkeypatch.setattr(sink, "_context", lambda: Context(told))
    with pytest.raises(RemoteProtocolError, match="does not tell its tasks"):
        writer().write(iter(()))
    assert not written


def test_a_writer_without_a_task_says_so() -> None:
    with pytest.raises(RemoteProtocolError, match="without a context"):
        writer().write(iter(()))


def test_each_batch_query_has_a_job_of_its_own_that_its_tasks_share() -> None:
    """Rows of two queries must never be taken for one another's; a task gets the writer as it was pickled."""
    schema: Any = StructType([StructField("value", BinaryType())])
    batch = {name: value for name, value in OPTIONS.items() if name != "sinkName"}
    first, second = (batch_sink(batch, schema, False) for _ in range(2))
    assert len(first._job) == 32 and first._job != second._job
    sent = CloudPickleSerializer().loads(CloudPickleSerializer().dumps(first))
    assert (sent._job, sent._given, sent._fields) == (first._job, batch, [("value", "binary")])


def test_a_log_is_not_overwritten() -> None:
    with pytest.raises(InvalidRequest, match="append"):
        batch_sink(OPTIONS, StructType([]), True)
