"""Parsers for the values of options. Pure.

Every function takes the option's name, for the error, and its text. It raises `InvalidRequest` (`invalid_config`) with
the option, the given value and the accepted ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, TypeAlias, TypeVar, overload

from raftlog.errors import InvalidRequest

Positions: TypeAlias = Mapping[str, Mapping[int, int]]
"""Topic → partition → a number: an offset, or milliseconds since 1970."""

T = TypeVar("T")

LATEST = -1
EARLIEST = -2
"""Kafka's numbers for "where the log ends" and "where it begins", among offsets in JSON."""

MAX_OFFSET = 2**62
_UNIT_MS = {"us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"([0-9]{1,15})\s*([a-z]*)")


def refused(name: str, text: object, takes: str) -> NoReturn:
    """Raise the error for an option's value."""
    shown = repr(text)
    shown = shown if len(shown) <= 200 else f"{shown[:200]}..."
    raise InvalidRequest("invalid_config", f"option {name} takes {takes}, not {shown}")


@overload
def parsed(given: Mapping[str, str], name: str, parse: Callable[[str, str], T]) -> T | None: ...
@overload
def parsed(given: Mapping[str, str], name: str, parse: Callable[[str, str], T], default: T) -> T: ...
def parsed(given: Mapping[str, str], name: str, parse: Callable[[str, str], T], default: T | None = None) -> T | None:
    """Return an option's value as `parse` reads it, or the default if the option is not given."""
    return parse(name, given[name]) if name in given else default


def boolean(name: str, text: str) -> bool:
    """`true` or `false`, in any case."""
    lowered = text.strip().lower()
    if lowered not in ("true", "false"):
        refused(name, text, "true or false")
    return lowered == "true"


def integer(name: str, text: str, least: int = 1, greatest: int = MAX_OFFSET) -> int:
    """Return an integer within these bounds."""
    stripped = text.strip()
    if not re.fullmatch(r"-?[0-9]{1,19}", stripped) or not least <= int(stripped) <= greatest:
        refused(name, text, f"a whole number from {least} to {greatest}")
    return int(stripped)


def duration_ms(name: str, text: str) -> int:
    """Return the milliseconds of a Spark time string: `15m`, `10s`, `2 min`; a bare number is milliseconds."""
    found = _DURATION.fullmatch(text.strip().lower())
    unit = found.group(2) or "ms" if found else ""
    if found is None or unit not in _UNIT_MS:
        refused(name, text, "a time such as 500ms, 10s, 15m, 2h or 1d")
    return int(int(found.group(1)) * _UNIT_MS[unit])


def names(name: str, text: str) -> tuple[str, ...]:
    """Return names separated by commas, without repetition."""
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not found:
        refused(name, text, "at least one name; several are separated by commas")
    return found


def assignment(name: str, text: str) -> dict[str, tuple[int, ...]]:
    """`{"topic": [0, 1]}` → topic → partitions."""
    takes = 'JSON such as {"orders": [0, 1]}'
    parsed = _json_object(name, text, takes)
    found: dict[str, tuple[int, ...]] = {}
    for topic, partitions in parsed.items():
        if (
            not isinstance(partitions, list)
            or not partitions
            or not all(_is_whole(one, 0, 2**31 - 1) for one in partitions)
        ):
            refused(name, text, takes)
        found[topic] = tuple(dict.fromkeys(partitions))
    return found


def offsets_by_partition(name: str, text: str, least: int) -> Positions:
    """`{"topic": {"0": 23, "1": -1}}`; an offset is at least `least`."""
    takes = f'JSON such as {{"orders": {{"0": 23, "1": -1}}}} with offsets of at least {least}'
    return _by_partition(name, text, takes, least)


def timestamps_by_partition(name: str, text: str) -> Positions:
    """`{"topic": {"0": 1700000000000}}`, in milliseconds since 1970."""
    return _by_partition(name, text, 'JSON such as {"orders": {"0": 1700000000000}}', 0)


def _by_partition(name: str, text: str, takes: str, least: int) -> Positions:
    try:
        return positions(_json_object(name, text, takes), least)
    except ValueError:
        refused(name, text, takes)


def positions(document: object, least: int = 0) -> dict[str, dict[int, int]]:
    """Return the positions in decoded JSON. Raises `ValueError` with the fault."""
    if not isinstance(document, Mapping):
        raise ValueError("is no object")
    found: dict[str, dict[int, int]] = {}
    for topic, partitions in document.items():
        if not isinstance(topic, str) or not isinstance(partitions, Mapping):
            raise ValueError("does not name topics with partitions")
        one = found[topic] = {}
        for key, number in partitions.items():
            if not re.fullmatch("[0-9]{1,10}", str(key)) or not _is_whole(number, least, MAX_OFFSET):
                raise ValueError(f"has no offset for {topic}/{key}")
            one[int(key)] = number
    return found


def _is_whole(value: object, least: int, greatest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= greatest


def _json_object(name: str, text: str, takes: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError):
        refused(name, text, takes)
    if not isinstance(parsed, dict) or not parsed:
        refused(name, text, takes)
    return parsed


def _without_repeats(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a repeated key: JSON would silently keep one of its values."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key!r} occurs twice")
        found[key] = value
    return found
