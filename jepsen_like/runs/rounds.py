"""Rounds: many faults in one cluster's life, each with fresh keys, a heal, final reads and a verdict.

A crafted schedule shows its bug in seconds; most of a run's minute is spent on creating and removing the cluster. So
here one cluster serves many rounds: each creates its own topics, writes and reads while one step of a nemesis is
executed, heals everything, and ends as a whole run does: everything is written again, everything is read to its end,
all replicas come back in sync, and the round's history is judged. The clients are those of any run, in the suite's own
process (`local_clients.py`).

The data of a round stays: later faults affect it as well, and when the nodes are stopped the replicas of all rounds are
compared. The first round with an anomaly, or without a heal, is the last.

A round counts if its fault is proved and there was no anomaly. A round without proof is void and repeated, a few times
at most.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from jepsen_like.checkers.verdict import Verdict
from jepsen_like.clusters.cluster import NodeCluster
from jepsen_like.histories.file import HistoryFile
from jepsen_like.histories.history import Operation
from jepsen_like.nemeses.catalogue import MIXED, RECIPES
from jepsen_like.nemeses.injection import HealFailed, Stuck, carry_out
from jepsen_like.nemeses.injections import injection_of
from jepsen_like.nemeses.looking import look, minority_of
from jepsen_like.nemeses.nemesis import as_breakable
from jepsen_like.nemeses.plans import Options, checked
from jepsen_like.nemeses.targets import choice
from jepsen_like.run_records import Fault, RunFolder, RunPlan, Worked
from raftlog.errors import InvalidRequest

from .interpreter import RunFailed, interpret
from .judging import judge_history, together, valid
from .local_clients import LocalClient

VOIDS_MAX = 4
"""Rounds without proof that end a run: it would not terminate otherwise."""
WARM_UP_SECONDS = 30.0
"""Time for the first acknowledgements; without them the cluster was not healthy."""
ACKNOWLEDGED_MIN = 30
"""Operations before a round's fault."""
PAUSE_SECONDS = 1.0
"""Longest random pause between them and the fault."""
POLL_SECONDS = 0.02


class RoundHistory(HistoryFile):
    """The history of all rounds, with that of the current round in memory."""

    def __init__(self, path: Path, now: Callable[[], int]) -> None:
        super().__init__(path, now)
        self.round: list[Operation] = []

    def add(self, operation: Operation) -> Operation:
        numbered = super().add(operation)
        self.round.append(numbered)
        return numbered

    def acknowledged(self) -> int:
        """Return the number of acknowledged operations in this round."""
        return sum(one.kind == "ok" for one in self.round)


