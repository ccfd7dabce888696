"""The gauge of the event loop: every turn counts, by two clocks, from `begin` on."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from raftlog.broker.loop_stalls import (
    RECENT_SECONDS,
    STALL_SECONDS,
    WARN_EVERY_SECONDS,
    WARN_SECONDS,
    LoopStalls,
    StallReport,
)


class Turns:
    """A gauge whose clocks are moved by hand."""

    def __init__(self) -> None:
        self.wall = self.processor = 100.0
        self.warned: list[dict[str, Any]] = []
        self.gauge = LoopStalls(lambda: self.wall, lambda: self.processor)

    def begin(self) -> None:
        self.gauge.begin(lambda event, **fields: self.warned.append(fields))

    def turn(self, wall: float, processor: float = 0.0, idle: float = 0.0) -> None:
        self.wall += idle
        self.gauge.turn_begins()
        self.wall += wall
        self.processor += processor
        self.gauge.turn_ends()


def test_turns_are_measured_by_both_clocks() -> None:
    turns = Turns()
    turns.begin()
    turns.turn(0.019, 0.018)
    turns.turn(0.050, 0.007, idle=5.0)
    turns.turn(0.030, 0.001)
    found = turns.gauge.report()
    assert (found.stalls, found.recent_stalls) == (2, 2)
    assert round(found.worst, 6) == round(found.recent_worst, 6) == 0.05
    assert round(found.worst_processor, 6) == 0.018


def test_nothing_counts_before_it_begins() -> None:
    turns = Turns()
    turns.turn(3.0, 3.0)
    turns.wall += 1.0
    turns.gauge.turn_begins()
    turns.wall += 1.0
    turns.begin()  # in the middle of a turn
    turns.wall += 0.001
    turns.gauge.turn_ends()
    assert turns.gauge.report() == StallReport(0, 0.0, 0.0, 0, 0.0)


def test_old_stalls_are_not_recent() -> None:
    turns = Turns()
    turns.begin()
    turns.turn(0.5)
    turns.turn(0.025, idle=RECENT_SECONDS)
    found = turns.gauge.report()
    assert (found.stalls, found.recent_stalls) == (2, 1)
    assert round(found.worst, 6) == 0.5 and round(found.recent_worst, 6) == 0.025


def test_few_lines_report_many_stalls() -> None:
    turns = Turns()
    turns.begin()
    turns.turn(STALL_SECONDS)  # short ones are only counted
    for _ in range(5):
        turns.turn(WARN_SECONDS + 0.01, 0.004)
    turns.turn(2 * WARN_SECONDS, idle=WARN_EVERY_SECONDS)
    assert turns.warned == [
        {"ms": 110, "processor_ms": 4, "others_since": 0},
        {"ms": 200, "processor_ms": 0, "others_since": 4},
    ]


def test_a_loop_is_measured_as_it_runs() -> None:
    gauge = LoopStalls()
    warned: list[str] = []

    def work() -> None:
        until = time.thread_time() + 0.12
        while time.thread_time() < until:
            pass

    async def main() -> None:
        work()  # not yet
        gauge.begin(lambda event, **fields: warned.append(event))
        await asyncio.sleep(0)
        assert gauge.report().worst_processor < 0.12
        work()
        await asyncio.sleep(0.01)
        await asyncio.to_thread(work)  # another thread's work is not the loop's

    with asyncio.Runner(loop_factory=gauge.new_loop) as runner:
        runner.run(main())
    found = gauge.report()
    assert found.worst >= 0.12 and found.stalls >= 1 and warned[0] == "loop stalled"
    assert 0.12 <= found.worst_processor < 0.24
