"""`python -m jepsen_like.clusters`: probe which faults this machine supports, or remove what killed runs left behind.

python -m jepsen_like.clusters                    # a table; exit code 0
python -m jepsen_like.clusters --expect all       # exit code 1 and the names if a capability is missing
python -m jepsen_like.clusters --clean            # removes what killed runs left behind
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .capabilities import CAPABILITIES, table
from .leftovers import remove_leftovers


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    names = [capability.name for capability in CAPABILITIES]
    parser = argparse.ArgumentParser(
        prog="python -m jepsen_like.clusters", description="The faults that this machine supports."
    )
    parser.add_argument(
        "--expect", nargs="+", default=[], choices=["all", *names], help="exit with 1 if one of these is missing"
    )
    parser.add_argument("--clean", action="store_true", help="remove what killed runs left behind, and exit")
    chosen = parser.parse_args(arguments)
    if chosen.clean:
        for thing in remove_leftovers():
            sys.stdout.write(f"removed {thing}\n")
        return 0
    expected = set(names) if "all" in chosen.expect else set(chosen.expect)
    missing = []
    for name, means, lacking in table():
        sys.stdout.write(f"{name:<16}{'no ' if lacking else 'yes'}  {means}\n")
        if lacking:
            sys.stdout.write(f"{'':<21}{lacking}\n")
            missing.append(name)
    unmet = sorted(expected.intersection(missing))
    if unmet:
        sys.stderr.write(f"missing: {', '.join(unmet)}\n")
    return 1 if unmet else 0


if __name__ == "__main__":
    sys.exit(main())
