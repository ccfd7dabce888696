"""Times as `datetime`: with a time zone they are milliseconds, without one they are refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from raftlog.client.times import milliseconds_of, start_at
from raftlog.errors import InvalidRequest

UTC = UTC


def test_a_time_is_rounded_down_to_milliseconds() -> None:
    assert milliseconds_of(datetime(1970, 1, 1, tzinfo=UTC)) == 0
    assert milliseconds_of(datetime(2025, 1, 1, 0, 0, 0, 1999, tzinfo=UTC)) == 1_735_689_600_001
    east = timezone(timedelta(hours=2))
    assert milliseconds_of(datetime(2025, 1, 1, 2, tzinfo=east)) == milliseconds_of(datetime(2025, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize("time", [datetime(2025, 1, 1), datetime(1969, 12, 31, tzinfo=UTC)])
def test_a_time_that_means_no_moment_since_1970_is_refused(time: datetime) -> None:
    with pytest.raises(InvalidRequest, match="timestamp_out_of_range"):
        milliseconds_of(time)


def test_a_consumer_may_start_at_a_time() -> None:
    assert start_at(datetime(2025, 1, 1, tzinfo=UTC)) == "@1735689600000"
    assert (start_at("latest"), start_at(7)) == ("latest", 7)
