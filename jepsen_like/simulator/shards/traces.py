"""The trace hashes of a range of seeds, kept in a file and compared with another.

The same seed and the same code give the same hash, so a change that moves or merges code without changing its behaviour
leaves every hash as it was. The file is JSON lines, one per seed; an interrupted range resumes after the last one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .seeds import RUNNERS

Key = tuple[str, int, float]
"""Kind, seed, virtual seconds of faults."""


def read_traces(path: str) -> Mapping[Key, str]:
    """Return the hash of every seed in the file, none if it does not exist. Raises `ValueError` for another file."""
    file = Path(path)
    found: dict[Key, str] = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines() if file.exists() else (), start=1):
        try:
            held = json.loads(line)
            found[str(held["kind"]), int(held["seed"]), float(held["seconds_each"])] = str(held["trace"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}, line {number}: not a trace ({error}); move the file away") from None
    return found


def run_traces(kind: str, first: int, last: int, seconds: float, path: str) -> Iterator[tuple[int, str]]:
    """Run each seed of the range that the file lacks, append its hash to the file, and yield both.

    A violation is part of a run, and so of its hash: it does not end the range.
    """
    done = read_traces(path)
    for seed in range(first, last + 1):
        if (kind, seed, seconds) in done:
            continue
        verdict = RUNNERS[kind](seed, seconds)
        line = {
            "kind": kind,
            "seed": seed,
            "seconds_each": seconds,
            "virtual_seconds": round(verdict.seconds, 1),
            "trace": verdict.trace,
            "passed": verdict.passed,
        }
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        yield seed, verdict.trace


@dataclass(slots=True)
class Comparison:
    """How the traces of two files differ."""

    equal: dict[str, int] = field(default_factory=dict)
    """Kind → seeds with the same hash in both."""
    different: list[Key] = field(default_factory=list)
    missing: list[Key] = field(default_factory=list)
    """Seeds of the first file that the second one lacks."""

    @property
    def same(self) -> bool:
        """Whether every seed of the first file has the same hash in the second, and there is one."""
        return bool(self.equal) and not self.different and not self.missing

    def __str__(self) -> str:
        equal = ", ".join(f"{count} of {kind}" for kind, count in sorted(self.equal.items())) or "none"
        lines = [f"equal: {equal}; different: {len(self.different)}; missing: {len(self.missing)}"]
        lines += [f"  {kind} {seed}: different" for kind, seed, _ in self.different]
        return "\n".join(lines)


def compare(before: Mapping[Key, str], after: Mapping[Key, str], only: Callable[[Key], bool] = bool) -> Comparison:
    """Compare the seeds of `before` for which `only` is true with those of `after`."""
    found = Comparison()
    for key in sorted(filter(only, before)):
        if key not in after:
            found.missing.append(key)
        elif after[key] != before[key]:
            found.different.append(key)
        else:
            found.equal[key[0]] = found.equal.get(key[0], 0) + 1
    return found
