"""Users' patterns: whole names, bounded size, errors that say what is wrong, and bounded time (S11)."""

from __future__ import annotations

import pytest

from raftlog.errors import InvalidRequest
from raftlog.patterns import MAX_PATTERN_LENGTH, full_matcher


def test_a_whole_name_must_match() -> None:
    fits = full_matcher("metric-[0-9]+")
    assert fits("metric-17")
    assert not fits("metric-17-old")
    assert not fits("my-metric-17")
    assert full_matcher("")("") and not full_matcher("")("a")


@pytest.mark.parametrize("pattern", ["(", r"(a)\1", "(?=a)", "a" * (MAX_PATTERN_LENGTH + 1), "((a{100}){100}){100}"])
def test_an_invalid_pattern_is_refused_s11(pattern: str) -> None:
    with pytest.raises(InvalidRequest, match="pattern"):
        full_matcher(pattern)


def test_a_pattern_with_catastrophic_backtracking_is_quick() -> None:
    assert not full_matcher("(a*)*b")("a" * 249)
