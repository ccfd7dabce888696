"""How sources, readers and writers travel between Spark's processes: as their options, and a function that makes them
again.

An ordinary pickle names classes, and a Python without raftlog would say `No module named 'spark_source'`. This function
goes along by value (cloudpickle does that with what belongs to `__main__`), so an executor where something is missing
says what, and how to get it there.

What is *not* here: what is made (`source.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def _unpack(kind: str, options: dict[str, str], *more: Any) -> Any:
    """Runs wherever it is sent: it may use nothing of this module."""
    try:
        from spark_source.source import unpacked
    except ImportError as error:
        raise ImportError(
            f"this Python of Spark's cannot import raftlog ({error}): install raftlog[spark] on every executor, send "
            "a packed environment along, or set PYSPARK_PYTHON to a Python that has it"
        ) from error
    return unpacked(kind, options, *more)


_unpack.__module__ = "__main__"


def packed(kind: str, options: Mapping[str, str], *more: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """What `__reduce__` gives. `kind`, `more`: as `source.unpacked` knows them."""
    return _unpack, (kind, dict(options), *more)
