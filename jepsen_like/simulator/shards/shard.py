"""A long range of seeds, run piece by piece over many sittings: the results file says what was run, and by which code.

The file is JSON lines, only ever appended to. Each line is one chunk: commit, kind, first and last seed, virtual
seconds a seed and of all, seconds it took, and the violations (none is the rule). A shard of a range that was begun
goes on with the first seed which no line of the same kind, code and length covers; other code begins anew, for its
seeds are other runs. A line that is half written, because the machine stopped in it, is no line: its seeds are run
again. `summarize` adds up what the files of several shards have.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class Chunk:
    """One line."""

    commit: str
    kind: str
    first: int
    last: int
    seconds_each: float
    """Virtual, of faults, a seed; a run has a little more."""
    virtual_seconds: float
    seconds: float
    """Of the real clock."""
    violations: tuple[Mapping[str, object], ...]


def read_chunks(path: str) -> Iterator[Chunk]:
    """All lines. Raises `ValueError` where the file is something else, `OSError` where there is none."""
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.rstrip("\n").endswith("}"):
                continue  # empty, or torn by a stop: its seeds are run again
            try:
                yield _chunk(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}, line {number}: not a shard's result ({error}); move the file away") from None


def _chunk(held: Mapping[str, Any]) -> Chunk:
    if held["kind"] not in RUNNERS:
        raise ValueError(f"kind {held['kind']!r}")
    return Chunk(
        commit=str(held["commit"]),
        kind=str(held["kind"]),
        first=int(held["from"]),
        last=int(held["to"]),
        seconds_each=float(held["virtual_seconds_each"]),
        virtual_seconds=float(held["virtual_seconds"]),
        seconds=float(held["seconds"]),
        violations=tuple(held["violations"]),
    )


def covered(path: str, shard: Shard, same_code: Callable[[str, bool], bool] | None = None) -> list[tuple[int, int]]:
    """The ranges that the file has for this shard, by its commit or one that `same_code` takes for it. Raises
    `ValueError` where the file is something else."""
    if not os.path.exists(path):
        return []
    return [
        (chunk.first, chunk.last)
        for chunk in read_chunks(path)
        if (chunk.kind, chunk.seconds_each) == (shard.kind, shard.seconds)
        and (chunk.commit == shard.commit or (same_code is not None and same_code(chunk.commit, not chunk.violations)))
    ]


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
    shard: Shard,
    path: str,
    *,
    budget: float = 0.0,
    report: Callable[[Verdict], None] = lambda verdict: None,
    same_code: Callable[[str, bool], bool] | None = None,
) -> int:
    """Run what is left, appending a line a chunk. Returns how many violations were found in this sitting.

    `budget`: stop after so many seconds of the real clock; 0: never. `same_code(commit, clean)`: of which other
    commits a result counts as this one's.
    """
    began = time.monotonic()
    found = 0
    for first, last in chunks(shard, covered(path, shard, same_code)):
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


@dataclass(slots=True)
class Summary:
    """What was run of one kind of world, at one length, and still counts."""

    kind: str
    seconds_each: float
    seeds: set[int] = field(default_factory=set)
    virtual_seconds: float = 0.0
    seconds: float = 0.0
    violations: dict[int, str] = field(default_factory=dict)
    """Seed → what it found."""
    outdated: int = 0
    """Seeds that other code ran."""

    def __str__(self) -> str:
        speed = self.virtual_seconds / self.seconds if self.seconds else 0.0
        return (
            f"{self.kind}: {len(self.seeds)} seeds of {self.seconds_each:.0f} s count "
            f"({self.virtual_seconds / 3600:.1f} virtual hours in {self.seconds / 3600:.1f} h, {speed:.0f} a second), "
            f"{len(self.violations)} violations; {self.outdated} seeds were run by other code"
        )


def summarize(paths: Iterable[str], same_code: Callable[[str, str, bool], bool]) -> list[Summary]:
    """Add up, a kind and a length at a time. `same_code(kind, commit, clean)`: whether the commit's results count. A
    seed that was run twice counts once. Raises `ValueError` and `OSError` as `read_chunks`."""
    found: dict[tuple[str, float], Summary] = {}
    for path in paths:
        for chunk in read_chunks(path):
            summary = found.setdefault((chunk.kind, chunk.seconds_each), Summary(chunk.kind, chunk.seconds_each))
            seeds = set(range(chunk.first, chunk.last + 1))
            if not same_code(chunk.kind, chunk.commit, not chunk.violations):
                summary.outdated += len(seeds)
                continue
            new = len(seeds - summary.seeds) / len(seeds)
            summary.seeds |= seeds
            summary.virtual_seconds += chunk.virtual_seconds * new
            summary.seconds += chunk.seconds * new
            summary.violations |= {int(str(one["seed"])): str(one["violation"]) for one in chunk.violations}
    return [found[key] for key in sorted(found)]
