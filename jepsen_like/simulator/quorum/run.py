"""Runs one schedule: nodes with clients, an operator and faults; then everything heals, and the quorum must work.

The world is the quorum alone: `QuorumNode` with its engine, journal, sessions and image, on the same heap, disks,
network and trace as in a simulated cluster (`jepsen_like/simulator/cluster/run.py`), but several times faster. Safety
is checked after every event (`truth.py`, `voters_truth.py`, `clients.py`). Progress is checked at the end (S10): within
`LIVENESS_SECONDS` all nodes know one leader, a new operation is applied at every node, no call is unanswered, and all
images have the same bytes.

`run_schedule` returns a `QuorumVerdict` with the trace's hash: the same schedule and code give the same hash.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from types import ModuleType
from unittest import mock

from jepsen_like.simulator.world.collector import seldom_collected
from jepsen_like.simulator.world.disk import SimulatedCrash
from jepsen_like.simulator.world.heap import Event, EventHeap
from jepsen_like.simulator.world.network import NetworkShape
from jepsen_like.simulator.world.trace import Trace
from jepsen_like.simulator.world.unkind_network import UnkindNetwork
from jepsen_like.simulator.world.violation import Violation
from metadata.image import client_sessions as image_sessions
from metadata.raft import pysyncobj_engine
from metadata.raft import replication as quorum_replication
from metadata.raft import snapshot_transfer as quorum_snapshot
from metadata.snapshot.encoder import encode_snapshot
from raftlog.errors import DiskDamaged, DiskFailed, DiskFull, InvalidRequest, InvariantViolation, RaftlogError

from .clients import QuorumClients
from .directed import direct
from .faults import RESTART_AFTER_FAILURE, QuorumFaults
from .node import QuorumSimNode
from .operator import ACTIONS, QuorumOperator
from .schedule import LEADER, Limits, Operation, Schedule, draw
from .truth import QuorumTruth

LIVENESS_SECONDS = 20.0
CHECK_EVERY = 0.5


@dataclass(slots=True)
class QuorumVerdict:
    """The result of a run. `violation` is empty if every property held."""

    seed: int
    seconds: float
    voters: int
    observers: int
    trace: str
    events: int
    messages: int
    entries: int
    calls: dict[str, int]
    changes: dict[str, int]
    """Answers to the operator who changed the voters."""
    faults: dict[str, int]
    violation: str = ""
    lines: list[str] = field(default_factory=list)
    """The last lines of the trace."""

    @property
    def passed(self) -> bool:
        return not self.violation

    def __str__(self) -> str:
        injected = " ".join(f"{name}={count}" for name, count in sorted(self.faults.items()))
        calls = " ".join(f"{name}={count}" for name, count in self.calls.items())
        changes = " ".join(f"{name}={count}" for name, count in sorted(self.changes.items()))
        return (
            f"quorum seed={self.seed} trace={self.trace} seconds={self.seconds:.0f} voters={self.voters} "
            f"observers={self.observers} events={self.events} messages={self.messages} entries={self.entries} {calls} "
            f"changes[{changes}] faults[{injected}] "
            f"{'ok' if self.passed else 'VIOLATION ' + self.violation}"
        )


class QuorumWorld:
    """Everything of one run."""

    node_kind: type[QuorumSimNode] = QuorumSimNode

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.seed = schedule.seed
        self.heap = EventHeap()
        self.trace = Trace(lambda: self.heap.now)
        shape = NetworkShape(slow_probability=schedule.slow_probability, slow_max=schedule.slow_max)
        rng = random.Random(f"{schedule.seed}/quorum/network")
        self.network = UnkindNetwork(self.heap, rng, shape, self.trace.message)
        self.nodes = [
            self.node_kind(number, schedule, heap=self.heap, network=self.network, trace=self.trace)
            for number in range(schedule.nodes)
        ]
        self.truth = QuorumTruth(self.nodes, schedule.voters)
        self.clients = QuorumClients(
            self.heap, self.nodes, self.truth, random.Random(f"{schedule.seed}/quorum/clients")
        )
        unreliable = schedule.voters - 1  # only this node's disk may be lost permanently (`schedule.py`)
        self.operator = QuorumOperator(self.nodes, self.clients, self.truth.voters, unreliable=unreliable)
        self.faults = QuorumFaults(
            self.seed,
            self.heap,
            self.network,
            self.nodes,
            self.trace,
            self.truth,
            kill=self.kill,
            replace_disk=self.replace_disk,
            halted=self.halted,
            leader=self.leader,
        )
        self._by_life: dict[str, QuorumSimNode] = {}
        self._halted: dict[int, float] = {}
        """Node → end of its halt or slowness; until then calls to it are not timed."""
        for node in self.nodes:
            node.watcher = self
            self.start(node)
        for fault in schedule.faults:
            self.heap.schedule(fault.at, lambda fault=fault: self.faults.inject(fault))  # type: ignore[misc]
        for operation in schedule.operations:
            self.heap.schedule(operation.at, lambda operation=operation: self._call(operation))  # type: ignore[misc]

    def applied(self, node: QuorumSimNode, index: int) -> None:
        """A node's image changed."""
        self.truth.applied(node, index)
        self.clients.applied(node)

    def _call(self, operation: Operation) -> None:
        if operation.node == LEADER:
            leader = self.leader()
            if leader is None:
                return
            operation = replace(operation, node=int(leader.node_id))
        if operation.kind in ACTIONS:
            self.operator.call(operation)
        else:
            self.clients.call(operation)

    def leader(self) -> QuorumSimNode | None:
        """The running node that leads the latest term, if there is one."""
        marks = [(node.quorum.engine.voter_facts(), node) for node in self.nodes if node.quorum is not None]
        leading = [(mark.term, node.node_id, node) for mark, node in marks if mark.leads]
        return max(leading)[2] if leading else None

    # --- Lives -------------------------------------------------------------------------------------------------------

    def start(self, node: QuorumSimNode) -> None:
        """Start a node's process, unless it runs or refuses to start. If it dies while it starts, it is
        started again.
        """
        if node.running or node.refused:
            return
        try:
            node.start()
        except SimulatedCrash:
            self._died(node, None)
        except (DiskFailed, DiskFull):
            if not node.disk_failing and not node.disk.full:
                raise
            self._died(node, None)
        except (DiskDamaged, InvariantViolation, InvalidRequest) as error:
            if not node.damaged:
                raise Violation(f"S9: node {node.node_id} does not start on its own disk: {error}") from error
            node.kill()
            node.refused = str(error)
            self.trace.note(int(node.node_id), f"refuses to start: {error}")
        else:
            if node.must_refuse:
                raise Violation(f"S9: node {node.node_id} starts, and its journal lost what was fsynced")
            assert node.life is not None
            self._by_life[node.life.name] = node
            self.truth.started(node)

    def kill(self, node: QuorumSimNode, *, power_loss: random.Random | None, restart_after: float) -> None:
        """End a node's process now."""
        self.truth.ended(node, inside_disk_operation=False)
        node.kill(power_loss=power_loss)
        node.disk_failing = False
        self.heap.schedule(restart_after, lambda: self.start(node))

    def replace_disk(self, node: QuorumSimNode, restart_after: float) -> None:
        """Replace the node's disk by an empty one, prepared by an operator under the same node id."""
        self.kill(node, power_loss=None, restart_after=restart_after)
        node.new_disk(self.truth.voters.committed[-1][1].node_ids)
        self.truth.disk_replaced(node)

    def halted(self, node: QuorumSimNode, until: float) -> None:
        self._halted[int(node.node_id)] = max(self._halted.get(int(node.node_id), 0.0), until)

    def _died(self, node: QuorumSimNode, power_loss: random.Random | None) -> None:
        self.truth.ended(node, inside_disk_operation=True)
        node.kill(power_loss=power_loss)
        node.disk_failing = False
        self.heap.schedule(RESTART_AFTER_FAILURE, lambda: self.start(node))

    # --- Running -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run with faults, then heal and check progress. Raises `Violation`."""
        at = 0.0
        while at < self.schedule.seconds:
            at = min(at + CHECK_EVERY, self.schedule.seconds)
            self.heap.run_until(at, self._run_event)
            self.clients.check_patience(self._was_halted)
        self.faults.mend()
        self.trace.note(-1, "healed")
        for node in self.nodes:
            self.heap.schedule(0.0, lambda node=node: self.start(node))  # type: ignore[misc]
        self._require_progress(at)
        self.clients.check_refused()

    def _was_halted(self, node: int) -> bool:
        return self._halted.get(node, -10.0) + 10.0 > self.heap.now

    def _run_event(self, event: Event) -> None:
        node = self._by_life.get(event.life.name) if event.life is not None else None
        try:
            event.callback()
        except SimulatedCrash:
            assert node is not None, "only a node's own events touch its disk"
            self.trace.note(int(node.node_id), "died in a disk operation")
            rng = random.Random(f"{self.seed}/power/{event.at}/{node.node_id}")
            self._died(node, rng if rng.random() < 0.7 else None)
        except (DiskFailed, DiskFull) as error:
            if node is None or not (node.disk_failing or node.disk.full):
                raise
            self.trace.note(int(node.node_id), f"stopped by its disk: {error}")
            self._died(node, None)
        if node is not None:
            self.truth.after_event(node)

    # --- Liveness ----------------------------------------------------------------------------------------------------

    def _require_progress(self, healed: float) -> None:
        deadline = healed + LIVENESS_SECONDS
        wanted = [node for node in self.nodes if not node.refused]
        applied: dict[int, bool] = {}
        at = healed
        while True:
            at += CHECK_EVERY
            self.heap.run_until(at, self._run_event)
            wanted = [node for node in wanted if not node.refused]
            self._ask_the_rest(wanted, applied)
            missing = self._missing(wanted, applied)
            if not missing:
                break
            if at >= deadline and not self._has_majority():
                self.trace.note(-1, "no majority of the voters is left")
                return
            if at >= deadline:
                raise Violation(f"S10: {LIVENESS_SECONDS:.0f} s after everything healed: {'; '.join(missing[:5])}")
        images = {encode_snapshot(node.quorum.image) for node in wanted if node.quorum is not None}
        if len(images) > 1:
            raise Violation(f"S7.6: at the end the images of {len(wanted)} nodes differ")
        for node in wanted:
            if node.quorum is not None:
                node.quorum.check_invariants()

    def _has_majority(self) -> bool:
        """In every configuration that a log names, a majority of the voters can start, on the disks that it names. (A
        late change of unknown outcome, together with a voter that is permanently lost, may leave too few.)
        """
        able = [int(node.node_id) for node in self.nodes if not node.refused and not self.truth.forgot(node)]
        latest = [node.quorum.engine.journal.configurations[-1][1] for node in self.nodes if node.quorum is not None]
        latest.append(self.truth.voters.committed[-1][1])
        return all(self.truth.voters.have_majority(configuration, able) for configuration in latest)

    def _ask_the_rest(self, wanted: list[QuorumSimNode], applied: dict[int, bool]) -> None:
        for node in wanted:
            number = int(node.node_id)
            if applied.get(number) is None and node.running:
                applied[number] = False

                def answered(well: bool, number: int = number) -> None:
                    if well:
                        applied[number] = True
                    else:
                        del applied[number]

                operation = Operation(self.heap.now, "grant", number)
                if not self.clients.call(operation, then=answered):
                    del applied[number]

    def _missing(self, wanted: list[QuorumSimNode], applied: dict[int, bool]) -> list[str]:
        missing = [f"node {node.node_id} is down" for node in wanted if not node.running]
        missing += [
            f"node {node.node_id} gets nothing applied" for node in wanted if not applied.get(int(node.node_id))
        ]
        leaders = {int(node.quorum.status().leader) for node in wanted if node.quorum is not None}
        if len(leaders) != 1 or leaders == {-1}:
            missing.append(f"the nodes follow {sorted(leaders)}")
        for node in wanted:
            if node.quorum is not None:
                if node.quorum.status().applied_index < self.truth.commit_index:
                    missing.append(f"node {node.node_id} is at {node.quorum.status().applied_index}")
                if not missing and node.quorum.facts().undecided:
                    missing.append(f"{node.quorum.facts().undecided} proposals wait at node {node.node_id} for good")
        if self.clients.waiting:
            missing.append(f"{self.clients.waiting} calls wait")
        return missing


