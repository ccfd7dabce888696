"""One size of the part *image* of `benchmarks/scale.py`: the operations on a cluster image, in this process alone.

Times are processor times of this thread. A *step* is the longest piece of work between two polls of the sockets.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

from measuring import resident_mb
from scale_commands import GROUPS_A_COMMAND, elections, group_commits, lift_limits, registrations, topics

from metadata.commands.cluster import FenceBroker, UnfenceBroker
from metadata.commands.envelope import Command, Envelope
from metadata.image.apply import apply_in_steps
from metadata.image.diff import diff_in_steps
from metadata.image.image import ClusterImage
from metadata.snapshot.encoder import SnapshotEncoder, decode_snapshot_in_steps
from metadata.view import ClusterView, TopicChanged
from raftlog.model import BrokerId

VIEW_STEP = 128


class Longest:
    """Runs operations in steps, and records the longest step and the sum."""

    def __init__(self) -> None:
        self.total = 0.0
        self.step = 0.0

    def run(self, steps: Generator[None, None, Any]) -> Any:
        while True:
            began = time.thread_time()
            try:
                next(steps)
            except StopIteration as ended:
                return ended.value
            finally:
                took = time.thread_time() - began
                self.total += took
                self.step = max(self.step, took)

    def call(self, work: Callable[[], Any]) -> Any:
        def once() -> Iterator[None]:
            yield from ()
            return work()  # type: ignore[return-value]

        return self.run(once())  # type: ignore[arg-type]


class Machine:
    """An image, the view that follows it, and the index."""

    def __init__(self) -> None:
        self.image = ClusterImage()
        self.view = ClusterView()
        self.viewing = Longest()

    def apply(self, command: Command, to: Longest) -> Any:
        envelope = Envelope(1, None, None, command)
        result = to.run(apply_in_steps(self.image, self.image.index + 1, 1, envelope))
        events = to.call(self.image.take_events)
        late = [event for event in events if isinstance(event, TopicChanged)]
        for start in range(0, len(events), VIEW_STEP):
            some = [e for e in events[start : start + VIEW_STEP] if not isinstance(e, TopicChanged)]
            self.viewing.call(lambda some=some: self.view.on_events(self.view.index, some))
        self.viewing.call(lambda: self.view.on_events(self.image.index, late))
        return result


def measure(asked: dict[str, Any]) -> dict[str, Any]:
    partitions, brokers = asked["partitions"], asked["brokers"]
    lift_limits(partitions)
    found: dict[str, Any] = {"what": "image", "partitions": partitions}
    gc.collect()
    empty = resident_mb(os.getpid())
    machine, making, grouping = Machine(), Longest(), Longest()
    for command in registrations(brokers):
        machine.apply(command, making)
    for number in range(brokers):
        broker = machine.image.brokers[BrokerId(number)]
        machine.apply(UnfenceBroker(broker.broker_id, broker.incarnation), making)
    making = Longest()
    for command in topics(partitions, brokers):
        machine.apply(command, making)
    found |= {"create_s": making.total, "create_step_ms": 1000 * making.step}
    gc.collect()
    found["image_and_view_bytes_a_partition"] = 1e6 * (resident_mb(os.getpid()) - empty) / partitions
    before = resident_mb(os.getpid())
    for command in group_commits(asked["groups"], partitions, 1, GROUPS_A_COMMAND):
        machine.apply(command, grouping)
    gc.collect()
    offsets = machine.image.groups.offset_count
    found |= {
        "groups": len(machine.image.groups.by_id), "offsets": offsets, "first_commits_s": grouping.total,
        "bytes_an_offset": 1e6 * (resident_mb(os.getpid()) - before) / max(1, offsets),
    }  # fmt: skip
    gc.freeze()
    _fail(machine, found, brokers)
    _snapshot(machine, found)
    found |= {"view_s": machine.viewing.total, "view_step_ms": 1000 * machine.viewing.step}
    found["resident_mb"] = resident_mb(os.getpid())
    return found


def _fail(machine: Machine, found: dict[str, Any], brokers: int) -> None:
    """Fence a broker, and give its partitions other leaders."""
    fencing, electing = Longest(), Longest()
    broker = machine.image.brokers[BrokerId(brokers - 1)]
    led, replicas = len(machine.image.led_by(broker.broker_id)), len(machine.image.replicas_of(broker.broker_id))
    machine.apply(FenceBroker(broker.broker_id, broker.incarnation), fencing)
    for command in elections(machine.image):
        machine.apply(command, electing)
    assert not machine.image.leaderless
    found |= {
        "broker_replicas": replicas, "broker_led": led, "fence_s": fencing.total, "fence_step_ms": 1000 * fencing.step,
        "elect_s": electing.total, "elect_step_ms": 1000 * electing.step,
    }  # fmt: skip


def _snapshot(machine: Machine, found: dict[str, Any]) -> None:
    packing, reading, telling = Longest(), Longest(), Longest()
    encoder = packing.call(lambda: SnapshotEncoder(machine.image))
    begun = packing.step
    packed = None
    while packed is None:
        packed = packing.call(encoder.step)
    image = reading.run(decode_snapshot_in_steps(packed))
    telling.run(diff_in_steps(ClusterImage(), image))
    found |= {
        "snapshot_mb": len(packed) / 1e6, "snapshot_s": packing.total, "snapshot_begin_ms": 1000 * begun,
        "snapshot_step_ms": 1000 * packing.step, "read_s": reading.total, "read_step_ms": 1000 * reading.step,
        "tell_s": telling.total, "tell_step_ms": 1000 * telling.step,
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))), flush=True)