@dataclass(slots=True, kw_only=True)
class Rounds:
    """The rounds of one run."""

    plan: RunPlan
    folder: RunFolder
    cluster: NodeCluster
    origin_ns: int
    tell: Callable[[str], None] = lambda text: None
    faults: list[Fault] = field(default_factory=list)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    """Verdicts on all rounds so far, by checker."""
    passed: int = 0
    seconds: float = 0.0
    """From the beginning of each round's operations to its heal."""
    _voids: int = 0
    _first_process: int = 0
    _not_healed: str = ""
    _stuck: bool = False

    def now(self) -> int:
        return time.monotonic_ns() - self.origin_ns

    async def play(self) -> None:
        """Play all rounds, or until one fails.

        Raises `RunFailed` if the first round fails in the suite, and `InvalidRequest` if the cluster does not support
        these faults.
        """
        names = nemeses_of(self.plan)
        needs = frozenset().union(*(RECIPES[name].needs for name in names))
        as_breakable(self.cluster, ", ".join(names), needs)
        with RoundHistory(self.folder.history, self.now) as history, self.folder.faults.open("wb") as file:
            number = 0
            while self.passed < self.plan.rounds and self._voids < VOIDS_MAX:
                self.tell(f"round {self.passed + 1} of {self.plan.rounds}")
                goes_on = await self._round(number, names[number % len(names)], history)
                file.writelines(msgspec.json.encode(fault) + b"\n" for fault in self.faults[number:])
                file.flush()
                if not goes_on:
                    break
                number += 1

    def worked(self, operations: Mapping[str, int]) -> Worked:
        return Worked(self.seconds, self.faults, operations, self._not_healed, self.passed, self._stuck)

    async def _round(self, number: int, name: str, history: RoundHistory) -> bool:
        """Play one round and return whether another may follow."""
        history.round = []
        healed = asyncio.Event()
        plan = msgspec.structs.replace(self.plan, seed=self.plan.seed * 1_000 + number)
        operations = asyncio.create_task(self._operations(plan, healed, history))
        try:
            fault = await self._break(number, name, history, operations)
            healed.set()
            self._first_process = await operations
        except HealFailed as error:
            self._not_healed, self._stuck = str(error), isinstance(error, Stuck)
            return False
        except RunFailed as error:
            if number == 0:
                raise
            # The cluster was healthy in the first round, so a failure now counts against it (S10), although its cause
            # is unknown.
            self.verdicts["well"] = Verdict(None, {"not-well": [{"round": number, "why": str(error)}]})
            return False
        finally:
            operations.cancel()
            await asyncio.gather(operations, return_exceptions=True)
        found = await asyncio.to_thread(judge_history, plan, history.round)
        self.verdicts = together(self.verdicts, {**found, "nodes": self._nodes()})
        if valid(self.verdicts) is not True:
            return False
        self.passed += bool(fault.evidence)
        self._voids += not fault.evidence
        return True

    async def _operations(self, plan: RunPlan, healed: asyncio.Event, history: RoundHistory) -> int:
        return await interpret(
            plan,
            self.cluster.bootstrap,
            self.folder,
            self.origin_ns,
            healed,
            history=history,
            spawn=LocalClient.start,
            first_process=self._first_process,
        )

    async def _break(self, number: int, name: str, history: RoundHistory, operations: asyncio.Task[int]) -> Fault:
        """Execute one step once the round's operations are running. Raises `HealFailed`, `RunFailed`."""
        rng = random.Random(f"{self.plan.seed} round {number}")
        options = checked(self.plan.options)
        await self._under_way(history, operations)
        began = time.monotonic()
        await asyncio.sleep(rng.uniform(0, PAUSE_SECONDS))
        facts = await look(self.cluster, minority_of(self.cluster, self.plan.seed))
        step = choice(rng, RECIPES[name].draws)(rng, facts, options)
        if step is None:
            raise RunFailed(f"nemesis {name} has no target in this cluster")
        told: list[Fault] = []
        try:
            await carry_out(
                step,
                injection_of(step, self.cluster),
                self.cluster,
                rng.uniform(*options.hold),
                self.origin_ns,
                told.append,
            )
        finally:
            self.faults += told
            self.seconds += time.monotonic() - began
        (fault,) = told
        history.note("nemesis", fault.kind, {"targets": fault.targets, "void": not fault.evidence})
        return fault

    async def _under_way(self, history: RoundHistory, operations: asyncio.Task[int]) -> None:
        deadline = time.monotonic() + WARM_UP_SECONDS
        while history.acknowledged() < ACKNOWLEDGED_MIN:
            if operations.done():
                await operations
                raise RunFailed("the round's operations ended before its fault")
            if time.monotonic() > deadline:
                raise RunFailed(f"{ACKNOWLEDGED_MIN} operations were not acknowledged within {WARM_UP_SECONDS:g} s")
            await asyncio.sleep(POLL_SECONDS)

    def _nodes(self) -> Verdict:
        """Check that every node is running after the heal."""
        ended = [
            {"node": node, "log": self.cluster.processes[node].log_tail(3)}
            for node in self.cluster.nodes
            if self.cluster.pid(node) is None
        ]
        return Verdict(not ended, {"node-ended": ended} if ended else {})


def nemeses_of(plan: RunPlan) -> tuple[str, ...]:
    """Return the nemeses, which rounds use in turn. Raises `InvalidRequest` if there is none, or an unknown one."""
    options: Options = checked(plan.options)
    names = options.nemeses if plan.nemesis == MIXED else (plan.nemesis,)
    wrong = [name for name in names if name not in RECIPES]
    if wrong or not names:
        told = (
            f"every round needs a nemesis, one of {', '.join(RECIPES)}; not {plan.nemesis} {', '.join(wrong)}".rstrip()
        )
        raise InvalidRequest("invalid_request", told)
    return names
