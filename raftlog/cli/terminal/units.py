"""Durations and sizes as options of commands: `90s`, `1h30m`, `7d`, `PT2H`, `2GiB`, `500MB`."""

from __future__ import annotations

import math
from typing import Any

import rich_click as click

from raftlog.quantities import duration_ms, size_bytes


class Duration(click.ParamType[Any]):
    """A duration, given in `plain_ms` (milliseconds) if it has no unit. The value is in that unit, too."""

    name = "duration"

    def __init__(self, plain_ms: int, *, low: float = 0, high: float = 1e12, whole: bool = False) -> None:
        """`low` and `high` are bounds in the option's own unit; `whole`: the value is an integer."""
        self._plain_ms = plain_ms
        self._low = low
        self._high = high
        self._whole = whole

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        found = duration_ms(value, self._plain_ms)
        if found is None:
            self.fail(f"{value[:64]!r} is not a duration: it must look like 30s, 1h30m, 7d or PT2H", param, ctx)
        number = found / self._plain_ms
        if not math.isfinite(number) or not self._low <= number <= self._high:
            self.fail(f"{value[:64]!r} is not between {self._low:g} and {self._high:g}", param, ctx)
        return round(number) if self._whole else number


class Size(click.ParamType[Any]):
    """A number of bytes."""

    name = "size"

    def __init__(self, low: int = 0, high: int = 2**62) -> None:
        self._low = low
        self._high = high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        found = size_bytes(value)
        if found is None:
            self.fail(f"{value[:64]!r} is not a size: it must look like 1048576, 64KiB, 500MB or 2GiB", param, ctx)
        if not self._low <= found <= self._high:
            self.fail(f"{value[:64]!r} is not between {self._low} and {self._high} bytes", param, ctx)
        return found


SECONDS = Duration(1_000)
"""Seconds as a float."""
MILLISECONDS = Duration(1)
SIZE = Size()
