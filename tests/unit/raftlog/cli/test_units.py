"""Durations and sizes with units, for options and settings."""

from __future__ import annotations

from typing import Any

import pytest
import rich_click as click

from raftlog.cli.terminal.options import parse_settings, parse_time
from raftlog.cli.terminal.units import SECONDS, Duration, Size
from raftlog.quantities import duration_ms


def test_a_duration_without_a_unit_is_in_that_of_its_option() -> None:
    assert (duration_ms("1.5", 1_000), duration_ms("1.5", 1)) == (1_500, 2)
    assert SECONDS.convert("2.5", None, None) == 2.5
    assert SECONDS.convert("PT1M", None, None) == 60
    assert Duration(1, whole=True).convert("2s", None, None) == 2_000


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (SECONDS, "nan"),
        (SECONDS, "-1"),
        (SECONDS, "1y"),
        (Duration(1_000, low=1), "500ms"),
        (Size(1), "0"),
        (Size(), "x"),
    ],
)
def test_others_are_usage_errors(kind: Any, text: str) -> None:
    with pytest.raises(click.BadParameter):
        kind.convert(text, None, None)


def test_settings_have_units_by_their_names() -> None:
    given = ["retention.ms=7d", "retention.bytes=2GiB", "segment.ms=-1", "flush=os", "cleanup.policy=7d", "x.ms=soon"]
    assert parse_settings(given) == {
        "retention.ms": "604800000",
        "retention.bytes": "2147483648",
        "segment.ms": "-1",
        "flush": "os",
        "cleanup.policy": "7d",
        "x.ms": "soon",
    }


def test_a_duration_is_that_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 10_000.0)
    assert parse_time("2h") == 2_800_000 == parse_time("@PT2H")
    assert parse_time("1w") == 0, "not before 1970"
    assert parse_time("soon") is None and parse_time("5") is None
