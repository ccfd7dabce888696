"""Fuzz the ports of real nodes, one after the other: `python -P -m tests.support.fuzzing --seconds 1800`.

Each run is a line of results; the exit code is 1 if one of them found something.
"""

from __future__ import annotations

import argparse
import sys

from tests.support.clusters.result_lines import append

from .captures import PORTS
from .runs import fuzz, random_seed

RESULTS = "jepsen_like/results/fuzzing.jsonl"


def main() -> int:
    """Run what the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ports", nargs="+", choices=PORTS, default=list(PORTS))
    parser.add_argument("--nodes", nargs="+", choices=("plain", "secured"), default=["plain", "secured"])
    parser.add_argument("--seconds", type=float, default=20.0, help="for each port")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--results", default=RESULTS)
    chosen = parser.parse_args()
    found = False
    for node in chosen.nodes:
        for port in chosen.ports:
            seed = random_seed() if chosen.seed is None else chosen.seed
            result = fuzz(port, seed, chosen.seconds, secured=node == "secured")
            append(result, chosen.results)
            found = found or bool(result.findings)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
