"""The mutants of a file: their kinds and names, and that each is one small change of valid Python."""

from __future__ import annotations

import textwrap

import pytest

pytest.importorskip("mutmut", reason="a virtual environment from before mutation testing: pip install -e '.[dev]'")

from tests.mutants.mutations import SourceFile, in_order

CODE = textwrap.dedent('''\
    """A module's text."""

    import logging

    logger = logging.getLogger("x")
    LIMIT = 3


    class Counter:
        """A class."""

        def __init__(self, room: int | None = None) -> None:
            """A method."""
            self.room = room
            self.ready = False

        @property
        def full(self) -> bool:
            assert self.room is not None
            if self.room <= 0:
                logger.info("it is full: %s", self.room)
                self._logger.error("it is full: %s", self.room)
                raise ValueError("full", "there is no room left")
            return False

        def take(self, size: int) -> int:
            self.room -= size
            self.told("taken")
            self.told("taken")
            return self.room
    ''')


def diffs(code: str, operator: str) -> list[str]:
    source = SourceFile("a.py", code)
    return [source.diff(mutant.identity) for mutant in source.mutants if mutant.operator == operator]


def test_a_statement_is_deleted() -> None:
    taken = diffs(CODE, "statement_removal")
    assert [diff.splitlines()[1].strip("- ") for diff in taken] == [
        'raise ValueError("full", "there is no room left")',
        "self.room -= size",
        'self.told("taken")',
        'self.told("taken")',
    ]
    assert all(diff.splitlines()[2].strip("+ ") == "pass" and len(diff.splitlines()) == 3 for diff in taken)


def test_a_condition_is_negated_and_a_result_left_out() -> None:
    assert diffs(CODE, "negated_condition") == [
        "@@ -20 +20 @@\n-        if self.room <= 0:\n+        if not (self.room <= 0):"
    ]
    assert [diff.splitlines()[2] for diff in diffs(CODE, "return_nothing")] == ["+        return"]


def test_code_that_no_test_should_depend_on_is_not_mutated() -> None:
    """The limit of the module, texts, the log line, the assertion, annotations, and the construction of errors."""
    source = SourceFile("a.py", CODE)
    lines = {mutant.line for mutant in source.mutants}
    assert lines <= set(range(12, 33)) and not {19, 21, 22} & lines
    assert {mutant.operator for mutant in source.mutants if mutant.line == 23} == {"statement_removal", "string"}
    assert not [mutant for mutant in source.mutants if "bool" in mutant.before or "there is" in mutant.before[:10]]
    assert not [mutant for mutant in source.mutants if (mutant.line, mutant.operator) == (15, "assignment")]


def test_each_is_a_change_of_valid_python_with_a_name_of_its_own() -> None:
    source = SourceFile("a.py", CODE)
    identities = [mutant.identity for mutant in source.mutants]
    assert len(set(identities)) == len(identities) > 20
    made = [source.made(identity) for identity in identities]
    assert all(text is not None and text != CODE for text in made) and len(set(made)) == len(made)


def test_a_change_elsewhere_keeps_names_and_order() -> None:
    before = SourceFile("a.py", CODE).mutants
    after = SourceFile(
        "a.py", CODE.replace("self.ready = False", "self.ready = False\n        self.more = room or 7")
    ).mutants
    assert {mutant.identity for mutant in before} <= {mutant.identity for mutant in after}
    old = [mutant.identity for mutant in in_order(before, 1)]
    new = [mutant.identity for mutant in in_order(after, 1) if mutant.line != 16]
    assert new == old
    assert [mutant.identity for mutant in in_order(before, 2)] != old


def test_a_sample_has_one_mutant_per_line() -> None:
    lines = [mutant.line for mutant in in_order(SourceFile("a.py", CODE).mutants, 1)]
    assert len(lines) == len(set(lines)) >= 7


def test_a_mutant_that_would_be_invalid_python_is_reported() -> None:
    """`break` becomes `return`, which a class body does not allow."""
    source = SourceFile(
        "a.py", "def f():\n    class Inner:\n        for x in (1, 2):\n            break\n    return Inner\n"
    )
    made = {mutant.before: source.made(mutant.identity) for mutant in source.mutants if mutant.operator == "keywords"}
    assert made == {"break": None}
