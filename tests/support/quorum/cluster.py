"""Whole quorum nodes on simulated time, links and disks: the product's `QuorumNode` and `QuorumLinks`, nothing else."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence

from jepsen_like.simulator.world.disk import SimDisk
from metadata.commands.cluster import CreateTopic, RegisterBroker
from metadata.commands.envelope import Command
from metadata.journal.journal import prepare_journal
from metadata.quorum.limits import QuorumLimits
from metadata.quorum.links import QuorumLinks
from metadata.quorum.node import QuorumNode
from metadata.quorum.port import Outcome
from metadata.quorum.protocol import VotersChanged
from metadata.records.events import MetadataEvent
from metadata.view import ClusterView
from metadata.voters.changes import Action, VoterChange
from metadata.voters.configuration import Configuration
from raftlog.config import TimingConfig
from raftlog.model import BrokerId, DirectoryId, Endpoint, Incarnation, TopicId
from raftlog.ports import Link, LinkHandler, Part

from .world import identity_of

TICK = 0.02


class Life:
    """One run of a node: its timers die with it."""

    alive = True


class Heap:
    """Virtual time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = 0
        self._events: list[tuple[float, int, Life | None, Callable[[], None]]] = []

    def schedule(self, delay: float, call: Callable[[], None], life: Life | None = None) -> None:
        self._order += 1
        heapq.heappush(self._events, (self.now + delay, self._order, life, call))

    def run_until(self, end: float) -> None:
        while self._events and self._events[0][0] <= end:
            self.now, _, life, call = heapq.heappop(self._events)
            if life is None or life.alive:
                call()
        self.now = end


class HeapClock:
    """The clock port."""

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        self.leapt = 0.0
        """The wall clock's offset in seconds, as after the suspension of a machine."""

    def monotonic(self) -> float:
        return self._heap.now + self.leapt

    def wall_ms(self) -> int:
        return int(self._heap.now * 1000)


class SimLink:
    """One end of a connection: ordered, at most once, held back by a cut of its direction."""

    def __init__(self, network: Network, owner: int, peer: int, life: Life, handler: LinkHandler) -> None:
        self.network, self.owner, self._peer = network, owner, peer
        self.life, self.handler = life, handler
        self.other: SimLink
        self.open = True
        self.arrival = 0.0

    @property
    def peer(self) -> int:
        return self._peer

    def send(self, parts: Sequence[Part]) -> None:
        message = b"".join(bytes(part) for part in parts if not hasattr(part, "release"))
        heap, other = self.network.heap, self.other
        self.network.on_send(self.owner, self._peer, message)
        if self.open and (self.owner, self._peer) not in self.network.cuts:
            self.arrival = max(self.arrival, heap.now + self.network.rng.uniform(0.0002, 0.002))
            heap.schedule(self.arrival - heap.now, lambda: other.receive(message), other.life)

    def receive(self, message: bytes) -> None:
        if self.open:
            self.handler.on_message(self, memoryview(message))

    def close(self) -> None:
        for end in (self, self.other):
            self.network.heap.schedule(0.0, end.closed, end.life)

    def closed(self) -> None:
        if self.open:
            self.open = False
            self.handler.on_closed(self)


class Network:
    """The listeners, and the cut directions. Messages sent into a cut are lost, and the connection with them."""

    def __init__(self, heap: Heap, rng: random.Random) -> None:
        self.heap, self.rng = heap, rng
        self.cuts: set[tuple[int, int]] = set()
        self.listeners: dict[int, tuple[Life, LinkHandler]] = {}
        self.links: list[SimLink] = []
        self.on_send: Callable[[int, int, bytes], None] = lambda sender, receiver, message: None
        """Called with every message that is sent on a link."""

    def dial(self, node: int, peer: int, life: Life, handler: LinkHandler, failed: Callable[[], None]) -> None:
        def arrive() -> None:
            listening = self.listeners.get(peer)
            cut = (node, peer) in self.cuts or (peer, node) in self.cuts
            if listening is None or not listening[0].alive or cut:
                self.heap.schedule(0.05, failed, life)
                return
            here = SimLink(self, node, peer, life, handler)
            there = SimLink(self, peer, node, *listening)
            here.other, there.other = there, here
            self.links += [here, there]
            there.handler.on_opened(there)
            here.handler.on_opened(here)

        self.heap.schedule(0.001, arrive, life)

    def cut(self, *directions: tuple[int, int]) -> None:
        self.cuts |= set(directions)
        for link in self.links:
            if link.open and (link.owner, link.peer) in self.cuts:
                link.close()

    def died(self, node: int) -> None:
        for link in self.links:
            if link.open and link.owner == node:
                link.close()
        self.links = [link for link in self.links if link.open]


