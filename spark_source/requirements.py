"""Checks of what must be installed. Every message names the missing part and the command that installs it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from raftlog.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

PYSPARK = (4, 2)
INSTALL = "pip install 'raftlog[spark]'"


def check_pyspark() -> None:
    """Check the version of pyspark. Raises `InvalidRequest` if it is too old for this source's methods."""
    import pyspark

    found = tuple(map(int, re.findall("[0-9]+", pyspark.__version__)[:2]))
    if found < PYSPARK:
        raise InvalidRequest(
            "unsupported_version",
            f"format('raftlog') needs pyspark {PYSPARK[0]}.{PYSPARK[1]} or newer, and {pyspark.__version__} is "
            f"installed: {INSTALL}",
        )


def check_versions(executor: str, driver: str) -> None:
    """Check that an executor runs the driver's raftlog. Raises `InvalidRequest`."""
    if executor != driver:
        raise InvalidRequest(
            "unsupported_version",
            f"an executor has raftlog {executor}, and the driver has {driver}: install the same on both",
        )


def check_schema(schema: StructType, columns: Sequence[str]) -> None:
    """Check that a user's schema has the log's columns and no others. Raises `InvalidRequest`."""
    if tuple(schema.fieldNames()) != tuple(columns):
        raise InvalidRequest(
            "invalid_config",
            f"the columns are {', '.join(columns)}: schema() cannot change them; use the option columns",
        )
