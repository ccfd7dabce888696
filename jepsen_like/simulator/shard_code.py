"""Which results of simulated worlds still count: those that were run by the code that is here now.

A commit's code is that of a kind of world if none of the files that such a world runs differs from it. So what only
documents, tests, or works elsewhere, does not void a night of seeds. What is *not* here: results (`shard.py`).
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

FILES: Mapping[str, tuple[str, ...]] = {
    "quorum": ("raftlog/*.py", "metadata", "jepsen_like/simulator"),
    "groups": ("raftlog/*.py", "raftlog/client/group_*.py", "metadata", "jepsen_like/simulator"),
    "cluster": ("raftlog/*.py", "metadata", "partitions", "raftlog/broker", "jepsen_like/simulator"),
    "transactions": ("raftlog/*.py", "metadata", "partitions", "raftlog/broker", "jepsen_like/simulator"),
}
"""Kind → what its worlds run, as `git` matches paths; only Python files count."""

HERE = Path(__file__).resolve().parent
COMMIT = re.compile("[0-9a-f]{7,40}")
GIT_SECONDS = 60.0


def commit_of_this_tree(kind: str) -> str:
    """The code that runs; with a plus sign where the world's files differ from the commit. `unknown` outside a
    repository."""
    status, found = _git("rev-parse", "--short=12", "HEAD")
    if status != 0 or not found:
        return "unknown"
    return found if _is_here(found, kind) else f"{found}+"


class SameCode:
    """Whether a commit's code is the present one, for one kind of world. Each commit is looked at once."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._known: dict[str, bool] = {}

    def __call__(self, commit: str) -> bool:
        """False as well for a commit that is not known here, or that was run with changes on top."""
        if commit not in self._known:
            self._known[commit] = COMMIT.fullmatch(commit) is not None and _is_here(commit, self._kind)
        return self._known[commit]


def _is_here(commit: str, kind: str) -> bool:
    paths = [f":(top,glob){path if path.endswith('.py') else path + '/**/*.py'}" for path in FILES[kind]]
    status, _ = _git("diff", "--quiet", commit, "--", *paths)
    return status == 0


def _git(*arguments: str) -> tuple[int, str]:
    asked = subprocess.run(
        ["git", *arguments],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
        timeout=GIT_SECONDS,
    )
    return asked.returncode, asked.stdout.strip()
