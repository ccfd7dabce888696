"""The source `format("raftlog")`: the subclasses of Spark's reader classes, which delegate everything.

Spark creates these objects in many processes: a source wherever one is needed; a stream's reader once in a process of
its own, where it plans offsets and tasks as long as the query runs, and once more for the executors, where it only
reads. So readers hold options, and connect at their first call.

API level: PySpark 4.2 (SPARK-55304 and the issues around it: limits, `Trigger.AvailableNow`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from spark_source.reading.columns import schema_text
from spark_source.reading.filters import Restrictions, push
from spark_source.reading.offsets import PartitionRange, SourceOffset
from spark_source.reading.options import SourceOptions, columns_of, parse
from spark_source.tasks.read import Task, read

from .requirements import check_pyspark, check_schema
from .shipping import packed

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # before 4.2: this module must still load, or Spark finds no other source either
    SupportsTriggerAvailableNow = object  # type: ignore[assignment,misc]

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

    from spark_source.driver.stream import StreamDriver


class RaftlogSource(DataSource):
    """Topics of a raftlog cluster as tables. Options: `docs/spark.md`."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        check_pyspark()

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "raftlog"

    def schema(self) -> str:
        """Return the schema of the requested columns. Raises `InvalidRequest`."""
        return schema_text(columns_of(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query. Raises `InvalidRequest`."""
        options = parse(self.options, streaming=False)
        check_schema(schema, options.columns)
        return FilteringReader(self.options) if options.filter_pushdown else BatchReader(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a streaming query. Raises `InvalidRequest`."""
        check_schema(schema, parse(self.options, streaming=True).columns)
        return StreamReader(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch query. Raises `InvalidRequest`."""
        from .sink import batch_sink

        return batch_sink(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the writer of a streaming query. Raises `InvalidRequest`."""
        from .sink import stream_sink

        return stream_sink(self.options, schema, overwrite)

    def __reduce__(self) -> Any:
        return packed(RaftlogSource, self.options)


class BatchReader(DataSourceReader):
    """The reader of a batch query."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given
        self._options = parse(given, streaming=False)
        self._restrictions = Restrictions()

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions, one per task."""
        from spark_source.driver.batch import plan

        return _tasks(plan(self._options, self._restrictions))

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Read on an executor."""
        return _read(self._options, partition)

    def __reduce__(self) -> Any:
        """Pickle for the executors, without the pushed filters, which are in the tasks."""
        return packed(BatchReader, self._given)


class FilteringReader(BatchReader):
    """The same reader with filter pushdown. It is a separate class, because with
    `spark.sql.python.filterPushdown.enabled` off, Spark refuses every query of a reader that has `pushFilters` at
    all."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802
        """Return the filters that Spark must still test."""
        self._restrictions, unhandled = push(filters, self._restrictions)
        return unhandled


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a streaming query."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given
        self._options = parse(given, streaming=True)
        self._driver: StreamDriver | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the start of a query without a checkpoint. Spark may call it twice, and again after a restart."""
        return self._drive().initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a micro-batch, unless its trigger overrides it."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next micro-batch. `Trigger.Once` takes everything available regardless of the
        options."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        enough = not isinstance(limit, ReadAllAvailable)
        began = SourceOffset.from_json(start)
        following = self._drive().next(began, most, wait_for_enough=enough)
        return start if following == began else following.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the ends of the logs, for the query's progress."""
        latest = self._drive().latest()
        return None if latest is None else latest.to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read the records that exist now, and no more."""
        self._drive().freeze()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions, one per task."""
        return _tasks(self._drive().plan(SourceOffset.from_json(start), SourceOffset.from_json(end)))

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Read on an executor."""
        return _read(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Ignore Spark's notification of the micro-batch before the last one: `latestOffset` has already learnt of
        more."""

    def stop(self) -> None:
        """Close the driver. Spark does not always call it, so nothing depends on it."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def __reduce__(self) -> Any:
        """Pickle for the executors, without connections."""
        return packed(StreamReader, self._given)

    def _drive(self) -> StreamDriver:
        from spark_source.driver.stream import StreamDriver

        if self._driver is None:
            self._driver = StreamDriver(self._options)
        return self._driver


def _tasks(ranges: Iterable[PartitionRange]) -> list[InputPartition]:
    return [InputPartition(Task(one)) for one in ranges]


def _read(options: SourceOptions, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
    """Read a task's range. For a query with nothing to read, Spark creates one task without a range."""
    return iter(()) if partition.value is None else read(options, partition.value)
