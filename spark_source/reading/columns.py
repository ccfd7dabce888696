"""The columns of a Spark row, as the Kafka connector has them. Pure.

Spark's Python data sources are not told which columns a query uses: `count()` ships all of them. So the option
`columns` names those that there are at all; what is left out is not decoded, not copied and not sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from raftlog.errors import InvalidRequest

TYPES: dict[str, str] = {
    "key": "BINARY",
    "value": "BINARY",
    "topic": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
    "timestampType": "INT",
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
}
"""Name → Spark SQL type, in the order in which they come."""

HEADERS = "headers"
DEFAULT = tuple(name for name in TYPES if name != HEADERS)


def choose(names: Sequence[str] | None, include_headers: bool) -> tuple[str, ...]:
    """The columns that there are. `names`: what the option `columns` says; None: it was not given.

    Raises `InvalidRequest` for a name that is none, and for headers that are asked for and left out.
    """
    if names is None:
        return (*DEFAULT, HEADERS) if include_headers else DEFAULT
    known = {name.lower(): name for name in TYPES}
    unknown = [name for name in names if name.lower() not in known]
    if unknown:
        raise InvalidRequest(
            "invalid_config", f"option columns: no column {unknown[0]!r}; there are {', '.join(TYPES)}"
        )
    chosen = tuple(dict.fromkeys(known[name.lower()] for name in names))
    if include_headers and HEADERS not in chosen:
        raise InvalidRequest("invalid_config", "option columns leaves out headers, which includeHeaders asks for")
    return chosen


def schema_text(columns: Sequence[str]) -> str:
    """The schema as Spark SQL writes it."""
    return ", ".join(f"{name} {TYPES[name]}" for name in columns)
