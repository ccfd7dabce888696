"""The results that are kept with the code: `results/`, one file for each kind, only appended to.

The fields of a line determine its kind; a line that is already kept is not added again, and a torn line is ignored.
`results/README.md` explains each kind and when it counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from raftlog.errors import InvalidRequest

FOLDER = Path(__file__).parents[1] / "results"

RUNS, PLANTED, SEEDS, POWER_LOSS, CORPORA, SPARK_KILLS, FUZZING = (
    "runs.jsonl", "planted.jsonl", "seeds.jsonl", "power-failures.jsonl", "corpora.jsonl", "spark-kills.jsonl",
    "fuzzing.jsonl",
)  # fmt: skip
FIELDS: Mapping[str, frozenset[str]] = {
    PLANTED: frozenset({"bug", "pins", "found"}),
    RUNS: frozenset({"plan", "recovery_s", "valid"}),
    SEEDS: frozenset({"kind", "from", "to", "violations"}),
    FUZZING: frozenset({"port", "canary_records", "findings"}),
    POWER_LOSS: frozenset({"survivors", "acknowledged_lost", "commit"}),
    CORPORA: frozenset({"corpus", "cases", "agreed"}),
    SPARK_KILLS: frozenset({"step", "micro_batch", "left_open", "verdict"}),
}
"""File → the fields that each of its lines has."""


def file_of(line: Mapping[str, Any]) -> str | None:
    """Return the file to which a line belongs, or None if it is not a result."""
    return next((name for name, fields in FIELDS.items() if fields <= line.keys()), None)


def keep(files: Iterable[Path], folder: Path = FOLDER) -> Counter[str]:
    """Add the lines of these files and return the number of new ones by file.

    Raises `InvalidRequest` if a line is not a result, before anything is added.
    """
    new: dict[str, dict[bytes, None]] = {}
    for file in files:
        for number, line in enumerate(file.read_bytes().splitlines(), start=1):
            if not line.endswith(b"}"):
                continue
            new.setdefault(_checked(file, number, line), {})[line] = None
    taken: Counter[str] = Counter()
    for name, lines in new.items():
        target = folder / name
        known = set(target.read_bytes().splitlines()) if target.exists() else set()
        fresh = [line for line in lines if line not in known]
        if fresh:
            folder.mkdir(parents=True, exist_ok=True)
            with target.open("ab") as results:
                results.write(b"".join(line + b"\n" for line in fresh))
        taken[name] += len(fresh)
    return taken


def lines_of(name: str, folder: Path = FOLDER) -> list[dict[str, Any]]:
    """Return all lines of a file; none if it does not exist."""
    file = folder / name
    return [msgspec.json.decode(line) for line in file.read_bytes().splitlines()] if file.exists() else []


def _checked(file: Path, number: int, line: bytes) -> str:
    try:
        held = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.MsgspecError:
        held = {}
    name = file_of(held)
    if name is None:
        raise InvalidRequest("invalid_request", f"{file}, line {number}: not a result of the fault suite")
    return name
