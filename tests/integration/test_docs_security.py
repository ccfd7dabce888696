"""The commands of docs/security.md, in their order, in one shell: a secure node comes up, and a user works with it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.manual_pages import run_shell, steps_of, with_free_ports
from tests.support.security.token_texts import secret_part
from tests.tidy.sources import ROOT

pytestmark = pytest.mark.integration

NAME = "docs/security.md"
SECONDS = 120
MISSING = [name for name in ("bash", "curl", "openssl") if shutil.which(name) is None]


def script(manual: str) -> str:
    """Return the commands, each block after a line that names it. A block of `openssl` has a folder of its own."""
    lines = ["set -euo pipefail"]
    for step in steps_of(manual)[0]:
        by_hand = f"(mkdir by-hand; cd by-hand\n{step.commands})"
        lines += [
            f"echo '# {NAME}:{step.line}' >&2",
            by_hand if step.commands.startswith("openssl") else step.commands,
        ]
    return "\n".join(lines)


@pytest.mark.skipif(bool(MISSING), reason=f"the manual's commands need {', '.join(MISSING)}")
def test_the_commands_of_the_manual_do_what_it_says(tmp_path: Path) -> None:
    manual, _ = with_free_ports((ROOT / NAME).read_text(), 1)
    commands = script(manual)
    assert commands.count(f"# {NAME}") >= 6
    session = run_shell(commands, tmp_path, seconds=SECONDS)
    shown = {name: (tmp_path / name).read_text() for name in ("out", "errors", "node.log")}
    assert session.code == 0, shown
    assert "hello" in shown["out"].splitlines()
    tokens = [(tmp_path / name).read_text().strip() for name in ("admin.token", "alice.token")]
    kept = [*shown.values(), *(path.read_text() for path in (tmp_path / "node.toml", tmp_path / "data" / "audit.log"))]
    for token in tokens:
        assert not any(secret_part(token) in text for text in kept)
