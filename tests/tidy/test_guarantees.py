"""Every test that documents and comments name as evidence exists."""

from __future__ import annotations

import ast
import functools
import re

import pytest

from .sources import ROOT

NAMING = (
    "docs/guarantees.md",
    "docs/quorum.md",
    "docs/storage-faults.md",
    "tests/unit/metadata/raft/test_stock.py",
    "tests/unit/metadata/raft/test_stock_cluster.py",
    "tests/unit/metadata/raft/test_stock_files.py",
    "tests/integration/cluster/test_pickle.py",
)
NAMED = re.compile(r"`(?:[a-z0-9_/]+/)?(test_[a-z0-9_]+)(\.py)?`")


@functools.cache
def existing() -> dict[str, list[str]]:
    """Name of a test, or of a test's file without its suffix → its files."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        where = str(path.relative_to(ROOT))
        found.setdefault(path.stem, []).append(where)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found.setdefault(node.name, []).append(where)
    return found


@pytest.mark.parametrize("document", NAMING)
def test_tests_that_are_named_exist(document: str) -> None:
    named = {name for name, _ in NAMED.findall((ROOT / document).read_text())}
    assert named, "it names no test"
    assert sorted(name for name in named if name not in existing()) == []


def test_every_hole_of_stock_names_the_test_that_shows_it_closed() -> None:
    for document in NAMING:
        if "_stock" not in document:
            continue
        tree = ast.parse((ROOT / document).read_text())
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                told = ast.get_docstring(node) or ""
                named = NAMED.match(told.removeprefix("Ours: "))
                assert named, f"{document}: {node.name} does not say where ours is tested"


@pytest.mark.parametrize("number", [*range(1, 12), 13])
def test_every_guarantee_has_its_assumptions_and_its_tests(number: int) -> None:
    """Each safety property has a section of its own, with assumptions and tests."""
    text = (ROOT / "docs/guarantees.md").read_text()
    sections = re.findall(rf"^### S{number}:.*?(?=^###? |\Z)", text, re.DOTALL | re.MULTILINE)
    assert len(sections) == 1
    assert "Rests on" in sections[0] and NAMED.search(sections[0]), sections[0]


def test_every_storage_fault_names_a_test_for_every_file() -> None:
    """`the same` refers to the previous cell."""
    text = (ROOT / "docs/storage-faults.md").read_text().partition("## Tests of each fault")[2]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    head, _, *faults = rows
    assert len(head) == 5 and len(faults) >= 12
    for fault, *cells in faults:
        assert len(cells) == len(head) - 1, fault
        assert NAMED.search(cells[0]), fault
        assert all(NAMED.search(cell) or cell == "the same" for cell in cells), fault
