"""A process that is paused does everything later, in the original order, however the pause ends."""

from __future__ import annotations

from jepsen_like.simulator.world.heap import Event, EventHeap, Life


def run(event: Event) -> None:
    event.callback()


def test_events_of_a_pause_that_ends_early_come_before_later_ones() -> None:
    heap, life, told = EventHeap(), Life("a process"), list[str]()
    for name, delay in (("first", 1.0), ("second", 1.0), ("third", 1.5)):
        heap.schedule(delay, lambda name=name: told.append(name), life)  # type: ignore[misc]
    life.paused_until = 5.0
    heap.run_until(2.0, run)
    assert told == []
    heap.resume(life)
    heap.schedule(0.5, lambda: told.append("later"), life)
    heap.run_until(3.0, run)
    assert told == ["first", "second", "third", "later"]


def test_a_pause_that_has_ended_moves_nothing() -> None:
    heap, life, told = EventHeap(), Life("a process"), list[float]()
    heap.schedule(1.0, lambda: told.append(heap.now), life)
    life.paused_until = 2.0
    heap.run_until(1.5, run)
    heap.schedule(8.0, lambda: told.append(heap.now), life)
    heap.run_until(3.0, run)
    heap.resume(life)
    heap.run_until(20.0, run)
    assert told == [2.0, 9.5]