class _Ticking:
    """A link's events, with a tick after each."""

    def __init__(self, member: Member, handler: LinkHandler, redial: Callable[[int], None] | None = None) -> None:
        self._member = member
        self._handler = handler
        self._redial = redial

    def on_opened(self, link: Link) -> None:
        self._handler.on_opened(link)

    def on_message(self, link: Link, message: memoryview) -> None:
        self._handler.on_message(link, message)
        self._member.tick_if_wanted()

    def on_closed(self, link: Link) -> None:
        self._handler.on_closed(link)
        if self._redial is not None:
            self._redial(link.peer)


class Member:
    """One node over its restarts."""

    def __init__(self, cluster: QuorumCluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.identity = identity_of(number, cluster.voters)
        self.disk = SimDisk()
        self.clock = HeapClock(cluster.heap)
        self.life: Life | None = None
        self.quorum: QuorumNode | None = None
        self.view = ClusterView()
        self.indexes: list[int] = []
        self.leaders: list[int] = []
        self.dropped: list[str] = []
        self.faults: list[tuple[int, str]] = []
        """(peer, detail) of the faults that were found after a message was taken."""
        self.starts = 0
        prepare_journal(self.disk, self.identity)

    def replace_disk(self) -> None:
        """The disk is lost; an operator prepares a new folder for the same node id."""
        self.starts = 0
        self.disk = SimDisk()
        self.identity = identity_of(self.number, self.cluster.voters, directory=self.identity.directory_id[1] + 1)
        prepare_journal(self.disk, self.identity)

    def start(self) -> None:
        cluster = self.cluster
        self.starts += 1
        life = self.life = Life()
        self.view, self.indexes, self.leaders = ClusterView(), [], []
        self.wanted = set(map(int, self.identity.peers))
        links = QuorumLinks(
            self.identity,
            on_dropped=lambda peer, error: self.dropped.append(error.detail),
            on_heard=lambda peer, endpoint, *, proven: self._want(int(peer), dialed, life),
        )
        self.quorum = QuorumNode(
            self.identity,
            disk=self.disk,
            clock=self.clock,
            random=random.Random(cluster.rng.random()),
            timing=TimingConfig(),
            send=links.send,
            on_events=self._on_events,
            on_leader=lambda leader: self.leaders.append(int(leader)),
            on_configuration=lambda configuration: self._follow(configuration, dialed, life),
            on_fault=lambda peer, error: self.faults.append((int(peer), error.detail)),
            limits=cluster.limits,
        )
        links.attach(self.quorum)
        cluster.network.listeners[self.number] = (life, _Ticking(self, links.accepted))
        dialed = _Ticking(self, links.dialed, lambda peer: self._dial_later(peer, dialed, life))
        for peer in sorted(self.wanted):
            self._dial(peer, dialed, life)
        self._beat(life)

    def _want(self, peer: int, handler: LinkHandler, life: Life) -> None:
        if peer not in self.wanted:
            self.wanted.add(peer)
            self._dial(peer, handler, life)

    def _follow(self, configuration: Configuration, handler: LinkHandler, life: Life) -> None:
        for peer in configuration.node_ids:
            if peer != self.number:
                self._want(int(peer), handler, life)

    def _dial(self, peer: int, handler: LinkHandler, life: Life) -> None:
        again = lambda: self._dial_later(peer, handler, life)  # noqa: E731
        self.cluster.network.dial(self.number, peer, life, handler, again)

    def _dial_later(self, peer: int, handler: LinkHandler, life: Life) -> None:
        self.cluster.heap.schedule(0.1, lambda: self._dial(peer, handler, life), life)

    def _on_events(self, index: int, events: Sequence[MetadataEvent]) -> None:
        self.indexes.append(index)
        self.view.on_events(index, events)

    def _beat(self, life: Life) -> None:
        self.tick()
        self.cluster.heap.schedule(TICK, lambda: self._beat(life), life)

    def tick(self) -> None:
        if self.quorum is not None:
            self.quorum.tick()

    def tick_if_wanted(self) -> None:
        """Tick, as the quorum's thread does after an input."""
        if self.quorum is not None and self.quorum.wants_tick:
            self.quorum.tick()

    def kill(self, *, power: bool = False) -> None:
        assert self.life is not None
        self.life.alive = False
        self.quorum = None
        self.cluster.network.died(self.number)
        if power:
            self.disk.power_loss(self.cluster.rng)


class QuorumCluster:
    """A cluster of three nodes, or another number."""

    def __init__(
        self, seed: int, size: int = 3, *, voters: int | None = None, limits: QuorumLimits | None = None
    ) -> None:
        """The first `voters` of them vote (by default all); the others are observers."""
        self.size = size
        self.voters = size if voters is None else voters
        self.limits = limits
        self.rng = random.Random(seed)
        self.heap = Heap()
        self.network = Network(self.heap, random.Random(seed + 1))
        self.members = {number: Member(self, number) for number in range(1, size + 1)}
        for member in self.members.values():
            member.start()

    def node(self, number: int) -> QuorumNode:
        node = self.members[number].quorum
        assert node is not None
        return node

    def run(self, seconds: float) -> None:
        self.heap.run_until(self.heap.now + seconds)

    def run_until(self, holds: Callable[[], bool], seconds: float = 10.0) -> None:
        end = self.heap.now + seconds
        while not holds():
            assert self.heap.now < end, "not in time"
            self.run(0.005)

    @property
    def nodes(self) -> list[int]:
        return [number for number, member in self.members.items() if member.quorum is not None]

    def leader(self) -> int | None:
        """The leader on which all running nodes agree."""
        thought = {int(self.node(number).status().leader) for number in self.nodes}
        leader = thought.pop() if len(thought) == 1 else -1
        return leader if leader in self.nodes else None

    def await_leader(self) -> int:
        self.run_until(lambda: self.leader() is not None)
        leader = self.leader()
        assert leader is not None
        return leader

    def propose(self, number: int, command: Command, timeout: float = 5.0) -> Outcome:
        """Propose and wait."""
        outcomes: list[Outcome] = []
        self.node(number).propose(command, outcomes.append, timeout=timeout)
        self.run_until(lambda: bool(outcomes), timeout + 1.0)
        assert len(outcomes) == 1
        return outcomes[0]

    def change(
        self, number: int, action: Action, node: int, *, plan: bool = False, timeout: float = 5.0
    ) -> VotersChanged:
        """Request a change of the voters from a node and wait."""
        answers: list[VotersChanged] = []
        self.node(number).change_voters(VoterChange(action, node), answers.append, plan=plan, timeout=timeout)
        self.run_until(lambda: bool(answers), timeout + 1.0)
        assert len(answers) == 1
        return answers[0]

    def voters_at(self, number: int) -> tuple[int, ...]:
        return tuple(map(int, self.node(number).status().voters))

    def registration(self, number: int, start: int | None = None, *, level: int = 1) -> RegisterBroker:
        member = self.members[number]
        where = Endpoint(f"node-{number}", 1)
        return RegisterBroker.of(
            BrokerId(number),
            DirectoryId(bytes(member.identity.directory_id)),
            member.starts if start is None else start,
            api=where,
            data=where,
            rack="",
            feature_level=level,
            reports=[],
        )

    def register(self, number: int, *, level: int = 1) -> Outcome:
        outcomes: list[Outcome] = []
        self.node(number).register(self.registration(number, level=level), outcomes.append)
        self.run_until(lambda: bool(outcomes))
        return outcomes[0]

    def register_all(self) -> None:
        for number in self.nodes:
            self.register(number)
        live = [self.members[number].view.alive for number in self.nodes]
        self.run_until(lambda: all(alive(BrokerId(number)) for alive in live for number in self.nodes))


def ready_cluster(seed: int = 1, **options: object) -> tuple[QuorumCluster, int]:
    cluster = QuorumCluster(seed, **options)  # type: ignore[arg-type]
    cluster.await_leader()
    cluster.register_all()
    leader = cluster.leader()
    assert leader is not None
    return cluster, leader


def topic(cluster: QuorumCluster, name: str, broker: int) -> CreateTopic:
    return CreateTopic(name, TopicId(cluster.rng.randbytes(16)), ((BrokerId(broker),),), ())


def others(cluster: QuorumCluster, leader: int) -> list[int]:
    return [number for number in cluster.nodes if number != leader]


def incarnation_of(cluster: QuorumCluster, number: int) -> Incarnation:
    record = cluster.members[number].view.broker(BrokerId(number))
    assert record is not None
    return record.incarnation
