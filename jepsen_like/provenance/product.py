"""The code that a run of a real cluster judged: the commit, and whether the product's files are those of the commit.

Changes of documents, tests and the suite itself do not change what was judged.
"""

from __future__ import annotations

import functools
from pathlib import Path

from .same_code import SameCode, commit_of

TOP = Path(__file__).resolve().parents[2]
PRODUCT = ("raftlog", "metadata", "partitions", "http_api")
REAL_CLUSTERS = "real-clusters"
"""The kind of such results in `still_holds.jsonl`."""

_PATHS = tuple(f":(top,glob){folder}/**/*.py" for folder in PRODUCT)


@functools.cache
def commit_of_the_product() -> str:
    """Return the commit, with a plus sign if the product's files differ from it; `unknown` outside a repository."""
    return commit_of(TOP, _PATHS)


def same_product() -> SameCode:
    """Return the test whether a result judged the present product."""
    return SameCode(TOP, REAL_CLUSTERS, lambda: _PATHS)
