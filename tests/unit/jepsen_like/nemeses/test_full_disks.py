"""Disks that are filled and left full: the preconditions, and that only the cluster heals them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jepsen_like.clusters import disk_faults, expendable
from jepsen_like.clusters.health import NotWell
from jepsen_like.nemeses import steps
from jepsen_like.nemeses.disks import Filling
from jepsen_like.nemeses.injection import FaultNotMade, Stuck
from raftlog.config import MIB

NEEDED = 40 * MIB


class World:
    """Disks and a cluster that record all actions, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        self.removable = NEEDED
        self.full: set[str] = set()
        self.ended: set[str] = set()
        self.missing = ""
        self.taken = 99 * MIB
        self.claimed: set[str] = set()
        self.disks = {node: node for node in ("n1", "n2", "n3")}
        for name in ("room_needed", "free", "write", "stored", "until_room"):
            monkeypatch.setattr(expendable, name, getattr(self, name))
        monkeypatch.setattr(disk_faults, "fill", self.fill)
        monkeypatch.setattr(disk_faults, "empty", lambda disk: self.done.append(f"empty {disk}"))

    def filling(self, *nodes: str) -> Filling:
        cluster: Any = SimpleNamespace(
            disks=self.disks,
            claimed=self.claimed,
            bootstrap=("a", "b", "c"),
            data_folder=Path,
            node_id=lambda node: int(node[1:]) - 1,
            pid=lambda node: None if node in self.ended else 7,
        )
        step = steps.FullDisk(nodes, "some")
        cluster.claimed |= step.claims
        return Filling(step, cluster)

    def room_needed(self, disk: str) -> int:
        return NEEDED

    def free(self, disk: str) -> int:
        return 0 if disk in self.full else 50 * MIB

    async def write(self, bootstrap: Sequence[str], total: int) -> str:
        assert total > NEEDED
        self.done.append("write")
        return "topic"

    def stored(self, folder: Path, topic_id: str) -> int:
        assert topic_id == "topic"
        return self.removable

    def fill(self, disk: str) -> int:
        self.done.append(f"fill {disk}")
        self.full.add(disk)
        return self.taken

    async def until_room(self, bootstrap: Sequence[str], disks: Mapping[int, str], within: float) -> None:
        self.done.append(f"wait for {sorted(disks)}")
        if self.missing:
            raise NotWell(self.missing)
        self.full.clear()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


async def test_a_full_disk_is_left_to_the_cluster(world: World) -> None:
    filling = world.filling("n1", "n3")
    await filling.begin()
    assert world.done[-3:] == ["write", "fill n1", "fill n3"], "what retention may remove is there before"
    assert await filling.prove() == {
        "taken": {"n1": 99 * MIB, "n3": 99 * MIB},
        "refused": "ENOSPC",
        "left": {"n1": 0, "n3": 0},
    }
    world.done.clear()
    told = await filling.heal()
    assert world.done == ["wait for [0, 2]"], "nobody makes room: the filler stays"
    assert told["free"] == {"n1": 50 * MIB, "n3": 50 * MIB} and told["healed_s"] >= 0


async def test_fillers_are_removed_before_the_next_disks_are_filled_if_no_other_fault_is_active(world: World) -> None:
    world.claimed.add("process:n2")
    await world.filling("n1").begin()
    assert world.done == ["empty n1", "empty n3", "write", "fill n1"]


async def test_a_disk_without_deletable_records_is_not_filled(world: World) -> None:
    world.removable = NEEDED - 1
    filling = world.filling("n2")
    with pytest.raises(FaultNotMade, match=f"can delete {NEEDED - 1} bytes from n2's disk"):
        await filling.begin()
    assert not world.full
    world.done.clear()
    assert await filling.heal() == {} and not world.done


async def test_a_disk_that_was_full_before_is_no_proof(world: World) -> None:
    world.taken = 0
    filling = world.filling("n2")
    await filling.begin()
    with pytest.raises(FaultNotMade, match="n2's disk had no free space"):
        await filling.prove()


