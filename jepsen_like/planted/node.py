"""`python -P -m jepsen_like.planted.node BUG ARGUMENTS...`: a node of a real cluster with a planted bug.

The bug replaces the product's code in this process, and then the process runs `raftlog ARGUMENTS...`. It is pinned like
all others (`patches.py`): if the replaced code has changed, the node exits and says so. The product has no branch for
any of this.
"""

from __future__ import annotations

import runpy
import sys

from .bugs import PINNED
from .patches import Outdated, plant

PRODUCT = "raftlog.cli.main"
EXIT_USAGE, EXIT_OUTDATED = 2, 70


def program(bug: str) -> tuple[str, ...]:
    """Return the command that runs a node with this bug instead of `raftlog`."""
    return (sys.executable, "-P", "-m", "jepsen_like.planted.node", bug)


def main() -> None:
    """Exit as the product does."""
    if len(sys.argv) < 2 or sys.argv[1] not in PINNED:
        sys.stderr.write("usage: python -m jepsen_like.planted.node BUG ARGUMENTS... (BUG: see `planted list`)\n")
        sys.exit(EXIT_USAGE)
    bug = PINNED[sys.argv[1]]
    sys.argv = [sys.argv[0], *sys.argv[2:]]
    try:
        with plant(bug):
            runpy.run_module(PRODUCT, run_name="__main__", alter_sys=True)
    except Outdated as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(EXIT_OUTDATED)


if __name__ == "__main__":
    main()
