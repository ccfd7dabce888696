"""One file, one idea, however long; functions are short enough to see whole: at most 70 lines."""

from __future__ import annotations

import ast

import pytest

from .sources import ROOT, Source, sources

FUNCTION_LINES_MAX = 70


@pytest.mark.parametrize("source", sources(), ids=lambda source: source.name)
def test_functions_stay_small(source: Source) -> None:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            length = node.end_lineno - node.lineno + 1
            assert length <= FUNCTION_LINES_MAX, f"{source.relative}:{node.lineno} {node.name} has {length} lines"


@pytest.mark.parametrize("source", sources(), ids=lambda source: source.name)
def test_modules_open_with_a_docstring(source: Source) -> None:
    assert ast.get_docstring(source.tree), f"{source.relative} has no docstring"


def test_each_folder_has_a_readme() -> None:
    rooms = ("raftlog", "metadata", "partitions", "http_api", "spark_source", "jepsen_like")
    packages = {str(source.path.parent.relative_to(ROOT)) for source in sources() if source.name.startswith(rooms)}
    folders = {*packages, "jepsen_like/results", "tests", "tests/mutants", "benchmarks", "docs"}
    assert sorted(folder for folder in folders if not (ROOT / folder / "README.md").is_file()) == []
