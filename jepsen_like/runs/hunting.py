"""The hunt for a planted bug in real clusters: the same run with other seeds until its checkers find something.

The hunt measures the suite: the time from the first cluster's creation to the invalid verdict, everything included. A
bug is found by a checker, or by nodes that cannot be healed or end by themselves (the product's own guards); a run that
failed in the suite finds nothing. The same hunts without a bug (`control`) must find nothing.

A result is one line of JSON. It counts as long as the bug replaces the same code: the line has the pins of the replaced
code at that time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from jepsen_like.planted.bugs import BUGS
from jepsen_like.planted.patches import pin_of
from jepsen_like.planted.real import HUNTS, NOT_HERE, Hunt
from jepsen_like.run_records import Outcome, RunPlan
from raftlog.errors import InvalidRequest

from .interpreter import RunFailed

HUNT_SECONDS = 600.0
"""Time within which a bug has to be found."""
NOTHING = ""
"""The bug of a control run."""
ENDED = ("not-healed", "not-running", "stuck")


class Hunted(msgspec.Struct, frozen=True, kw_only=True):
    """One result."""

    bug: str
    """The bug that was hunted."""
    planted: bool
    """False: a control."""
    found: bool
    seconds: float
    """Seconds until it was found, or until the hunt ended."""
    runs: int
    plan: RunPlan
    """Plan of the last run."""
    commit: str
    started: str
    """ISO 8601, UTC: start of the last run."""
    anomalies: dict[str, int]
    faults: dict[str, int]
    """Faults of all runs."""
    pins: dict[str, str]
    """Pins of the replaced code: target → hash."""


def hunt(
    bug: str,
    make: Callable[[RunPlan], Outcome],
    *,
    seed: int,
    seconds: float = HUNT_SECONDS,
    planted: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> Hunted:
    """Make runs until the bug is found or the time is over; the last run is completed. A control is one run.

    `make` makes a run and raises `RunFailed`. Raises `InvalidRequest` for a bug that does not show in real clusters,
    `RunFailed` if no run could be made.
    """
    wanted = hunt_of(bug)
    began = clock()
    faults: dict[str, int] = {}
    last: Outcome | None = None
    failure: RunFailed | None = None
    runs = 0
    while runs == 0 or (planted and clock() - began < seconds and not (last and finds(last))):
        plan = wanted.plan(bug if planted else NOTHING, seed + runs)
        runs += 1
        try:
            last = make(plan)
        except RunFailed as error:
            failure = error
            continue
        for kind, number in last.faults.items():
            faults[kind] = faults.get(kind, 0) + number
    if last is None:
        raise failure or RunFailed("no run was made")
    return Hunted(
        bug=bug,
        planted=planted,
        found=finds(last),
        seconds=round(clock() - began, 1),
        runs=runs,
        plan=last.plan,
        commit=last.commit,
        started=last.started,
        anomalies=last.anomalies,
        faults=faults,
        pins=pins_of(bug),
    )


def finds(outcome: Outcome) -> bool:
    """Return whether the outcome shows a fault of the cluster."""
    return outcome.valid is False or any(outcome.anomalies.get(name) for name in ENDED)


def hunt_of(bug: str) -> Hunt:
    """Return the hunt of a bug. Raises `InvalidRequest`."""
    if bug in NOT_HERE:
        raise InvalidRequest("invalid_request", f"{bug} does not show in a real cluster: it needs {NOT_HERE[bug]}")
    if bug not in HUNTS:
        raise InvalidRequest("invalid_request", f"unknown planted bug {bug!r}; bugs: {', '.join(HUNTS)}")
    return HUNTS[bug]


def pins_of(bug: str) -> dict[str, str]:
    """Return the pins of the code that the bug replaces, as it is now."""
    return {patch.target: pin_of(patch) for patch in BUGS[bug].patches}


def counts(line: Hunted) -> bool:
    """Return whether a result counts: the bug exists, and replaces the same code as then."""
    return line.bug in BUGS and line.pins == pins_of(line.bug)


def read_hunts(files: Iterable[Path]) -> list[Hunted]:
    """Return all lines, ignoring a torn one. Raises `InvalidRequest` if a file holds anything else."""
    found = []
    for file in files:
        for number, line in enumerate(file.read_bytes().splitlines(), start=1):
            if line.endswith(b"}"):
                try:
                    found.append(msgspec.json.decode(line, type=Hunted))
                except msgspec.MsgspecError as error:
                    told = f"{file}, line {number}: not a result of a hunt ({error})"
                    raise InvalidRequest("invalid_request", told) from None
    return found


def found_bugs(lines: Iterable[Hunted]) -> Mapping[str, float]:
    """Return bug → the shortest time in seconds until it was found, from the results that count."""
    best: dict[str, float] = {}
    for line in lines:
        if line.planted and line.found and counts(line):
            best[line.bug] = min(line.seconds, best.get(line.bug, line.seconds))
    return best
