"""Documents name only files that exist, and speak of the project alone."""

from __future__ import annotations

import re
import subprocess

import pytest

from .sources import PACKAGES, ROOT


def documents() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return sorted(listed.split())


FOLDERS = "|".join((*PACKAGES, "tests", "benchmarks", "docs", "examples"))
FILE = re.compile(rf"`((?:{FOLDERS})/[A-Za-z0-9_./-]+\.(?:py|md|json|toml|txt))`")
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("document", documents())
def test_documents_name_files_that_exist(document: str) -> None:
    text = (ROOT / document).read_text()
    missing = [name for name in FILE.findall(text) if not (ROOT / name).exists()]
    folder = (ROOT / document).parent
    missing += [link for link in LINK.findall(text) if not (folder / link).exists()]
    assert missing == []


@pytest.mark.parametrize("document", documents())
def test_documents_name_no_path_of_one_machine(document: str) -> None:
    assert not re.search(r"(?<![\w.])/(?:work|home|root)/", (ROOT / document).read_text())
