"""The tutorial: its commands in their order, in one shell, print what the page shows.

Output below `<!-- numbers differ -->` is compared with each number and id replaced, because ids, times, rates and the
choice of leaders differ from run to run.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

from raftlog.cli.nodes.local_cluster import free_base_port
from tests.tidy.sources import ROOT

pytestmark = pytest.mark.integration

PAGE = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"^(<!-- numbers differ -->\n)?```(sh|python|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INSTALLATION = "python3 -m venv"
"""The first block is that of an empty machine; `.ci/wheel` installs the package in an empty environment."""
SECONDS = 180
MISSING = [name for name in ("bash", "curl", "pgrep") if shutil.which(name) is None]
PORT = re.compile(r"\b96([456])([01])\b")
MARKER = "=== block "


@dataclass
class Step:
    """Commands, and what they print: None if the page does not show it."""

    commands: str
    line: int
    output: str | None = None
    numbers_differ: bool = False


def steps(page: str) -> tuple[list[Step], dict[str, str]]:
    """Return the page's commands with their outputs, and the files that it has the reader save."""
    found: list[Step] = []
    files: dict[str, str] = {}
    for match in BLOCK.finditer(page):
        differ, kind, text = match.groups()
        if kind == "sh":
            found.append(Step(text, page.count("\n", 0, match.start()) + 1))
        elif kind == "text":
            assert found[-1].output is None
            found[-1].output, found[-1].numbers_differ = text, differ is not None
        else:
            name = re.match(r"# (\w+\.py)\n", text)
            assert name is not None, text
            files[name[1]] = text
    return found, files


def comparable(output: str, numbers_differ: bool) -> list[str]:
    """Return the output's lines without what may differ."""
    if numbers_differ:
        output = re.sub(r"\b[0-9a-f]{32}\b|\d+([.,]\d+)*", "#", output)
    return [" ".join(line.split()) for line in output.splitlines()]


@pytest.mark.skipif(bool(MISSING), reason=f"the tutorial's commands need {', '.join(MISSING)}")
def test_the_tutorial_prints_what_it_shows(tmp_path: Path) -> None:
    base_port = free_base_port(3)
    folder = f"tutorial-{uuid.uuid4().hex[:8]}"  # no other test's nodes are killed

    def here(text: str) -> str:
        ported = PORT.sub(lambda port: str(base_port + 10 * (int(port[1]) - 4) + int(port[2])), text)
        return re.sub(r"\btutorial\b", folder, ported).replace("raftlog dev ", f"raftlog dev --base-port {base_port} ")

    wanted, files = steps(here(PAGE.read_text()))
    assert [step for step in wanted if step.commands.startswith(INSTALLATION)] == wanted[:1]
    wanted = wanted[1:]
    assert len(wanted) > 10 and len(files) == 2
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    # A file, so that the shell's own arguments do not contain the pattern that finds a node's process.
    script = tmp_path / "commands.sh"
    script.write_text("\n".join(f"echo '{MARKER}{step.line}'\n{step.commands}" for step in wanted))
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAFTLOG_")}
    environment = {
        **clean,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "RAFTLOG_BOOTSTRAP": f"127.0.0.1:{base_port}",  # the default is the port of the page
    }
    # A file, because nodes in the background keep the shell's output open.
    with (tmp_path / "out").open("w") as out:
        shell = subprocess.Popen(
            ["bash", str(script)],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = shell.wait(SECONDS)
        except subprocess.TimeoutExpired:
            code = -1
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
    text = (tmp_path / "out").read_text()
    shown = dict(part.split("\n", 1) for part in text.split(MARKER)[1:])
    for step in wanted:
        printed = comparable(shown.get(str(step.line), "(not reached)"), step.numbers_differ)
        assert printed == comparable(step.output or "", step.numbers_differ), f"docs/tutorial.md:{step.line}\n{text}"
    assert code == 0, text
