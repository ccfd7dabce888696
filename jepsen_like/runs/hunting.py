"""Looks for planted bugs in real clusters: the same run with other seeds until its checkers find something.

What is measured is the suite: from the first cluster that is made to the verdict that is not valid, all of it. A bug is
found by what a checker says, or by nodes that cannot be healed or end by themselves (the product's own guards); a run
in which the suite could not do its work finds nothing. The same hunts without a bug (`control`) have to find nothing.

A result is one line of JSON. It counts for as long as the bug replaces the same code: the line has the pins of what was
replaced, as they were then.
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
"""A bug that shows has to be found within it."""
NOTHING = ""
"""Is planted in a control."""
ENDED = ("not-healed", "not-running", "stuck")


class Hunted(msgspec.Struct, frozen=True, kw_only=True):
    """One line."""

    bug: str
    """What was looked for."""
    planted: bool
    """False: a control."""
    found: bool
    seconds: float
    """Until it was found, or nothing more was tried."""
    runs: int
    plan: RunPlan
    """Of the last one."""
    commit: str
    started: str
    """ISO 8601, UTC: of the last run."""
    anomalies: dict[str, int]
    faults: dict[str, int]
    """Of all runs."""
    pins: dict[str, str]
    """What the bug replaces → what that was."""


def hunt(
    bug: str,
    make: Callable[[RunPlan], Outcome],
    *,
    seed: int,
    seconds: float = HUNT_SECONDS,
    planted: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> Hunted:
    """Until it is found, or so many seconds are over; a run under way ends. A control is one run. `make` raises
    `RunFailed`. Raises `InvalidRequest` for a bug that does not show in real clusters, `RunFailed` where no run could
    be made."""
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
        raise failure or RunFailed("nothing was run")
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
    """Whether it says that something is wrong with the cluster."""
    return outcome.valid is False or any(outcome.anomalies.get(name) for name in ENDED)


def hunt_of(bug: str) -> Hunt:
    """Raises `InvalidRequest`."""
    if bug in NOT_HERE:
        raise InvalidRequest("invalid_request", f"{bug} does not show in a real cluster: it wants {NOT_HERE[bug]}")
    if bug not in HUNTS:
        raise InvalidRequest("invalid_request", f"there is no planted bug {bug!r}; there are {', '.join(HUNTS)}")
    return HUNTS[bug]


def pins_of(bug: str) -> dict[str, str]:
    """Of what it replaces, as that is here."""
    return {patch.target: pin_of(patch) for patch in BUGS[bug].patches}


def counts(line: Hunted) -> bool:
    """The bug is there, and replaces what it replaced then."""
    return line.bug in BUGS and line.pins == pins_of(line.bug)


def read_hunts(files: Iterable[Path]) -> list[Hunted]:
    """All lines. One that a stop tore is none. Raises `InvalidRequest` where a file is something else."""
    found = []
    for file in files:
        for number, line in enumerate(file.read_bytes().splitlines(), start=1):
            if line.endswith(b"}"):
                try:
                    found.append(msgspec.json.decode(line, type=Hunted))
                except msgspec.MsgspecError as error:
                    told = f"{file}, line {number}: no result of a hunt ({error})"
                    raise InvalidRequest("invalid_request", told) from None
    return found


def found_bugs(lines: Iterable[Hunted]) -> Mapping[str, float]:
    """Bug → seconds until it was found, the least of those that count."""
    best: dict[str, float] = {}
    for line in lines:
        if line.planted and line.found and counts(line):
            best[line.bug] = min(line.seconds, best.get(line.bug, line.seconds))
    return best
