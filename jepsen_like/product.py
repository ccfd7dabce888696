"""Which code a run judged: the commit, and whether the product's files are that commit's.

What documents, tests and the suite itself say does not change what was judged. What is *not* here: simulated worlds,
of which each kind runs its own files (`simulator/shard_code.py`).
"""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
PRODUCT = ("raftlog", "metadata", "partitions", "http_api")
GIT_SECONDS = 60.0
UNKNOWN = "unknown"


@functools.cache
def commit_of_the_product() -> str:
    """With a plus sign where its files differ from the commit's; `unknown` outside a repository."""
    status, found = _git("rev-parse", "--short=12", "HEAD")
    if status or not found:
        return UNKNOWN
    return found if is_here(found) else f"{found}+"


@functools.cache
def is_here(commit: str) -> bool:
    """The product's files are that commit's. False as well for a commit that is not known here."""
    if not commit.isalnum():
        return False
    status, _ = _git("diff", "--quiet", commit, "--", *(f":(top,glob){folder}/**/*.py" for folder in PRODUCT))
    return status == 0


def _git(*arguments: str) -> tuple[int, str]:
    try:
        asked = subprocess.run(
            ["git", *arguments], cwd=TOP, capture_output=True, text=True, check=False, timeout=GIT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return 1, ""
    return asked.returncode, asked.stdout.strip()
