"""One simulated node: the product's wiring and quorum on simulated ports, started and killed like a process.

The disk and the clock outlive a process; everything else is created at each start. A process is killed between two
events, or in the middle of a disk operation (`SimulatedCrash`); in a power failure its disk then forgets what was not
fsynced. This file knows nothing about correctness: that is `jepsen_like/simulator/truth/invariants.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import cast

from jepsen_like.simulator.quorum.dialing import QuorumDialing, endpoint_of
from jepsen_like.simulator.world.beats import Beats
from jepsen_like.simulator.world.breaking import BreakingClock, BreakingHandler, BreakingPort, Breaks, InjectedError
from jepsen_like.simulator.world.dialing import QUORUM, Dialing, TickingHandler
from jepsen_like.simulator.world.disk import SimDisk
from jepsen_like.simulator.world.heap import EventHeap, Life, SimClock, SimScheduler, SimWorker
from jepsen_like.simulator.world.network import SimNetwork
from jepsen_like.simulator.world.trace import Trace
from metadata.commands.cluster import RegisterBroker
from metadata.commands.envelope import Command
from metadata.quorum.limits import QuorumLimits
from metadata.quorum.links import QuorumLinks
from metadata.quorum.node import QuorumNode
from metadata.quorum.port import Outcome
from metadata.quorum.protocol import VotersChanged
from metadata.view import MetadataEvent
from metadata.voters.changes import VoterChange
from metadata.voters.configuration import Configuration
from metadata.voters.identity import QuorumIdentity
from raftlog.broker.identity import begin_start, mark_clean_shutdown, prepare_folder
from raftlog.broker.wiring import Broker
from raftlog.config import NodeConfig, TimingConfig
from raftlog.errors import Contradiction, RemoteProtocolError, ResourceShortage
from raftlog.model import NO_INCARNATION, BrokerId, QuorumStatus
from raftlog.ports import Clock, Disk, Link, LinkHandler
from raftlog.system.ballast import Ballast
from raftlog.system.ballasted_disk import BallastedDisk

REPLICATION = "replication"
"""The kind of link that carries batches to followers."""

DISK_BYTES = 1 << 23
"""The size of each node's disk; a sixteenth of it is the ballast."""

HAND_OVER_SECONDS = 1.5
"""The time for which a stopping node waits until its leaderships have moved (`raftlog/broker/node/node.py`)."""


class SimQuorum:
    """The quorum as the broker sees it, and the shell that ticks it after every event that needs it."""

    def __init__(self, node: QuorumNode, dialing: QuorumDialing) -> None:
        self.node = node
        self._dialing = dialing
        self._beats: Beats
        self.ran = True
        """Set when a message arrived or a tick passed, the only causes of changes; the checker resets it."""
        self.registration: RegisterBroker | None = None
        """The broker's registration request."""

    def begin(self, heap: EventHeap, life: Life, clock: Clock, timing: TimingConfig) -> None:
        """Start ticking, with the first tick now."""
        self._beats = Beats(self.node, self.tick, heap, life, clock, timing)
        self._beats.begin()

    def register(self, command: RegisterBroker, done: Callable[[Outcome], None]) -> None:
        self.registration = command
        self.node.register(command, done)
        self._beats.soon()

    def propose(self, command: Command, done: Callable[[Outcome], None], *, timeout: float = 5.0) -> None:
        self.node.propose(command, done, timeout=timeout)
        self._beats.soon()

    def read_barrier(self, done: Callable[[Outcome], None], *, timeout: float = 5.0) -> None:
        self.node.read_barrier(done, timeout=timeout)
        self._beats.soon()

    def status(self) -> QuorumStatus:
        return self.node.status()

    def leader_status(self, done: Callable[[QuorumStatus], None], *, timeout: float = 1.0) -> None:
        self.node.leader_status(done, timeout=timeout)
        self._beats.soon()

    def stop_broker(self, done: Callable[[bool], None], *, timeout: float = 5.0) -> None:
        """Have the broker's leaderships moved away."""

        self.node.stop_broker(done, timeout=timeout)
        self._beats.soon()

    def change_voters(
        self, change: VoterChange, done: Callable[[VotersChanged], None], *, plan: bool = False, timeout: float = 10.0
    ) -> None:
        self.node.change_voters(change, done, plan=plan, timeout=timeout)
        self._beats.soon()

    def on_input(self) -> None:
        """Handle a message or a link that opened or closed: tick if there is something to do, as the thread does."""
        self.ran = True
        if self.node.wants_tick:
            self._beats.soon()

    def tick(self) -> None:
        self.ran = True
        self.node.tick()
        self._dialing.set_lost(not self.node.reaches_leader)


