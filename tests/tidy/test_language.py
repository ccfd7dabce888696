"""Plain English: sentences have noun subjects, and the field's words stand for the field's things (`docs/glossary.md`).

Docstrings, comments and documents are searched for the words of a private dialect. A room's count may only fall, and a
lower one is written down here.
"""

from __future__ import annotations

import functools
import io
import re
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from .sources import ROOT

DIALECT = re.compile(
    r"\b(?:whoever|whomever|whosever|anew|nobody|so many|so long|so much|of now|by now)\b"
    r"|\b(?:is|are|was|were|be|been|being) (?:told|heard|said|asked for)\b"
    r"|\b(?:world's fault|caller's fault|at fault|have it that|comes to nothing|for ever)\b",
    re.IGNORECASE,
)
"""Each has a plain word: *retry, stale, notify, no member, permanently, N, for a duration of*."""

RELATIVE = re.compile(
    r"(?:^|(?<=[.:;!]\s)|(?<=[.:;!]\n))(?:Who|Whose|Whom|What|Of what|Of whom|Whoever)\b(?![^.?!]*\?)"
)
"""A relative clause in the place of a subject at the start of a sentence."""

LEFT: Mapping[str, int] = {
    "ARCHITECTURE.md": 3,
    "CHANGELOG.md": 35,
    "README.md": 1,
    "benchmarks": 58,
    "docs": 152,
    "examples": 3,
    "jepsen_like": 37,
    "jepsen_like/chaos": 13,
    "jepsen_like/checkers": 61,
    "jepsen_like/clients": 43,
    "jepsen_like/clusters": 71,
    "jepsen_like/histories": 4,
    "jepsen_like/nemeses": 74,
    "jepsen_like/planted": 46,
    "jepsen_like/provenance": 1,
    "jepsen_like/report": 25,
    "jepsen_like/results": 7,
    "jepsen_like/runs": 46,
    "jepsen_like/scoreboard": 11,
    "jepsen_like/simulator": 312,
    "jepsen_like/workloads": 57,
    "spark_source": 16,
    "spark_source/driver": 1,
    "spark_source/reading": 3,
    "tests": 1,
    "tests/contracts": 5,
    "tests/golden": 3,
    "tests/integration": 62,
    "tests/interaction": 28,
    "tests/mutants": 14,
    "tests/property": 39,
    "tests/simulation": 14,
    "tests/support": 109,
    "tests/tidy": 2,
    "tests/unit": 284,
}
"""Room → occurrences that are left."""


def room(path: str) -> str:
    """The folder whose count a file is part of."""
    first, _, rest = path.partition("/")
    second = rest.partition("/")[0]
    return f"{first}/{second}" if "/" in rest else first


def prose(path: Path) -> Iterator[str]:
    """The docstrings and comments of a module; the whole of a document but its code."""
    text = path.read_text()
    if path.suffix == ".md":
        yield re.sub(r"```.*?```|`[^`\n]*`", "`", text, flags=re.DOTALL)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.lstrip("#").strip()
        elif token.type == tokenize.STRING and token.string.startswith(('"""', 'r"""', 'f"""')):
            yield re.sub(r"``.*?``|`[^`\n]*`", "`", token.string.split('"""')[1]).strip()


@functools.cache
def found() -> Mapping[str, list[str]]:
    """Room → each occurrence as `file: words`."""
    listed = subprocess.run(["git", "ls-files", "*.py", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    names: dict[str, list[str]] = {}
    for name in sorted(listed.stdout.split()):
        if name == "tests/tidy/test_language.py" or not (ROOT / name).exists():
            continue
        for text in prose(ROOT / name):
            for pattern in (DIALECT, RELATIVE):
                names.setdefault(room(name), []).extend(f"{name}: {one.group()}" for one in pattern.finditer(text))
    return {where: occurrences for where, occurrences in names.items() if occurrences}


def test_the_dialect_dies_out() -> None:
    more = {where: occurrences for where, occurrences in found().items() if len(occurrences) > LEFT.get(where, 0)}
    assert more == {}, "see docs/glossary.md for the plain words"


def test_what_is_left_is_written_down() -> None:
    counts = Counter({where: len(occurrences) for where, occurrences in found().items()})
    assert {where: left for where, left in LEFT.items() if counts[where] < left} == {}, "lower these in LEFT"
