"""Every workload on a real cluster without faults is valid, and damage to its result is found."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jepsen_like.histories.history import Operation, read
from jepsen_like.run_records import RunFolder, RunPlan
from jepsen_like.runs.interpreter import interpret
from jepsen_like.runs.judging import committed_ends, judge_history, judge_logs, judge_replicas, valid
from jepsen_like.runs.local_clients import LocalClient
from jepsen_like.runs.rounds import RoundHistory
from raftlog.cli.nodes.local_cluster import DATA_FOLDER, LocalCluster
from tests.support.clusters.cluster import running_cluster

pytestmark = pytest.mark.integration

ACKNOWLEDGED = 40
"""The least number of operations of each run, before its last reads, with at least one of each kind."""
FAST = {"crash_every": 60, "assign_every": 20, "stall_every": 0}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with running_cluster() as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


WORKLOADS: list[tuple[str, dict[str, Any]]] = [
    ("log", {}),
    ("log", {"subscribe": True, "transactions": True}),
    ("metadata-registers", {}),
    ("metadata-set", {}),
    ("group-offsets", {}),
    ("topics", {}),
    ("positions", {}),
    ("topic-lives", {"recreate_every_s": 1}),
    ("rest", {}),
]


class Runs:
    """The runs and their results. All of them run in parallel: each has topics and clients of its own."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._made: dict[str, tuple[RunPlan, list[Operation]]] = {}

    async def of(self, workload: str, **options: Any) -> tuple[RunPlan, list[Operation]]:
        """The plan and the history."""
        if not self._made:
            async with asyncio.timeout(180), asyncio.TaskGroup() as group:
                for name, given in WORKLOADS:
                    group.create_task(self._make(name, given))
        return self._made[_name(workload, options)]

    async def _make(self, workload: str, options: dict[str, Any]) -> None:
        """The run continues until enough is acknowledged, however long that takes."""
        # Clients are processes in one run only: such a process takes a second to start.
        in_processes = workload == "log" and not options
        plan = RunPlan(
            cell="", workload=workload, nemesis="none", nodes=3, seconds=1.5, rate=80, seed=1, rounds=1,
            processes=2 if in_processes else 3, options={**FAST, **options},
        )  # fmt: skip
        run = RunFolder(self._folder / _name(workload, options))
        healed = asyncio.Event()
        bootstrap = [str(node.api) for node in self._cluster.nodes]
        spawn = None if in_processes else LocalClient.start
        origin = time.monotonic_ns()
        with RoundHistory(run.history, lambda: time.monotonic_ns() - origin) as history:
            running = asyncio.create_task(interpret(plan, bootstrap, run, origin, healed, history=history, spawn=spawn))
            while not running.done() and not enough(history):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            healed.set()
            await running
        self._made[_name(workload, options)] = plan, history_of(run.history)


def enough(history: RoundHistory) -> bool:
    """Whether enough is acknowledged, with something of each kind."""
    kinds = {kind: {one.f for one in history.round if one.kind == kind} for kind in ("invoke", "ok")}
    return history.acknowledged() >= ACKNOWLEDGED and kinds["invoke"] - {"crash", "cas"} <= kinds["ok"]


def _name(workload: str, options: dict[str, Any]) -> str:
    return "-".join([workload, *sorted(options)])


def history_of(file: Path) -> list[Operation]:
    with file.open("rb") as lines:
        return list(read(lines))


@pytest.fixture(scope="module")
def runs(cluster: LocalCluster, folder: Path) -> Runs:
    return Runs(cluster, folder)


def verdicts(plan: RunPlan, history: list[Operation]) -> dict[str, Any]:
    return {name: (one.valid, dict(one.anomalies)) for name, one in judge_history(plan, history).items()}


@pytest.mark.parametrize(
    ("workload", "options"),
    WORKLOADS,
    ids=lambda value: value if isinstance(value, str) else "-".join(value) or "plain",
)
async def test_a_cluster_without_faults_keeps_its_guarantees(
    runs: Runs, workload: str, options: dict[str, Any]
) -> None:
    plan, history = await runs.of(workload, **options)
    found = judge_history(plan, history)
    assert valid(found) is True, verdicts(plan, history)
    assert sum(one.kind == "ok" for one in history) > 30
    assert found["recovery"].measured["recovery_s"] is not None
    crashed = [one for one in history if one.f == "crash" and one.kind == "info"]
    numbers = {one.process for one in history if isinstance(one.process, int)}
    assert len(numbers) >= plan.processes + len(crashed) - 1


