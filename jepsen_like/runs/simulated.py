"""A simulated world as a run: the same folder as a run of a real cluster, and so the same page.

    verdict = run_simulated("cluster", 7, 60.0, RunFolder(path))

The world runs as in `jepsen_like/simulator/shards/seeds.py`, and is watched from outside (`simulated_watch.py`). Times
are virtual. A violation is one anomaly, named by its guarantee (`S1`); its proof is the last operations on what the
violation names.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from jepsen_like.histories.history import Operation, write
from jepsen_like.provenance.product import commit_of_the_product
from jepsen_like.run_records import Outcome, RunFolder, RunPlan
from jepsen_like.simulator.library.topic_lives import NAMES
from jepsen_like.simulator.shards.seeds import RUNNERS, Verdict

from .runner import count
from .simulated_watch import Watch, watching

PROVING_MAX = 12
NAMED = rf"[0-9a-f]{{8}}/\d+|register-\d+|topic-\d+|(?:{'|'.join(NAMES)})/\d+"
"""Names in a violation: partitions, registers, topics."""


def run_simulated(kind: str, seed: int, seconds: float, folder: RunFolder) -> Verdict:
    """Run a seed and write its records. `seconds`: virtual seconds of faults. Blocks."""
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    watch = Watch()
    with watching(kind, watch):
        verdict = RUNNERS[kind](seed, seconds)
    watch.look()
    _leave(kind, verdict, watch, folder, started)
    return verdict


def _leave(kind: str, verdict: Verdict, watch: Watch, folder: RunFolder, started: str) -> None:
    history, lanes = list(_numbered(watch)), max(len(watch.lives), 1)
    counted = count(history)
    nodes = [f"n{int(node.node_id) + 1}" for node in watch.world.nodes]
    plan = RunPlan(
        cell="",
        workload=f"simulated-{kind}",
        nemesis="schedule",
        nodes=len(nodes),
        seconds=watch.world.schedule.seconds,
        rate=round(sum(counted.values()) / max(verdict.seconds, 1.0), 1),
        seed=verdict.seed,
        processes=lanes,
        options={"trace": verdict.trace},
    )
    found = _anomalies(verdict, history)
    bitten = Counter(fault.kind for fault in watch.faults if fault.evidence)
    void = Counter(fault.kind for fault in watch.faults if not fault.evidence)
    outcome = Outcome(
        plan=plan,
        commit=commit_of_the_product(),
        started=started,
        seconds=round(verdict.seconds, 3),
        operations=counted,
        faults=dict(bitten),
        void=dict(void),
        valid=verdict.passed,
        anomalies={name: len(of) for name, of in found.items()},
        recovery_s=_recovery(verdict),
    )
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.plan.write_bytes(msgspec.json.format(msgspec.json.encode(plan)))
    with folder.history.open("wb") as file:
        write(file, history)
    folder.faults.write_bytes(b"".join(msgspec.json.encode(fault) + b"\n" for fault in watch.faults))
    checked = {"valid": verdict.passed, "anomalies": found, "measured": {}}
    told = {"valid": verdict.passed, "checkers": {"simulator": checked}}
    folder.verdict.write_bytes(msgspec.json.format(msgspec.json.encode(told)))
    folder.outcome.write_bytes(msgspec.json.format(msgspec.json.encode(outcome)))
    folder.world.write_text("\n".join([str(verdict), *watch.world.trace.lines]) + "\n", encoding="utf-8")
    for number, name in enumerate(nodes):
        folder.node(name).mkdir(parents=True, exist_ok=True)
        own = [line for line in watch.world.trace.lines if f" node-{number} " in line]
        (folder.node(name) / "log.txt").write_text("".join(f"{line}\n" for line in own), encoding="utf-8")


def _numbered(watch: Watch) -> Iterator[Operation]:
    """Yield operations with process numbers as an interpreter assigns them.

    Another life of a lane is another process, with the same number modulo the number of lanes.
    """
    lanes = max(len(watch.lives), 1)
    for index, line in enumerate(watch.lines):
        process = line.lane + lanes * line.life
        yield Operation(index, process, line.kind, line.f, line.value, line.time, line.node, line.error)


def _anomalies(verdict: Verdict, history: Sequence[Operation]) -> dict[str, list[dict[str, Any]]]:
    """Return the anomaly by the guarantee that was violated, with the last operations on what the violation names.

    If it names nothing, the last operations of all.
    """
    if verdict.passed:
        return {}
    law, colon, _ = verdict.violation.partition(":")
    named = set(re.findall(NAMED, verdict.violation))
    own = [one for one in history if named and any(name in str(one.value) for name in named)]
    proving = [one.index for one in (own or history)[-PROVING_MAX:]]
    return {law if colon else "violation": [{"violation": verdict.violation, "proof": proving}]}


def _recovery(verdict: Verdict) -> float | None:
    """Return the seconds from the heal until nothing was missing, if the world reports them."""
    after = getattr(verdict, "recovered_after", -1.0)
    return None if after < 0 else float(after)
