"""HTTP consumers in the world of the quorum (`jepsen_like/simulator/quorum/run.py`).

Nodes, network, disks, clocks and faults are the quorum's. Programs open, read, commit and delete consumers of one group
through any node, also one that is behind, isolated or paused. The group's topics are the registers that the quorum's
clients create and delete, with more partitions, to which records are written.

Safety is checked after every entry that the quorum has applied, and at each lease, commit and answer (`truth.py`).
Progress is checked at the end (S10): within `LIVENESS_SECONDS` after the heal the group has committed every record of
every partition, by consumers that are used through every node.

The requests are operations of the schedule, so a failing schedule is shrunk and saved like others.
"""

from __future__ import annotations

import asyncio
import random
import traceback

from jepsen_like.simulator.groups.growing import grow
from jepsen_like.simulator.library.loop import VirtualLoop
from jepsen_like.simulator.quorum.node import QuorumSimNode
from jepsen_like.simulator.quorum.run import QuorumVerdict, QuorumWorld, small_limits
from jepsen_like.simulator.quorum.schedule import Operation, Schedule
from jepsen_like.simulator.world.collector import seldom_collected
from jepsen_like.simulator.world.heap import Event, Life
from jepsen_like.simulator.world.violation import Violation
from raftlog.errors import RaftlogError
from raftlog.model import TopicPartition

from .node import ConsumersSimNode, virtual_links
from .programs import GROUP, Programs
from .schedule import CONSUMER_OPERATIONS, CONSUMERS, draw
from .truth import ConsumersTruth

LIVENESS_SECONDS = 60.0
LOOK_EVERY = 0.5
LATENCY_SECONDS = 0.003
WRITTEN_MAX = 10
"""Records of one write."""
END_ROUNDS = 3
"""A task that is cancelled may wait for another, which must be cancelled too."""
END_SECONDS = 0.001
LAST_REQUESTS = ("consumer_reads", "consumer_reads", "consumer_commits")


