"""One simulated node of the quorum: the product's `QuorumNode` on simulated ports, started and killed like a process.

At first the lowest-numbered nodes are voters and the rest observers; later the log decides. There is no broker, only
its registration. Commands that name an incarnation then have one to name, and the controller has a broker to fence.
Disk and clock outlive a process.

A slow disk does not stop virtual time: the process is inside its fsync for that duration, and neither sends nor
receives (`SlowDisk`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from jepsen_like.simulator.world.beats import Beats
from jepsen_like.simulator.world.dialing import QUORUM, Dialing, TickingHandler
from jepsen_like.simulator.world.disk import Inode, SimDisk
from jepsen_like.simulator.world.heap import EventHeap, Life, SimClock
from jepsen_like.simulator.world.trace import Trace
from jepsen_like.simulator.world.unkind_network import UnkindNetwork
from jepsen_like.simulator.world.violation import Violation
from metadata.commands.cluster import RegisterBroker
from metadata.commands.results import Registered
from metadata.journal.journal import prepare_journal
from metadata.quorum.limits import QuorumLimits
from metadata.quorum.links import QuorumLinks
from metadata.quorum.node import QuorumNode
from metadata.quorum.port import Outcome
from metadata.records.events import MetadataEvent
from metadata.voters.configuration import Configuration
from metadata.voters.identity import QuorumIdentity
from raftlog.config import TimingConfig
from raftlog.errors import RemoteProtocolError
from raftlog.model import NO_INCARNATION, BrokerId, DirectoryId, Incarnation

from .dialing import QuorumDialing, endpoint_of
from .schedule import Schedule


class JumpingClock(SimClock):
    """A monotonic clock that may leap forward, as after a virtual machine's suspension; it never goes back."""

    leapt = 0.0
    """Seconds that the clock has leapt in total."""

    def monotonic(self) -> float:
        return self._heap.now * self._drift + self.leapt


class SlowDisk(SimDisk):
    """A disk that reports the duration of each fsync, and can fail inside a replacement of a file, which is rare."""

    fsync_seconds = 0.0
    crash_after_name_change = 0
    """The process dies after this number of disk operations within the next change of a name; 0: it does not."""

    def __init__(self, waited: Callable[[float], None]) -> None:
        super().__init__()
        self._waited = waited

    def fsync_inode(self, inode: Inode) -> None:
        super().fsync_inode(inode)
        if self.fsync_seconds:
            self._waited(self.fsync_seconds)

    def _change(self, folder: str, added: dict[str, Inode | None], removed: tuple[str, ...]) -> None:
        if self.crash_after_name_change:
            self.crash_countdown, self.crash_after_name_change = self.crash_after_name_change, 0
        super()._change(folder, added, removed)


class Watcher(Protocol):
    """Is notified of the entries that a node applies."""

    def applied(self, node: QuorumSimNode, index: int) -> None: ...