@contextmanager
def small_limits(limits: Limits) -> Iterator[None]:
    """Make the product's limits small during a run. An unknown name is an error."""
    sizes: list[tuple[ModuleType, str, int]] = [
        (pysyncobj_engine, "TRAILING_ENTRIES", limits.trailing_entries),
        (quorum_replication, "MAX_APPEND_ENTRIES", limits.append_entries),
        (quorum_snapshot, "SNAPSHOT_CHUNK_BYTES", limits.snapshot_chunk_bytes),
        (image_sessions, "MAX_ANSWERS", limits.answers),
    ]
    with ExitStack() as stack:
        for module, name, size in sizes:
            stack.enter_context(mock.patch.object(module, name, size))
        yield


def run_schedule(schedule: Schedule) -> QuorumVerdict:
    """Run a schedule. An exception in the product's code is a violation, with its traceback."""
    with small_limits(schedule.limits), seldom_collected():
        world = QuorumWorld(schedule)
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
        calls=dict(world.clients.counts),
        changes=dict(world.operator.counts),
        faults=dict(world.faults.injected),
        violation=violation,
        lines=list(world.trace.lines) if violation else [],
    )


def run_quorum_seed(seed: int, seconds: float, *, faulty: bool = True) -> QuorumVerdict:
    """Draw the schedule of a seed and run it."""
    return run_schedule(direct(draw(seed, seconds, faulty=faulty)))
