"""Transcripts of curl: pages whose examples, a block of `sh` and a block of `text` with its answers, go to a node.

curl ends no line and each answer is one, so the answers of a block are compared line by line.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

EXAMPLE = re.compile(r"^```sh\n((?:(?!```).)*)^```\n\n```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
SECONDS = 60


def examples_of(page: Path) -> list[tuple[str, list[str]]]:
    """Return the examples of a page: the requests, and the lines of their answers."""
    return [(requests, answers.splitlines()) for requests, answers in EXAMPLE.findall(page.read_text())]


def replayed(requests: str, api: str, *, before: Iterable[str] = ()) -> list[str]:
    """Send the requests of an example with `API` set, after the lines `before`; return the lines of the answers."""
    apart = re.sub(r"^(?=(?:curl|printf|head) )", "echo; ", requests, flags=re.MULTILINE)
    script = "\n".join([f"export API=http://{api}", *before, apart])
    told = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, timeout=SECONDS)
    assert told.returncode == 0, f"{requests}\n{told.stdout}\n{told.stderr}"
    return [line for line in told.stdout.splitlines() if line.strip()]


def contains(answer: Any, expected: Any) -> bool:
    """Return whether an answer has all that is expected; its objects may have more members."""
    if isinstance(expected, dict):
        return isinstance(answer, dict) and all(
            name in answer and contains(answer[name], value) for name, value in expected.items()
        )
    if isinstance(expected, list):
        return (
            isinstance(answer, list)
            and len(answer) == len(expected)
            and all(contains(*pair) for pair in zip(answer, expected, strict=True))
        )
    return bool(answer == expected)


def fits(answer: str, expected: str) -> bool:
    """Return whether a line of an answer has what a line of a transcript shows."""
    try:
        return contains(msgspec.json.decode(answer), msgspec.json.decode(expected))
    except msgspec.DecodeError:
        return answer == expected
