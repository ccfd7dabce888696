"""`python -P -m jepsen_like.planted.node BUG ARGUMENTS...`: a node of a real cluster with a planted bug in it.

The bug takes the place of the product's code in this process, and then the process does what `raftlog ARGUMENTS...`
does. It is pinned as everywhere (`patches.py`): where the code has changed since, the node ends and says so. The
product has no branch for any of this.
"""

from __future__ import annotations

import runpy
import sys

from .bugs import BUGS
from .patches import Outdated, plant

PRODUCT = "raftlog.cli.main"
EXIT_USAGE, EXIT_OUTDATED = 2, 70


def program(bug: str) -> tuple[str, ...]:
    """What runs a node with this bug, in place of `raftlog`."""
    return (sys.executable, "-P", "-m", "jepsen_like.planted.node", bug)


def main() -> None:
    """Ends as the product does."""
    if len(sys.argv) < 2 or sys.argv[1] not in BUGS:
        sys.stderr.write(
            "python -m jepsen_like.planted.node BUG ARGUMENTS...: a bug of `planted list`, and raftlog's\n"
        )
        sys.exit(EXIT_USAGE)
    bug = BUGS[sys.argv[1]]
    sys.argv = [sys.argv[0], *sys.argv[2:]]
    try:
        with plant(bug):
            runpy.run_module(PRODUCT, run_name="__main__", alter_sys=True)
    except Outdated as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(EXIT_OUTDATED)


if __name__ == "__main__":
    main()
