"""Times that a program gives as `datetime`, and durations that it gives as `timedelta`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from raftlog.errors import InvalidRequest

StartTime: TypeAlias = str | int | datetime
"""Where to begin to read: `"earliest"`, `"latest"`, an offset, or a time (`"@1700000000000"` in milliseconds, or a
`datetime`) for the first record at or after it."""

Seconds: TypeAlias = float | timedelta
"""A duration in seconds."""
Milliseconds: TypeAlias = float | timedelta
"""A duration in milliseconds."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def milliseconds_of(time: datetime) -> int:
    """Return the milliseconds since 1970, rounded down.

    Raises `InvalidRequest` (`timestamp_out_of_range`) for a time before 1970 or without a time zone, which would mean
    another moment on another machine.
    """
    if time.tzinfo is None:
        how = "datetime.now(timezone.utc), or time.astimezone() for local time"
        raise InvalidRequest("timestamp_out_of_range", f"{time!r} has no time zone: use {how}")
    since = (time - _EPOCH) // timedelta(milliseconds=1)
    if since < 0:
        raise InvalidRequest("timestamp_out_of_range", f"{time.isoformat()} is before 1970")
    return since


def seconds_of(duration: Seconds) -> float:
    """Return a duration in seconds."""
    return duration.total_seconds() if isinstance(duration, timedelta) else duration


def in_milliseconds(duration: Milliseconds) -> float:
    """Return a duration in milliseconds; a `timedelta` in whole ones, rounded down."""
    return duration // timedelta(milliseconds=1) if isinstance(duration, timedelta) else duration


def start_at(start: StartTime) -> str | int:
    """Return the start without a `datetime`. Raises as `milliseconds_of` does."""
    return f"@{milliseconds_of(start)}" if isinstance(start, datetime) else start
