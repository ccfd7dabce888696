"""A long range of seeds, run piece by piece over many sittings: the results file says what was run, and by which code.

The file is JSON lines, only ever appended to. Each line is one chunk: commit, kind, first and last seed, virtual
seconds a seed, seconds it took, and the violations (none is the rule). A shard of a range that was begun goes on with
the first seed which no line of the same kind, commit and length covers; another commit begins anew, for its seeds are
other runs. A line that is half written, because the machine stopped in it, is no line: its seeds are run again.

What is *not* here: running a seed (`seeds.py`), arguments (`__main__.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .seeds import RUNNERS, Verdict

CHUNK_SEEDS = 50
"""Seeds a line: what is lost by a stop."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A range of seeds of one kind, both ends included."""

    kind: str
    first: int
    last: int
    seconds: float
    """Virtual, of faults, a seed."""
    commit: str

    def __post_init__(self) -> None:
        if self.kind not in RUNNERS:
            raise ValueError(f"kind {self.kind!r} is none of {', '.join(RUNNERS)}")
        if not 0 <= self.first <= self.last:
            raise ValueError(f"from {self.first} to {self.last} are no seeds")


def commit_of_this_tree() -> str:
    """The code that runs; with a plus sign where files differ from the commit. `unknown` outside a repository."""
    asked = subprocess.run(
        ["git", "describe", "--always", "--abbrev=12", "--dirty=+"],
        cwd=Path(__file__).resolve().parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return asked.stdout.strip() or "unknown"


def covered(path: str, shard: Shard) -> list[tuple[int, int]]:
    """The ranges that the file has for this shard. Raises `ValueError` where the file is something else."""
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")
    ranges = []
    for number, line in enumerate(lines, start=1):
        if not line.endswith("}"):
            continue  # empty, or torn by a stop: its seeds are run again
        try:
            held: dict[str, Any] = json.loads(line)
            asked = (held["kind"], held["commit"], held["virtual_seconds_each"])
            seeds = int(held["from"]), int(held["to"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}, line {number}: not a shard's result ({error}); move the file away") from None
        if asked == (shard.kind, shard.commit, shard.seconds):
            ranges.append(seeds)
    return ranges


def chunks(shard: Shard, done: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """What is left to run, in pieces."""
    left: list[tuple[int, int]] = []
    seed = shard.first
    while seed <= shard.last:
        inside = [last for first, last in done if first <= seed <= last]
        if inside:
            seed = max(inside) + 1
            continue
        next_done = min((first for first, _ in done if first > seed), default=shard.last + 1)
        last = min(seed + CHUNK_SEEDS - 1, shard.last, next_done - 1)
        left.append((seed, last))
        seed = last + 1
    return left


def run_shard(
    shard: Shard, path: str, *, budget: float = 0.0, report: Callable[[Verdict], None] = lambda verdict: None
) -> int:
    """Run what is left, appending a line a chunk. Returns how many violations were found in this sitting.

    `budget`: stop after so many seconds of the real clock; 0: never.
    """
    began = time.monotonic()
    found = 0
    for first, last in chunks(shard, covered(path, shard)):
        chunk_began = time.monotonic()
        violations: list[dict[str, object]] = []
        virtual = 0.0
        seed = first
        for seed in range(first, last + 1):
            verdict = RUNNERS[shard.kind](seed, shard.seconds)
            virtual += verdict.seconds
            report(verdict)
            if not verdict.passed:
                violations.append({"seed": seed, "trace": verdict.trace, "violation": verdict.violation[:2000]})
            if budget and time.monotonic() - began > budget:
                break
        found += len(violations)
        seconds = time.monotonic() - chunk_began
        append(path, shard, (first, seed), virtual=virtual, seconds=seconds, violations=violations)
        if budget and time.monotonic() - began > budget:
            break
    return found


def append(
    path: str,
    shard: Shard,
    seeds: tuple[int, int],
    *,
    virtual: float,
    seconds: float,
    violations: list[dict[str, object]],
) -> None:
    """One line, in one write."""
    line = {
        "commit": shard.commit,
        "kind": shard.kind,
        "from": seeds[0],
        "to": seeds[1],
        "virtual_seconds_each": shard.seconds,
        "virtual_seconds": round(virtual, 1),
        "seconds": round(seconds, 2),
        "violations": violations,
    }
    with open(path, "ab+") as file:
        file.seek(0, os.SEEK_END)
        if file.tell():
            file.seek(-1, os.SEEK_END)
            # A torn last line stays as it is, and ends here.
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(json.dumps(line).encode() + b"\n")
