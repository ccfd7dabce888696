"""The sink `format("raftlog")`: subclasses of Spark's writer classes, which delegate everything.

A writer is created on the driver for each query (for a stream: for each micro-batch), sent to every task, and finally
commits or aborts on the driver. For a batch query the driver uses the same object, for a stream a new one. Everything
that the driver has to know about a micro-batch is therefore in its tasks' messages. Only tasks know query and
micro-batch, by their local properties.
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
        return packed(BatchSink, self._given, self._fields, self._job)


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
            raise RemoteProtocolError(f"this version of Spark does not pass {QUERY_ID} and {BATCH_ID} to its tasks")
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
        return packed(StreamSink, self._given, self._fields)


def batch_sink(given: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchSink:
    """Create the writer of a batch query. Raises `InvalidRequest` for invalid options, columns or save modes."""
    if overwrite:
        raise InvalidRequest("invalid_config", "a log cannot be overwritten: use mode('append')")
    return BatchSink(given, _fields(schema), uuid.uuid4().hex)


def stream_sink(given: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamSink:
    """Create the writer of a streaming query. `overwrite`: the output mode is complete, so every micro-batch appends
    the whole result. Raises `InvalidRequest` for invalid options or columns."""
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
        raise RemoteProtocolError("Spark runs a writing task without a context, so its attempt number is unknown")
    return context


def _write(
    options: SinkOptions,
    columns: SinkColumns,
    work: MicroBatch | BatchJob,
    context: TaskContext,
    batches: Iterator[pyarrow.RecordBatch],
) -> Message:
    # The driver does not need this import, and its planner processes are started for every query.
    from spark_source.writing.task import write

    return Message(write(options, columns, work, context.taskAttemptId(), batches))


def _commit(options: SinkOptions, messages: Sequence[WriterCommitMessage | None], batch_id: int | None) -> None:
    wanted = publication(_written(messages), batch_id)
    if wanted is not None:
        connections = shared(options.cluster)
        connections.run(partial(publish, connections.api, options, wanted))


def _abort(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Abort the blocks that the messages name. Failed tasks have aborted their own transactions if they could; the
    others are aborted with the blocks of the next attempt, or by their timeout."""
    blocks = blocks_of(_written(messages))
    if blocks:
        connections = shared(options.cluster)
        connections.run(partial(retire, connections.api, blocks))


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[Written | None]:
    return [message.written if isinstance(message, Message) else None for message in messages]
