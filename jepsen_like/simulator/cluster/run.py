"""One run of a schedule: a cluster, its clients, operations and faults; then everything heals and must recover.

Safety mode: faults are injected, and after every event the safety properties are checked
(`jepsen_like/simulator/truth/invariants.py`). Liveness mode: no more faults, every node is up; within a bounded time
everything must recover by itself (S10, `liveness.py`). At the end every replica is read completely
(`jepsen_like/simulator/truth/last_look.py`). The two modes have separate verdicts: `Verdict.safety` and
`Verdict.liveness`.

`run_schedule` returns a `Verdict` with the trace's hash: the same schedule and code give the same hash.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from unittest import mock

from jepsen_like.simulator.brokers.history import History
from jepsen_like.simulator.brokers.node import SimNode
from jepsen_like.simulator.load.clients import Clients
from jepsen_like.simulator.truth.invariants import Truth
from jepsen_like.simulator.truth.last_look import look_at_everything
from jepsen_like.simulator.truth.watched import watched_drivers
from jepsen_like.simulator.world.breaking import Breaks, InjectedError
from jepsen_like.simulator.world.collector import seldom_collected
from jepsen_like.simulator.world.disk import BLOCK_BYTES, SimulatedCrash
from jepsen_like.simulator.world.heap import Event, EventHeap, Life
from jepsen_like.simulator.world.network import NetworkShape, SimNetwork
from jepsen_like.simulator.world.trace import Trace
from jepsen_like.simulator.world.violation import Violation
from partitions.files import durable
from partitions.upkeep import compactor, scrubber
from partitions.upkeep import repair as replica_repair
from partitions.upkeep import resets as replica_resets
from raftlog.config import NodeConfig, TimingConfig
from raftlog.errors import DiskError, DiskFailed, DiskFull, RaftlogError, ResourceShortage

from .directed import direct
from .faults import ClusterFaults
from .liveness import LIVENESS_SECONDS, led_without_room, left_behind, missing
from .operations import ClusterOperations
from .roles import led_partition
from .schedule import ClusterSchedule, Operation, draw

CLIENT_CHECK_SECONDS = 0.05
LOOK_AROUND_SECONDS = 0.25
LOOK_EVERY = 0.5
ROUNDS_EVERY = 4
"""One seed in this number uses a shared sync from two logs on; production uses it from hundreds on."""

RESTART_AFTER_FAILURE = 0.2
RESERVED_BYTES = 4 * BLOCK_BYTES
"""Small enough that a run's log fills the disk first."""
LOGGED = (
    "segment compacted",
    "scrubber found damage",
    "damage found",
    "replica repairs itself",
    "replica offline",
    "replica reset",
    "replica given up",
    "unforeseen",
)
"""Log lines of the product that report rare events."""

WEEK_MINUTES = 7 * 24 * 60

STOP_SECONDS = 4.0
"""Time after which a node that does not complete an orderly stop is killed."""


@dataclass(slots=True)
class Verdict:
    """The outcome of a run. `violation` is empty if every property held."""

    seed: int
    seconds: float
    nodes: int
    trace: str
    events: int
    messages: int
    sends: dict[str, int]
    reads: int
    operations: dict[str, int]
    """Operations on topics, and those of clients beside producing and reading."""
    faults: dict[str, int]
    checks: dict[str, int]
    """How often the rarer invariants had something to check."""
    recovered_after: float
    """Seconds from the heal until nothing was missing; -1: that did not happen."""
    violation: str = ""
    lines: list[str] = field(default_factory=list)
    """The end of the trace."""

    @property
    def passed(self) -> bool:
        return not self.violation

    @property
    def safety(self) -> bool:
        """Whether nothing was lost, changed or wrongly shown."""
        return not self.violation or self.violation.startswith("S10:")

    @property
    def liveness(self) -> bool | None:
        """Whether the cluster recovered after the heal; None: the run ended before."""
        if self.recovered_after >= 0:
            return True
        return False if self.violation.startswith("S10:") else None

    def __str__(self) -> str:
        injected = " ".join(f"{name}={count}" for name, count in sorted(self.faults.items()) if count)
        done = " ".join(f"{name}={count}" for name, count in sorted(self.operations.items()) if count)
        went_on = {True: f"after {self.recovered_after:.1f} s", False: "no", None: "not reached"}[self.liveness]
        return (
            f"seed={self.seed} trace={self.trace} seconds={self.seconds:.0f} nodes={self.nodes} events={self.events} "
            f"messages={self.messages} ok={self.sends.get('ok', 0)} open={self.sends.get('open', 0)} "
            f"reads={self.reads} operations[{done}] faults[{injected}] safety={'ok' if self.safety else 'no'} "
            f"liveness={went_on} {'ok' if self.passed else 'VIOLATION ' + self.violation}"
        )


