"""The metadata of a cluster that is too large for a single machine: voters with a core each, in virtual time.

Each voter is the product's `QuorumNode`, and each turn of it takes as much virtual time as the processor time that it
used in this process: messages that arrive meanwhile wait, as they do for a quorum's thread. Delays therefore add up as
they would on separate machines, regardless of the other load here, and a voter that is always busy is a core at its
limit.

A broker that is no voter is a stub (`Stub`): it sends heartbeats, proposes what a broker proposes, and acknowledges
like an observer, but applies nothing, and its work costs nothing. A message takes `LATENCY_SECONDS` and the time of its
bytes on a link of 10 Gbit/s; an fsync takes `FSYNC_SECONDS`.
"""

from __future__ import annotations

import gc
import heapq
import math
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from jepsen_like.simulator.world.disk import Inode, SimDisk
from metadata.commands.cluster import RegisterBroker
from metadata.commands.envelope import Command, decode_result, encode
from metadata.commands.results import Registered
from metadata.journal.journal import prepare_journal
from metadata.quorum import protocol
from metadata.quorum.limits import QuorumLimits
from metadata.quorum.node import QuorumNode
from metadata.quorum.pace import pause_after_tick
from metadata.quorum.port import Outcome
from metadata.quorum.protocol import BrokerHeartbeat, EngineFrame, Propose
from metadata.raft import messages
from metadata.raft.messages import AppendReply
from metadata.records.events import MetadataEvent
from metadata.voters.identity import QuorumIdentity
from raftlog.config import TimingConfig
from raftlog.model import BrokerId, DirectoryId, Endpoint

LATENCY_SECONDS = 0.000_25
BYTES_A_SECOND = 1.25e9
FSYNC_SECONDS = 0.001
HERE = Endpoint("127.0.0.1", 9641)


class _Append(msgspec.Struct, array_like=True, tag="append.1"):
    """The part of an append that a stub reads."""

    term: int
    prev_index: int
    prev_term: int
    commit_index: int
    entries: tuple[msgspec.Raw, ...]


class _Engine(msgspec.Struct, array_like=True, tag="engine.1"):
    message: msgspec.Raw | bytes


class _Proposed(msgspec.Struct, array_like=True, tag="proposed.1"):
    request_id: int
    fate: str
    index: int = -1
    result: bytes = b""
    detail: str = ""


_append_decoder = msgspec.msgpack.Decoder(_Append)
_frame_decoder = msgspec.msgpack.Decoder(list[Any])


class World:
    """Virtual time, and the participants."""

    def __init__(self, voters: int, limits: QuorumLimits | None = None) -> None:
        self.now = 0.0
        self.timing = TimingConfig()
        self.messages = 0
        self.message_bytes = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._made = 0
        self.limits = limits
        ids = tuple(BrokerId(n) for n in range(voters))
        self.voters = [Voter(self, n, ids) for n in ids]
        self.stubs: list[Stub] = []
        self.nodes: dict[int, Voter | Stub] = {voter.number: voter for voter in self.voters}
        for voter in self.voters:
            voter.start()

    def at(self, when: float, call: Callable[[], None]) -> None:
        self._made += 1
        heapq.heappush(self._events, (when, self._made, call))

    def run(self, seconds: float = math.inf, until: Callable[[], bool] = lambda: False) -> bool:
        """Run for this number of virtual seconds, or until the condition holds. Returns whether it does."""
        end = self.now + seconds
        while not until():
            if not self._events or self._events[0][0] > end:
                self.now = max(self.now, end)
                return until()
            self.now, _, call = heapq.heappop(self._events)
            call()
        return True

    def send(self, sender: int, receiver: int, message: bytes, leaves_at: float) -> None:
        self.messages += 1
        self.message_bytes += len(message)
        node = self.nodes.get(receiver)
        if node is not None:
            self.at(leaves_at + LATENCY_SECONDS + len(message) / BYTES_A_SECOND, lambda: node.hear(sender, message))

    @property
    def leader(self) -> Voter | None:
        """The leader on which all running voters agree, or None."""
        running = [voter for voter in self.voters if voter.node is not None]
        said = {int(voter.node.status().leader) for voter in running if voter.node is not None}
        return self.voters[said.pop()] if len(said) == 1 and said <= {v.number for v in running} else None

    def the_leader(self) -> Voter:
        assert self.run(30.0, lambda: self.leader is not None), "there is no leader after half a minute"
        assert self.leader is not None
        return self.leader

    def add_stubs(self, count: int) -> None:
        """Add stub brokers, and register and unfence them."""
        first = len(self.voters) + len(self.stubs)
        for number in range(first, first + count):
            stub = Stub(self, number)
            self.stubs.append(stub)
            self.nodes[number] = stub
            stub.meet_everybody()
        image = self.the_leader().image
        wanted = set(self.nodes)
        assert self.run(
            120.0, lambda: all(b in image.brokers and not image.brokers[BrokerId(b)].fenced for b in wanted)
        ), "brokers are still fenced after two minutes"


