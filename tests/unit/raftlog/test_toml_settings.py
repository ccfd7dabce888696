"""Each wrong setting is found with its line, a reason and a suggestion, all in one pass. S11."""

from __future__ import annotations

import tomllib
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.errors import InvalidRequest
from raftlog.toml_settings import PROBLEMS_MAX, TEXT_MAX, Problem, TomlSettings, WrongSetting


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    low: int = 1
    high: int = 2
    needed: str | None = None

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise WrongSetting("low must be below high", "high", "low")


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    key: str


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    count: Annotated[int, msgspec.Meta(ge=1, le=9, extra={"unit": "things"})] = 1
    name: Annotated[str, msgspec.Meta(min_length=1)] = "n"
    on: bool = False
    kind: Literal["a", "b"] = "a"
    names: tuple[str, ...] = ()
    inner: Inner = msgspec.field(default_factory=Inner)
    strict: Strict | None = None
    peers: dict[Annotated[str, msgspec.Meta(pattern=r"\A[0-9]\Z")], Strict] = {}


def problems(text: str) -> list[tuple[int, str]]:
    return [(problem.line, str(problem)) for problem in TomlSettings(text, Outer).problems]


def test_a_right_text_gives_the_struct() -> None:
    text = 'count = 3\n[inner]\nlow = 1\n[peers.1]\nkey = "k"\n'
    assert TomlSettings(text, Outer).checked("f") == Outer(count=3, inner=Inner(low=1), peers={"1": Strict("k")})
    assert TomlSettings("", Outer).problems == []


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("\ncount = 10", 2, "count must be a whole number from 1 to 9 (things), not 10"),
        ("# one\n\ncount = true", 3, "count must be a whole number from 1 to 9 (things), not true"),
        ('name = ""', 1, 'name must be a text in quotation marks that is not empty, not ""'),
        (f"name = 1\n#{'x' * 99}", 1, "name must be a text in quotation marks that is not empty, not 1"),
        ("on = 1", 1, "on must be true or false, not 1"),
        ('kind = "c"', 1, 'kind must be "a" or "b", not "c"'),
        ('count = 1\nnames = [\n "a",\n 1,\n]', 2, 'names must be a list of texts in quotation marks, not ["a", 1]'),
        ('name = """\ncount = 99\n"""\ncount = 99', 4, "count must be"),
        ("[inner]\nlow = 1.5", 2, "inner.low must be a whole number, not 1.5"),
        ("inner.low = 1.5", 1, "inner.low must be a whole number"),
        ("inner = { high = 3, low = 1.5 }", 1, "inner.low must be a whole number"),
        ("count = 2\ninner = 3", 2, "inner is a section with settings of its own, not 3"),
        ("[inner]\nlow = 5\n\n[strict]\nkey = 'k'", 2, "inner.low is wrong: low must be below high"),
        ("[inner]\nlow = 5\nhigh = 4", 3, "inner.high is wrong: low must be below high"),
        ("count = 2\n[strict]", 2, "strict.key is missing: the section needs it"),
        ("[peers.x]\nkey = 'k'", 1, "peers.x is no node id"),
        ("[peers.1]\n\nkey = 1", 3, "peers.1.key must be a text in quotation marks, not 1"),
        ("conut = 2", 1, "conut is no setting of the top level; did you mean count?"),
        ("[inner]\nlow = 1\ncount = 2", 3, "it belongs to the top of the file, before the first section"),
        ("low = 2", 1, "low is no setting of the top level; it belongs to [inner]"),
        ("xyzzy = 2", 1, "xyzzy is no setting of the top level; it has count, inner, kind, name, names, on"),
        ("[[inner]]\nlow = 1", 1, "inner is a section with settings of its own, not [a section]"),
        ("a = 1\nb = \n", 2, "it is no TOML: Invalid value (column 5)"),
        ("a = 1\na = 2\n", 2, "it is no TOML: Cannot overwrite a value"),
        ("a = 1\nb = [", 2, "it is no TOML: Invalid value (at the end)"),
    ],
)
def test_a_wrong_setting_is_named_with_line_and_reason_s11(text: str, line: int, reason: str) -> None:
    found = problems(text)
    assert found[0][0] == line and reason in found[0][1], found
    place = f"node.toml, line {line}: "
    with pytest.raises(InvalidRequest) as caught:
        TomlSettings(text, Outer).checked("node.toml")
    assert caught.value.code == "invalid_config" and caught.value.detail.startswith(place)
    assert reason in caught.value.detail


def test_all_problems_are_found_in_one_pass_in_the_order_of_lines() -> None:
    text = "[strict]\nkey = 1\n[inner]\nlow = 'x'\nlwo = 2\n"
    assert [line for line, _ in problems(text)] == [2, 4, 5]
    with pytest.raises(InvalidRequest, match=r"2 more: `raftlog server check-config` shows all"):
        TomlSettings(text, Outer).checked("node.toml")


def test_problems_and_texts_are_bounded() -> None:
    many = "\n".join(f"a{n} = {n}" for n in range(5 * PROBLEMS_MAX))
    assert len(problems(many)) == PROBLEMS_MAX
    assert "longer than" in problems(f"#{'x' * TEXT_MAX}")[0][1]
    assert len(problems(f'count = "{"x" * 5000}"')[0][1]) < 200
    deep = problems("a = " + "[" * 5000)
    assert len(deep) == 1 and deep[0][0] in (0, 1)


def test_a_problem_that_is_found_elsewhere_gets_its_line() -> None:
    settings = TomlSettings("count = 2\n[inner]\nlow = 1\n", Outer)
    settings.add_problem("inner.low", "is odd")
    settings.add_problem("count", "is even")
    settings.add_problem("strict.key", "is absent")
    assert settings.problems == [
        Problem(0, "strict.key", "is absent"),
        Problem(1, "count", "is even"),
        Problem(3, "inner.low", "is odd"),
    ]


LINES = st.sampled_from(
    [
        "count = 1",
        "count = 0",
        "[inner]",
        "low = 7",
        "[strict]",
        'key = """',
        '"""',
        "names = [",
        "]",
        "x.y = 1",
        "# c",
        "",
    ]
)


@given(st.lists(LINES, max_size=12).map("\n".join) | st.text())
def test_any_text_gives_the_struct_or_problems_on_its_lines_s11(text: str) -> None:
    settings = TomlSettings(text, Outer)
    assert (settings.value is None) == bool(settings.problems)
    for problem in settings.problems:
        assert 0 <= problem.line <= text.count("\n") + 1 and problem.reason
    if settings.value is not None:
        assert msgspec.convert(tomllib.loads(text), Outer) == settings.value
