"""A simulated world writes the folder of a run: watching changes nothing, and the record equals the events."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from jepsen_like.chaos import SIMULATED_KINDS
from jepsen_like.histories.history import Operation, calls, read
from jepsen_like.planted.catalogue import BUGS, load_detections
from jepsen_like.planted.patches import plant
from jepsen_like.report.page import render
from jepsen_like.run_records import Outcome, RunFolder, read_faults
from jepsen_like.runs.simulated import run_simulated
from jepsen_like.runs.simulated_watch import WORLDS
from jepsen_like.simulator.library.topic_lives import NAMES
from jepsen_like.simulator.shards.seeds import RUNNERS

SECONDS = 12.0
FAULTY = dict.fromkeys(WORLDS, 3) | {"clients": 2}
"""Kind → a seed that has faults by then."""


def test_every_kind_of_world_can_be_watched() -> None:
    assert set(SIMULATED_KINDS) == set(WORLDS) == set(RUNNERS)


def history_of(folder: RunFolder) -> list[Operation]:
    with folder.history.open("rb") as lines:
        return list(read(lines))


@pytest.mark.parametrize("kind", WORLDS)
def test_watching_a_world_changes_nothing(kind: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    seed = FAULTY[kind]
    verdict = run_simulated(kind, seed, SECONDS, folder)
    assert str(verdict) == str(RUNNERS[kind](seed, SECONDS)), "and nobody watches the next one"
    outcome = msgspec.json.decode(folder.outcome.read_bytes(), type=Outcome)
    assert outcome.valid and not outcome.anomalies and outcome.plan.cell == ""
    history = history_of(folder)
    done = calls(history)
    assert [one.index for one in history] == list(range(len(history)))
    assert [one.time for one in history] == sorted(one.time for one in history)
    ended = [call for call in done if call.completion is not None]
    assert sum(outcome.operations.values()) == len(ended) > 10
    assert all(call.invocation.process % outcome.plan.processes >= 0 for call in done)  # type: ignore[operator]
    faults = list(read_faults(folder.faults))
    assert faults and all(fault.began <= fault.ended and fault.evidence for fault in faults)
    assert sum(outcome.faults.values()) == len(faults)
    page = render(folder)
    assert 'class="timeline"' in page and f"simulated-{kind}" in page and "Trace of the world" in page
    assert (folder.node("n1") / "log.txt").exists()


def test_sends_are_those_of_the_world(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    verdict = run_simulated("cluster", 3, SECONDS, folder)
    done = [call for call in calls(history_of(folder)) if call.invocation.f == "send"]
    kinds = [call.completion.kind if call.completion else "open" for call in done]
    assert f"ok={kinds.count('ok')} open={kinds.count('open')}" in str(verdict)
    told = next(call for call in done if call.completion is not None and call.completion.kind == "ok").completion
    assert told is not None and told.value[0][2][0] >= 0, "with the offset"


def test_the_librarys_operations_are_recorded_with_their_topics(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert run_simulated("clients", 2, SECONDS, folder).passed
    done = [call for call in calls(history_of(folder)) if call.completion is not None]
    sent = [call.completion.value[0] for call in done if call.invocation.f == "send" and call.completion.kind == "ok"]
    polled = [call.completion.value[0][1] for call in done if call.invocation.f == "poll" and call.completion.value]
    read = {(place, *pair) for one in polled for place, pairs in one.items() for pair in pairs}
    assert read and {place for place, *_ in read} <= {f"{name}/{number}" for name in NAMES for number in range(8)}
    assert {(place, *pair) for _, place, pair in sent} & read


def test_a_worlds_findings_are_recorded_with_the_operations_there(tmp_path: Path) -> None:
    bug = "acknowledged_by_the_leader_alone"
    folder = RunFolder(tmp_path / "run")
    with plant(BUGS[bug]):
        verdict = run_simulated("cluster", load_detections()[bug].seed, 40.0, folder)
    assert not verdict.passed
    outcome = msgspec.json.decode(folder.outcome.read_bytes(), type=Outcome)
    assert outcome.valid is False and outcome.anomalies == {"S6": 1}
    found = msgspec.json.decode(folder.verdict.read_bytes())["checkers"]["simulator"]["anomalies"]["S6"][0]
    history = history_of(folder)
    assert found["violation"] == verdict.violation and set(found["proof"]) <= {one.index for one in history}
    page = render(folder)
    assert "invalid</span>" in page and "S6" in page and "shrink --kind cluster" in page
