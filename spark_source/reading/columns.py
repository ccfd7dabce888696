"""The columns of a Spark row, the same as the Kafka connector's. Pure.

Spark does not tell a Python data source which columns a query uses: `count()` ships all of them. So the option
`columns` names the columns of the table; other columns are not decoded, copied or sent.
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
"""Name → Spark SQL type, in the order of the schema."""

HEADERS = "headers"
DEFAULT = tuple(name for name in TYPES if name != HEADERS)


def choose(names: Sequence[str] | None, include_headers: bool) -> tuple[str, ...]:
    """Return the columns of the table. `names`: the option `columns`, None if it is not given.

    Raises `InvalidRequest` for an unknown name, and if headers are requested but left out.
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
        raise InvalidRequest("invalid_config", "option columns leaves out headers, which includeHeaders requires")
    return chosen


def schema_text(columns: Sequence[str]) -> str:
    """Return the schema in Spark SQL's syntax."""
    return ", ".join(f"{name} {TYPES[name]}" for name in columns)
