"""The tutorial and the first secure cluster: their commands, in order and in one shell, print what the pages show."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.manual_pages import replay, steps_of, with_free_ports
from tests.tidy.sources import ROOT

pytestmark = pytest.mark.integration

INSTALLATION = "python3 -m venv"
"""The first block is that of an empty machine; `.ci/wheel` installs the package in an empty environment."""
SECONDS = 600
MISSING = [name for name in ("bash", "curl") if shutil.which(name) is None]


@pytest.mark.skipif(bool(MISSING), reason=f"the pages' commands need {', '.join(MISSING)}")
@pytest.mark.parametrize(("name", "least"), [("docs/tutorial.md", 12), ("docs/first-cluster.md", 8)])
def test_a_session_prints_what_its_page_shows(tmp_path: Path, name: str, least: int) -> None:
    page, base_port = with_free_ports((ROOT / name).read_text(), 3)
    steps, files = steps_of(page)
    assert [step for step in steps if INSTALLATION in step.commands] == steps[:1]
    assert len(steps) > least and files
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    replay(name, steps[1:], tmp_path, seconds=SECONDS, RAFTLOG_BOOTSTRAP=f"127.0.0.1:{base_port}")
