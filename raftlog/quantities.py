"""Durations and sizes as people write them: `90s`, `1h30m`, `7d`, `PT2H`, `2GiB`, `500MB`. Pure.

A number without a unit is in the unit of its option or setting, as in Kafka's tools. Years and months are refused,
since their length varies, and so are `K`, `M` and `G`, of which some tools make 1000 and others 1024.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_ISO = re.compile(
    r"P(?:([0-9]{1,9})W)?(?:([0-9]{1,9})D)?"
    r"(?:T(?:([0-9]{1,9})H)?(?:([0-9]{1,9})M)?(?:([0-9]{1,9}(?:\.[0-9]{1,3})?)S)?)?",
    re.ASCII,
)
"""ISO 8601, without years and months."""
_PART = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,3})?)(ms|[smhdw])", re.ASCII)
_SHORT = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,9})?", re.ASCII)
_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,3})?) ?([A-Za-z]{1,3})", re.ASCII)
_WHOLE = re.compile(r"-?[0-9]{1,19}", re.ASCII)

UNIT_MS: Mapping[str, int] = {
    "ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 24 * 3_600_000, "w": 7 * 24 * 3_600_000,
}  # fmt: skip
UNITS_OF_TIME_MS: Mapping[str, int] = {"milliseconds": 1, "seconds": 1_000, "minutes": 60_000}
"""Units of settings → milliseconds."""
_ISO_UNITS = ("w", "d", "h", "m", "s")
UNIT_BYTES: Mapping[str, int] = {
    "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
_SHOWN_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def duration_ms(text: str, plain_ms: int | None = None) -> int | None:
    """Return a duration in milliseconds; None if the text is none.

    `plain_ms` is the unit of a number without one; None: it needs one.
    """
    if plain_ms is not None and _NUMBER.fullmatch(text):
        return round(float(text) * plain_ms)
    if _SHORT.fullmatch(text):
        return round(sum(float(number) * UNIT_MS[unit] for number, unit in _PART.findall(text)))
    match = _ISO.fullmatch(text)
    if match is None or not any(match.groups()) or text.endswith("T"):
        return None
    return round(sum(float(part or 0) * UNIT_MS[unit] for part, unit in zip(match.groups(), _ISO_UNITS, strict=True)))


def size_bytes(text: str) -> int | None:
    """Return a size in bytes; None if the text is none. A number without a unit is in bytes."""
    if text.isascii() and text.isdecimal() and len(text) <= 19:
        return int(text)
    match = _SIZE.fullmatch(text)
    if match is None or match[2] not in UNIT_BYTES:
        return None
    return round(float(match[1]) * UNIT_BYTES[match[2]])


def setting_value(name: str, text: str) -> str:
    """Return a topic's setting as the cluster takes it: times in `.ms`, sizes in `.bytes`, without a unit.

    Text that is neither is returned as it is, and left to the cluster to judge.
    """
    if _WHOLE.fullmatch(text):
        return text
    found = duration_ms(text) if name.endswith(".ms") else size_bytes(text) if name.endswith(".bytes") else None
    return text if found is None else str(found)


def shown_size(size: int) -> str:
    """Return a size with the largest unit that leaves a number of at least one: `1.5 GiB`."""
    number, unit = float(size), 0
    while number >= 1024 and unit < len(_SHOWN_UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{size} B" if unit == 0 else f"{number:.1f} {_SHOWN_UNITS[unit]}"


def shown_duration(milliseconds: float) -> str:
    """Return a duration in its largest two units: `2d3h`, `4m5s`, `1.5s`, `20ms`."""
    if milliseconds < 1_000:
        return f"{round(milliseconds)}ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:g}s" if milliseconds % 1000 == 0 else f"{milliseconds / 1000:.1f}s"
    left = round(milliseconds / 1000) * 1000
    parts: list[str] = []
    for unit in ("d", "h", "m", "s"):
        count, left = divmod(left, UNIT_MS[unit])
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
    return "".join(parts[:2])


def in_unit(text: str, unit: str) -> int | float | None:
    """Return a duration or size in `unit`, such as `milliseconds` or `bytes a second`.

    None if the text has no unit of its own, or none of this kind, or is no multiple of `unit`.
    """
    if unit in UNITS_OF_TIME_MS:
        found, one = duration_ms(text), UNITS_OF_TIME_MS[unit]
        return None if found is None or found % one else found // one
    if unit.split(" ")[0] == "bytes" and not text.isdecimal():
        return size_bytes(text.removesuffix("/s") if unit == "bytes a second" else text)
    return None
