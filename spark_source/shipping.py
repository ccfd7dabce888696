"""Pickling of sources, readers and writers between Spark's processes: their options, and a function that creates them
again.

An ordinary pickle names classes, and a Python without raftlog would fail with `No module named 'spark_source'`. This
function is pickled by value (as cloudpickle does with everything in `__main__`), so an executor with a missing package
names it and how to install it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def _unpack(module: str, kind: str, *arguments: Any) -> Any:
    """Create an object on an executor. It is pickled by value, so it may use nothing of this module."""
    import importlib

    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"the Python that runs Spark's tasks cannot import raftlog ({error}): install raftlog[spark] on every "
            "executor, send a packed environment, or set PYSPARK_PYTHON to a Python that has it"
        ) from error
    return getattr(found, kind)(*arguments)


_unpack.__module__ = "__main__"


def packed(kind: type, options: Mapping[str, str], *more: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return what `__reduce__` gives, which makes `kind(options, *more)` again."""
    return _unpack, (kind.__module__, kind.__name__, dict(options), *more)