class _Disk(SimDisk):
    """A disk that counts its syncs."""

    def __init__(self) -> None:
        super().__init__()
        self.synced = 0

    def fsync_inode(self, inode: Inode) -> None:
        super().fsync_inode(inode)
        self.synced += 1


class Voter:
    """A process of a quorum: `QuorumNode` with a core of its own. `observer`: without a vote."""

    def __init__(self, world: World, number: int, voters: Sequence[BrokerId]) -> None:
        self.world = world
        self.number = BrokerId(number)
        self.directory = DirectoryId(number.to_bytes(16, "big"))
        self.identity = QuorumIdentity("scale", self.number, self.directory, tuple(voters), HERE)
        self.disk = _Disk()
        prepare_journal(self.disk, self.identity)
        self.node: QuorumNode | None = None
        self.on_events: Callable[[int, Sequence[MetadataEvent]], None] = lambda index, events: None
        self.busy_seconds = 0.0
        """The seconds of its core, without fsyncs."""
        self.longest_turn = 0.0
        self.sent_bytes = 0
        self.sent_messages = 0
        self._turn_began = 0.0
        self._inbox: list[tuple[int, bytes]] = []
        self._outbox: list[tuple[int, bytes]] = []
        self._free_at = 0.0
        self._wake_at = math.inf
        self._generation = 0

    @property
    def image(self) -> Any:
        assert self.node is not None
        return self.node.image

    def start(self) -> None:
        self._turn_began = time.thread_time()
        self.node = QuorumNode(
            self.identity,
            disk=self.disk,
            clock=self,  # type: ignore[arg-type]
            random=random.Random(int(self.number)),
            timing=self.world.timing,
            send=lambda peer, message: self._outbox.append((peer, message)),
            on_events=lambda index, events: self.on_events(index, events),
            limits=self.world.limits,
        )
        self.world.nodes[self.number] = self
        for other in list(self.world.nodes.values()):
            if other is not self:
                self.world.at(self.world.now, lambda other=other: self._connect(other))
        command = RegisterBroker.of(
            self.number, self.directory, int(self.world.now * 1000) + 1, api=HERE, data=HERE, rack="",
            feature_level=1, reports=[],
        )  # fmt: skip
        self.node.register(command, lambda outcome: None)
        self._wake(self.world.now)

    def kill(self) -> None:
        self.node = None
        self._generation += 1
        self._inbox.clear()
        del self.world.nodes[self.number]
        for other in self.world.nodes.values():
            if isinstance(other, Voter) and other.node is not None:
                other.node.on_disconnected(self.number)
                other.node.on_gone(self.number)

    def _connect(self, other: Voter | Stub) -> None:
        if self.node is None or other.number not in self.world.nodes:
            return
        self.node.on_hello(BrokerId(other.number), other.directory, HERE)
        self.node.on_connected(BrokerId(other.number))
        if isinstance(other, Voter) and other.node is not None:
            other.node.on_hello(self.number, self.directory, HERE)
            other.node.on_connected(self.number)

    # --- The voter's clock, while it runs ---

    def monotonic(self) -> float:
        return self.world.now + (time.thread_time() - self._turn_began if self._turn_began else 0.0)

    def wall_ms(self) -> int:
        return int(self.monotonic() * 1000)

    # --- Turns ---

    def hear(self, sender: int, message: bytes) -> None:
        if self.node is not None:
            self._inbox.append((sender, message))
            self._wake(self.world.now)

    def ask(self, call: Callable[[QuorumNode], None]) -> None:
        """Propose as if from the broker of this node."""
        assert self.node is not None
        call(self.node)
        self._wake(self.world.now)

    def propose(self, command: Command, done: Callable[[Outcome], None], timeout: float = 120.0) -> None:
        self.ask(lambda node: node.propose(command, done, timeout=timeout))

    def _wake(self, when: float) -> None:
        when = max(when, self._free_at)
        if when < self._wake_at:
            self._wake_at = when
            generation = self._generation
            self.world.at(when, lambda: self._turn(when) if generation == self._generation else None)

    def _turn(self, due: float) -> None:
        if due != self._wake_at or self.node is None:
            return
        self._wake_at = math.inf
        inbox, self._inbox = self._inbox, []
        synced = self.disk.synced
        self._turn_began = time.thread_time()
        for sender, message in inbox:
            self.node.on_message(BrokerId(sender), message)
        self.node.tick()
        took = time.thread_time() - self._turn_began
        self._turn_began = 0.0
        self.busy_seconds += took
        self.longest_turn = max(self.longest_turn, took)
        self._free_at = self.world.now + took + FSYNC_SECONDS * (self.disk.synced - synced)
        outbox, self._outbox = self._outbox, []
        for receiver, message in outbox:
            self.sent_bytes += len(message)
            self.sent_messages += 1
            self.world.send(self.number, receiver, message, self._free_at)
        self._wake(self._free_at + (0.0 if self.node.busy else self._pause()))

    def _pause(self) -> float:
        assert self.node is not None
        return pause_after_tick(self.node, self.world.now, self.world.timing.quorum_heartbeat_ms / 1000)

    def forget_costs(self) -> None:
        self.busy_seconds = self.longest_turn = 0.0
        self.sent_bytes = self.sent_messages = 0


