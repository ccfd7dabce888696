"""Durations and sizes with units, for options and settings."""

from __future__ import annotations

from typing import Any

import pytest
import rich_click as click
from hypothesis import given
from hypothesis import strategies as st

from raftlog.cli.terminal.options import parse_settings, parse_time
from raftlog.cli.terminal.units import (
    SECONDS,
    Duration,
    Size,
    duration_ms,
    setting_value,
    shown_duration,
    shown_size,
    size_bytes,
)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("90s", 90_000),
        ("1h30m", 5_400_000),
        ("7d", 604_800_000),
        ("2w", 1_209_600_000),
        ("250ms", 250),
        ("1.5s", 1_500),
        ("PT2H", 7_200_000),
        ("P1DT2H3M4.5S", 93_784_500),
        ("P1W", 604_800_000),
        ("5", None),
        ("", None),
        ("h", None),
        ("1M", None),
        ("P1Y", None),
        ("P", None),
        ("PT", None),
        ("P1DT", None),
        ("-1h", None),
        ("１h", None),
    ],
)
def test_durations(text: str, milliseconds: int | None) -> None:
    assert duration_ms(text) == milliseconds


def test_a_duration_without_a_unit_is_in_that_of_its_option() -> None:
    assert (duration_ms("1.5", 1_000), duration_ms("1.5", 1)) == (1_500, 2)
    assert SECONDS.convert("2.5", None, None) == 2.5
    assert SECONDS.convert("PT1M", None, None) == 60
    assert Duration(1, whole=True).convert("2s", None, None) == 2_000


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0), ("1048576", 2**20), ("64KiB", 2**16), ("2GiB", 2**31), ("2 GiB", 2**31), ("500MB", 5 * 10**8),
        ("1.5KiB", 1536), ("3B", 3), ("2G", None), ("2gib", None), ("-1", None), ("GiB", None), ("", None), ("²", None),
    ],
)  # fmt: skip
def test_sizes(text: str, size: int | None) -> None:
    assert size_bytes(text) == size


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


@given(st.integers(0, 2**62))
def test_plain_numbers_stay_as_they_are(number: int) -> None:
    assert setting_value("retention.ms", str(number)) == setting_value("retention.bytes", str(number)) == str(number)


def test_a_duration_is_that_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 10_000.0)
    assert parse_time("2h") == 2_800_000 == parse_time("@PT2H")
    assert parse_time("1w") == 0, "not before 1970"
    assert parse_time("soon") is None and parse_time("5") is None


def test_sizes_and_durations_are_shown_with_units() -> None:
    assert [shown_size(size) for size in (0, 1023, 1536, 3 * 2**30, 2**51)] == [
        "0 B", "1023 B", "1.5 KiB", "3.0 GiB", "2048.0 TiB",
    ]  # fmt: skip
    shown = [shown_duration(ms) for ms in (20, 1_500, 2_000, 245_000, 183_600_000, 7_200_000)]
    assert shown == ["20ms", "1.5s", "2s", "4m5s", "2d3h", "2h"]
