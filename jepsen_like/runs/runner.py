"""One run, from a plan to an outcome: a cluster is created, used and broken, healed, read, stopped and judged.

    prepare the cluster → operations with faults → heal → recovery and final reads → stop in order → judge → outcome

The records of a run are in its folder (`jepsen_like/run_records.py`); nothing of the cluster remains, however the run
ends. Only a completed run has an outcome. Its verdict is *unknown*, which is no pass, if a checker is undecided, if the
cluster could not be healed, or if some kind of fault never had a proved effect.
"""

from __future__ import annotations

import asyncio
import datetime
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import msgspec

from jepsen_like.checkers.verdict import Verdict
from jepsen_like.clusters.cluster import SMALL_LOGS, NodeCluster
from jepsen_like.clusters.health import NotWell, until_in_sync
from jepsen_like.clusters.loopback import open_loopback
from jepsen_like.clusters.namespaces import open_namespaces
from jepsen_like.clusters.node import PROGRAM, NodeEnded
from jepsen_like.clusters.security import APPLICATION
from jepsen_like.histories.file import HistoryFile
from jepsen_like.histories.history import Operation, read
from jepsen_like.nemeses.catalogue import MIXED, RECIPES
from jepsen_like.nemeses.injection import HealFailed, Stuck
from jepsen_like.nemeses.make import NONE, make
from jepsen_like.nemeses.mixed import left_out
from jepsen_like.nemeses.plans import checked
from jepsen_like.provenance.product import commit_of_the_product
from jepsen_like.run_records import Fault, Nemesis, Outcome, RunFolder, RunPlan, Worked
from jepsen_like.scoreboard.cells import LOOPBACK, NAMESPACES
from jepsen_like.workloads.strangers import Node, Strangers

from .interpreter import RunFailed, interpret
from .judging import judge_run, valid
from .rounds import Rounds, nemeses_of

PREPARED_SECONDS = 120.0
RESTS_SECONDS_MAX = 150.0
"""A mix without any fault for this time has tested nothing, since it is redrawn every 30 s."""
POLL_SECONDS = 0.05
LOG_BYTES_MAX = 64 * 1024 * 1024
"""Maximum size of a node's log that is kept: its end."""

Tell = Callable[[str], None]
"""Receives the current phase as text."""


async def run(plan: RunPlan, folder: RunFolder, *, layout: str, tell: Tell = lambda text: None) -> Outcome:
    """Make the run and return its outcome.

    Raises `InvalidRequest` if this machine cannot make it, `RunFailed` if the suite failed: then there is no outcome,
    and the run says nothing about the cluster.
    """
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.plan.write_bytes(msgspec.json.format(msgspec.json.encode(plan)))
    origin_ns = time.monotonic_ns()
    nemesis = make(plan.nemesis, seed=plan.seed, origin_ns=origin_ns, options=plan.options)
    if plan.rounds:
        nemeses_of(plan)
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    tell("creating a cluster")
    async with await _cluster(plan, layout) as cluster, _administering(cluster):
        try:
            await cluster.start()
            await until_in_sync(cluster.bootstrap)
            if cluster.security is not None:
                await cluster.security.add_application(cluster.bootstrap)
        except (NodeEnded, NotWell) as error:
            raise RunFailed(f"the cluster did not start, before any fault: {error}") from error
        without = left_out(checked(plan.options), cluster.capabilities) if plan.nemesis == MIXED else {}
        for name, lacking in without.items():
            tell(f"the mix leaves out {name}: this cluster lacks {', '.join(lacking)}")
        of_rounds: Mapping[str, Verdict] | None = None
        if plan.rounds:
            rounds = Rounds(plan=plan, folder=folder, cluster=cluster, origin_ns=origin_ns, tell=tell)
            await rounds.play()
            worked, of_rounds = rounds.worked(counted(folder.history)), rounds.verdicts
        else:
            worked = await _work(_Run(plan, folder, cluster, nemesis, origin_ns, tell))
        tell("stopping the nodes")
        codes = await cluster.stop()
        tell("judging")
        verdicts = await asyncio.to_thread(_judged, plan, folder, cluster, of_rounds)
    result = outcome(plan, started, worked, verdicts, codes, left_out=tuple(without))
    folder.outcome.write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    return result