class Stub:
    """A broker that is no voter, as the quorum's leader sees it."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = BrokerId(number)
        self.directory = DirectoryId(number.to_bytes(16, "big"))
        self.incarnation = -1
        self.alive = True
        self._leader = -1
        self._index = 0
        self._done: dict[int, tuple[float, Callable[[float, _Proposed], None]]] = {}
        self._asked = 0
        self._registering = False

    def meet_everybody(self) -> None:
        for voter in self.world.voters:
            if voter.node is not None:
                voter.ask(lambda node: node.on_hello(self.number, self.directory, HERE))
                voter.ask(lambda node: node.on_connected(self.number))

    def stop(self) -> None:
        """Stop sending anything."""
        self.alive = False
        del self.world.nodes[self.number]
        for voter in self.world.voters:
            if voter.node is not None:
                voter.ask(lambda node: node.on_disconnected(self.number))
                voter.ask(lambda node: node.on_gone(self.number))

    def hear(self, sender: int, message: bytes) -> None:
        if not self.alive:
            return
        tag, *fields = _frame_decoder.decode(message)
        if tag == "engine.1" and fields[0][:10].find(b"append.1") >= 0:
            append = _append_decoder.decode(fields[0])
            self._index = max(self._index, append.prev_index + len(append.entries))
            reply = AppendReply(append.term, True, append.prev_index + len(append.entries), 0)
            self._send(sender, EngineFrame(messages.encode(reply)))
            if self._leader != sender:
                self._leader = sender
                self._register() if self.incarnation < 0 else None
        elif tag == "proposed.1":
            answer = _Proposed(*fields)
            asked_at, done = self._done.pop(answer.request_id, (0.0, lambda seconds, answer: None))
            done(self.world.now - asked_at, answer)

    def _register(self) -> None:
        if self._registering:
            return
        self._registering = True
        command = RegisterBroker.of(
            self.number, self.directory, 1, api=HERE, data=HERE, rack=f"rack-{self.number % 3}", feature_level=1,
            reports=[],
        )  # fmt: skip
        self.propose(command, self._registered)

    def _registered(self, seconds: float, answer: _Proposed) -> None:
        self._registering = False
        result = decode_result(answer.result) if answer.fate == "applied" else None
        if isinstance(result, Registered):
            self.incarnation = int(result.incarnation)
            self.world.at(self.world.now + random.Random(int(self.number)).uniform(0.0, 0.2), self._beat)
        else:
            self._leader = -1

    def _beat(self) -> None:
        if self.alive:
            beat = BrokerHeartbeat(self.number, self.incarnation, self._index, False)
            self._send(self._leader, beat)
            self.world.at(self.world.now + self.world.timing.broker_heartbeat_ms / 1000, self._beat)

    def propose(self, command: Command, done: Callable[[float, _Proposed], None]) -> None:
        """Propose a command; `done` gets its seconds and the answer."""
        self._asked += 1
        self._done[self._asked] = (self.world.now, done)
        self._send(self._leader, Propose(self._asked, encode(command), False))

    def _send(self, receiver: int, frame: protocol.Frame) -> None:
        self.world.send(self.number, receiver, protocol.encode(frame), self.world.now)


def settle_memory() -> None:
    """Exclude the objects that are loaded now from garbage collection."""
    gc.collect()
    gc.freeze()
