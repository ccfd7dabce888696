"""Says of a run whether the cluster kept its word: every checker that has something to look at, by its name.

* what clients were told: the workload's own checkers, over the history;
* `replicas`: what lies on the disks of the nodes, which have to be stopped;
* `logs`: what nodes said.

A checker that crashes, or comes to no end, says *unknown* and why. That is no pass. The verdicts are written to the
run's folder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from jepsen_like.checkers import node_logs, replicas
from jepsen_like.checkers.kafka_log import LogHistory
from jepsen_like.checkers.kafka_stronger import young_since
from jepsen_like.checkers.replicas import CommittedEnd, StoredLog
from jepsen_like.checkers.verdict import Verdict
from jepsen_like.clusters.replica_logs import stored_logs
from jepsen_like.histories.history import Operation, read
from jepsen_like.run_records import RunFolder, RunPlan
from jepsen_like.workloads import workload_of

ENDS = "ends"
"""The note that tells how far each partition is committed in the end."""
STOPPED_SECONDS = 60.0
"""After that note the nodes are stopped by then, and delete no more."""
SERIES_MAX = 1_000
"""Points of what is measured over time, as it is written down."""


def judge_run(
    plan: RunPlan,
    folder: RunFolder,
    *,
    data_folders: Mapping[str, Path],
    log_files: Mapping[str, Path],
    of_rounds: Mapping[str, Verdict] | None = None,
) -> dict[str, Verdict]:
    """Everything, of a run whose nodes are stopped; written to the folder. `data_folders`, `log_files`: by node; empty
    where they cannot be had. `of_rounds`: what the history was found to be, where it was judged round by round. Raises
    `OSError`, and `InvalidRequest` for a plan or a history that is none."""
    with folder.history.open("rb") as lines:
        history = list(read(lines))
    verdicts = judge_history(plan, history) if of_rounds is None else dict(of_rounds)
    if data_folders:
        keeps_s = workload_of(plan).keeps_s
        ends = committed_ends(history, keeps_s(plan) if keeps_s is not None else None)
        verdicts["replicas"] = guarded(lambda: judge_replicas(data_folders, ends))
    if log_files:
        verdicts["logs"] = guarded(lambda: judge_logs(log_files))
    folder.verdict.write_bytes(msgspec.json.format(msgspec.json.encode(shown(verdicts), enc_hook=repr)))
    return verdicts


def judge_history(plan: RunPlan, history: Sequence[Operation]) -> dict[str, Verdict]:
    """By the checkers of the plan's workload. Raises `InvalidRequest` for a plan of none."""
    checkers = workload_of(plan).checkers(plan)
    return {name: guarded(lambda check=check: check(history)) for name, check in checkers.items()}  # type: ignore[misc]


def judge_replicas(data_folders: Mapping[str, Path], ends: Mapping[tuple[str, int], CommittedEnd]) -> Verdict:
    """Of those partitions whose end is known, which are this run's."""
    logs: dict[tuple[str, int], dict[str, StoredLog]] = {}
    for node, folder in data_folders.items():
        for place, log in stored_logs(folder):
            if place in ends:
                logs.setdefault(place, {})[node] = log
    return replicas.check(logs, ends)


def judge_logs(log_files: Mapping[str, Path]) -> Verdict:
    """Line by line: logs may be large."""
    return node_logs.check({node: _lines(file) for node, file in log_files.items()})


def guarded(check: Callable[[], Verdict]) -> Verdict:
    """What it says; unknown where it crashes."""
    try:
        return check()
    except Exception as error:  # noqa: BLE001  a checker's bug or a history it cannot read: never a pass, never the end
        return Verdict(None, {}, {"reason": f"the checker failed: {error!r}"})


def together(before: Mapping[str, Verdict], now: Mapping[str, Verdict]) -> dict[str, Verdict]:
    """Of several rounds, by checker: wrong if one is, unknown if one is and none is wrong. Measured is what was now,
    but of how long a recovery took the longest."""
    found = dict(before)
    for name, one in now.items():
        other = before.get(name, one)
        measured = dict(one.measured)
        if "recovery_s" in measured:
            measured["recovery_s"] = max(
                (told for told in (other.measured["recovery_s"], measured["recovery_s"]) if told is not None),
                default=None,
            )
        anomalies = {**one.anomalies} if other is one else {**other.anomalies, **one.anomalies}
        found[name] = Verdict(valid({"": other, " ": one}), anomalies, measured)
    return found


def valid(verdicts: Mapping[str, Verdict]) -> bool | None:
    """False where one of them is, else None where one does not know."""
    each = {verdict.valid for verdict in verdicts.values()}
    return False if False in each else None if None in each or not each else True


def shown(verdicts: Mapping[str, Verdict]) -> dict[str, Any]:
    """As the file has them."""
    each = {
        name: {**one.shown, "measured": {what: _thinned(told) for what, told in one.measured.items()}}
        for name, one in verdicts.items()
    }
    overall = valid(verdicts)
    return {"valid": "unknown" if overall is None else overall, "checkers": each}


def _thinned(told: Any) -> Any:
    """Of a long series so many that it can be drawn."""
    if isinstance(told, list) and len(told) > SERIES_MAX:
        return told[:: -(-len(told) // SERIES_MAX)]
    return told


def committed_ends(history: Sequence[Operation], keeps_s: float | None = None) -> dict[tuple[str, int], CommittedEnd]:
    """(Topic id, partition) → how far it was committed, as the run was told after its last reads. `keeps_s`: as
    `Workload.keeps_s`. Raises `InvalidRequest` for a history of a log, which it is then, that is none."""
    found = {}
    for note in history:
        if note.f == ENDS and isinstance(note.process, str) and isinstance(note.value, Mapping):
            young: Mapping[Any, int] = {}
            if keeps_s is not None and keeps_s != math.inf:
                young = young_since(LogHistory(history), note.time / 1e9 + STOPPED_SECONDS - keeps_s)
            for topic_id, told in note.value.items():
                for number, end in enumerate(told["ends"]):
                    if end is not None:
                        start = 0 if keeps_s == math.inf else young.get(f"{told['topic']}/{number}")
                        found[topic_id, number] = CommittedEnd(end, bool(told["in_sync"]), start)
    return found


def _lines(file: Path) -> Iterator[bytes]:
    if file.exists():
        with file.open("rb") as lines:
            yield from lines
