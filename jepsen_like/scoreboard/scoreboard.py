"""The scoreboard: the totals of each cell, from results that are only appended to.

A result is an `Outcome`, one per line. A cell's *seconds* are those of its valid runs on any code; its seconds *now*
are those on the present product. Unknown runs are counted, but not their seconds. Anomalies are counted the same way:
all that were ever found, and those of the present code, of which there must be none; and so are rounds. Runs with a
planted bug measure the suite and belong to no cell.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from jepsen_like.run_records import Outcome, RunPlan
from raftlog.errors import InvalidRequest

from .cells import CELLS, REFERENCES, Cell

COLUMNS = (
    "cell", "workload", "fault", "nodes", "target_s", "seconds", "seconds_now", "target_rounds", "rounds", "rounds_now",
    "runs", "passed", "unknown", "ok", "fail", "info", "faults", "void", "anomalies", "anomalies_now",
    "worst_recovery_s", "last_commit", "reference", "jepsen",
)  # fmt: skip


@dataclass(slots=True)
class Score:
    """The totals of one cell."""

    seconds: float = 0.0
    seconds_now: float = 0.0
    rounds: int = 0
    rounds_now: int = 0
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
        """`now`: the run judged the present product."""
        self.runs += 1
        self.last_commit = one.commit
        if one.valid:
            self.passed += 1
            self.seconds += one.seconds
            self.seconds_now += one.seconds if now else 0.0
            self.rounds += one.rounds
            self.rounds_now += one.rounds if now else 0
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
    """Yield the outcomes in order, ignoring a torn line. Raises `InvalidRequest` if a file holds anything else."""
    for file in files:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.rstrip(b"\n").endswith(b"}"):
                    continue
                try:
                    yield msgspec.json.decode(line, type=Outcome)
                except msgspec.MsgspecError as error:
                    told = f"{file}, line {number}: not a result of a run ({error}); move the file away"
                    raise InvalidRequest("invalid_request", told) from None


def scores(results: Iterable[Outcome], is_now: Callable[[str, bool], bool]) -> dict[str, Score]:
    """Return the scores by cell; results that belong to no cell are left out.

    `is_now`: whether a commit's result, valid or not, judged the present product. Results recorded with outdated
    options of their cell are stale: they never count as now.
    """
    found: dict[str, Score] = {name: Score() for name in CELLS}
    for one in results:
        if one.plan.cell in found and not one.plan.planted:
            now = _is_as_wanted(one.plan) and is_now(one.commit, one.valid is True)
            found[one.plan.cell].add(one, now=now)
    return found


def _is_as_wanted(plan: RunPlan) -> bool:
    """Return whether a plan has the options of its cell."""
    wanted, given = msgspec.to_builtins((CELLS[plan.cell].options, plan.options))
    return all(given.get(name) == value for name, value in wanted.items())


def table(found: Mapping[str, Score], others: Iterable[Mapping[str, object]] = ()) -> str:
    """Return the scoreboard as CSV. `others`: rows that are not cells, by column."""
    written = io.StringIO()
    lines = csv.writer(written, lineterminator="\n")
    lines.writerow(COLUMNS)
    for name, score in found.items():
        lines.writerow(row(CELLS[name], score))
    for other in others:
        lines.writerow([other.get(column, "") for column in COLUMNS])
    return written.getvalue()


def row(cell: Cell, score: Score) -> list[object]:
    """Return a row in the order of `COLUMNS`."""
    return [
        cell.name, cell.workload, cell.fault, cell.nodes, "" if cell.rounds else f"{cell.seconds:g}",
        round(score.seconds), round(score.seconds_now), cell.rounds or "", score.rounds or "", score.rounds_now or "",
        score.runs, score.passed, score.unknown, score.operations["ok"],
        score.operations["fail"], score.operations["info"], _told(score.faults), _told(score.void),
        _told(score.anomalies), _told(score.anomalies_now),
        "" if score.worst_recovery_s is None else score.worst_recovery_s, score.last_commit, cell.reference,
        figures(cell.reference),
    ]  # fmt: skip


def due(
    found: Mapping[str, Score], cells: Iterable[str], *, rounds: int | None = None, seconds: float | None = None
) -> list[str]:
    """Return the cells that have not reached their target, the least advanced first.

    `rounds` and `seconds` replace the targets of cells that run in rounds, and of the others.
    """
    parts = {name: _part(CELLS[name], found[name], rounds, seconds) for name in cells}
    return sorted((name for name, part in parts.items() if part < 1), key=lambda name: parts[name])


def _part(cell: Cell, score: Score, rounds: int | None, seconds: float | None) -> float:
    """Return the part of the target that was reached."""
    if cell.rounds:
        return score.rounds_now / (rounds or cell.rounds)
    return score.seconds_now / (seconds or cell.seconds)


def figures(reference: str) -> str:
    """Return the scope of Jepsen's tests for references such as `J1-J3` or `J1, J4`."""
    named: list[str] = []
    for part in filter(None, reference.split(", ")):
        first, _, last = part.partition("-")
        numbers = range(int(first[1:]), int((last or first)[1:]) + 1)
        named += [f"J{number}: {REFERENCES[f'J{number}']}" for number in numbers if f"J{number}" in REFERENCES]
    return " | ".join(named)


def _told(counted: Counter[str]) -> str:
    return " ".join(f"{name}={number}" for name, number in sorted(counted.items()) if number)