async def _cluster(plan: RunPlan, layout: str) -> NodeCluster:
    program: tuple[str, ...] = PROGRAM
    if plan.planted:
        from jepsen_like.planted.node import program as with_bug

        program = with_bug(plan.planted)
    secured = bool(plan.options.get("secured"))
    if layout == NAMESPACES:
        return await open_namespaces(plan.nodes, settings=SMALL_LOGS, program=program, secured=secured)
    assert layout == LOOPBACK, layout
    return await open_loopback(
        plan.nodes, settings=SMALL_LOGS, clocks=True, seed=plan.seed, program=program, secured=secured
    )


@asynccontextmanager
async def _administering(cluster: NodeCluster) -> AsyncIterator[None]:
    """Make this process the administrator of a secured cluster."""
    with cluster.security.entered() if cluster.security is not None else nullcontext():
        yield


@dataclass(frozen=True, slots=True)
class _Run:
    plan: RunPlan
    folder: RunFolder
    cluster: NodeCluster
    nemesis: Nemesis
    origin_ns: int
    tell: Tell

    def now(self) -> int:
        return time.monotonic_ns() - self.origin_ns


async def _work(run: _Run) -> Worked:
    """Run operations and faults concurrently, then the recovery and the final reads."""
    faults: list[Fault] = []
    healed = asyncio.Event()
    with HistoryFile(run.folder.history, run.now) as history, run.folder.faults.open("wb") as file:

        def note(fault: Fault) -> None:
            faults.append(fault)
            file.write(msgspec.json.encode(fault) + b"\n")
            file.flush()
            told = {"targets": fault.targets, "void": not fault.evidence, "began": fault.began}
            history.note("nemesis", fault.kind, told)

        operations = asyncio.create_task(
            interpret(
                run.plan,
                run.cluster.bootstrap,
                run.folder,
                run.origin_ns,
                healed,
                history=history,
                environment=run.cluster.security.environment(APPLICATION) if run.cluster.security is not None else {},
            )
        )
        strangers = _strangers(run, history)
        try:
            run.tell("preparing topics")
            await _prepared(history, operations)
            if strangers is not None:
                await strangers.begin()
            began = time.monotonic()
            not_healed, stuck = await _disturb(run, note)
            seconds = time.monotonic() - began
            run.tell("healed: recovery and final reads")
            healed.set()
            await operations
            if strangers is not None:
                await strangers.end()
        finally:
            operations.cancel()
            await asyncio.gather(operations, return_exceptions=True)
            if strangers is not None:
                await strangers.stop()
    return Worked(seconds, faults, counted(run.folder.history), not_healed, stuck=stuck)


def _strangers(run: _Run, history: HistoryFile) -> Strangers | None:
    cluster = run.cluster
    if cluster.security is None:
        return None
    return Strangers(
        nodes=tuple(Node(name, one.api, one.data) for name, one in cluster.processes.items()),
        bootstrap=tuple(cluster.bootstrap),
        cluster_id=cluster.cluster_id,
        security=cluster.security,
        history=history,
        now=run.now,
        seed=run.plan.seed,
        clocks_are_right=not _breaks_clocks(run.plan),
    )


def _breaks_clocks(plan: RunPlan) -> bool:
    """Return whether a fault of the plan may set a clock."""
    kinds = plan.options.get("nemeses", RECIPES) if plan.nemesis == MIXED else (plan.nemesis,)
    return any("clock" in kind for kind in kinds)


async def _prepared(history: HistoryFile, operations: asyncio.Task[int]) -> None:
    """Wait until topics and clients exist and the first operation is in flight (the second line): then faults may
    begin.
    """
    deadline = time.monotonic() + PREPARED_SECONDS
    while history.count < 2:
        if operations.done():
            await operations
        if time.monotonic() > deadline:
            raise RunFailed(f"the workload was not prepared within {PREPARED_SECONDS:g} s")
        await asyncio.sleep(POLL_SECONDS)


async def _disturb(run: _Run, note: Callable[[Fault], None]) -> tuple[str, bool]:
    """Inject faults. Returns why the heal failed, or an empty text, and whether the cluster had to heal by itself."""
    run.tell(f"operations with nemesis {run.plan.nemesis}")
    not_healed, stuck = "", False
    try:
        await run.nemesis.disturb(run.cluster, run.plan.seconds, note)
    except* HealFailed as group:
        not_healed = "; ".join(str(error) for error in group.exceptions)
        stuck = any(isinstance(error, Stuck) for error in group.exceptions)
        run.tell(f"not healed: {not_healed}")
    return not_healed, stuck


def counted(history: Path) -> dict[str, int]:
    """Return the `count` of a history file."""
    with history.open("rb") as lines:
        return count(read(lines))