async def test_a_lost_record_is_found(runs: Runs) -> None:
    """S1: remove an acknowledged record from all reads."""
    plan, history = await runs.of("log")
    sent = next(one for one in history if one.f == "send" and one.kind == "ok")
    key, (offset, value) = sent.value[0][1:]
    harmed = [without(one, key, value) if one.f == "poll" and one.kind == "ok" else one for one in history]
    found = judge_history(plan, harmed)["kafka"]
    assert found.valid is False and {"lost-write", "unseen"} <= set(found.anomalies), offset


def without(poll: Operation, key: str, value: int) -> Operation:
    kept = [
        ["poll", {k: [p for p in pairs if (k, p[1]) != (key, value)] for k, pairs in one[1].items()}]
        for one in poll.value
    ]
    return msgspec.structs.replace(poll, value=kept)


async def test_a_stale_read_of_the_metadata_is_found(runs: Runs) -> None:
    """S7: the last read returns the first written value."""
    plan, history = await runs.of("metadata-registers")
    at = max(at for at, one in enumerate(history) if one.f == "read" and one.kind == "ok" and one.value[1] > 0)
    history = list(history)
    history[at] = msgspec.structs.replace(history[at], value=[history[at].value[0], 0])
    assert judge_history(plan, history)["linearizable"].valid is False


async def test_half_a_transaction_is_found(runs: Runs) -> None:
    """S13: a position that has moved, whose record is missing."""
    plan, history = await runs.of("positions")
    number = next(one for one in history if one.f == "cas" and one.kind == "ok").value[2]
    harmed = [
        msgspec.structs.replace(one, value=[n for n in one.value if n != number])
        if one.f == "records" and one.kind == "ok" else one
        for one in history
    ]  # fmt: skip
    found = judge_history(plan, harmed)["transactions"]
    assert found.valid is False and {"position-without-record", "broken-chain"} <= set(found.anomalies)


async def test_an_offset_that_moved_back_is_found(runs: Runs) -> None:
    """S8: the last read of a key is below the committed offset."""
    plan, history = await runs.of("group-offsets")
    at = max(at for at, one in enumerate(history) if one.f == "read" and one.kind == "ok" and one.value[1] is not None)
    assert {"reset", "cas"} & {one.f for one in history if one.kind == "ok"}
    history = [*history[:at], msgspec.structs.replace(history[at], value=[history[at].value[0], None])]
    assert judge_history(plan, history)["offsets"].valid is False


async def test_a_record_that_was_committed_and_not_delivered_is_found(runs: Runs) -> None:
    """S8: remove a record, which the group has passed, from all answers."""
    plan, history = await runs.of("rest")
    last = max(at for at, one in enumerate(history) if one.f == "offsets" and one.kind == "ok")
    key, committed = next((key, offset) for key, offset in history[last].value[1].items() if offset > 0)
    harmed = [not_delivered(one, key, committed - 1) for one in history]
    found = judge_history(plan, harmed)["consumers"]
    assert found.valid is False and "skipped" in found.anomalies


def not_delivered(read: Operation, key: str, offset: int) -> Operation:
    if read.f != "read" or read.kind != "ok":
        return read
    name, answer = read.value
    kept = {k: [p for p in pairs if (k, p[0]) != (key, offset)] for k, pairs in answer.items()}
    return msgspec.structs.replace(read, value=[name, {k: pairs for k, pairs in kept.items() if pairs}])


async def test_the_disks_of_all_nodes_have_the_same_content_until_it_is_damaged_s4(
    runs: Runs, cluster: LocalCluster
) -> None:
    """This test must be the last: it stops the cluster."""
    _, history = await runs.of("log")
    ends = committed_ends(history)
    assert len(ends) == 4 and all(one.in_sync and one.end > 0 for one in ends.values())
    assert set(await asyncio.to_thread(cluster.stop)) == {0, 1, 2}
    data = {f"n{node.node_id + 1}": Path(node.folder) / DATA_FOLDER for node in cluster.nodes}
    logs = {f"n{node.node_id + 1}": Path(node.log_path) for node in cluster.nodes}
    assert judge_replicas(data, ends).valid is True
    assert judge_logs(logs).valid is True
    (topic_id, partition) = next(iter(ends))
    replica = data["n2"] / "partitions" / f"{topic_id}-{partition}"
    for segment in replica.glob("*.log"):
        segment.write_bytes(b"")
    assert judge_replicas(data, ends).valid is False
