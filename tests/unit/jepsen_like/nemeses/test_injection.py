"""A fault is healed and recorded whatever happens: refused, without proof, cancelled, or in conflict with another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from jepsen_like.clusters.cluster import NodeCluster
from jepsen_like.clusters.commands import CommandFailed, in_thread, run, to_the_end
from jepsen_like.clusters.links import Links
from jepsen_like.nemeses import nemesis as nemesis_module
from jepsen_like.nemeses import steps
from jepsen_like.nemeses.injection import Evidence, FaultNotMade, HealFailed, carry_out
from jepsen_like.nemeses.make import NAMES, make
from jepsen_like.nemeses.mixed import MixedNemesis, left_out
from jepsen_like.nemeses.plans import Options
from jepsen_like.nemeses.steps import Facts
from jepsen_like.run_records import Fault, RealCluster
from raftlog.errors import InvalidRequest, RetriableError

STEP = steps.Kill(("n1",), "one")


class NoLinks:
    """A cluster's links, untouched."""

    async def cut(self, names: object) -> None:
        raise AssertionError("links were cut")

    async def stopped(self) -> dict[str, int]:
        return {}

    async def heal(self) -> None: ...

    async def close(self) -> None: ...


def cluster(*capabilities: str) -> NodeCluster:
    links: Links = NoLinks()
    return NodeCluster(folder=Path("/nowhere"), processes={}, links=links, capabilities=frozenset(capabilities))


