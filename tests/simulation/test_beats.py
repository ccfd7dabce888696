"""A simulated node is ticked as by the quorum's thread: after inputs, and otherwise no more often than necessary."""

from __future__ import annotations

import math

import pytest

from jepsen_like.simulator.world.beats import Beats
from jepsen_like.simulator.world.heap import EventHeap, Life, SimClock
from raftlog.config import TimingConfig

HEARTBEAT = TimingConfig().quorum_heartbeat_ms / 1000


class Node:
    """A node that counts its ticks."""

    def __init__(self, heap: EventHeap) -> None:
        self.heap = heap
        self.reaches_leader = False
        self.next_heartbeat = math.inf
        self.next_look = -math.inf
        self.ticks: list[float] = []

    def tick(self) -> None:
        self.ticks.append(round(self.heap.now, 6))
        if self.heap.now >= self.next_heartbeat:
            self.next_heartbeat = self.heap.now + HEARTBEAT

    def of_last(self, seconds: float) -> list[float]:
        began = self.heap.now
        self.ticks.clear()
        self.heap.run_until(began + seconds, lambda event: event.callback())
        return [round(at - began, 6) for at in self.ticks]


@pytest.fixture
def node() -> Node:
    return Node(EventHeap())


def begun(node: Node) -> Beats:
    made = Beats(node, node.tick, node.heap, Life("node"), SimClock(node.heap), TimingConfig(), wake_seconds=0.001)
    made.begin()
    return made


def test_alone_it_ticks_often_and_with_a_leader_as_its_heartbeats_come(node: Node) -> None:
    begun(node)
    assert node.ticks == [0.0]
    assert node.of_last(0.13) == [0.04, 0.08, 0.12]
    node.reaches_leader = True
    assert node.of_last(0.5) == [0.03, 0.18, 0.33, 0.48]


def test_a_leader_ticks_when_its_heartbeat_is_due_or_soon_after(node: Node) -> None:
    held = begun(node)
    node.reaches_leader = True
    node.next_heartbeat = 0.05
    assert node.of_last(0.4) == [0.04, 0.075, 0.2, 0.325]
    # An input in between is no heartbeat, and postpones none; one that comes when it is due saves the wake-up.
    node.heap.schedule(0.02, held.soon)
    node.heap.schedule(0.03, held.soon)
    assert node.of_last(0.2) == [0.021, 0.031, 0.156]


def test_an_input_postpones_the_next_tick_and_inputs_share_one(node: Node) -> None:
    held = begun(node)
    node.reaches_leader = True
    node.of_last(0.05)
    for delay in (0.05, 0.0505, 0.12):
        node.heap.schedule(delay, held.soon)
    assert node.of_last(0.3) == [0.051, 0.121, 0.271]


def test_a_lost_leader_shortens_the_wait_once(node: Node) -> None:
    held = begun(node)
    node.reaches_leader = True
    node.of_last(1.0)
    for _ in range(5):
        # Lost at a heartbeat, or at an input: one sequence of ticks continues, without an additional one each time.
        node.reaches_leader = False
        node.of_last(0.16)
        assert len(node.of_last(0.4)) == 10
        node.reaches_leader = True
        node.of_last(0.16)
        node.reaches_leader = False
        held.soon()
        assert len(node.of_last(0.4)) in (10, 11)
        node.reaches_leader = True
        node.of_last(0.16)
