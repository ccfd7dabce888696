"""The verdicts on a run: every checker that applies, by its name.

* the workload's own checkers, on the history;
* `replicas`: the disks of the stopped nodes;
* `logs`: the nodes' own logs.

A checker that crashes, or exceeds its budget, returns *unknown* with the reason. That is no pass. The verdicts are
written to the run's folder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from jepsen_like.checkers import node_logs, replicas, strangers
from jepsen_like.checkers.kafka_log import LogHistory
from jepsen_like.checkers.kafka_stronger import young_since
from jepsen_like.checkers.replicas import CommittedEnd, StoredLog
from jepsen_like.checkers.verdict import Verdict
from jepsen_like.clusters.replica_logs import stored_logs
from jepsen_like.histories.history import Operation, read
from jepsen_like.run_records import RunFolder, RunPlan
from jepsen_like.workloads import workload_of

ENDS = "ends"
"""The note with the committed end of each partition."""
STOPPED_SECONDS = 60.0
"""Time after that note within which the nodes are stopped and delete nothing more."""
SERIES_MAX = 1_000
"""Maximum number of points of a measured series in the file."""


def judge_run(
    plan: RunPlan,
    folder: RunFolder,
    *,
    data_folders: Mapping[str, Path],
    log_files: Mapping[str, Path],
    of_rounds: Mapping[str, Verdict] | None = None,
) -> dict[str, Verdict]:
    """Return all verdicts on a run whose nodes are stopped, and write them to the folder.

    `data_folders`, `log_files`: by node; empty if not available. `of_rounds`: the verdicts on the history, if it was
    judged round by round. Raises `OSError`, and `InvalidRequest` for an invalid plan or history.
    """
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
    """Return the verdicts of the workload's checkers. Raises `InvalidRequest` for an unknown workload."""
    checkers = {**workload_of(plan).checkers(plan)}
    if plan.options.get("secured"):
        checkers["strangers"] = strangers.check
    return {name: guarded(lambda check=check: check(history)) for name, check in checkers.items()}  # type: ignore[misc]


def judge_replicas(data_folders: Mapping[str, Path], ends: Mapping[tuple[str, int], CommittedEnd]) -> Verdict:
    """Judge the replicas of this run's partitions, those whose end is known."""
    logs: dict[tuple[str, int], dict[str, StoredLog]] = {}
    for node, folder in data_folders.items():
        for place, log in stored_logs(folder):
            if place in ends:
                logs.setdefault(place, {})[node] = log
    return replicas.check(logs, ends)


def judge_logs(log_files: Mapping[str, Path]) -> Verdict:
    """Judge logs line by line: they may be large."""
    return node_logs.check({node: _lines(file) for node, file in log_files.items()})


def guarded(check: Callable[[], Verdict]) -> Verdict:
    """Return the verdict, or unknown if the checker crashes."""
    try:
        return check()
    except Exception as error:  # noqa: BLE001  a checker's bug or an unreadable history: never a pass, never the end
        return Verdict(None, {}, {"reason": f"the checker failed: {error!r}"})


def together(before: Mapping[str, Verdict], now: Mapping[str, Verdict]) -> dict[str, Verdict]:
    """Combine the verdicts of several rounds by checker: invalid if one is, otherwise unknown if one is.

    The measured values are the latest ones, except the longest recovery.
    """
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
    """Return False if one verdict is invalid, otherwise None if one is unknown or there is none."""
    each = {verdict.valid for verdict in verdicts.values()}
    return False if False in each else None if None in each or not each else True


def shown(verdicts: Mapping[str, Verdict]) -> dict[str, Any]:
    """Return the content of the file."""
    each = {
        name: {**one.shown, "measured": {what: _thinned(told) for what, told in one.measured.items()}}
        for name, one in verdicts.items()
    }
    overall = valid(verdicts)
    return {"valid": "unknown" if overall is None else overall, "checkers": each}


def _thinned(told: Any) -> Any:
    """Return a long series reduced to a number of points that can be drawn."""
    if isinstance(told, list) and len(told) > SERIES_MAX:
        return told[:: -(-len(told) // SERIES_MAX)]
    return told


def committed_ends(history: Sequence[Operation], keeps_s: float | None = None) -> dict[tuple[str, int], CommittedEnd]:
    """Return (topic id, partition) → its committed end, as it was after the final reads.

    `keeps_s`: as `Workload.keeps_s`; if it is finite, the history must be one of a log. Raises `InvalidRequest`
    otherwise.
    """
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
