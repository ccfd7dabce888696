"""The judgement of a mutant: first the tests that reach its line, then the whole suite, then simulated worlds.

A test that fails with the mutant must pass without it, in the same tree and at the same time; otherwise it is
unreliable, is left out, and the rest runs again. A test that never ends has failed, too. Everything is bounded, and the
row records the bounds that were reached.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jepsen_like.simulator.shards import shard_code

from .covering import Covering, Named, test_files
from .trees import Run, Tree

KILLED, TIMEOUT, SURVIVED, INVALID = "killed", "timeout", "survived", "invalid"
COVERING_S = 20.0
"""Seconds of covering tests, by their durations; the remaining ones run with the suite."""
SUITE_S = 1_500.0
SEEDS_S = 600.0
SLOWER = 10.0
GRACE_S = 120.0
"""The limit of a run: a multiple of its tests' duration plus a constant, both multiplied by the load of a core, since
the machine does other work."""
TEST_S = 90.0
"""A test that takes longer counts as endless, if it ends without the mutant."""
UNRELIABLE_MAX = 5
SEEDS = 12
WORLDS = ("cluster", "transactions")
TESTS_FAILED, TESTS_BROKEN, TESTS_CRASHED = 1, 2, 3


@dataclass
class Judgement:
    """The outcome of a mutant."""

    outcome: str = SURVIVED
    stage: str = ""
    """The last stage: `covering`, `suite`, `seeds`."""
    killed_by: str = ""
    ran: dict[str, int] = field(default_factory=dict)
    """Stage → tests, or seeds."""
    bounded: list[str] = field(default_factory=list)
    """Stages that reached their bound before they were complete."""
    unreliable: list[str] = field(default_factory=list)
    """Tests that failed without the mutant, too."""


class Judge:
    """A judge of mutants in one tree."""

    def __init__(self, tree: Tree, covering: Covering | Named, suite_s: float = SUITE_S, seeds: int = SEEDS) -> None:
        """`suite_s`: seconds for the suite; `seeds`: seeds for each kind of world. If either is 0, its stage is
        skipped, and the judgement says so."""
        self._seeds = seeds
        self._suite_s = suite_s
        self._tree = tree
        self._covering = covering

    def judge(self, file: str, line: int, text: str) -> Judgement:
        """Judge the mutant that is this text of the file."""
        found = Judgement()
        reaching = self._covering.tests(file, line)
        first = self._within(reaching, COVERING_S)
        if first and self._ended_by_tests(found, "covering", file, text, first, GRACE_S + SLOWER * COVERING_S):
            return found
        rest = [*reaching[len(first) :], *test_files(self._tree)]
        if not self._suite_s:
            found.bounded.append("suite")
        elif self._ended_by_tests(found, "suite", file, text, rest, self._suite_s):
            return found
        if self._seeds:
            self._ended_by_seeds(found, file, text)
        else:
            found.bounded.append("seeds")
        return found

    def _within(self, tests: Sequence[str], seconds: float) -> list[str]:
        chosen: list[str] = []
        left = seconds
        for test in tests:
            left -= self._covering.seconds[test]
            if chosen and left < 0:
                break
            chosen.append(test)
        return chosen

    def _ended_by_tests(
        self, found: Judgement, stage: str, file: str, text: str, tests: Sequence[str], limit_s: float
    ) -> bool:
        ends = time.monotonic() + limit_s * load()
        left = list(tests)
        found.stage = stage
        while left and len(found.unreliable) <= UNRELIABLE_MAX:
            with self._tree.holding(file, text):
                asked = [printable(test) for test in left]
                run = self._tree.pytest(asked, max(1.0, ends - time.monotonic()), test_s=TEST_S)
            found.ran[stage] = max(found.ran.get(stage, 0), run.ran)
            if run.status is None and not run.ran and stage == "covering":
                found.outcome, found.killed_by = TIMEOUT, f"no end after {run.seconds:.0f} s"
                return True
            if run.status is None:
                found.bounded.append(stage)
                return False
            if run.status == 0:
                return False
            culprit = run.failed[0] if run.failed else ""
            if not culprit or not self._fails_anyway(culprit):
                found.outcome, found.killed_by = KILLED, culprit or _last_line(run)
                return True
            found.unreliable.append(culprit)
            left = _without(left, culprit)
        return False

    def _fails_anyway(self, test: str) -> bool:
        return self._tree.pytest([printable(test)], GRACE_S * load(), test_s=TEST_S).status != 0

    def _ended_by_seeds(self, found: Judgement, file: str, text: str) -> None:
        found.stage = "seeds"
        for kind in worlds_of(file):
            command = ["-m", "jepsen_like.simulator", "--kind", kind, "--seed", "1", "--seeds", str(self._seeds)]
            with self._tree.holding(file, text):
                run = self._tree.python(command, SEEDS_S * load())
            passed = sum(line.startswith("seed=") for line in run.output.splitlines())
            found.ran["seeds"] = found.ran.get("seeds", 0) + passed
            if run.status is None:
                found.bounded.append(f"seeds of {kind}")
            elif run.status != 0:
                found.outcome, found.killed_by = KILLED, f"{kind}: {_last_line(run)}"
                return


def load() -> float:
    """Return the load of a core by runnable processes; at least one."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def worlds_of(file: str) -> list[str]:
    """The kinds of worlds that run this file."""
    return [kind for kind in WORLDS if file in shard_code.files(kind)]


def printable(test: str) -> str:
    """Return the test's id, or that of all its cases if this one's has characters that a command line cannot pass."""
    return test if test.isprintable() and test.isascii() else test.partition("[")[0]


def _without(tests: Sequence[str], culprit: str) -> list[str]:
    """Return these tests without the given one. If a file was requested as a whole, the file is removed."""
    return [test for test in tests if printable(test) != printable(culprit) and test != culprit.partition("::")[0]]


def _last_line(run: Run) -> str:
    return next((line for line in reversed(run.output.splitlines()) if line.strip()), f"exit code {run.status}")[:300]


def as_row(judgement: Judgement) -> Mapping[str, object]:
    """Return the row for the results."""
    return {
        "outcome": judgement.outcome,
        "stage": judgement.stage,
        "killed_by": judgement.killed_by,
        "ran": judgement.ran,
        "bounded": judgement.bounded,
        "unreliable": judgement.unreliable,
    }