def count(history: Iterable[Operation]) -> dict[str, int]:
    """Return the number of the clients' completions by kind."""
    found: Counter[str] = Counter({"ok": 0, "fail": 0, "info": 0})
    for operation in history:
        if isinstance(operation.process, int) and operation.kind != "invoke":
            found[operation.kind] += 1
    return dict(found)


def _judged(
    plan: RunPlan, folder: RunFolder, cluster: NodeCluster, of_rounds: Mapping[str, Verdict] | None
) -> dict[str, Verdict]:
    """Collect the nodes' logs and judge the run. Blocks."""
    logs = {}
    for node in cluster.nodes:
        kept = folder.node(node)
        kept.mkdir(parents=True, exist_ok=True)
        logs[node] = kept / "log.jsonl"
        _keep(cluster.log_file(node), logs[node])
    data = {node: cluster.data_folder(node) for node in cluster.nodes}
    return judge_run(plan, folder, data_folders=data, log_files=logs, of_rounds=of_rounds)


def _keep(source: Path, target: Path) -> None:
    if not source.exists():
        return
    with source.open("rb") as read_from, target.open("wb") as write_to:
        read_from.seek(max(0, source.stat().st_size - LOG_BYTES_MAX))
        shutil.copyfileobj(read_from, write_to)


def outcome(
    plan: RunPlan,
    started: str,
    worked: Worked,
    verdicts: Mapping[str, Verdict],
    codes: Mapping[str, int | None],
    left_out: tuple[str, ...] = (),
) -> Outcome:
    """Return the outcome of a run. `codes`: the exit codes of the nodes' orderly stops. `left_out`: as
    `Outcome.left_out`.
    """
    judged = _valid(plan, worked, valid(verdicts), codes)
    bitten = Counter(_counted_as(fault) for fault in worked.faults if fault.evidence)
    void = Counter(fault.kind for fault in worked.faults if not fault.evidence)
    anomalies = Counter(
        {name: len(found) for one in verdicts.values() for name, found in one.anomalies.items() if found}
    )
    if worked.not_healed:
        anomalies["stuck" if worked.stuck else "not-healed"] += 1
    anomalies.update({"not-running": list(codes.values()).count(None)})
    anomalies.update({"not-stopped": sum(code not in (0, None) for code in codes.values())})
    return Outcome(
        plan=plan,
        commit=commit_of_the_product(),
        started=started,
        seconds=round(worked.seconds, 3),
        operations=dict(worked.operations),
        faults=dict(bitten),
        void=dict(void),
        valid=judged,
        anomalies={name: number for name, number in anomalies.items() if number},
        recovery_s=_recovery(verdicts),
        rounds=worked.rounds if judged else 0,
        left_out=left_out,
    )


def _counted_as(fault: Fault) -> str:
    """Return the name under which a fault counts: damage counts by the kind of file, since it shows nothing about
    others.
    """
    what = fault.evidence.get("what")
    return f"{fault.kind}:{what}" if what else fault.kind


def _valid(plan: RunPlan, worked: Worked, judged: bool | None, codes: Mapping[str, int | None]) -> bool | None:
    """Return the verdict on the run.

    It is unknown if a kind of fault has no proof, if nodes did not return, ended by themselves or did not stop, or if
    there were fewer rounds than planned. It is invalid if the cluster did not recover from a fault that it has to
    survive by itself.
    """
    if judged is False or worked.stuck:
        return False
    bitten = {fault.kind for fault in worked.faults if fault.evidence}
    without_proof = {fault.kind for fault in worked.faults} - bitten
    # The mix may draw no fault for a short while, or only faults that this cluster does not support.
    may_rest = plan.nemesis == NONE or (plan.nemesis == MIXED and worked.seconds < RESTS_SECONDS_MAX)
    nothing = not bitten and not may_rest
    failed = worked.not_healed or set(codes.values()) - {0} or worked.rounds < plan.rounds
    return None if failed or without_proof or nothing else judged


def _recovery(verdicts: Mapping[str, Verdict]) -> float | None:
    told = verdicts["recovery"].measured.get("recovery_s") if "recovery" in verdicts else None
    return float(told) if told is not None else None


def folder_name(plan: RunPlan, started: datetime.datetime) -> str:
    """Return the name of a run's folder, below the folder of all runs."""
    name = plan.planted or plan.cell or plan.workload
    parts = [started.strftime("%Y%m%d-%H%M%S"), name, plan.nemesis, f"seed{plan.seed}"]
    return "-".join(parts)
