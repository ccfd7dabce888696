"""The commands of docs/security.md, in their order, in one shell: a secure node comes up, and a user works with it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from raftlog.cli.nodes.local_cluster import free_base_port
from tests.support.security.token_texts import secret_part
from tests.tidy.sources import ROOT

pytestmark = pytest.mark.integration

BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
SECONDS = 120
MISSING = [name for name in ("bash", "curl", "openssl") if shutil.which(name) is None]


def script(manual: str, base_port: int) -> str:
    """Return the commands, with other ports, each block after a line that names it. A block of `openssl` has a folder
    of its own."""
    lines = ["set -euo pipefail"]
    for match in BLOCK.finditer(manual):
        where = f"docs/security.md:{manual.count(chr(10), 0, match.start()) + 1}"
        block = match[1].replace("9640", str(base_port)).replace("9641", str(base_port + 1))
        inside = f"(mkdir by-hand; cd by-hand\n{block})" if block.startswith("openssl") else block
        lines += [f"echo '# {where}' >&2", inside]
    return "\n".join(lines)


@pytest.mark.skipif(bool(MISSING), reason=f"the manual's commands need {', '.join(MISSING)}")
def test_the_commands_of_the_manual_do_what_it_says(tmp_path: Path) -> None:
    commands = script((ROOT / "docs" / "security.md").read_text(), free_base_port(1))
    assert commands.count("# docs/security.md") >= 6
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAFTLOG_")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # Files, because the node in the background keeps the shell's output open.
    with (tmp_path / "out").open("w") as out_file, (tmp_path / "errors").open("w") as error_file:
        shell = subprocess.Popen(
            ["bash", "-c", commands],
            cwd=tmp_path,
            env={**clean, "PATH": path, "HOME": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            stdout=out_file,
            stderr=error_file,
            start_new_session=True,
        )
        try:
            code = shell.wait(SECONDS)
        finally:
            os.killpg(shell.pid, signal.SIGKILL)
    shown = {name: (tmp_path / name).read_text() for name in ("out", "errors", "node.log")}
    assert code == 0, shown
    assert "hello" in shown["out"].splitlines()
    tokens = [(tmp_path / name).read_text().strip() for name in ("admin.token", "alice.token")]
    kept = [*shown.values(), *(path.read_text() for path in (tmp_path / "node.toml", tmp_path / "data" / "audit.log"))]
    for token in tokens:
        assert not any(secret_part(token) in text for text in kept)
