"""A long range of seeds, run in pieces: the results file records what was run, and by which code.

The file is JSON lines, only appended to. Each line is one chunk: commit, kind, first and last seed, virtual seconds per
seed and in total, real seconds, and the violations (usually none). An interrupted shard resumes with the first seed
that no line of the same kind, code and length covers; other code starts over, because its seeds are other runs. A torn
line, after the machine stopped, is ignored: its seeds are run again. `summarize` adds up the files of several shards.
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
"""Seeds per line: an interruption loses at most these."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A range of seeds of one kind, both ends included."""

    kind: str
    first: int
    last: int
    seconds: float
    """Virtual seconds of faults per seed."""
    commit: str

    def __post_init__(self) -> None:
        if self.kind not in RUNNERS:
            raise ValueError(f"unknown kind {self.kind!r}; kinds: {', '.join(RUNNERS)}")
        if not 0 <= self.first <= self.last:
            raise ValueError(f"{self.first} to {self.last} is not a range of seeds")


@dataclass(frozen=True, slots=True)
class Chunk:
    """One line."""

    commit: str
    kind: str
    first: int
    last: int
    seconds_each: float
    """Virtual seconds of faults per seed; a run has a little more."""
    virtual_seconds: float
    seconds: float
    """Real seconds."""
    violations: tuple[Mapping[str, object], ...]


def read_chunks(path: str) -> Iterator[Chunk]:
    """Yield all lines. Raises `ValueError` if the file holds anything else, `OSError` if it does not exist."""
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.rstrip("\n").endswith("}"):
                continue  # empty, or torn by an interruption: its seeds are run again
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
    """Return the ranges that the file has for this shard, by its commit or one that `same_code` accepts.

    Raises `ValueError` if the file holds anything else.
    """
    if not os.path.exists(path):
        return []
    return [
        (chunk.first, chunk.last)
        for chunk in read_chunks(path)
        if (chunk.kind, chunk.seconds_each) == (shard.kind, shard.seconds)
        and (chunk.commit == shard.commit or (same_code is not None and same_code(chunk.commit, not chunk.violations)))
    ]


def chunks(shard: Shard, done: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the remaining ranges, in pieces."""
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
    """Run the remaining seeds, appending one line per chunk; return the number of violations found now.

    `budget`: stop after this many real seconds; 0: never. `same_code(commit, clean)`: whether another commit's result
    counts for this one.
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
    """Append one line, in one write."""
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
            # A torn last line stays, and ends here.
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(json.dumps(line).encode() + b"\n")


@dataclass(slots=True)
class Summary:
    """The valid results of one kind of world, at one length."""

    kind: str
    seconds_each: float
    seeds: set[int] = field(default_factory=set)
    virtual_seconds: float = 0.0
    seconds: float = 0.0
    violations: dict[int, str] = field(default_factory=dict)
    """Seed → its violation."""
    outdated: int = 0
    """Number of seeds that other code ran."""

    def __str__(self) -> str:
        speed = self.virtual_seconds / self.seconds if self.seconds else 0.0
        return (
            f"{self.kind}: {len(self.seeds)} seeds of {self.seconds_each:.0f} s count "
            f"({self.virtual_seconds / 3600:.1f} virtual hours in {self.seconds / 3600:.1f} h, {speed:.0f} a second), "
            f"{len(self.violations)} violations; {self.outdated} seeds were run by other code"
        )


def summarize(paths: Iterable[str], same_code: Callable[[str, str, bool], bool]) -> list[Summary]:
    """Add up results by kind and length; a seed that was run twice counts once.

    `same_code(kind, commit, clean)`: whether the commit's results count. Raises `ValueError` and `OSError` as
    `read_chunks`.
    """
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
