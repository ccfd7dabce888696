"""The Spark data source: topics as streaming and batch DataFrames, through PySpark's Python Data Source API.

`spark.dataSource.register` takes `RaftlogSource`; registration is not needed if raftlog is installed as a wheel.
`docs/spark.md` describes its use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .source import RaftlogSource

__all__ = ["RaftlogSource"]


def __getattr__(name: str) -> Any:
    """Import Spark when the source is first named (PEP 562), so that the rest can be used without it. Raises
    `InvalidRequest` if its version has no Python data sources."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from .source import RaftlogSource
    except ImportError:  # before 4.0
        from .requirements import check_pyspark

        check_pyspark()
        raise

    return RaftlogSource