class SimulatedWorld:
    """One simulated cluster with its network, disks, clocks and clients."""

    node_kind: type[SimNode] = SimNode
    operations_kind: type[ClusterOperations] = ClusterOperations

    def __init__(self, schedule: ClusterSchedule) -> None:
        seed = self.seed = schedule.seed
        self.schedule = schedule
        self.heap = EventHeap()
        self.trace = Trace(lambda: self.heap.now)
        shape = NetworkShape(slow_probability=schedule.slow_probability, slow_max=schedule.slow_max)
        self.network = SimNetwork(self.heap, random.Random(f"{seed}/cluster/network"), shape, self.trace.message)
        voters = tuple(range(schedule.voters))
        config = _config(schedule)
        breaks = any(fault.kind == "exceptions" for fault in schedule.faults)
        self._disturbing = breaks or any(fault.kind == "no_descriptors" for fault in schedule.faults)
        self.nodes = [
            self.node_kind(
                node_id,
                voters,
                heap=self.heap,
                network=self.network,
                rng=random.Random(f"{seed}/cluster/node-{node_id}"),
                config=config,
                trace=self.trace,
                on_violation=self._on_violation,
                on_stopped=self._stopped_itself,
                breaks=Breaks(random.Random(f"{seed}/cluster/exceptions-{node_id}")) if breaks else None,
            )
            for node_id in range(schedule.nodes)
        ]
        self.history = History()
        self.truth = Truth(self.nodes, self.history)
        self._by_life: dict[Life, SimNode] = {}
        clients_rng = random.Random(f"{seed}/cluster/clients")
        clients = self.clients = Clients(
            self.heap, self.nodes, clients_rng, self.history, self.truth, self.network.cuts
        )
        clients.exceptions = any(fault.kind == "exceptions" for fault in schedule.faults)
        clients.producers_expire = schedule.producer_expiration_ms < schedule.seconds * 1000
        self.operations = self.operations_kind(seed, self.heap, self.trace, self.nodes, clients)
        self.faults = ClusterFaults(
            seed,
            self.heap,
            self.network,
            self.nodes,
            self.trace,
            kill=self.kill,
            stop_cleanly=self.stop_cleanly,
            led_partition=lambda number: led_partition(self.truth.partitions, number),
            rotted=self.rotted,
        )
        self.recovered_after = -1.0
        for node in self.nodes:
            self.start(node)
        for fault in schedule.faults:
            self.heap.schedule(fault.at, lambda fault=fault: self.faults.inject(fault))  # type: ignore[misc]
        for operation in schedule.operations:
            self.heap.schedule(operation.at, lambda operation=operation: self.carry_out(operation))  # type: ignore[misc]
        self._check_clients_later()
        self._look_around_later()

    def carry_out(self, operation: Operation) -> None:
        """Execute an operation of the schedule now."""
        self.operations.carry_out(operation)

    # --- Nodes ---

    def start(self, node: SimNode) -> None:
        """Start a node's process, unless it runs. A process that dies during its start is started again."""
        if node.running:
            return
        try:
            node.start()
        except SimulatedCrash:
            self._died(node)
            return
        except InjectedError as error:
            node.heard(error)
            self._died(node)
            return
        except DiskError as error:
            if node.disk.occupied and isinstance(error, DiskFull):
                raise Violation(f"S10: node {node.node_id} does not start on a full disk: {error}") from None
            if not (node.expected_stop or node.disk.full_below or isinstance(error, ResourceShortage)):
                raise
            self._died(node)
            return
        assert node.life is not None
        self._by_life[node.life] = node
        self.truth.follow(node)

    def kill(self, node: SimNode, *, power_loss: random.Random | None, restart_after: float) -> None:
        """Kill a node's process now, whatever it is doing."""
        node.kill(power_loss=power_loss)
        self.heap.schedule(restart_after, lambda: self.start(node))

    def stop_cleanly(self, node: SimNode, restart_after: float) -> None:
        """Stop a node in order; a node that cannot (for example without a quorum) is killed after a while."""
        life = node.life
        if not node.running or life is None or node.stopping:
            return

        def give_up() -> None:
            if life.alive:
                self.kill(node, power_loss=None, restart_after=restart_after)

        def stopped() -> None:
            self.heap.schedule(restart_after, lambda: self.start(node))

        node.stop_cleanly(stopped)
        self.heap.schedule(STOP_SECONDS, give_up)

    def rotted(self, node: SimNode) -> None:
        """Record that a file on the node's disk was damaged while its process runs."""
        self.truth.checks["rotted in service"] += 1
        if node.disk not in self.truth.rotting:
            self.truth.rotting.append(node.disk)

    def _died(self, node: SimNode) -> None:
        self.kill(node, power_loss=None, restart_after=RESTART_AFTER_FAILURE)

    def _stopped_itself(self, node: SimNode) -> None:
        self._died(node)

    def _on_violation(self, text: str) -> None:
        raise Violation(text)

    # --- Running ---

    def run(self) -> None:
        """Run safety mode, then liveness mode. Raises `Violation`."""
        seconds = self.schedule.seconds
        self._run_until(seconds)
        self.operations.producing = False
        self.faults.mend()
        self.trace.note(-1, "healed")
        self._require_progress(self._require_room(seconds))
        look_at_everything(self.truth, self.nodes)
        self.truth.clients.check_refused()

    def _run_until(self, end: float) -> None:
        self.heap.run_until(end, self._run_event)

    def _run_event(self, event: Event) -> None:
        node = self._by_life.get(event.life) if event.life is not None else None
        try:
            event.callback()
        except SimulatedCrash:
            assert node is not None, "only a node's own events touch its disk"
            self.trace.note(int(node.node_id), "died in a disk operation")
            rng = random.Random(f"{self.seed}/crash/{event.at}/{node.node_id}")
            self.kill(node, power_loss=rng if rng.random() < 0.5 else None, restart_after=rng.uniform(0.05, 1.0))
        except InjectedError as error:
            assert node is not None, "only a node's own ports break"
            node.heard(error)
        except DiskFull as error:
            if node is None or not node.disk.occupied:
                raise
            raise Violation(f"S10: node {node.node_id} stops on a full disk: {error}") from None
        except DiskFailed as error:
            if node is None or not node.expected_stop:
                raise
            self.trace.note(int(node.node_id), f"stopped by its disk: {error}")
            self._died(node)
        if self._disturbing:
            with self._undisturbed():
                self.truth.after_event(node)
        else:
            self.truth.after_event(node)

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Suspend the injected faults of calls while a check reads the nodes' state."""
        disturbed = [node for node in self.nodes if node.disk.no_descriptors]
        breaking = [(node.breaks, node.breaks.probability) for node in self.nodes if node.breaks is not None]
        for node in disturbed:
            node.disk.no_descriptors = False
        for breaks, _ in breaking:
            breaks.probability = 0.0
        try:
            yield
        finally:
            for node in disturbed:
                node.disk.no_descriptors = True
            for breaks, probability in breaking:
                breaks.probability = probability

    def _check_clients_later(self) -> None:
        with self._undisturbed():
            self.truth.clients.check()
        self.heap.schedule(CLIENT_CHECK_SECONDS, self._check_clients_later)

    def _look_around_later(self) -> None:
        with self._undisturbed():
            self.truth.look_around()
        self.heap.schedule(LOOK_AROUND_SECONDS, self._look_around_later)

    # --- Liveness ---

    def _require_room(self, healed: float) -> float:
        """Wait until the nodes with full disks have deleted what they may, and lead no partition that others could.

        Only then are the foreign files removed. Returns the time.
        """
        full = [node for node in self.nodes if node.disk.occupied]
        if not full:
            return healed
        at = healed
        while True:
            at += LOOK_EVERY
            self._run_until(at)
            left = left_behind(full) + led_without_room(self.nodes)
            if not left:
                break
            if at >= healed + LIVENESS_SECONDS:
                raise Violation(f"S10: {LIVENESS_SECONDS:.0f} s after everything but the full disks healed: {left[0]}")
        self.truth.checks["full disks"] += len(full)
        for node in full:
            node.disk.vacate()
        return at

    def _require_progress(self, healed: float) -> None:
        at = healed
        while True:
            at += LOOK_EVERY
            self._run_until(at)
            lacking = missing(self.nodes, self.operations, self.truth)
            if not lacking:
                break
            if at >= healed + LIVENESS_SECONDS:
                text = "; ".join(lacking[:5])
                raise Violation(f"S10: {LIVENESS_SECONDS:.0f} s after everything healed: {text}")
        self.recovered_after = at - healed
        self.truth.clients.check()

    def counts(self) -> dict[str, int]:
        """Return the number of operations beside producing and reading."""
        history = self.history
        return self.operations.done | {
            "found_by_time": history.searches,
            "deletions_answered": history.deletions,
            "duplicates_answered": history.duplicates,
            "lost_by_flush_os": self.truth.lost,
            "damaged_answers": history.damaged_answers,
        }

    def checks(self) -> dict[str, int]:
        """Return how often the invariants had something to check."""
        counted = {name: self.trace.logged[name] for name in LOGGED}
        counted["losses reported"] = self.truth.rules.losses_reported
        return dict(self.truth.checks) | counted


