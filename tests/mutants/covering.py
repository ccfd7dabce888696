"""The tests that reach each line, at one commit: measured once, a few test files at a time, and stored for all its
mutants.

An interrupted measurement continues where it stopped. Failed or skipped tests prove nothing, and are left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from coverage import CoverageData
from msgspec import Struct, json

from .trees import Tree

FOLDERS = ("unit", "interaction", "property", "contracts", "golden")
"""The suites that judge mutants: no real processes, no clusters."""
IN_PROCESS = ("test_http_api_*.py", "test_http2_*.py")
"""The tests in `integration` that need no process of their own either: real sockets, in front of a broker in memory."""
FILES_AT_ONCE = 12
LIMIT_S = 1_800.0


class Part(Struct):
    """The coverage of some test files."""

    seconds: dict[str, float]
    """Test → its duration in seconds."""
    lines: dict[str, dict[int, list[int]]]
    """File → line → numbers of tests, by their positions in `seconds`."""


class Covering:
    """The coverage of one commit, stored in `folder`."""

    def __init__(self, tree: Tree, folder: Path) -> None:
        self._tree = tree
        self._folder = folder
        self.seconds: dict[str, float] = {}
        """The duration of each test, without those that are unusable."""
        self._tests: list[str] = []
        self._lines: dict[str, dict[int, list[int]]] = {}

    def make(self) -> Iterator[str]:
        """Measure the missing parts; prints a line for people after each."""
        parts = _parts(test_files(self._tree))
        for number, files in enumerate(parts):
            name = hashlib.sha256("\n".join(files).encode()).hexdigest()[:12]
            kept = self._folder / f"{name}.json"
            if not kept.exists():
                part = self._measure(files)
                beside = kept.with_suffix(".new")
                beside.write_bytes(json.encode(part))
                beside.rename(kept)
                yield f"covering tests: {number + 1} of {len(parts)} parts, {len(part.seconds)} tests in this one"
            self._take(json.decode(kept.read_bytes(), type=Part))

    def tests(self, file: str, line: int) -> list[str]:
        """Return the tests that reach the line, the fastest first."""
        found = [self._tests[number] for number in self._lines.get(file, {}).get(line, ())]
        return sorted(found, key=self.seconds.__getitem__)

    def _measure(self, files: list[str]) -> Part:
        self._folder.mkdir(parents=True, exist_ok=True)
        measured = self._folder / "part.coverage"
        measured.unlink(missing_ok=True)
        run = self._tree.pytest(files, LIMIT_S, coverage=measured, stop=False)
        if run.status not in (0, 1):
            raise RuntimeError(f"the tests of {', '.join(files)} did not run:\n{run.output}")
        useless = {*run.failed, *run.skipped}
        seconds = {test: round(spent, 4) for test, spent in run.times.items() if test not in useless}
        numbers = {test: number for number, test in enumerate(seconds)}
        data = CoverageData(str(measured))
        data.read()
        lines: dict[str, dict[int, list[int]]] = {}
        for path in sorted(data.measured_files()):
            own = lines.setdefault(str(Path(path).relative_to(self._tree.folder.resolve())), {})
            for line, tests in data.contexts_by_lineno(path).items():
                own[line] = sorted(numbers[test] for test in tests if test in numbers)
        data.close()
        measured.unlink()
        return Part(seconds, lines)

    def _take(self, part: Part) -> None:
        first = len(self._tests)
        self._tests.extend(part.seconds)
        self.seconds.update(part.seconds)
        for file, lines in part.lines.items():
            own = self._lines.setdefault(file, {})
            for line, numbers in lines.items():
                if numbers:
                    own.setdefault(line, []).extend(first + number for number in numbers)


class Named:
    """Explicitly chosen tests, in place of those that are known to reach a line."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._tests = list(tests)
        self.seconds = dict.fromkeys(tests, 0.0)

    def tests(self, file: str, line: int) -> list[str]:
        """All of them."""
        return list(self._tests)


def test_files(tree: Tree) -> list[str]:
    """All test files that judge mutants."""
    tests = tree.folder / "tests"
    found = [file for folder in FOLDERS for file in sorted((tests / folder).rglob("test_*.py"))]
    found += [file for pattern in IN_PROCESS for file in sorted((tests / "integration").glob(pattern))]
    return [str(file.relative_to(tree.folder)) for file in found]


def _parts(files: list[str]) -> list[list[str]]:
    return [files[first : first + FILES_AT_ONCE] for first in range(0, len(files), FILES_AT_ONCE)]
