"""A small world of consensus engines with the safety properties of Raft checked after every event.

Time is seeded; messages are lost, late, duplicated and reordered; disks lose data. The state machine is a chain of
hashes, so that any difference in the applied entries shows at once, also through snapshots. Engines are real; only
time, disk and network are not.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from jepsen_like.simulator.world.disk import SimDisk, SimulatedCrash
from metadata.journal.journal import FIRST_INDEX, Journal, prepare_journal
from metadata.raft import messages
from metadata.raft.engine import Committed, InstalledSnapshot, Ready
from metadata.raft.pysyncobj_engine import PySyncObjEngine
from metadata.voters.configuration import Configuration, Voter, encode_configuration
from metadata.voters.identity import QuorumIdentity
from raftlog.config import TimingConfig
from raftlog.model import BrokerId, DirectoryId

TICK = 0.01
GENESIS = b"\0" * 32


def identity_of(node: int, voters: int, *, directory: int = 0, cluster: str = "cluster") -> QuorumIdentity:
    ids = tuple(BrokerId(i) for i in range(1, voters + 1))
    return QuorumIdentity(cluster, BrokerId(node), DirectoryId(bytes([node, directory] * 8)), ids)


def prepare_pinned(disk: SimDisk, identity: QuorumIdentity) -> None:
    """The journal of a voter whose log begins with a configuration that names all first voters' disks, as one does
    after its first compaction."""
    prepare_journal(disk, identity)
    journal = Journal(disk, identity)
    disks = (identity_of(int(voter), len(identity.voters)).directory_id for voter in identity.voters)
    voters = [Voter.of(voter, directory, None) for voter, directory in zip(identity.voters, disks, strict=True)]
    journal.reset(FIRST_INDEX, 0, encode_configuration(Configuration.of(voters)))
    journal.close()


@dataclass
class Network:
    """The faults of the network."""

    latency: tuple[float, float] = (0.0005, 0.004)
    drop: float = 0.0
    duplicate: float = 0.0
    late: float = 0.0
    """Probability of a message arriving up to a second late, overtaken by others."""
    cuts: set[tuple[int, int]] = field(default_factory=set)


@dataclass
class Acked:
    """A proposal whose success was reported."""

    index: int
    term: int
    command: bytes


class Node:
    """One voter over its restarts."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.disk = SimDisk()
        self.identity = identity_of(number, world.voters)
        self.engine: PySyncObjEngine | None = None
        self.chain = GENESIS
        self.applied_index = 1
        self.commit_index = 0
        self.lives = 0
        self.paused_until = 0.0
        self.checked = 0

    @property
    def up(self) -> bool:
        return self.engine is not None

    def live(self) -> PySyncObjEngine:
        assert self.engine is not None
        return self.engine

    def state(self) -> bytes:
        return self.chain


