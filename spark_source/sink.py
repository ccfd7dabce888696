"""The sink `format("raftlog")`: subclasses of Spark's writer classes, which decide nothing.

A writer is made on the driver for each query (a stream: for each micro-batch), sent to every task, and asked to commit
or abort on the driver: a batch query's is the same object then, a stream's is made anew. So what the driver has to know
of a micro-batch is in its tasks' messages. Query and micro-batch are known to tasks only, by their local properties.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from raftlog.errors import InvalidRequest, RemoteProtocolError
from spark_source.writing.columns import SinkColumns, find
from spark_source.writing.decision import publish, retire
from spark_source.writing.names import BatchJob, MicroBatch
from spark_source.writing.options import SinkOptions, parse
from spark_source.writing.publication import Written, blocks_of, publication

from .connections import shared
from .shipping import packed

if TYPE_CHECKING:
    import pyarrow
    from pyspark import TaskContext
    from pyspark.sql.types import StructType

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
RUN_ID = "spark.jobGroup.id"
"""Spark groups a query's jobs under the name of its run."""

Fields = list[tuple[str, str]]
"""Columns in order: name and type in Spark SQL's syntax."""


@dataclass
class Message(WriterCommitMessage):
    """The message of a task to the driver."""

    written: Written


class BatchSink(DataSourceArrowWriter):
    """The writer of a batch query: one transaction, all or nothing."""

    def __init__(self, given: Mapping[str, str], fields: Fields, job: str) -> None:
        """`job`: a unique name."""
        self._given, self._fields, self._job = given, fields, job
        self._options, self._columns = _checked(given, fields, streaming=False)

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        """Write rows on an executor."""
        return _write(self._options, self._columns, BatchJob(self._job), _context(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit on the driver, once all tasks have written. Raises a `RaftlogError`."""
        _commit(self._options, messages, None)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort on the driver, after a task has failed permanently."""
        _abort(self._options, messages)

    def __reduce__(self) -> Any:
        return packed(__name__, "batch sink", self._given, self._fields, self._job)


class StreamSink(DataSourceStreamArrowWriter):
    """The writer of a streaming query: each micro-batch exactly once."""

    def __init__(self, given: Mapping[str, str], fields: Fields) -> None:
        self._given, self._fields = given, fields
        self._options, self._columns = _checked(given, fields, streaming=True)

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        """Write rows on an executor."""
        context = _context()
        query_id, batch_id = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query_id is None or batch_id is None:
            raise RemoteProtocolError(f"this Spark does not tell its tasks {QUERY_ID} and {BATCH_ID}")
        run = context.getLocalProperty(RUN_ID) or ""
        work = MicroBatch(query_id, self._options.sink_name, int(batch_id), run)
        return _write(self._options, self._columns, work, context, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit on the driver, once all tasks have written. Raises a `RaftlogError`."""
        _commit(self._options, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Abort on the driver, after a task has failed permanently."""
        _abort(self._options, messages)

    def __reduce__(self) -> Any:
        return packed(__name__, "stream sink", self._given, self._fields)


def unpacked(kind: str, options: dict[str, str], *more: Any) -> Any:
    """Make again what `shipping.packed` packed."""
    return {"batch sink": BatchSink, "stream sink": StreamSink}[kind](options, *more)


def batch_sink(given: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchSink:
    """Raises `InvalidRequest` for options, columns or a mode that cannot be."""
    if overwrite:
        raise InvalidRequest("invalid_config", "a log is not overwritten: write with mode('append')")
    return BatchSink(given, _fields(schema), uuid.uuid4().hex)


def stream_sink(given: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamSink:
    """`overwrite`: the output mode is complete, whose every micro-batch is the whole result, appended. Raises
    `InvalidRequest` for options or columns that cannot be."""
    return StreamSink(given, _fields(schema))


def _fields(schema: StructType) -> Fields:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


def _checked(given: Mapping[str, str], fields: Fields, *, streaming: bool) -> tuple[SinkOptions, SinkColumns]:
    options = parse(given, streaming=streaming)
    return options, find(fields, options.topic, options.include_headers)


def _context() -> TaskContext:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise RemoteProtocolError("Spark has a task write without a context: nobody knows which task it is")
    return context


def _write(
    options: SinkOptions,
    columns: SinkColumns,
    work: MicroBatch | BatchJob,
    context: TaskContext,
    batches: Iterator[pyarrow.RecordBatch],
) -> Message:
    # What is imported here the driver does not need, and its planners are started for every query.
    from spark_source.writing.task import write

    return Message(write(options, columns, work, context.taskAttemptId(), batches))


def _commit(options: SinkOptions, messages: Sequence[WriterCommitMessage | None], batch_id: int | None) -> None:
    wanted = publication(_written(messages), batch_id)
    if wanted is not None:
        connections = shared(options)
        connections.run(partial(publish, connections.api, options, wanted))


def _abort(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Tasks that have failed did so themselves, where they could; the rest is aborted with the blocks that are known
    here, or else with those of the next attempt, or when its time is over."""
    blocks = blocks_of(_written(messages))
    if blocks:
        connections = shared(options)
        connections.run(partial(retire, connections.api, blocks))


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[Written | None]:
    return [message.written if isinstance(message, Message) else None for message in messages]
