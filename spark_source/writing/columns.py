"""The columns that a sink accepts: the Kafka connector's, by name and type. Pure.

    value    binary or string, required
    key      binary or string
    headers  array<struct<key: string, value: binary>>
    topic    string, unless the option topic names one for all rows (it takes precedence)
    partition int; null: the partition of the key, or any

A column that the sink does not write is refused: it would be shipped to Python and discarded, against the intention of
the user who supplied it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raftlog.errors import InvalidRequest

BYTES = ("binary", "string")
HEADERS_TYPE = "array<struct<key:string,value:binary>>"
ACCEPTED: dict[str, tuple[tuple[str, ...], str]] = {
    "key": (BYTES, "cast it: CAST(key AS STRING)"),
    "value": (BYTES, "make it one: to_json(struct(*)) AS value, or CAST(value AS STRING)"),
    "headers": ((HEADERS_TYPE,), "build it of struct(name AS key, content AS value) with a binary content"),
    "topic": (("string",), "cast it: CAST(topic AS STRING)"),
    "partition": (("int",), "cast it: CAST(partition AS INT)"),
}
"""Column → its Spark SQL types, and the remedy for another type."""


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """The positions of a row's columns."""

    value: int
    key: int | None
    headers: int | None
    topic: int | None
    """None if the option names the topic for all rows."""
    partition: int | None


def find(fields: Sequence[tuple[str, str]], topic: str | None, include_headers: bool) -> SinkColumns:
    """Return the positions in `fields`: (name, type in Spark SQL's syntax), in order. `topic`: the option's value.

    Raises `InvalidRequest` (`invalid_config`) with the wrong column and the remedy.
    """
    places: dict[str, int] = {}
    for index, (name, kind) in enumerate(fields):
        lowered = name.lower()
        if lowered not in ACCEPTED:
            raise _wrong(
                f"column {name} is not one of {', '.join(ACCEPTED)}: leave it out with "
                f"drop({name!r}), or put it into the value: to_json(struct(*)) AS value"
            )
        if lowered in places:
            raise _wrong(f"there are two columns {lowered}")
        types, remedy = ACCEPTED[lowered]
        if kind not in types:
            raise _wrong(f"column {name} is {_short(kind)}, but must be {' or '.join(types)}; {remedy}")
        places[lowered] = index
    if "value" not in places:
        raise _wrong(f"there is no column value (binary or string); {ACCEPTED['value'][1]}")
    if topic is None and "topic" not in places:
        raise _wrong("nothing names the topic: give the option topic, or a column topic")
    if include_headers and "headers" not in places:
        raise _wrong(f"includeHeaders requires a column headers ({HEADERS_TYPE}), and there is none")
    return SinkColumns(
        places["value"],
        places.get("key"),
        places.get("headers"),
        None if topic is not None else places["topic"],
        places.get("partition"),
    )


def _short(kind: str) -> str:
    return kind if len(kind) <= 100 else f"{kind[:100]}..."


def _wrong(detail: str) -> InvalidRequest:
    return InvalidRequest("invalid_config", f"these rows cannot be written: {detail}")