class World:
    """All nodes, and the recorded truth."""

    def __init__(
        self,
        seed: int,
        size: int = 3,
        *,
        network: Network | None = None,
        timing: TimingConfig | None = None,
        engine: Callable[..., PySyncObjEngine] = PySyncObjEngine,
        prepare: bool = True,
        voters: int | None = None,
        pinned: bool = True,
    ) -> None:
        """The first `voters` of them vote (by default all); the others are observers. `pinned`: the voters' logs begin
        with their disks, so that a majority elects."""
        self.rng = random.Random(seed)
        self.size = size
        self.voters = size if voters is None else voters
        self.now = 0.0
        self.network = network or Network()
        self.timing = timing or TimingConfig()
        self.make_engine = engine
        self.nodes = {number: Node(self, number) for number in range(1, size + 1)}
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.order = 0
        self.tokens: dict[int, tuple[int, bytes]] = {}
        self.next_token = 1
        self.acked: list[Acked] = []
        self.lost: dict[int, bool] = {}
        """Token → whether its outcome is certain."""
        self.leaders: dict[int, int] = {}
        """Term → the node that led it."""
        self.votes: dict[tuple[int, int], int] = {}
        """(voter, term) → the candidate that got its vote, over all its restarts."""
        self.entries: dict[tuple[int, int], tuple[bytes, int]] = {}
        """(index, term) → (command, term before): log matching, by induction."""
        self.applied: dict[int, tuple[int, bytes, bytes]] = {1: (0, b"", GENESIS)}
        """Index → (term, command, chain after it): every entry ever applied anywhere."""
        self.intercept: Callable[[int, int, messages.Message], bool] | None = None
        """Sees every message; returns False to remove it."""
        self.sent: list[tuple[float, int, int, messages.Message]] = []
        self.keep_sent = False
        for node in self.nodes.values():
            if prepare:
                (prepare_pinned if pinned else prepare_journal)(node.disk, node.identity)
            self.start(node.number)

    # --- Time ---

    def schedule(self, delay: float, call: Callable[[], None]) -> None:
        self.order += 1
        heapq.heappush(self.heap, (self.now + delay, self.order, call))

    def run(self, seconds: float, *, until: Callable[[], bool] | None = None) -> bool:
        """Run for a while, or until a condition holds (checked after every event)."""
        end = self.now + seconds
        while self.heap and self.heap[0][0] <= end:
            at, _, call = heapq.heappop(self.heap)
            self.now = max(self.now, at)
            call()
            if until is not None and until():
                return True
        self.now = max(self.now, end)
        return until is None

    # --- Lives ---

    def start(self, number: int) -> None:
        node = self.nodes[number]
        assert node.engine is None
        node.lives += 1
        node.chain, node.applied_index, node.commit_index, node.checked = GENESIS, 1, 0, 0
        drawn = random.Random(f"{number}/{node.lives}/{self.rng.random()}")
        node.engine = self.make_engine(node.identity, disk=node.disk, now=self.now, random=drawn, timing=self.timing)
        for other in self.nodes:
            if other != number:
                node.engine.peer_connected(BrokerId(other))
                if self.nodes[other].engine is not None:
                    self.nodes[other].live().peer_connected(BrokerId(number))
        life = node.lives
        self.schedule(self.rng.uniform(0, TICK), lambda: self._tick(number, life))

    def crash(self, number: int, *, power: bool = False) -> None:
        node = self.nodes[number]
        node.engine = None
        node.disk.crash_countdown = 0
        if power:
            node.disk.power_loss(self.rng)
        for other in self.nodes.values():
            if other.engine is not None and other.number != number:
                self._lost_link(other.engine, number)

    def _lost_link(self, engine: PySyncObjEngine, number: int) -> None:
        """The node with this number has crashed."""
        engine.peer_disconnected(BrokerId(number))

    def _tick(self, number: int, life: int) -> None:
        node = self.nodes[number]
        if node.engine is None or node.lives != life:
            return
        if node.paused_until > self.now:
            self.schedule(node.paused_until - self.now, lambda: self._tick(number, life))
            return
        self.advance(number)
        self.schedule(TICK * self.rng.uniform(0.8, 1.2), lambda: self._tick(number, life))

    def advance(self, number: int) -> None:
        """Tick one engine and take its `Ready`; a crash inside a disk call is a power loss."""
        node = self.nodes[number]
        if node.engine is None:
            return
        try:
            node.engine.tick(self.now)
            ready = node.engine.ready()
        except SimulatedCrash:
            self.crash(number, power=True)
            return
        self._take(node, ready)

    def _take(self, node: Node, ready: Ready) -> None:
        for receiver, packed in ready.messages:
            self._note_sent(node, int(receiver), packed)
            self._send(node.number, int(receiver), packed)
        for lost in ready.lost:
            assert lost.token not in self.lost
            self.lost[lost.token] = lost.certain
        for entry in ready.applied:
            self._apply(node, entry)
        self.check(node)

    # --- Network ---

    def _note_sent(self, node: Node, receiver: int, packed: bytes) -> None:
        message = messages.decode(packed)
        if self.keep_sent:
            self.sent.append((self.now, node.number, receiver, message))
        if isinstance(message, messages.Vote) and message.granted:
            former = self.votes.setdefault((node.number, message.term), receiver)
            assert former == receiver, f"node {node.number} voted twice in term {message.term}"
        if isinstance(message, messages.RequestVote):
            former = self.votes.setdefault((node.number, message.term), node.number)
            assert former == node.number, f"node {node.number} campaigns in a term it voted in: {message.term}"

    def _send(self, sender: int, receiver: int, packed: bytes) -> None:
        network = self.network
        if (sender, receiver) in network.cuts or self.rng.random() < network.drop:
            return
        if self.intercept is not None and not self.intercept(sender, receiver, messages.decode(packed)):
            return
        for _ in range(2 if self.rng.random() < network.duplicate else 1):
            delay = self.rng.uniform(*network.latency)
            if self.rng.random() < network.late:
                delay += self.rng.uniform(0, 1.0)
            self.schedule(delay, lambda: self.deliver(sender, receiver, packed))

    def deliver(self, sender: int, receiver: int, packed: bytes) -> None:
        node = self.nodes[receiver]
        if node.engine is None or (sender, receiver) in self.network.cuts:
            return
        if node.paused_until > self.now:
            self.schedule(node.paused_until - self.now, lambda: self.deliver(sender, receiver, packed))
            return
        try:
            node.engine.step(BrokerId(sender), packed)
        except SimulatedCrash:
            self.crash(receiver, power=True)
            return
        self.advance(receiver)

    def isolate(self, number: int) -> None:
        for other in self.nodes:
            if other != number:
                self.network.cuts |= {(number, other), (other, number)}

    def heal(self) -> None:
        self.network.cuts.clear()
        self.network.drop = self.network.duplicate = self.network.late = 0.0

    # --- Proposals ---

    def propose(self, number: int, command: bytes | None = None) -> int:
        token = self.next_token
        self.next_token += 1
        body = command if command is not None else b"command %d" % token
        self.tokens[token] = (number, body)
        self.nodes[number].live().propose(body, token)
        return token

    def is_acked(self, token: int) -> bool:
        return any(acked.command == self.tokens[token][1] for acked in self.acked)

    def leader(self) -> int | None:
        """The leader of the greatest term, if there is one."""
        led = [(n.live().term, n.number) for n in self.nodes.values() if n.up and n.live().is_leader]
        return max(led)[1] if led else None

    def await_leader(self, seconds: float = 5.0) -> int:
        assert self.run(seconds, until=lambda: self.leader() is not None), "nobody leads"
        leader = self.leader()
        assert leader is not None
        return leader

    # --- The truth ---

    def _apply(self, node: Node, entry: Committed | InstalledSnapshot) -> None:
        if isinstance(entry, InstalledSnapshot):
            assert entry.index >= node.applied_index
            assert self.applied[entry.index][2] == entry.state, f"snapshot at {entry.index} is of another history"
            node.chain, node.applied_index = entry.state, entry.index
            return
        assert entry.index == node.applied_index + 1, f"{entry.index} after {node.applied_index}"
        node.chain = hashlib.sha256(node.chain + entry.command).digest()
        node.applied_index = entry.index
        fact = (entry.term, entry.command, node.chain)
        known = self.applied.setdefault(entry.index, fact)
        assert known == fact, f"index {entry.index}: node {node.number} applied {fact}, another applied {known}"
        if entry.token is not None:
            assert self.tokens[entry.token][1] == entry.command
            assert entry.token not in self.lost
            self.acked.append(Acked(entry.index, entry.term, entry.command))

    def check(self, node: Node) -> None:
        """Election safety, log matching, leader completeness, order of indexes; acknowledged implies durable."""
        engine = node.live()
        engine.check_invariants()
        status = engine.status()
        assert status.commit_index >= node.commit_index, "the commit index fell"
        node.commit_index = status.commit_index
        journal = engine.journal
        entries = journal.entries
        start = max(1, node.checked - journal.base_index)
        for position in range(min(start, len(entries)), len(entries)):
            command, index, term = entries[position]
            fact = (command, entries[position - 1][2])
            known = self.entries.setdefault((index, term), fact)
            assert known == fact, f"({index}, {term}) is {fact} here and {known} elsewhere"
        node.checked = min(status.commit_index, journal.last_index)
        if engine.is_leader:
            former = self.leaders.setdefault(engine.term, node.number)
            assert former == node.number, f"nodes {former} and {node.number} led term {engine.term}"
            self._check_completeness(node, journal)

    def _check_completeness(self, node: Node, journal: Any) -> None:
        newest = max(self.applied)
        term = self.applied[newest][0]
        if term < node.live().term and newest >= journal.base_index:
            assert journal.term_at(newest) == term, f"leader {node.number} lacks committed entry {newest}"

    def check_acked_survive(self) -> None:
        """At the end, with all nodes up and caught up: every acknowledged entry is in the one history, at its index."""
        for acked in self.acked:
            term, command, _ = self.applied[acked.index]
            assert (term, command) == (acked.term, acked.command)
        for node in self.nodes.values():
            assert node.applied_index == max(self.applied), f"node {node.number} is at {node.applied_index}"
            assert node.chain == self.applied[node.applied_index][2]
        for token, certain in self.lost.items():
            if certain:
                _, command = self.tokens[token]
                assert all(fact[1] != command for fact in self.applied.values()), f"{command!r} was lost for certain"

    def compact(self, number: int) -> None:
        """The node takes a snapshot of its applied state."""
        node = self.nodes[number]
        if node.engine is not None and node.applied_index > node.engine.journal.base_index:
            try:
                list(node.engine.compact(node.state(), node.applied_index))
            except SimulatedCrash:
                self.crash(number, power=True)

    def settle(self, seconds: float = 6.0) -> None:
        """Heal, start all nodes, and require progress: a new command on every node."""
        self.heal()
        self.intercept = None
        for node in self.nodes.values():
            node.paused_until = 0.0
            node.disk.crash_countdown = 0
            if node.engine is None:
                self.start(node.number)
        self.run(1.5)

        def all_applied() -> bool:
            return all(node.applied_index == max(self.applied) for node in self.nodes.values())

        deadline = self.now + seconds
        while self.now < deadline:
            leader = self.await_leader(max(deadline - self.now, 0.1))
            if self.run(1.0, until=partial(self.is_acked, self.propose(leader))) and self.run(1.0, until=all_applied):
                return
        raise AssertionError("no progress after the faults healed")
