"""Pages of the manual as sessions of a shell: their commands, in their order, and what they print.

A page has its commands in blocks of `sh`, what they print in the block of `text` after them, and files that the reader
saves in blocks of `python` whose first line is a comment with the name. Output below `<!-- numbers differ -->` is
compared with each number, id and unit of time replaced, because ids, times, rates and the choice of leaders differ from
run to run.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from raftlog.cli.nodes.local_cluster import free_base_port

_BLOCK = re.compile(r"^(<!-- numbers differ -->\n)?```(sh|python|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PORT = re.compile(r"\b96([4-8])([01])\b")
_DIFFERENT = re.compile(r"\b[0-9a-f]{32}\b|\d+([.,:-]\d+)*( (ms|s|min)\b)?( (B|KiB)\b)?\*?")
_MARKER = "=== block "
_JOB_ENDED = re.compile(r"^\S+: line \d+: +\d+ Killed .*\n", re.MULTILINE)
"""The line by which a shell that runs a file reports a killed job."""


@dataclass
class Step:
    """Commands, and what they print: None if the page does not show it."""

    commands: str
    line: int
    output: str | None = None
    numbers_differ: bool = False


@dataclass(frozen=True)
class Session:
    """The result of a shell: its exit code (-1: it was not done in time), and its two outputs."""

    code: int
    out: str
    errors: str


def steps_of(page: str) -> tuple[list[Step], dict[str, str]]:
    """Return the page's commands with their outputs, and the files that it has the reader save."""
    found: list[Step] = []
    files: dict[str, str] = {}
    for match in _BLOCK.finditer(page):
        differ, kind, text = match.groups()
        if kind == "sh":
            found.append(Step(text, page.count("\n", 0, match.start()) + 1))
        elif kind == "text":
            assert found[-1].output is None
            found[-1].output, found[-1].numbers_differ = text, differ is not None
        else:
            name = re.match(r"# (\w+\.py)\n", text)
            if name is not None:
                files[name[1]] = text
    return found, files


def with_free_ports(page: str, node_count: int) -> tuple[str, int]:
    """Return the page with free ports in place of those of a local cluster of up to five nodes, and in the commands
    that start one; and the first of these ports."""
    base = free_base_port(node_count)
    ported = _PORT.sub(lambda port: str(base + 10 * (int(port[1]) - 4) + int(port[2])), page)
    return ported.replace("raftlog dev ", f"raftlog dev --base-port {base} "), base


def run_shell(script: str, folder: Path, *, seconds: float, together: bool = False, **environment: str) -> Session:
    """Run a script in this folder, and end it with all that it started. `together`: both outputs in one, in order.

    The shell finds the `raftlog` of this interpreter, and none of the variables that choose a cluster but those given.
    """
    path = folder / "commands.sh"  # A file, so that the shell's own arguments have no word of the commands.
    path.write_text(script)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAFTLOG_")}
    paths = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(folder), "COLUMNS": "200"}
    # Files, because nodes in the background keep the shell's outputs open.
    with (folder / "out").open("w") as out, (folder / "errors").open("w") as errors:
        shell = subprocess.Popen(
            ["bash", str(path)],
            cwd=folder,
            env=clean | paths | environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT if together else errors,
            start_new_session=True,
        )
        try:
            code = shell.wait(seconds)
        except subprocess.TimeoutExpired:
            code = -1
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
    return Session(code, (folder / "out").read_text(), (folder / "errors").read_text())


def replay(name: str, steps: Sequence[Step], folder: Path, *, seconds: float, **environment: str) -> str:
    """Run the steps of a page in one shell, and compare what each prints. Returns all that was printed."""
    script = "\n".join(f"echo '{_MARKER}{step.line}'\n{step.commands}" for step in steps)
    session = run_shell(script, folder, seconds=seconds, together=True, **environment)
    shown = dict(part.split("\n", 1) for part in _JOB_ENDED.sub("", session.out).split(_MARKER)[1:])
    for step in steps:
        printed = _comparable(shown.get(str(step.line), "(not reached)"), step.numbers_differ)
        assert printed == _comparable(step.output or "", step.numbers_differ), f"{name}:{step.line}\n{session.out}"
    assert session.code == 0, session.out
    return session.out


def _comparable(output: str, numbers_differ: bool) -> list[str]:
    """Return the output's lines without what may differ."""
    if numbers_differ:
        output = _DIFFERENT.sub("#", output)
    return [" ".join(line.split()) for line in output.splitlines()]
