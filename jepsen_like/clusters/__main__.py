"""`python -m jepsen_like.clusters`: what this machine can do to a cluster, tried; and what dead runs left, removed.

python -m jepsen_like.clusters                    # a table; exit code 0
python -m jepsen_like.clusters --expect all       # exit code 1, and names, where something is missing
python -m jepsen_like.clusters --clean            # removes what runs that were killed have left
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .capabilities import CAPABILITIES, table
from .leftovers import remove_leftovers


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    names = [capability.name for capability in CAPABILITIES]
    parser = argparse.ArgumentParser(prog="python -m jepsen_like.clusters", description="What can be broken here.")
    parser.add_argument("--expect", nargs="+", default=[], choices=["all", *names], help="end with 1 without these")
    parser.add_argument("--clean", action="store_true", help="remove what runs that were killed have left")
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
