"""The options of a run by name, and their types.

Unknown names are refused: an option without effect would look as if it worked.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from jepsen_like.nemeses.plans import Options
from raftlog.errors import InvalidRequest

SWITCHES = frozenset({"transactions", "subscribe", "secured"})
NUMBERS = frozenset(
    {
        "assign_every", "crash_every", "elements", "hang_every", "key_writes", "keys_at_once", "last_reads_s",
        "late_every", "min_insync_replicas", "operation_timeout_s", "partitions", "poll_records", "recovery_s",
        "recreate_every_s", "replication_factor", "retention_past_s", "stall_every", "topics",
    }
)  # fmt: skip
OF_NEMESES = frozenset(one.name for one in dataclasses.fields(Options))
LISTS = OF_NEMESES - {"redraw", "at_once"}


def check_options(given: Mapping[str, Any]) -> None:
    """Raises `InvalidRequest` for an unknown name, or a value of the wrong type."""
    for name, value in given.items():
        if name not in SWITCHES | NUMBERS | OF_NEMESES:
            known = ", ".join(sorted(SWITCHES | NUMBERS | OF_NEMESES))
            raise InvalidRequest("invalid_config", f"unknown option {name!r}; options: {known}")
        if name in SWITCHES and not isinstance(value, bool):
            raise InvalidRequest("invalid_config", f"option {name} must be true or false, not {value!r}")
        if name in NUMBERS and not _is_number(value):
            raise InvalidRequest("invalid_config", f"option {name} must be a number, not {value!r}")
        if name in LISTS and not isinstance(value, list | tuple):
            raise InvalidRequest("invalid_config", f"option {name} must be a list, not {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
