"""Seeds of the metadata quorum alone: Raft's properties after every event, progress at the end (S7, S9, S10)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from jepsen_like.simulator.quorum.directed import BEFORE, FOR_GOOD, LASTS, direct
from jepsen_like.simulator.quorum.run import run_quorum_seed, run_schedule
from jepsen_like.simulator.quorum.schedule import KINDS, OPERATIONS, Schedule, draw
from metadata.quorum import controlling as quorum_controlling
from metadata.quorum import node as quorum_node
from metadata.quorum.node import Outgoing, QuorumNode
from metadata.raft.pysyncobj_node import _SyncObj
from raftlog.model import BrokerId

SECONDS = 15.0
SEEDS = range(1, 25)
SCHEDULES = sorted((Path(__file__).parent / "schedules").glob("*.json"))


def test_dozens_of_seeds_keep_every_property() -> None:
    verdicts = [run_quorum_seed(seed, SECONDS) for seed in SEEDS]
    assert {verdict.seed: verdict.violation for verdict in verdicts if not verdict.passed} == {}
    # The runs were not empty: commands were applied, in worlds with faults of every kind.
    assert all(verdict.entries > 10 for verdict in verdicts)
    assert sum(verdict.calls["applied"] for verdict in verdicts) > len(SEEDS) * 20
    assert sum(verdict.calls["reads"] for verdict in verdicts) > len(SEEDS) * 5
    assert sum(verdict.changes.get("applied", 0) for verdict in verdicts) > len(SEEDS)
    assert {answer for verdict in verdicts for answer in verdict.changes} > {"applied"}
    assert {verdict.observers for verdict in verdicts} == {0, 1, 2}
    assert {kind for verdict in verdicts for kind in verdict.faults} >= {
        "kill", "power_loss", "crash_in_disk_operation", "crash_in_compaction", "failed_fsync", "slow_disk", "stall",
        "cut", "isolate", "deafen", "reset_connections", "drop", "duplicate", "delay", "wall_clock_jump",
        "clock_jump", "rot", "replace_disk",
    }  # fmt: skip


def test_an_acknowledgement_in_flight_counts_although_its_disk_is_replaced() -> None:
    """S7: the leader commits by an acknowledgement that left a voter just before its disk was replaced, which cannot be
    distinguished from a disk that is replaced just after."""
    verdict = run_quorum_seed(5323, 60.0)
    assert verdict.passed, verdict.violation


@pytest.mark.parametrize("seed", [3, 5])
def test_one_schedule_and_one_code_give_one_trace(seed: int) -> None:
    first, second = run_quorum_seed(seed, 10.0), run_quorum_seed(seed, 10.0)
    assert (first.trace, first.events, first.entries) == (second.trace, second.events, second.entries)
    assert run_quorum_seed(seed + 100, 10.0).trace != first.trace


def test_an_omitted_tick_of_the_library_would_have_done_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower's tick goes to pysyncobj only if its timer has expired or an entry is to be applied."""
    sparing = run_quorum_seed(4, 8.0)
    monkeypatch.setattr(_SyncObj, "is_due", lambda core: True)
    assert run_quorum_seed(4, 8.0).trace == sparing.trace


