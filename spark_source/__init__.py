"""The Spark data source: topics as streaming and batch DataFrames, through PySpark's Python Data Source API.

`RaftlogSource` is what `spark.dataSource.register` takes; where raftlog is installed as a wheel nobody has to.
`docs/spark.md` tells how to use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .source import RaftlogSource

__all__ = ["RaftlogSource"]


def __getattr__(name: str) -> Any:
    """Spark is imported when the source is first named (PEP 562), so that the rest can be used without it. Raises
    `InvalidRequest` where its version has no such sources."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from .source import RaftlogSource
    except ImportError:  # before 4.0
        from .requirements import check_pyspark

        check_pyspark()
        raise

    return RaftlogSource