class ConsumersWorld(QuorumWorld):
    """Everything of one run."""

    node_kind = ConsumersSimNode

    def __init__(self, schedule: Schedule) -> None:
        self.consumers = ConsumersTruth(GROUP)
        self.programs = Programs(self.consumers, random.Random(f"{schedule.seed}/consumers/programs"))
        self._rng = random.Random(f"{schedule.seed}/consumers")
        self._loops: dict[Life, VirtualLoop] = {}
        super().__init__(schedule)

    def start(self, node: QuorumSimNode) -> None:
        assert isinstance(node, ConsumersSimNode)
        node.truth = self.consumers
        super().start(node)
        if node.running and node.life is not None:
            self._loops[node.life] = node.loop

    def applied(self, node: QuorumSimNode, index: int) -> None:
        super().applied(node, index)
        if node.quorum is not None:
            self.consumers.applied(index, node.quorum.image)

    def _run_event(self, event: Event) -> None:
        loop = self._loops.get(event.life) if event.life is not None else None
        asyncio._set_running_loop(loop)
        try:
            super()._run_event(event)
        finally:
            asyncio._set_running_loop(None)

    # --- Operations --------------------------------------------------------------------------------------------------

    def _call(self, operation: Operation) -> None:
        if operation.kind not in CONSUMER_OPERATIONS:
            super()._call(operation)
            return
        node = self.nodes[operation.node]
        if operation.kind == "records_are_written":
            self._write(node)
        elif operation.kind == "topic_grows_for_consumers":
            grow(node, operation.subject)
        else:
            self._request(node, operation.kind, f"consumer-{operation.subject % CONSUMERS}")

    def _request(self, node: QuorumSimNode, kind: str, name: str) -> None:
        """Send a request to a node; if it is down, a load balancer would ask another."""
        assert isinstance(node, ConsumersSimNode)
        if node.running:
            self.trace.note(int(node.node_id), f"{kind} {name}")
            delay = self._rng.uniform(0.0, LATENCY_SECONDS)
            self.heap.schedule(delay, lambda: node.begin(self.programs.request(node, kind, name)), node.life)

    def _write(self, node: QuorumSimNode) -> None:
        partitions = self._partitions(node)
        if partitions:
            self.consumers.written(self._rng.choice(partitions), self._rng.randint(1, WRITTEN_MAX))

    def _partitions(self, node: QuorumSimNode) -> list[TopicPartition]:
        """Return the partitions that the consumers read, as a node knows them."""
        if node.quorum is None:
            return []
        image = node.quorum.image
        return sorted(one for one in image.partitions if image.topics[one.topic_id].name.startswith("register-"))

    # --- The end -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            super().run()
        finally:
            self._end()

    def _end(self) -> None:
        """Cancel all unfinished tasks, also in crashed processes, so nothing of the world survives."""
        for _ in range(END_ROUNDS):
            for loop in self._loops.values():
                loop.life.alive, loop.life.paused_until = True, 0.0
                loop.end()
            self.heap.run_until(self.heap.now + END_SECONDS, self._run_last)

    def _run_last(self, event: Event) -> None:
        """Run only callbacks that end tasks: the verdict is known."""
        loop = self._loops.get(event.life) if event.life is not None else None
        if loop is not None and loop.calls(event):
            with loop.entered():
                event.callback()

    def _require_progress(self, healed: float) -> None:
        """Check the consumers' progress and, once the programs have stopped, the quorum's."""
        at, self.programs.calm = healed, True
        while self._has_majority():
            for place in range(CONSUMERS):
                kind = self._rng.choice(LAST_REQUESTS) if self._is_open(place) else "consumer_opens"
                self._request(self._rng.choice(self.nodes), kind, f"consumer-{place}")
            at += LOOK_EVERY
            self.heap.run_until(at, self._run_event)
            missing = self._not_committed()
            if not missing:
                break
            if at >= healed + LIVENESS_SECONDS:
                raise Violation(f"S10: {LIVENESS_SECONDS:.0f} s after everything healed: {'; '.join(missing[:5])}")
        super()._require_progress(at)

    def _is_open(self, place: int) -> bool:
        leader = self.leader()
        if leader is None or leader.quorum is None:
            return False
        record = leader.quorum.image.instances.instance(GROUP, f"consumer-{place}")
        return record is not None and record.subscribes

    def _not_committed(self) -> list[str]:
        leader = self.leader()
        if leader is None or leader.quorum is None:
            return ["no node leads"]
        committed = leader.quorum.image.groups.offsets_of(GROUP)
        found = []
        for partition in self._partitions(leader):
            end, known = self.consumers.ends.get(partition, 0), committed.get(partition)
            offset = 0 if known is None else known.offset
            if offset < end:
                found.append(f"{offset} of {end} records of {partition} are committed")
        return found


def run_schedule(schedule: Schedule) -> QuorumVerdict:
    """Run a schedule. An exception in the product's code is a violation, with its traceback."""
    with small_limits(schedule.limits), seldom_collected(), virtual_links():
        world = ConsumersWorld(schedule)
        violation = ""
        try:
            world.run()
        except Violation as found:
            violation = str(found)
        except (RaftlogError, AssertionError, LookupError, TypeError, ValueError, AttributeError, OSError) as error:
            violation = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    return QuorumVerdict(
        seed=schedule.seed,
        seconds=world.heap.now,
        voters=schedule.voters,
        observers=schedule.observers,
        trace=world.trace.digest(),
        events=world.heap.events_run,
        messages=world.network.messages,
        entries=world.truth.commit_index,
        calls=world.clients.counts | world.consumers.counts | world.programs.counts,
        changes=dict(world.operator.counts),
        faults=dict(world.faults.injected),
        violation=violation,
        lines=list(world.trace.lines) if violation else [],
    )


def run_consumers_seed(seed: int, seconds: float, *, faulty: bool = True) -> QuorumVerdict:
    """Draw the schedule of a seed and run it."""
    return run_schedule(draw(seed, seconds, faulty=faulty))