@pytest.mark.parametrize("seed", [4, 11])
def test_an_omitted_tick_would_have_done_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a node wants no tick after an input, it gets one nevertheless: it sends nothing, and nothing changes."""
    wants, left_out = QuorumNode.wants_tick.fget, list[bool]()  # type: ignore[attr-defined]
    monkeypatch.setattr(quorum_controlling, "LOOK_EVERY", quorum_controlling.DECIDE_EVERY)
    extra: list[list[object]] = []
    """The frames of the tick that the node did not want, during that tick."""

    def outgoing(send: Callable[[BrokerId, bytes], None]) -> Outgoing:
        return Outgoing(lambda peer, frame: extra[0].append(frame) if extra else send(peer, frame))

    monkeypatch.setattr(quorum_node, "Outgoing", outgoing)

    def look(node: QuorumNode) -> bool:
        if wants(node):
            return True
        sent: list[object] = []
        extra.append(sent)
        before = node.engine.voter_facts(), node.engine.journal_bytes, node.image.index, node.facts()
        node.tick()
        assert (
            node.engine.voter_facts(),
            node.engine.journal_bytes,
            node.image.index,
            node.facts(),
        ) == before
        assert sent == [] and not node.busy
        extra.clear()
        left_out.append(True)
        return False

    monkeypatch.setattr(QuorumNode, "wants_tick", property(look))
    assert run_quorum_seed(seed, 10.0).passed
    assert len(left_out) > 200


def test_without_faults_everything_is_applied() -> None:
    verdict = run_quorum_seed(2, 10.0, faulty=False)
    assert verdict.passed, verdict.violation
    assert verdict.calls["applied"] > 20
    assert verdict.calls["unknown"] == verdict.calls["refused"] == 0


def test_leaving_a_fault_out_leaves_the_others_unchanged() -> None:
    schedule = draw(9, SECONDS)
    fewer = replace(schedule, faults=schedule.faults[1:])
    assert draw(9, SECONDS) == schedule
    assert run_schedule(fewer).passed
    assert set(fewer.faults) < set(schedule.faults)


def test_every_story_is_told_before_long_without_random_faults_meanwhile() -> None:
    drawn = {seed: draw(seed, 30.0) for seed in range(1, 80)}
    told = {seed: direct(schedule) for seed, schedule in drawn.items()}
    aimed = [seed for seed in drawn if told[seed] != drawn[seed]]
    assert 15 < len(aimed) < 45
    kinds = {fault.kind for seed in aimed for fault in told[seed].faults}
    assert kinds >= {"strand", "maroon", "rot_snapshot", "full_disk", "drop", "duplicate", "clock_jump"}
    for seed in aimed:
        alone = sum(fault.kind in FOR_GOOD for fault in told[seed].faults)
        assert alone <= 1, "with two voters lost for good there may be no majority"
        for fault in told[seed].faults:
            if fault.kind == "maroon":
                near = [f for f in told[seed].faults if fault.at - BEFORE <= f.at < fault.at + LASTS]
                assert near == [fault]
        assert Schedule.from_json(told[seed].to_json()) == told[seed]
    assert direct(draw(aimed[0], 30.0, faulty=False)) == draw(aimed[0], 30.0, faulty=False)


def test_a_schedule_survives_its_file() -> None:
    schedule = draw(4, SECONDS)
    assert Schedule.from_json(schedule.to_json()) == schedule
    assert len(schedule.faults) > 0
    for text in ("[]", "{}", '{"version": 2}', schedule.to_json().replace('"version": 2', '"version": 1')):
        with pytest.raises(ValueError, match="not a schedule"):
            Schedule.from_json(text)


def test_every_kind_of_fault_is_drawn_before_long() -> None:
    drawn = {fault.kind for seed in range(1, 60) for fault in draw(seed, 60.0).faults}
    assert drawn >= set(KINDS) - {"kill_all", "power_loss_all", "cut_one_way", "amnesia", "lag", "duel"}
    changed = {operation.kind for seed in range(1, 20) for operation in draw(seed, 60.0).operations}
    assert changed >= {"add_voter", "remove_voter", *OPERATIONS}


@pytest.mark.parametrize("path", SCHEDULES, ids=lambda path: path.stem)
def test_saved_schedules_keep_every_property(path: Path) -> None:
    """Each once made something fail: a planted bug, or a real one."""
    verdict = run_schedule(Schedule.from_json(path.read_text()))
    assert verdict.passed, verdict.violation


@pytest.mark.soak
def test_a_thousand_seeds_keep_every_property() -> None:
    violations = {
        seed: verdict.violation for seed in range(1000, 2000) if (verdict := run_quorum_seed(seed, 60.0)).violation
    }
    assert violations == {}
