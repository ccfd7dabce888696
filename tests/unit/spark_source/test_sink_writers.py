"""The writers that Spark sends to its tasks: only a task's local properties identify its micro-batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.types import BinaryType, StructField, StructType

from raftlog.errors import InvalidRequest, RemoteProtocolError
from spark_source.sink import BATCH_ID, QUERY_ID, RUN_ID, StreamSink, batch_sink
from spark_source.writing import task
from spark_source.writing.columns import find
from spark_source.writing.names import BatchJob, MicroBatch
from spark_source.writing.options import parse

OPTIONS = {"raftlog.bootstrap.servers": "127.0.0.1:1", "topic": "t", "sinkName": "named"}


class Context:
    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = properties

    def taskAttemptId(self) -> int:
        return 7

    def getLocalProperty(self, name: str) -> str | None:
        return self._properties.get(name)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    monkeypatch.setattr(task, "write", lambda *arguments: found.append(arguments))
    return found


def writer() -> StreamSink:
    return StreamSink(OPTIONS, [("value", "binary")])


@pytest.mark.parametrize(("run", "known_as"), [({RUN_ID: "run"}, "run"), ({}, "")])
def test_a_task_writes_for_its_micro_batch(
    monkeypatch: pytest.MonkeyPatch, written: list[tuple[Any, ...]], run: dict[str, str], known_as: str
) -> None:
    context = Context({QUERY_ID: "query", BATCH_ID: "17", **run})
    monkeypatch.setattr(TaskContext, "get", lambda: context)
    rows: Any = iter(())
    writer().write(rows)
    ((options, columns, work, attempt, batches),) = written
    assert work == MicroBatch("query", "named", 17, known_as)
    assert (options.topic, options.sink_name) == ("t", "named") and columns is not None
    assert attempt == 7 and batches is rows


@pytest.mark.parametrize("missing", [QUERY_ID, BATCH_ID])
def test_a_task_without_a_micro_batch_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, written: list[tuple[Any, ...]], missing: str
) -> None:
    told = {name: value for name, value in ((QUERY_ID, "query"), (BATCH_ID, "17")) if name != missing}
    monkeypatch.setattr(TaskContext, "get", lambda: Context(told))
    with pytest.raises(RemoteProtocolError, match="to its tasks"):
        writer().write(iter(()))
    assert not written


def test_a_writer_outside_a_task_raises() -> None:
    with pytest.raises(RemoteProtocolError, match="without a context"):
        writer().write(iter(()))


def test_each_batch_query_has_a_job_of_its_own_that_its_tasks_share(
    monkeypatch: pytest.MonkeyPatch, written: list[tuple[Any, ...]]
) -> None:
    """Rows of two queries must never be confused; a task gets the pickled writer."""
    schema: Any = StructType([StructField("value", BinaryType())])
    batch = {name: value for name, value in OPTIONS.items() if name != "sinkName"}
    first, second = (batch_sink(batch, schema, False) for _ in range(2))
    sent = CloudPickleSerializer().loads(CloudPickleSerializer().dumps(first))
    monkeypatch.setattr(TaskContext, "get", lambda: Context({}))
    for one in (first, second, sent):
        one.write(iter(()))
    (of_first, of_second, of_sent) = [(options, columns, job) for options, columns, job, *_ in written]
    job = of_first[2]
    assert isinstance(job, BatchJob) and len(job.job) == 32 and of_second[2] != job
    assert of_sent == of_first
    assert of_sent[0] == parse(batch, streaming=False) and of_sent[1] == find([("value", "binary")], "t", False)


def test_a_log_is_not_overwritten() -> None:
    with pytest.raises(InvalidRequest, match="append"):
        batch_sink(OPTIONS, StructType([]), True)