async def test_a_cluster_that_does_not_recover_is_stuck(world: World) -> None:
    world.missing = "retention has freed too little space"
    filling = world.filling("n2")
    await filling.begin()
    with pytest.raises(
        Stuck, match="full disks of n2 did not heal by themselves: retention has freed too little space"
    ):
        await filling.heal()


@pytest.mark.parametrize("missing", ["", "nodes [1] are not in sync"])
async def test_no_node_may_end_because_of_a_full_disk(world: World, missing: str) -> None:
    world.missing = missing
    filling = world.filling("n1", "n2")
    await filling.begin()
    world.ended.add("n2")
    with pytest.raises(Stuck, match="ended because of a full disk: n2"):
        await filling.heal()


# --- Recovery of a full disk ------------------------------------------------------------------------------------------


def volume(total: int, free: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    found = SimpleNamespace(f_blocks=total // 4096, f_frsize=4096, f_bavail=free // 4096)
    monkeypatch.setattr(os, "statvfs", lambda path: found)
    return SimpleNamespace(path="/disk")


def test_the_needed_space_is_more_than_ballast_and_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sixteenth, and a twentieth with a quarter more."""
    total = 256 * MIB
    assert expendable.room_needed(volume(total, 0, monkeypatch)) > total / 16 + total / 20 * 1.25


def test_only_the_topics_segments_count(tmp_path: Path) -> None:
    for name, size in (("aa-0/1.log", 5), ("aa-1/1.log", 7), ("aa-1/1.index", 100), ("bb-0/1.log", 100)):
        path = tmp_path / "partitions" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))
    assert expendable.stored(tmp_path, "aa") == 12


class Answers:
    """Stands for `Admin`: a node's health and the topic, each answer in turn, the last one repeatedly."""

    problems: list[list[str]]
    isr: list[list[int]]

    def __init__(self, bootstrap: Sequence[str]) -> None: ...

    async def __aenter__(self) -> Answers:
        return self

    async def __aexit__(self, *error: object) -> None: ...

    async def health(self) -> Any:
        return SimpleNamespace(problems=next_of(self.problems))

    async def describe_topic(self, name: str) -> Any:
        return SimpleNamespace(partitions=[SimpleNamespace(partition=0, replicas=[0, 1, 2], isr=next_of(self.isr))])


def next_of(answers: list[Any]) -> Any:
    return answers.pop(0) if len(answers) > 1 else answers[0]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> type[Answers]:
    async def written(bootstrap: Sequence[str], topics: Sequence[str], within: float) -> None:
        assert topics == [expendable.TOPIC]

    Answers.problems, Answers.isr = [[]], [[0, 1, 2]]
    monkeypatch.setattr(expendable, "Admin", Answers)
    monkeypatch.setattr(expendable, "until_written", written)
    monkeypatch.setattr(expendable, "POLL_SECONDS", 0.001)
    return Answers


async def test_it_waits_until_no_node_is_low_on_space_and_the_node_is_in_sync(
    answers: type[Answers], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers.problems = [["node 1 is short of room on its disk"], ["the clocks do not agree"]]
    answers.isr = [[0, 2], [0, 1]]
    await expendable.until_room(["a"], {1: volume(256 * MIB, 30 * MIB, monkeypatch)}, 60.0)
    assert len(answers.problems) == len(answers.isr) == 1, "others' replicas are others' faults"


@pytest.mark.parametrize(
    ("free", "problems", "isr", "why"),
    [
        (MIB, [], [0, 1, 2], "retention has freed too little space: 1048576 bytes of node 1's disk are free"),
        (30 * MIB, ["node 1 is short of room on its disk"], [0, 1, 2], "node 1 is short of room"),
        (30 * MIB, [], [0, 2], r"nodes \[1\] are not in sync"),
    ],
)
async def test_the_unrecovered_parts_are_named(
    answers: type[Answers],
    monkeypatch: pytest.MonkeyPatch,
    free: int,
    problems: list[str],
    isr: list[int],
    why: str,
) -> None:
    answers.problems, answers.isr = [problems], [isr]
    with pytest.raises(NotWell, match=why):
        await expendable.until_room(["a"], {1: volume(256 * MIB, free, monkeypatch)}, 0.01)
