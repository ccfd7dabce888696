"""EDN: every kind of value, and clear errors for what is none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jepsen_like.histories.edn import NESTING_MAX, Keyword, read_all
from raftlog.errors import InvalidRequest


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("nil true false", [None, True, False]),
        ("1 -2 +3 4N 1.5 -2e3 3M", [1, -2, 3, 4, 1.5, -2000.0, 3.0]),
        (r'"a\"b\n\u0041" \a \newline \u0042', ['a"b\nA', "a", "\n", "B"]),
        (":ok a/b -", [Keyword("ok"), Keyword("a/b"), Keyword("-")]),
        ("(1 [2 {}]) []", [(1, (2, {})), ()]),
        ("{:a 1, [1 2] :b}", [{"a": 1, (1, 2): "b"}]),
        ("#{1 :a}", [frozenset({1, "a"})]),
        ("; all of this\n1 ;and that\n#_ {:a 1} 2 #_#_3 4 5", [1, 2, 5]),
        ('#inst "2014-01-01" #my/tag [1]', ["2014-01-01", (1,)]),
        ("", []),
    ],
)
def test_every_kind_of_value(text: str, values: list[Any]) -> None:
    assert read_all(text) == values


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[1\n(2]", "line 2: ] has no opening bracket"),
        ("1\n\n{:a", "line 3: { is not closed"),
        ("{:a}", "a key without a value"),
        ("{{} 1}", "a map cannot be a key"),
        ("#{[{}]}", "a map cannot be a key"),
        ('"never', "is not EDN"),
        ("12ab", "is not a number"),
        ("#_", "ends in the middle"),
        ("[" * (NESTING_MAX + 1), "nested deeper"),
        ("9" * 100_000, "digits"),
    ],
)
def test_invalid_edn_is_named(text: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match=r".*") as raised:
        read_all(text)
    assert told in raised.value.detail


@given(st.text(alphabet='()[]{}#_:;\\"^aN1.e- \n', max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        read_all(text)
    except InvalidRequest as error:
        assert error.code == "invalid_request"
