"""`python -m jepsen_like.simulator --seed N`: run seeds, print a line each, stop at the first violation.

With `--budget` seconds the run ends when the time is over, however many seeds that was. With `--results FILE` a line a
seed is appended as JSON, so that long runs add up over many sittings.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

from .run import run_seed


def main() -> int:
    """Exit code 0: every seed passed; 1: one did not, and its trace's last lines were printed."""
    parser = argparse.ArgumentParser(prog="python -m jepsen_like.simulator", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--seconds", type=float, default=60.0, help="virtual seconds of faults a seed")
    parser.add_argument("--budget", type=float, default=0.0, help="stop after so many real seconds; 0: never")
    parser.add_argument("--lines", type=int, default=200, help="trace lines to print for a violation")
    parser.add_argument("--results", default="", help="append a JSON line a seed to this file")
    parser.add_argument("--no-faults", action="store_true")
    arguments = parser.parse_args()
    started = time.monotonic()
    passed = 0
    virtual = 0.0
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        before = time.monotonic()
        verdict = run_seed(seed, arguments.seconds, faulty=not arguments.no_faults)
        virtual += verdict.seconds
        sys.stdout.write(f"{verdict}\n")
        sys.stdout.flush()
        if arguments.results:
            keep(arguments.results, seed, verdict.passed, verdict.seconds, time.monotonic() - before, verdict.trace)
        if not verdict.passed:
            for line in verdict.lines[-arguments.lines :]:
                sys.stdout.write(f"  {line}\n")
            sys.stdout.write(f"seed {seed} failed: {verdict.violation}\n")
            return 1
        passed += 1
        if arguments.budget and time.monotonic() - started > arguments.budget:
            break
    wall = time.monotonic() - started
    sys.stdout.write(
        f"{passed} seeds passed, {virtual:.0f} virtual seconds in {wall:.0f} s ({virtual / wall:.0f} a second)\n"
    )
    return 0


def keep(path: str, seed: int, passed: bool, virtual: float, real: float, trace: str) -> None:
    """Append one result."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    line = {
        "commit": commit.stdout.strip(),
        "seed": seed,
        "passed": passed,
        "virtual_seconds": round(virtual, 1),
        "seconds": round(real, 1),
        "trace": trace,
    }
    with open(path, "a") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    sys.exit(main())