def _config(schedule: ClusterSchedule) -> NodeConfig:
    scrub_interval_ms = int(schedule.scrub_seconds * 1000)
    return NodeConfig(
        retention_check_ms=schedule.retention_check_ms,
        disk_reserved_bytes=RESERVED_BYTES,
        scrub_interval_ms=scrub_interval_ms or NodeConfig().scrub_interval_ms,
        timing=TimingConfig(replica_lag_max_ms=schedule.replica_lag_max_ms),
        producer_id_expiration_ms=schedule.producer_expiration_ms,
        producer_state_bytes=schedule.producer_state_bytes,
        transactional_id_expiration_minutes=1 if schedule.transactions else WEEK_MINUTES,
    )


@contextmanager
def in_a_hurry(schedule: ClusterSchedule) -> Iterator[None]:
    """Make rare events of production frequent enough for a run of a minute.

    These are compaction, scrubbing, the second request after a damaged last copy, and in some seeds rounds of the logs'
    writer whose jobs are synced together.
    """
    scrub = schedule.scrub_seconds
    with ExitStack() as stack:
        stack.enter_context(seldom_collected())
        stack.enter_context(watched_drivers())
        stack.enter_context(mock.patch.object(replica_resets, "WINDOW_SECONDS", 3.0))
        stack.enter_context(mock.patch.object(compactor, "CHECK_SECONDS", schedule.compaction_check_seconds))
        if schedule.seed % ROUNDS_EVERY == ROUNDS_EVERY // 2:
            stack.enter_context(mock.patch.object(durable, "TOGETHER_MIN", 2))
        if scrub:
            stack.enter_context(mock.patch.object(scrubber, "FIRST_PASS_SECONDS", (scrub / 2, scrub)))
            stack.enter_context(mock.patch.object(replica_repair, "LAST_COPY_SECONDS", 3.0))
        yield


