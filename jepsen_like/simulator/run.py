"""One seed: a cluster, its clients and its faults, for so many virtual seconds; then everything heals and must work.

Safety mode: faults fly, and after every event the safety properties are checked. Liveness mode: no more faults, every
node is up; within `LIVENESS_SECONDS` each partition must lead with a full ISR and every batch ever sent must be
acknowledged (S10). Then each partition is read once more from its leader and compared with all acknowledgements.

`run_seed` returns a `Verdict` with the trace's hash: the same seed and the same code give the same hash. What is *not*
here: what is checked (`invariants.py`), what goes wrong (`faults.py`).
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

from metadata.commands import Command, CreateTopic, DeleteTopic, Refused
from metadata.engine import Outcome
from raftlog.config import NodeConfig
from raftlog.errors import DiskFailed, RaftlogError
from raftlog.model import BrokerId, TopicId, TopicPartition

from .disk import SimulatedCrash
from .faults import Faults
from .heap import Event, EventHeap
from .history import History
from .invariants import Truth
from .network import NetworkShape, SimNetwork
from .node import SimNode
from .trace import Trace
from .violation import Violation
from .workload import Clients, SimConsumer, SimProducer

LIVENESS_SECONDS = 30.0
SETTLE_SECONDS = 3.0
CLIENT_CHECK_SECONDS = 0.05


@dataclass(slots=True)
class Verdict:
    """How a run ended. `violation` is empty when every property held."""

    seed: int
    seconds: float
    nodes: int
    trace: str
    events: int
    messages: int
    sends: dict[str, int]
    reads: int
    faults: dict[str, int]
    violation: str = ""
    lines: list[str] = field(default_factory=list)
    """The last lines of the trace."""

    @property
    def passed(self) -> bool:
        return not self.violation

    def __str__(self) -> str:
        injected = " ".join(f"{name}={count}" for name, count in sorted(self.faults.items()) if count)
        return (
            f"seed={self.seed} trace={self.trace} seconds={self.seconds:.0f} nodes={self.nodes} events={self.events} "
            f"messages={self.messages} ok={self.sends.get('ok', 0)} open={self.sends.get('open', 0)} "
            f"reads={self.reads} faults[{injected}] {'ok' if self.passed else 'VIOLATION ' + self.violation}"
        )


class SimulatedWorld:
    """Everything of one run."""

    def __init__(self, seed: int, *, faulty: bool = True) -> None:
        self.seed = seed
        rng = random.Random(f"{seed}/shape")
        self.heap = EventHeap()
        self.trace = Trace(lambda: self.heap.now)
        shape = NetworkShape(slow_probability=rng.choice((0.0, 0.01, 0.05)), slow_max=rng.choice((0.02, 0.2)))
        self.network = SimNetwork(self.heap, random.Random(f"{seed}/network"), shape, self.trace.message)
        count = rng.choice((3, 3, 3, 5))
        voters = tuple(range(count))
        config = NodeConfig()
        self.nodes = [
            SimNode(
                node_id,
                voters,
                heap=self.heap,
                network=self.network,
                rng=random.Random(f"{seed}/node-{node_id}"),
                config=config,
                trace=self.trace,
                on_violation=self._on_violation,
                on_stopped=lambda node: self.kill(node, power_loss=False, restart_after=0.2),
            )
            for node_id in voters
        ]
        self.history = History()
        self.truth = Truth(self.nodes, self.history)
        self._by_life: dict[str, SimNode] = {}
        self._power_rng = random.Random(f"{seed}/power")
        self._workload_rng = random.Random(f"{seed}/workload")
        self.clients = Clients(
            self.heap, self.nodes, self._workload_rng, self.history, self.network.cuts, self.truth.acknowledged
        )
        self.producers: list[SimProducer] = []
        self.consumers: list[SimConsumer] = []
        self.topics: list[TopicId] = []
        self._producing = True
        self.faults: Faults | None = None
        self._faulty = faulty
        self._fault_rng = random.Random(f"{seed}/faults")
        for node in self.nodes:
            self.start(node)

    # --- Nodes ---

    def start(self, node: SimNode) -> None:
        """Start a node's process, unless it runs. One that dies while it starts is started again."""
        if node.running:
            return
        try:
            node.start()
        except SimulatedCrash:
            self.kill(node, power_loss=False, restart_after=0.2)
            return
        except DiskFailed:
            if not node.expected_stop:
                raise
            self.kill(node, power_loss=False, restart_after=0.2)
            return
        assert node.life is not None
        self._by_life[node.life.name] = node
        self.truth.follow(node)

    def kill(self, node: SimNode, *, power_loss: bool, restart_after: float) -> None:
        """End a node's process now, whatever it is doing."""
        node.kill(power_loss=self._power_rng if power_loss else None)
        self.heap.schedule(restart_after, lambda: self.start(node))

    def stop_cleanly(self, node: SimNode, *, restart_after: float) -> None:
        """An orderly stop; a node that cannot (no quorum, say) is killed after a while."""
        life = node.life
        if not node.running or life is None or node.stopping:
            return

        def give_up() -> None:
            if life.alive:
                self.kill(node, power_loss=False, restart_after=restart_after)

        def stopped() -> None:
            self.heap.schedule(restart_after, lambda: self.start(node))

        node.stop_cleanly(stopped)
        self.heap.schedule(2.0, give_up)

    def _on_violation(self, text: str) -> None:
        raise Violation(text)

    # --- Running ---

    def run(self, seconds: float) -> None:
        """Safety mode for `seconds`, then liveness mode. Raises `Violation`."""
        self._propose_later(SETTLE_SECONDS, self._create_topic)
        self._check_clients_later()
        self._run_until(SETTLE_SECONDS + 1.0)
        if self._faulty:
            self.faults = Faults(self, self._fault_rng, mean_seconds=self._fault_rng.choice((0.5, 2.0, 5.0)))
            if self._fault_rng.random() < 0.3:
                self.heap.schedule(seconds / 2, self._recreate_topic)
        self._run_until(seconds)
        self._producing = False
        if self.faults is not None:
            self.faults.mend()
        self.trace.note(-1, "healed")
        self._require_progress(seconds)

    def _run_until(self, end: float) -> None:
        self.heap.run_until(end, self._run_event)

    def _run_event(self, event: Event) -> None:
        node = self._by_life.get(event.life.name) if event.life is not None else None
        try:
            event.callback()
        except SimulatedCrash:
            assert node is not None, "only a node's own events touch its disk"
            self.trace.note(int(node.node_id), "died in a disk operation")
            self.kill(node, power_loss=self._power_rng.random() < 0.5, restart_after=self._power_rng.uniform(0.05, 1.0))
        except DiskFailed as error:
            if node is None or not node.expected_stop:
                raise
            self.trace.note(int(node.node_id), f"stopped by its disk: {error}")
            self.kill(node, power_loss=False, restart_after=self._power_rng.uniform(0.05, 1.0))
        if node is not None:
            self.truth.after_event(node)
        else:
            for touched in self.nodes:
                touched.broker_touched = True

    # --- Topics and clients ---

    def _create_topic(self) -> Command:
        rng = self._workload_rng
        topic_id = TopicId(rng.randbytes(16))
        partitions = rng.choice((1, 2, 3))
        factor = min(3, len(self.nodes))
        ids = [node.node_id for node in self.nodes]
        replicas = tuple(tuple(BrokerId(b) for b in rng.sample(ids, factor)) for _ in range(partitions))
        self.topics.append(topic_id)
        for partition in range(partitions):
            self._add_clients(TopicPartition(topic_id, partition))
        configs = (("segment.bytes", str(rng.choice((1024, 2048, 1 << 20)))),)
        return CreateTopic(f"topic-{len(self.topics)}", topic_id, replicas, configs)

    def _recreate_topic(self) -> None:
        """Delete the first topic while nodes come and go, and create another of its name."""
        topic_id = self.topics.pop(0)
        self.trace.note(-1, "delete topic")
        for producer in self.producers:
            producer.stopped = producer.stopped or producer.topic_partition.topic_id == topic_id
        for consumer in self.consumers:
            consumer.stopped = consumer.stopped or consumer.topic_partition.topic_id == topic_id
        self._propose_later(0.0, lambda: DeleteTopic(topic_id))
        self._propose_later(0.5, self._create_topic)

    def _propose_later(self, delay: float, command: Callable[[], Command]) -> None:
        """Have some node propose it, again until it is applied."""
        made: list[Command] = []

        def propose() -> None:
            if not made:
                made.append(command())
            running = [node for node in self.nodes if node.running and node.quorum is not None]
            if not running:
                self.heap.schedule(0.2, propose)
                return
            node = self._workload_rng.choice(running)
            answered: list[Outcome] = []

            def again() -> None:
                # A topic of that name may still be there: its deletion is proposed elsewhere.
                if not answered or answered[0].result is None or isinstance(answered[0].result, Refused):
                    propose()

            assert node.quorum is not None
            quorum = node.quorum
            self.heap.schedule(0.0, lambda: quorum.propose(made[0], answered.append, timeout=1.0), node.life)
            self.heap.schedule(1.5, again)

        self.heap.schedule(delay, propose)

    def _add_clients(self, topic_partition: TopicPartition) -> None:
        producer = SimProducer(
            len(self.producers), topic_partition, self.clients, in_flight=self._workload_rng.choice((1, 2, 5))
        )
        consumer = SimConsumer(len(self.consumers), topic_partition, self.clients)
        self.producers.append(producer)
        self.consumers.append(consumer)
        pause = self._workload_rng.choice((0.05, 0.1, 0.5))

        def produce() -> None:
            if self._producing and not producer.stopped:
                if producer.waiting < 20:
                    producer.produce()
                self.heap.schedule(self._workload_rng.expovariate(1 / pause), produce)

        def consume() -> None:
            if not consumer.stopped:
                consumer.poll(consume_soon)

        def consume_soon() -> None:
            self.heap.schedule(0.1, consume)

        self.heap.schedule(0.5, produce)
        self.heap.schedule(0.7, consume)

    def _check_clients_later(self) -> None:
        self.truth.check_clients()
        self.heap.schedule(CLIENT_CHECK_SECONDS, self._check_clients_later)

    # --- Liveness ---

    def _require_progress(self, seconds: float) -> None:
        deadline = seconds + LIVENESS_SECONDS
        at = seconds
        while True:
            at += 0.5
            self._run_until(at)
            missing = self._missing()
            if not missing:
                break
            if at >= deadline:
                raise Violation(f"S10: {LIVENESS_SECONDS:.0f} s after everything healed: {'; '.join(missing[:5])}")
        self.truth.check_clients()

    def _missing(self) -> list[str]:
        missing = [f"node {node.node_id} is down" for node in self.nodes if not node.running]
        for node in self.nodes:
            if node.broker is not None:
                view = node.broker.view
                expected = {record.topic_id for record in view.topics()}
                missing += [f"node {node.node_id} does not know a topic" for t in self.topics if t not in expected]
                for record in view.partitions():
                    if not record.has_leader or len(record.isr) < len(record.replicas):
                        missing.append(f"node {node.node_id}: {record} {view.explain_offline(record.topic_partition)}")
        missing += [
            f"producer {producer.number} waits for {producer.waiting} answers"
            for producer in self.producers
            if producer.waiting and producer.topic_partition.topic_id in self.topics
        ]
        missing += [
            f"consumer {consumer.number} is at {consumer.position} of {self.truth.logs[tp].end_offset}"
            for consumer in self.consumers
            if (tp := consumer.topic_partition).topic_id in self.topics
            and tp in self.truth.logs
            and consumer.position < self.truth.logs[tp].end_offset
        ]
        return missing


def run_seed(seed: int, seconds: float, *, faulty: bool = True) -> Verdict:
    """Run one seed to its verdict. A crash of the product's own code is a violation, with its traceback."""
    world = SimulatedWorld(seed, faulty=faulty)
    violation = ""
    try:
        world.run(seconds)
    except Violation as found:
        violation = str(found)
    except (RaftlogError, AssertionError, LookupError, TypeError, ValueError, AttributeError, OSError) as error:
        violation = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    return Verdict(
        seed=seed,
        seconds=world.heap.now,
        nodes=len(world.nodes),
        trace=world.trace.digest(),
        events=world.heap.events_run,
        messages=world.network.messages,
        sends=world.history.counts(),
        reads=len(world.history.reads),
        faults=dict(world.faults.injected) if world.faults else {},
        violation=violation,
        lines=list(world.trace.lines) if violation else [],
    )
