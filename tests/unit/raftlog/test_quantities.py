"""Durations and sizes with units."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.quantities import duration_ms, in_unit, setting_value, shown_duration, shown_size, size_bytes


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


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0), ("1048576", 2**20), ("64KiB", 2**16), ("2GiB", 2**31), ("2 GiB", 2**31), ("500MB", 5 * 10**8),
        ("1.5KiB", 1536), ("3B", 3), ("2G", None), ("2gib", None), ("-1", None), ("GiB", None), ("", None), ("²", None),
    ],
)  # fmt: skip
def test_sizes(text: str, size: int | None) -> None:
    assert size_bytes(text) == size


@given(st.integers(0, 2**62))
def test_plain_numbers_stay_as_they_are(number: int) -> None:
    assert setting_value("retention.ms", str(number)) == setting_value("retention.bytes", str(number)) == str(number)


def test_sizes_and_durations_are_shown_with_units() -> None:
    assert [shown_size(size) for size in (0, 1023, 1536, 3 * 2**30, 2**51)] == [
        "0 B", "1023 B", "1.5 KiB", "3.0 GiB", "2048.0 TiB",
    ]  # fmt: skip
    shown = [shown_duration(ms) for ms in (20, 1_500, 2_000, 245_000, 183_600_000, 7_200_000)]
    assert shown == ["20ms", "1.5s", "2s", "4m5s", "2d3h", "2h"]


@pytest.mark.parametrize(
    ("text", "unit", "number"),
    [
        ("500ms", "milliseconds", 500), ("7d", "minutes", 10_080), ("1.5s", "milliseconds", 1_500),
        ("90s", "minutes", None), ("64MiB", "bytes", 2**26), ("1MiB/s", "bytes a second", 2**20),
        ("1MiB", "bytes a second", 2**20), ("1MiB/s", "bytes", None), ("7d", "bytes", None), ("64MiB", "minutes", None),
        ("500", "milliseconds", None), ("500", "bytes", None), ("7d", "threads", None), ("soon", "milliseconds", None),
    ],
)  # fmt: skip
def test_a_text_in_the_unit_of_a_setting(text: str, unit: str, number: int | None) -> None:
    assert in_unit(text, unit) == number
