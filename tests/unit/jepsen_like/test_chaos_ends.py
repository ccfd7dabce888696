"""The final committed ends of a run's partitions, and whether all replicas have reached them (S4).

A node that was cut off a moment ago may report a former ISR, so its answer alone does not count.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from jepsen_like.chaos.running import what_was_found
from jepsen_like.run_records import RunFolder
from jepsen_like.workloads import workload
from jepsen_like.workloads.workload import in_sync_everywhere
from raftlog.api.topics import PartitionInfo, TopicDescription

NODES = ("one:1", "two:1", "three:1")


def described(isr: Sequence[int], *, epoch: int = 1, leader: int | None = 1) -> TopicDescription:
    partition = PartitionInfo(0, leader, partition_epoch=epoch, replicas=[0, 1, 2], isr=list(isr))
    return TopicDescription(name="log", id="0" * 32, partition_count=1, replication_factor=3, partitions=[partition])


ALL = described([0, 1, 2], epoch=3)
WITHOUT = described([1, 2], epoch=2)
BEFORE = described([0, 1, 2], epoch=1)


PATIENCE_S = 20.0


async def seen(monkeypatch: pytest.MonkeyPatch, *rounds: Sequence[TopicDescription | None], wait_s: float) -> bool:
    """The result for nodes that report this, round after round, the last one repeatedly."""
    asked = dict.fromkeys(NODES, 0)

    async def told(node: str, name: str) -> TopicDescription | None:
        asked[node] += 1
        return rounds[min(asked[node], len(rounds)) - 1][NODES.index(node)]

    monkeypatch.setattr(workload, "_described_by", told)
    monkeypatch.setattr(workload, "POLL_SECONDS", 0.001)
    return await in_sync_everywhere(NODES, "log", time.monotonic() + wait_s)


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ((ALL, ALL, ALL), True),
        ((BEFORE, WITHOUT, WITHOUT), False),
        ((BEFORE, ALL, ALL), False),
        ((WITHOUT, WITHOUT, WITHOUT), False),
        ((ALL, ALL, None), False),
        ((described([0, 1, 2], leader=None),) * 3, False),
    ],
)
async def test_all_nodes_must_report_the_same(
    monkeypatch: pytest.MonkeyPatch, last: Sequence[TopicDescription | None], expected: bool
) -> None:
    assert await seen(monkeypatch, last, wait_s=PATIENCE_S if expected else 0.02) is expected


async def test_agreement_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = [(BEFORE, WITHOUT, WITHOUT), (WITHOUT, WITHOUT, None), (WITHOUT, ALL, ALL), (ALL, ALL, ALL)]
    assert await seen(monkeypatch, *rounds, wait_s=PATIENCE_S)


def test_the_result_is_reported_in_lines(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    lost = [{"node": "n1", "end": number, "committed": 9} for number in range(7)]
    verdicts = {"replicas": {"valid": False, "anomalies": {"lost-on-node": lost}}, "logs": {"anomalies": {}}}
    folder.verdict.write_bytes(msgspec.json.encode({"valid": False, "checkers": verdicts}))
    folder.faults.write_text('{"kind":"kill"}\n' + "x" * 5_000 + "\n")
    lines = what_was_found(folder).splitlines()
    assert lines[0] == 'replicas: lost-on-node: {"node":"n1","end":0,"committed":9}'
    assert len(lines) == 5 + 2 and lines[5] == 'fault: {"kind":"kill"}'
    assert len(lines[6]) == 1_001
