"""Plain English: sentences have noun subjects, and the field's words stand for the field's things (`docs/glossary.md`).

Docstrings, comments, documents and the texts that users see (help, errors, reports) have none of the words of a private
dialect.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
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


def texts(path: Path) -> Iterator[str]:
    """The string literals of a module that are sentences or parts of them, docstrings included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield re.sub(r"`[^`\n]*`", "`", node.value)


def test_prose_is_plain_english() -> None:
    listed = subprocess.run(["git", "ls-files", "*.py", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    found = []
    for name in sorted(listed.stdout.split()):
        path = ROOT / name
        if name == "tests/tidy/test_language.py" or not path.exists():
            continue
        found += [
            f"{name}: {word.group()}"
            for text in prose(path)
            for word in (*DIALECT.finditer(text), *RELATIVE.finditer(text))
        ]
        if path.suffix == ".py" and not name.startswith("tests/"):
            found += [f"{name}: {word.group()}" for text in texts(path) for word in DIALECT.finditer(text)]
    assert found == [], "docs/glossary.md has the plain words"
