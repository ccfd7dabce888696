"""A task: one range in, Arrow batches out. It runs in a worker process of Spark's, which lives over many tasks.

The event loop's thread fetches ahead; Spark's thread takes the fetched batches and converts them into columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from raftlog.version import __version__
from spark_source.reading.offsets import PartitionRange
from spark_source.reading.options import SourceOptions
from spark_source.requirements import check_versions

if TYPE_CHECKING:
    import pyarrow


class Task(NamedTuple):
    """The message of a driver to an executor."""

    range: PartitionRange
    version: str = __version__
    """The driver's version of raftlog."""


def read(options: SourceOptions, task: Task) -> Iterator[pyarrow.RecordBatch]:
    """Yield the range's records in the order of their offsets. Raises `DataLoss` and other `RaftlogError`s."""
    check_versions(__version__, task.version)
    # The driver does not need these imports, and its planner processes start for every query.
    from spark_source.connections import shared

    from .arrow_columns import ArrowColumns
    from .range_reader import RangeReader

    one = task.range
    columns = ArrowColumns(one, options.columns)
    connections = shared(options.cluster)

    async def begin() -> RangeReader:
        return RangeReader(connections.api, options, one)

    reader = connections.run(begin)
    try:
        while batches := connections.run(reader.take):
            yield from columns.batches(batches)
    finally:
        connections.run(reader.close)
