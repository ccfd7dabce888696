"""Rounds: those that count, those that are repeated, and the end of a run of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from jepsen_like.checkers.verdict import Verdict
from jepsen_like.histories.history import Operation, read
from jepsen_like.nemeses.injection import HealFailed
from jepsen_like.nemeses.steps import Facts
from jepsen_like.run_records import Fault, RunFolder, RunPlan, read_faults
from jepsen_like.runs import rounds
from jepsen_like.runs.interpreter import RunFailed
from jepsen_like.runs.judging import together
from jepsen_like.runs.rounds import ACKNOWLEDGED_MIN, VOIDS_MAX, Rounds, nemeses_of
from jepsen_like.workloads import HEALED
from jepsen_like.workloads.generators import PENDING, Context, Generator, Limit, Wanted
from jepsen_like.workloads.workload import WhileBroken
from raftlog.errors import InvalidRequest

FINE = {"kafka": Verdict(True), "recovery": Verdict(True, {}, {"recovery_s": 1.0})}
NODES = ("n1", "n2", "n3")


def plan(**changed: Any) -> RunPlan:
    given: dict[str, Any] = {"nemesis": "kill", "options": {"hold": [0, 0]}, "rounds": 3, **changed}
    return RunPlan(cell="R11", workload="log", nodes=3, seconds=5, rate=100, seed=7, **given)


@dataclass
class World:
    """The events of the rounds, without a cluster."""

    monkeypatch: pytest.MonkeyPatch
    folder: RunFolder
    verdicts: list[dict[str, Verdict]] = field(default_factory=list)
    """The event of each round; later ones are fine."""
    void: set[int] = field(default_factory=set)
    """Rounds whose fault is not proved."""
    heal_fails: bool = False
    ended: str = ""
    """A node that does not run any more."""
    silent: bool = False
    well_for: int = 1_000
    """Rounds."""
    first_processes: list[int] = field(default_factory=list)
    faults: int = 0

    nodes = NODES
    bootstrap = ("1.2.3.4:1",)

    def pid(self, node: str) -> int | None:
        return None if node == self.ended else 1

    @property
    def processes(self) -> Any:
        return dict.fromkeys(NODES, self)

    def log_tail(self, lines: int) -> str:
        return "INVARIANT"

    async def interpret(
        self, plan: RunPlan, bootstrap: Any, folder: Any, origin_ns: int, healed: asyncio.Event, **given: Any
    ) -> int:
        first: int = given["first_process"]
        self.first_processes.append(first)
        if len(self.first_processes) > self.well_for:
            raise RunFailed("the cluster could not be prepared")
        for number in range(0 if self.silent else ACKNOWLEDGED_MIN):
            for kind in ("invoke", "ok"):
                given["history"].add(Operation(0, first + number % 6, kind, "send"))  # type: ignore[arg-type]
        await healed.wait()
        given["history"].note("suite", HEALED)
        return first + 6

    async def carry_out(self, step: Any, injection: Any, cluster: Any, hold: float, origin_ns: int, tell: Any) -> None:
        number, self.faults = self.faults, self.faults + 1
        tell(Fault(kind="kill", targets=("n1",), began=1, ended=2, evidence={} if number in self.void else {"pids": 1}))
        if self.heal_fails:
            raise HealFailed("n1 does not start")

    async def look(self, cluster: Any, minority: Any) -> Facts:
        return Facts(NODES, ("n1",))

    def judge(self, plan: RunPlan, history: list[Operation]) -> dict[str, Verdict]:
        assert [one.f for one in history if one.process == "suite"] == [HEALED], "a round is judged by itself"
        return self.verdicts.pop(0) if self.verdicts else FINE

    async def play(self, **changed: Any) -> Rounds:
        for name in ("interpret", "carry_out", "look"):
            self.monkeypatch.setattr(rounds, name, getattr(self, name))
        self.monkeypatch.setattr(rounds, "judge_history", self.judge)
        self.monkeypatch.setattr(rounds, "as_breakable", lambda cluster, name, needs: cluster)
        self.monkeypatch.setattr(rounds, "injection_of", lambda step, cluster: None)
        self.monkeypatch.setattr(rounds, "PAUSE_SECONDS", 0.0)
        played = Rounds(plan=plan(**changed), folder=self.folder, cluster=self, origin_ns=0)  # type: ignore[arg-type]
        await played.play()
        return played


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch, RunFolder(tmp_path))


async def test_all_rounds_are_run_and_each_has_processes_of_its_own(world: World) -> None:
    played = await world.play()
    assert (played.passed, len(played.faults)) == (3, 3)
    assert world.first_processes == [0, 6, 12]
    assert [fault.kind for fault in read_faults(world.folder.faults)] == ["kill"] * 3
    with world.folder.history.open("rb") as lines:
        history = list(read(lines))
    assert [one.index for one in history] == list(range(len(history)))
    worked = played.worked({"ok": 5})
    assert (worked.rounds, worked.not_healed, worked.operations) == (3, "", {"ok": 5})


async def test_a_round_without_proof_is_repeated(world: World) -> None:
    world.void = {1}
    played = await world.play()
    assert (played.passed, len(played.faults)) == (3, 4)


async def test_a_fault_that_never_has_an_effect_ends_the_run(world: World) -> None:
    world.void = set(range(100))
    played = await world.play()
    assert (played.passed, len(played.faults)) == (0, VOIDS_MAX)


@pytest.mark.parametrize("valid", [False, None])
async def test_the_first_round_that_is_not_valid_is_the_last(world: World, valid: bool | None) -> None:
    world.verdicts = [FINE, {**FINE, "kafka": Verdict(valid, {"lost-write": [{}]} if valid is False else {})}]
    played = await world.play()
    assert played.passed == 1 and len(played.faults) == 2
    assert played.verdicts["kafka"].valid is valid


async def test_a_fault_that_cannot_be_healed_ends_the_run(world: World) -> None:
    world.heal_fails = True
    played = await world.play()
    assert played.passed == 0 and played.worked({}).not_healed == "n1 does not start"
    assert len(list(read_faults(world.folder.faults))) == 1


async def test_a_node_that_ends_by_itself_is_found(world: World) -> None:
    """S10: a healed node continues to run."""
    world.ended = "n2"
    played = await world.play()
    assert played.passed == 0
    assert played.verdicts["nodes"].anomalies == {"node-ended": [{"node": "n2", "log": "INVARIANT"}]}


async def test_a_cluster_that_is_unhealthy_after_some_rounds_is_reported(world: World) -> None:
    """S10. If it was unhealthy from the first round on, the run proves nothing."""
    world.well_for = 1
    played = await world.play()
    assert played.passed == 1 and played.verdicts["well"].valid is None
    assert played.verdicts["well"].anomalies["not-well"][0]["round"] == 1
    world.well_for = 0
    with pytest.raises(RunFailed, match="could not be prepared"):
        await world.play()


async def test_a_cluster_that_acknowledges_nothing_is_not_called_broken(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.silent = True
    monkeypatch.setattr(rounds, "WARM_UP_SECONDS", 0.05)
    with pytest.raises(RunFailed, match="were not acknowledged"):
        await world.play()
    assert world.faults == 0


def test_nemeses_of_rounds_take_turns() -> None:
    assert nemeses_of(plan()) == ("kill",)
    assert nemeses_of(plan(nemesis="mixed", options={"nemeses": ["kill", "pause"]})) == ("kill", "pause")
    for wrong in ({"nemesis": "none"}, {"nemesis": "mixed"}, {"nemesis": "mixed", "options": {"nemeses": ["rain"]}}):
        with pytest.raises(InvalidRequest, match="every round needs a nemesis"):
            nemeses_of(plan(**wrong))


def test_rounds_are_checked_together() -> None:
    bad = {"kafka": Verdict(False, {"lost-write": [{"n": 1}]}), "recovery": Verdict(True, {}, {"recovery_s": 0.5})}
    found = together(together({}, bad), FINE)
    assert found["kafka"].valid is False and found["kafka"].anomalies == {"lost-write": [{"n": 1}]}
    assert found["recovery"].measured == {"recovery_s": 1.0}
    unknown = {"kafka": Verdict(None), "recovery": Verdict(False, {}, {"recovery_s": None})}
    found = together(together({}, unknown), FINE)
    assert found["kafka"].valid is None and found["recovery"].measured == {"recovery_s": 1.0}
    assert together({}, unknown)["recovery"].measured == {"recovery_s": None}


def test_operations_continue_until_the_heal() -> None:
    class Ready(Generator):
        def draw(self, context: Context) -> Any:
            return Wanted(0, "send"), self

    import random

    context = Context(0, (0,), (0,), random.Random(1))
    generator: Generator = WhileBroken(Limit(1, Ready()))
    wanted, generator = generator.draw(context)
    assert isinstance(wanted, Wanted)
    assert generator.draw(context)[0] is PENDING, "over only when it was healed"
    assert WhileBroken(Ready()).told(Operation(0, "suite", "info", HEALED)).draw(context)[0] is None
