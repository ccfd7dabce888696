"""A task: one range in, Arrow batches out. It runs in a worker process of Spark's, which lives over many tasks.

The thread of the event loop fetches ahead; Spark's thread takes what is there, makes columns of it and hands them over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from raftlog.errors import InvalidRequest
from raftlog.version import __version__
from spark_source.reading.offsets import PartitionRange
from spark_source.reading.options import SourceOptions

if TYPE_CHECKING:
    import pyarrow


class Task(NamedTuple):
    """What a driver sends to an executor."""

    range: PartitionRange
    version: str = __version__
    """The driver's raftlog."""


def read(options: SourceOptions, task: Task) -> Iterator[pyarrow.RecordBatch]:
    """The range's records, in the order of their offsets. Raises `DataLoss` and other `RaftlogError`s."""
    if task.version != __version__:
        raise InvalidRequest(
            "unsupported_version",
            f"this executor has raftlog {__version__}, and the driver has {task.version}: install the same on both",
        )
    # What is imported here the driver does not need, and its planners are started for every query.
    from spark_source.connections import shared

    from .arrow_columns import ArrowColumns
    from .range_reader import RangeReader

    one = task.range
    columns = ArrowColumns(one, options.columns)
    connections = shared(options)

    async def begin() -> RangeReader:
        return RangeReader(connections.api, options, one)

    reader = connections.run(begin)
    try:
        while batches := connections.run(reader.take):
            yield from columns.batches(batches)
    finally:
        connections.run(reader.close)