def run_schedule(schedule: ClusterSchedule) -> Verdict:
    """Run a schedule to its verdict."""
    return run_world(SimulatedWorld, schedule)


def run_world(kind: Callable[[ClusterSchedule], SimulatedWorld], schedule: ClusterSchedule) -> Verdict:
    """Create a world and run it; a crash of the product's code is a violation, with its traceback.

    The world is created here, from nothing that outlives the run, so that it leaves no garbage behind.
    """
    with in_a_hurry(schedule):
        world, violation = kind(schedule), ""
        try:
            world.run()
        except Violation as found:
            violation = str(found)
        except (RaftlogError, AssertionError, LookupError, TypeError, ValueError, AttributeError, OSError) as error:
            violation = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        return _verdict(world, violation)


def _verdict(world: SimulatedWorld, violation: str) -> Verdict:
    return Verdict(
        seed=world.seed,
        seconds=world.heap.now,
        nodes=len(world.nodes),
        trace=world.trace.digest(),
        events=world.heap.events_run,
        messages=world.network.messages,
        sends=world.history.counts(),
        reads=len(world.history.reads),
        operations=world.counts(),
        faults=dict(world.faults.injected),
        checks=world.checks(),
        recovered_after=world.recovered_after,
        violation=violation,
        lines=list(world.trace.lines) if violation else [],
    )


def run_seed(seed: int, seconds: float, *, faulty: bool = True) -> Verdict:
    """Draw a seed's schedule and run it."""
    return run_schedule(direct(draw(seed, seconds, faulty=faulty)))
