"""The scoreboard: what was accumulated of each cell, from results that are only ever appended to.

A result is an `Outcome`, one a line. A cell's *seconds* are those of runs that passed, whatever code they judged; its
seconds *now* those of the product as it is here. Runs that are unknown are counted, and their seconds are not. So are
anomalies: all that were ever found, and those of the present code, which have to be none.

What is *not* here: which cells there are (`cells.py`), running them (`chaos.py`).
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from raftlog.errors import InvalidRequest

from .cells import CELLS, Cell
from .run_records import Outcome

COLUMNS = (
    "cell", "workload", "fault", "nodes", "target_s", "seconds", "seconds_now", "runs", "passed", "unknown",
    "ok", "fail", "info", "faults", "void", "anomalies", "anomalies_now", "worst_recovery_s", "last_commit",
    "reference",
)  # fmt: skip


@dataclass(slots=True)
class Score:
    """What was accumulated of one cell."""

    seconds: float = 0.0
    seconds_now: float = 0.0
    runs: int = 0
    passed: int = 0
    unknown: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    void: Counter[str] = field(default_factory=Counter)
    anomalies: Counter[str] = field(default_factory=Counter)
    anomalies_now: Counter[str] = field(default_factory=Counter)
    worst_recovery_s: float | None = None
    last_commit: str = ""

    def add(self, one: Outcome, *, now: bool) -> None:
        """`now`: it judged the product as it is here."""
        self.runs += 1
        self.last_commit = one.commit
        if one.valid:
            self.passed += 1
            self.seconds += one.seconds
            self.seconds_now += one.seconds if now else 0.0
        elif one.valid is None:
            self.unknown += 1
        self.operations.update(one.operations)
        self.faults.update(one.faults)
        self.void.update(one.void)
        if one.valid is False:
            self.anomalies.update(one.anomalies)
            self.anomalies_now.update(one.anomalies if now else {})
        if one.recovery_s is not None:
            self.worst_recovery_s = max(one.recovery_s, self.worst_recovery_s or 0.0)


def read_results(files: Iterable[Path]) -> Iterator[Outcome]:
    """In order. A line that a stop tore is none. Raises `InvalidRequest` where a file is something else."""
    for file in files:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.rstrip(b"\n").endswith(b"}"):
                    continue
                try:
                    yield msgspec.json.decode(line, type=Outcome)
                except msgspec.MsgspecError as error:
                    told = f"{file}, line {number}: no result of a run ({error}); move the file away"
                    raise InvalidRequest("invalid_request", told) from None


def append(file: Path, result: Outcome) -> None:
    """One line, at the end."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab+") as results:
        if results.tell():
            results.seek(-1, 2)
            torn = results.read(1) != b"\n"
            results.write(b"\n" * torn)
        results.write(msgspec.json.encode(result) + b"\n")


def scores(results: Iterable[Outcome], is_now: Callable[[str], bool]) -> dict[str, Score]:
    """By cell; results of no cell are left out. `is_now`: of a commit, whether its product is the one that is here."""
    found: dict[str, Score] = {name: Score() for name in CELLS}
    for one in results:
        if one.plan.cell in found:
            found[one.plan.cell].add(one, now=is_now(one.commit))
    return found


def table(found: Mapping[str, Score], others: Iterable[Mapping[str, object]] = ()) -> str:
    """As CSV. `others`: rows that are no cell's, by column."""
    written = io.StringIO()
    lines = csv.writer(written, lineterminator="\n")
    lines.writerow(COLUMNS)
    for name, score in found.items():
        lines.writerow(row(CELLS[name], score))
    for other in others:
        lines.writerow([other.get(column, "") for column in COLUMNS])
    return written.getvalue()


def row(cell: Cell, score: Score) -> list[object]:
    """As `COLUMNS` has it."""
    return [
        cell.name, cell.workload, cell.fault, cell.nodes, f"{cell.seconds:g}", round(score.seconds),
        round(score.seconds_now), score.runs, score.passed, score.unknown, score.operations["ok"],
        score.operations["fail"], score.operations["info"], _told(score.faults), _told(score.void),
        _told(score.anomalies), _told(score.anomalies_now),
        "" if score.worst_recovery_s is None else score.worst_recovery_s, score.last_commit, cell.reference,
    ]  # fmt: skip


def due(found: Mapping[str, Score], cells: Iterable[str]) -> list[str]:
    """Those of the cells that have not accumulated what they have to, the least advanced first."""
    left = [name for name in cells if found[name].seconds_now < CELLS[name].seconds]
    return sorted(left, key=lambda name: found[name].seconds_now / CELLS[name].seconds)


def _told(counted: Counter[str]) -> str:
    return " ".join(f"{name}={number}" for name, number in sorted(counted.items()) if number)