class SimNode:
    """A node: its disk exists permanently, its process from `start` to `kill`."""

    def __init__(
        self,
        node_id: int,
        voters: tuple[int, ...],
        *,
        heap: EventHeap,
        network: SimNetwork,
        rng: random.Random,
        config: NodeConfig,
        trace: Trace,
        on_violation: Callable[[str], None],
        on_stopped: Callable[[SimNode], None],
        breaks: Breaks | None = None,
    ) -> None:
        """`on_stopped`: called when the process ends by itself. `breaks`: lets its ports raise unforeseen
        exceptions.
        """
        self.breaks = breaks
        self.on_stopped = on_stopped
        self.node_id = BrokerId(node_id)
        self.heap = heap
        self.network = network
        self.random = random.Random(rng.random())
        self.disk = SimDisk(DISK_BYTES)
        self.clock = SimClock(heap, drift=rng.uniform(0.99, 1.01), wall_offset_ms=rng.randrange(-5000, 5000))
        self._config = config
        self._trace = trace
        self._on_violation = on_violation
        self.life: Life | None = None
        self.broker: Broker | None = None
        self.quorum: SimQuorum | None = None
        self.starts = 0
        self.stopping = False
        """Whether an orderly stop has begun."""
        self.expected_stop = False
        """Whether a disk fault was injected, after which the process may stop itself."""
        self.slow_disk_seconds = 0.0
        """Additional time of each write and fsync of logs."""
        self.own_disk: BallastedDisk
        """The disk as its process sees it."""
        prepare_folder(
            self.disk,
            f"node-{node_id}",
            cluster_id="simulated",
            node_id=node_id,
            voters={BrokerId(voter): endpoint_of(BrokerId(voter)) for voter in voters},
            directory_id=self.random.randbytes(16),
        )

    @property
    def running(self) -> bool:
        return self.life is not None and self.life.alive

    def start(self) -> None:
        """Start a new process. Raises what the product raises; the disk is left as it is."""
        assert not self.running
        self.stopping = False
        self.starts += 1
        life = self.life = Life(f"node-{self.node_id}.{self.starts}")
        scheduler = SimScheduler(self.heap, life)
        disk = self.own_disk = BallastedDisk(self.disk, Ballast(self.disk, self._config.disk_ballast_bytes))
        identity = begin_start(disk, f"node-{self.node_id}")
        voters, endpoint = tuple(sorted(identity.voters)), endpoint_of(self.node_id)
        quorum_identity = QuorumIdentity(identity.cluster_id, identity.node_id, identity.directory_id, voters, endpoint)
        peers = QuorumDialing(self.node_id, quorum_identity.voters)
        links = QuorumLinks(
            quorum_identity,
            on_dropped=self._on_peer_fault,
            on_heard=peers.on_heard,
            on_gone=peers.on_gone,
            on_told=peers.on_told,
        )

        def configured(configuration: Configuration) -> None:
            links.set_voters(configuration)
            peers.on_configuration(configuration)

        def led(leader: BrokerId) -> None:
            links.set_leader(leader)
            self.quorum_led_by(leader)

        replication = self._dials(life, REPLICATION, self._breaking(_Later(lambda: broker.manager.dialed)))
        broker = Broker(
            identity,
            self._config,
            disk=disk if self.breaks is None else cast(Disk, BreakingPort(disk, self.breaks)),
            clock=self.clock if self.breaks is None else BreakingClock(self.clock, self.breaks),
            scheduler=scheduler,
            worker=SimWorker(self.heap, life, self.random, lambda: self.random.uniform(0.0001, 0.003)),
            log_worker=SimWorker(self.heap, life, self.random, self._log_latency),
            random=self.random,
            dialer=replication,
            logger=TraceLogger(self._trace, int(self.node_id), self._on_violation),
            on_fatal=self._on_fatal,
            on_peer_fault=self._on_peer_fault,
        )
        broker.load()
        node = QuorumNode(
            quorum_identity,
            disk=disk,
            clock=self.clock,
            random=self.random,
            timing=self._config.timing,
            send=links.send,
            on_events=self._guarded(broker.on_events),
            on_leader=led,
            on_configuration=configured,
            limits=QuorumLimits(snapshot_entries=self.random.randrange(20, 400)),
        )
        links.attach(node)
        self.broker = broker
        quorum = self.quorum = SimQuorum(node, peers)
        quorum.begin(self.heap, life, self.clock, self._config.timing)
        self.network.listen(self.node_id, QUORUM, life, TickingHandler(links.accepted, quorum.on_input))
        self.network.listen(self.node_id, REPLICATION, life, self._breaking(broker.manager.accepted))
        peers.begin(self._dials(life, QUORUM, TickingHandler(links.dialed, quorum.on_input)))
        self.open_to_clients(life, broker, quorum)
        broker.register(quorum, endpoint, endpoint, lambda: self._trace.note(int(self.node_id), "registered"))
        self._trace.note(int(self.node_id), f"start {self.starts} clean={identity.clean}")

    def open_to_clients(self, life: Life, broker: Broker, quorum: SimQuorum) -> None:
        """Create the listener for this process's clients. Here there is none: clients call `broker.local`."""

    def quorum_led_by(self, leader: BrokerId) -> None:
        """Handle a new leader of the quorum, as far as this process knows."""

    def _dials(self, life: Life, kind: str, handler: LinkHandler) -> Dialing:
        return Dialing(self.node_id, life, kind, handler, heap=self.heap, network=self.network, rng=self.random)

    def _breaking(self, handler: LinkHandler) -> LinkHandler:
        return handler if self.breaks is None else BreakingHandler(handler, self.breaks, self.heard)

    def heard(self, error: InjectedError) -> None:
        """Trace an exception that came out of an event, as the loop logs it."""
        self._trace.note(int(self.node_id), f"heard {error}")

    def _guarded(
        self, on_events: Callable[[int, Sequence[MetadataEvent]], None]
    ) -> Callable[[int, Sequence[MetadataEvent]], None]:
        """Treat an exception as fatal, like the quorum's thread: later events would be applied to a view with a gap."""

        def guarded(index: int, events: Sequence[MetadataEvent]) -> None:
            try:
                on_events(index, events)
            except InjectedError as error:
                self._on_fatal(error)

        return guarded

    @property
    def registration(self) -> RegisterBroker | None:
        """The registration request of this process."""
        return self.quorum.registration if self.quorum is not None else None

    def _log_latency(self) -> float:
        return self.random.uniform(0.0001, 0.003) + self.slow_disk_seconds

    def kill(self, *, power_loss: random.Random | None = None) -> None:
        """Kill the process (SIGKILL), or with a generator cut the power."""
        if self.life is not None and self.life.alive:
            self.life.alive = False
            self.network.node_died(self.node_id, silently=power_loss is not None)
        self.disk.crash_countdown = 0
        self.disk.no_descriptors = False  # The descriptors belonged to the process.
        if power_loss is not None:
            self.disk.power_loss(power_loss)
        self.broker = None
        self.quorum = None
        self._trace.note(int(self.node_id), "power loss" if power_loss is not None else "kill")

    def stop_cleanly(self, stopped: Callable[[], None]) -> None:
        """Stop in order, as `raftlog/broker/node/node.py` does: move leaderships away, close the logs, then the quorum.

        Afterwards `stopped` is called; the marker of a clean stop is written if everything is on disk.
        """
        assert self.broker is not None and self.quorum is not None
        self.stopping = True
        manager = self.broker.manager

        def closed(clean: bool) -> None:
            if self.quorum is not None:
                self.quorum.node.close()
            if clean:
                mark_clean_shutdown(self.own_disk)
            self.kill()
            stopped()

        if self.broker.incarnation == NO_INCARNATION:
            manager.close(closed, clean=True)
        else:
            self.quorum.stop_broker(lambda fenced: manager.close(closed, clean=True), timeout=HAND_OVER_SECONDS)

    def _on_peer_fault(self, peer: BrokerId, error: RemoteProtocolError) -> None:
        """No simulated broker contradicts another one."""
        self._trace.log(int(self.node_id), "link dropped", {"peer": peer, "detail": error.detail})
        if isinstance(error, Contradiction):
            self._on_violation(f"Contradiction: node {peer} contradicts node {self.node_id}: {error.detail}")

    def _on_fatal(self, error: BaseException) -> None:
        self._trace.note(int(self.node_id), f"fatal {error}")
        short = isinstance(error, ResourceShortage) and self.disk.refused_opens > 0
        if not (self.expected_stop or short or isinstance(error, InjectedError)):
            self._on_violation(f"Stopped: node {self.node_id} stopped itself: {error}")
        self.heap.schedule(0.0, self._stopped_itself)

    def _stopped_itself(self) -> None:
        if self.running:
            self.on_stopped(self)


class _Later:
    """A link handler that exists only once the broker does."""

    def __init__(self, handler: Callable[[], LinkHandler]) -> None:
        self._handler = handler

    def on_opened(self, link: Link) -> None:
        self._handler().on_opened(link)

    def on_message(self, link: Link, message: memoryview) -> None:
        self._handler().on_message(link, message)

    def on_closed(self, link: Link) -> None:
        self._handler().on_closed(link)


class TraceLogger:
    """Writes the product's log lines into the trace; a line that begins with INVARIANT is a violation."""

    def __init__(self, trace: Trace, node: int, on_violation: Callable[[str], None]) -> None:
        self._trace = trace
        self._node = node
        self._on_violation = on_violation

    def info(self, event: str, **fields: object) -> None:
        self._trace.log(self._node, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._trace.log(self._node, event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._trace.log(self._node, event, fields)
        if event.startswith("INVARIANT"):
            self._on_violation(f"InvariantViolation: node {self._node}: {event} {fields}")