class Scripted:
    """An injection that behaves as configured, and records its calls."""

    def __init__(
        self,
        begin: Exception | None = None,
        prove: Evidence | Exception | None = None,
        heal: Evidence | Exception | None = None,
        during_heal: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._answers = {"begin": begin, "prove": prove or {}, "heal": heal or {}}
        self._during_heal = during_heal
        self.asked: list[str] = []
        self.begun = asyncio.Event()

    async def _do(self, what: str) -> Evidence:
        self.asked.append(what)
        answer = self._answers[what]
        if isinstance(answer, Exception):
            raise answer
        return answer or {}

    async def begin(self) -> None:
        self.begun.set()
        await self._do("begin")

    async def prove(self) -> Evidence:
        return await self._do("prove")

    async def heal(self) -> Evidence:
        if self._during_heal is not None:
            await self._during_heal()
        return await self._do("heal")


async def made(injection: Scripted, hold: float = 0.0) -> Fault:
    told: list[Fault] = []
    on = cluster()
    await carry_out(STEP, injection, on, hold, time.monotonic_ns(), told.append)
    assert not on.claimed
    (fault,) = told
    assert (fault.kind, fault.targets) == ("kill", ("n1",)) and 0 <= fault.began <= fault.ended
    return fault


async def test_evidence_of_both_ends_is_recorded() -> None:
    fault = await made(Scripted(prove={"state": "T"}, heal={"pid": 7}))
    assert fault.evidence == {"state": "T", "pid": 7} and fault.error == ""


@pytest.mark.parametrize(
    ("injection", "why"),
    [
        (Scripted(begin=FaultNotMade("nobody runs")), "nobody runs"),
        (Scripted(begin=CommandFailed("nft is not installed")), "nft is not installed"),
        (Scripted(begin=RetriableError("overloaded", "busy")), "busy"),
        (Scripted(prove=FaultNotMade("it goes on")), "it goes on"),
        (Scripted(prove={"state": "T"}, heal=FaultNotMade("the same process")), "the same process"),
        (Scripted(), "there is no proof"),
    ],
)
async def test_a_fault_without_proof_is_void_with_the_reason(injection: Scripted, why: str) -> None:
    fault = await made(injection)
    assert fault.evidence == {} and why in fault.error
    assert injection.asked[-1] == "heal", "what was begun by half is healed, too"


async def test_a_failed_heal_is_recorded_and_raised() -> None:
    told: list[Fault] = []
    injection = Scripted(prove={"state": "T"}, heal=CommandFailed("umount: busy"))
    with pytest.raises(HealFailed, match="umount: busy"):
        await carry_out(STEP, injection, cluster(), 0.0, 0, told.append)
    assert told[0].evidence == {} and "could not be healed" in told[0].error


async def test_an_internal_error_is_raised_after_the_heal() -> None:
    injection = Scripted(begin=ZeroDivisionError("ours"))
    with pytest.raises(ZeroDivisionError):
        await carry_out(STEP, injection, cluster(), 0.0, 0, lambda fault: None)
    assert injection.asked == ["begin", "heal"]


async def test_a_cancelled_fault_is_healed_and_recorded_however_often_it_is_cancelled() -> None:
    healing = asyncio.Event()
    go_on = asyncio.Event()

    async def slowly() -> None:
        healing.set()
        await go_on.wait()

    told: list[Fault] = []
    injection = Scripted(during_heal=slowly, heal={"pid": 7})
    task = asyncio.create_task(carry_out(STEP, injection, cluster(), 3600.0, 0, told.append))
    await injection.begun.wait()
    task.cancel()
    await healing.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done() and not told
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert injection.asked == ["begin", "heal"] and told[0].evidence == {"pid": 7}


async def test_targets_of_another_fault_are_left_alone() -> None:
    on = cluster()
    on.claimed |= {"process:n1"}
    injection = Scripted()
    await carry_out(STEP, injection, on, 0.0, 0, lambda fault: pytest.fail("told"))
    assert injection.asked == [] and on.claimed == {"process:n1"}


# --- Uninterruptible steps --------------------------------------------------------------------------------------------


async def test_work_is_completed_before_a_cancellation_takes_effect() -> None:
    done: list[str] = []
    begun = asyncio.Event()

    async def work() -> str:
        begun.set()
        await asyncio.sleep(0.01)
        done.append("done")
        return "result"

    assert await to_the_end(work()) == "result"
    begun.clear()
    task = asyncio.create_task(to_the_end(work()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == ["done", "done"]


async def test_an_error_of_cancelled_work_is_not_lost() -> None:
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        await asyncio.sleep(0)
        raise CommandFailed("umount")

    with pytest.raises(CommandFailed):
        await to_the_end(work())
    begun.clear()
    task = asyncio.create_task(to_the_end(work()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as raised:
        await task
    assert isinstance(raised.value.__cause__, CommandFailed)


async def test_programs_report_their_errors() -> None:
    assert await in_thread(run, "cat", given="text") == "text"
    for command, why in {
        ("nothing-of-the-kind",): "nothing-of-the-kind is not installed",
        ("false",): "exit code 1",
        ("ls", "/nowhere"): "No such file",
    }.items():
        with pytest.raises(CommandFailed, match=why):
            run(*command)
    with pytest.raises(CommandFailed, match="not done within"):
        run("sleep", "60", seconds=0.05)
    run("false", accept=(1,))


# --- Nemeses ----------------------------------------------------------------------------------------------------------


async def known_facts(on: NodeCluster, minority: tuple[str, ...]) -> Facts:
    return Facts(("n1", "n2", "n3"), ("n1",))


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> list[steps.Step]:
    """Nemeses inject nothing: the steps that they would have made."""
    asked: list[steps.Step] = []

    def injection_of(step: steps.Step, on: NodeCluster) -> Scripted:
        asked.append(step)
        return Scripted(heal={"pid": 1})

    monkeypatch.setattr(nemesis_module, "injection_of", injection_of)
    monkeypatch.setattr(nemesis_module, "look", known_facts)
    monkeypatch.setattr(nemesis_module, "minority_of", lambda on, seed: ("n1",))
    return asked


FAST = {"hold": [0, 0], "quiet": [0.001, 0.001]}


async def test_a_nemesis_injects_faults_until_its_time_is_over_and_the_seed_determines_them(
    scripted: list[steps.Step],
) -> None:
    runs = []
    for _ in range(2):
        scripted.clear()
        told: list[Fault] = []
        await make("kill", seed=7, origin_ns=0, options=FAST).disturb(cluster(), 0.1, told.append)
        assert len(told) == len(scripted) > 3
        runs.append(scripted[:3])
    assert runs[0] == runs[1]
    await make("kill", seed=8, origin_ns=0, options=FAST).disturb(cluster(), 0.1, lambda fault: None)
    assert scripted[-3:] != runs[0]


async def test_a_mix_draws_again_and_only_faults_that_the_cluster_supports(scripted: list[steps.Step]) -> None:
    told: list[Fault] = []
    mixed = MixedNemesis(3, 0, Options(hold=(0, 0), quiet=(0.001, 0.001), redraw=0.02))
    await mixed.disturb(cluster("links"), 0.6, told.append)
    kinds = {fault.kind for fault in told}
    assert {"kill", "pause", "partition"} & kinds
    assert not kinds & {"power", "clock-bump", "slow-links", "disk-full", "fsync-error"}


async def test_nothing_is_injected_that_the_cluster_does_not_support() -> None:
    with pytest.raises(InvalidRequest, match="needs what this cluster lacks: power-loss"):
        await make("power", seed=1, origin_ns=0).disturb(cluster("links"), 1.0, lambda fault: None)

    class Theirs:
        nodes = ("n1",)

    theirs: RealCluster = Theirs()  # type: ignore[assignment]
    with pytest.raises(InvalidRequest, match="breaks only clusters of"):
        await make("kill", seed=1, origin_ns=0).disturb(theirs, 1.0, lambda fault: None)


async def test_a_nemesis_requested_by_name_is_not_left_out(scripted: list[steps.Step]) -> None:
    asked = make("mixed", seed=1, origin_ns=0, options={"nemeses": ["kill", "read-only"]})
    with pytest.raises(InvalidRequest, match="mixed, kill, read-only needs what this cluster lacks: disks, read-only"):
        await asked.disturb(cluster("links"), 1.0, lambda fault: None)
    assert not scripted


def test_the_faults_missing_from_a_mix_of_all_are_named() -> None:
    without = left_out(Options(), frozenset({"links", "strace"}))
    assert without["clock"] == ("faketime",) and without["read-only"] == ("disks", "read-only")
    assert not {"kill", "partition", "slow-fsync", "bitflip"} & set(without)
    assert left_out(Options(nemeses=("clock",)), frozenset()) == {}, "that is refused"


def test_names_that_do_not_exist_are_refused() -> None:
    for name in NAMES:
        assert make(name, seed=1, origin_ns=0).name == name
    with pytest.raises(InvalidRequest, match="no nemesis 'storm'"):
        make("storm", seed=1, origin_ns=0)
    with pytest.raises(InvalidRequest, match="mixed has no 'storm'"):
        make("mixed", seed=1, origin_ns=0, options={"nemeses": ["storm"]})