class QuorumSimNode:
    """A node. Its disk lives as long as the world, its process from `start` to `kill`."""

    feature_level = 1
    """The feature level of its broker; the quorum needs nothing else of a broker."""

    def __init__(
        self, node_id: int, schedule: Schedule, *, heap: EventHeap, network: UnkindNetwork, trace: Trace
    ) -> None:
        self.node_id = BrokerId(node_id)
        self.heap = heap
        self.network = network
        self.random = random.Random(f"{schedule.seed}/quorum/node-{node_id}")
        self.watcher: Watcher
        self._schedule = schedule
        self._trace = trace
        drift = self.random.uniform(0.99, 1.01)
        self.clock = JumpingClock(heap, drift=drift, wall_offset_ms=self.random.randrange(-5000, 5000))
        self.life: Life | None = None
        self.quorum: QuorumNode | None = None
        self.starts = 0
        self.incarnation: Incarnation = NO_INCARNATION
        """Incarnation of the running process's broker, once registered."""
        self.damaged = False
        """Its disk was damaged: it may refuse to start, permanently."""
        self.must_refuse = False
        """Its disk was damaged in a way that must make it refuse to start."""
        self.rewound = False
        """It forgot its promises, and its disk does not reveal that."""
        self.refused = ""
        """The reason why it does not start."""
        self.disk_failing = False
        """The next fsync fails, and the process must stop itself."""
        self._beats: Beats
        self._dialing: QuorumDialing
        """The links of the running process."""
        self.disks = 0
        self.disk: SlowDisk
        self.new_disk(range(schedule.voters))

    @property
    def running(self) -> bool:
        return self.life is not None and self.life.alive

    def new_disk(self, voters: Iterable[int]) -> None:
        """Give the node an empty disk, prepared by `raftlog server init` with these voters."""
        self.disk = SlowDisk(self._wait_for_disk)
        self.disks += 1
        directory = DirectoryId(bytes([int(self.node_id), self.disks] * 8))
        where = endpoint_of(self.node_id)
        self.identity = QuorumIdentity("simulated", self.node_id, directory, tuple(map(BrokerId, voters)), where)
        prepare_journal(self.disk, self.identity)

    def start(self) -> None:
        """Start a new process. Raises what the product raises; the disk stays as it is then."""
        assert not self.running
        self.starts += 1
        life = self.life = Life(f"node-{self.node_id}.{self.starts}")
        self.incarnation = NO_INCARNATION
        timing = TimingConfig()
        dialing = self._dialing = QuorumDialing(self.node_id, self.identity.voters)
        links = QuorumLinks(
            self.identity,
            on_dropped=self._fault,
            on_heard=dialing.on_heard,
            on_gone=dialing.on_gone,
            on_told=dialing.on_told,
        )
        self.quorum = QuorumNode(
            self.identity,
            disk=self.disk,
            clock=self.clock,
            random=self.random,
            timing=timing,
            send=links.send,
            on_events=self._on_events,
            on_leader=lambda leader: self._led_by(links, leader),
            on_configuration=lambda configuration: self._configured(links, configuration),
            on_fault=self._fault,
            limits=QuorumLimits(snapshot_entries=self._schedule.limits.snapshot_entries),
        )
        links.attach(self.quorum)
        wake, alone = self._schedule.wake_seconds, self._schedule.tick_seconds
        self._beats = Beats(
            self.quorum,
            self.tick,
            self.heap,
            life,
            self.clock,
            timing,
            wake_seconds=wake,
            alone_seconds=alone,
        )
        self.network.listen(self.node_id, QUORUM, life, TickingHandler(links.accepted, self.tick_soon))
        dialing.begin(
            Dialing(
                self.node_id,
                life,
                QUORUM,
                TickingHandler(links.dialed, self.tick_soon),
                heap=self.heap,
                network=self.network,
                rng=self.random,
            )
        )
        self.quorum.register(self._registration(), lambda outcome: self._registered(life, outcome))
        self._beats.begin()
        self._trace.note(int(self.node_id), f"start {self.starts}")

    def _registration(self) -> RegisterBroker:
        where = endpoint_of(self.node_id)
        directory = self.identity.directory_id
        return RegisterBroker.of(
            self.node_id,
            directory,
            self.starts,
            api=where,
            data=where,
            rack="",
            feature_level=self.feature_level,
            reports=[],
        )

    def _registered(self, life: Life, outcome: Outcome) -> None:
        if life.alive and isinstance(outcome.result, Registered):
            self.incarnation = outcome.result.incarnation

    def kill(self, *, power_loss: random.Random | None = None) -> None:
        """End the process by SIGKILL or, with a generator, by a power loss."""
        if self.life is not None and self.life.alive:
            self.life.alive = False
            self.network.node_died(self.node_id, silently=power_loss is not None)
        self.disk.crash_countdown = self.disk.crash_after_name_change = 0
        self.disk.fail_fsync = 0
        if power_loss is not None:
            self.disk.power_loss(power_loss)
        self.quorum = None
        self.network.departs_at.pop(self.node_id, None)
        self._trace.note(int(self.node_id), "power loss" if power_loss is not None else "kill")

    # --- Time ---

    def tick(self) -> None:
        """Tick the quorum, which the product's quorum thread does."""
        assert self.quorum is not None
        self.quorum.tick()
        self._dialing.set_lost(not self.quorum.reaches_leader)

    def tick_soon(self) -> None:
        """Tick after the current input if the quorum wants it, which the product's quorum thread does."""
        if self.quorum is None or self.quorum.wants_tick:
            self._beats.soon()

    def _configured(self, links: QuorumLinks, configuration: Configuration) -> None:
        links.set_voters(configuration)
        self._dialing.on_configuration(configuration)

    def _led_by(self, links: QuorumLinks, leader: BrokerId) -> None:
        links.set_leader(leader)

    def _fault(self, peer: BrokerId, error: RemoteProtocolError) -> None:
        """No simulated node breaks the protocol, whatever the network does to its messages."""
        raise Violation(f"S11: node {self.node_id} finds a fault of node {peer}: {error.detail}")

    def _wait_for_disk(self, seconds: float) -> None:
        if self.life is not None and self.life.alive:
            done = max(self.life.paused_until, self.heap.now) + seconds
            self.life.paused_until = self.network.departs_at[self.node_id] = done

    def _on_events(self, index: int, events: Sequence[MetadataEvent]) -> None:
        self.watcher.applied(self, index)
