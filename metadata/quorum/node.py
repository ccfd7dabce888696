"""One node of the metadata quorum, sans-I/O: the engine, the cluster image, the controller, sessions and forwarding.

`QuorumNode` runs unchanged in production and in the simulator. Inputs (a message, a link that opened or closed, a
proposal) are staged; `tick` advances time, syncs the journal once for all of them, and only then sends, applies and
answers. The caller passes in what arrived, then calls `tick` if the node `wants_tick`. It also calls `tick` every
10-50 ms without input, or about once per heartbeat interval while the node `reaches_leader`; on a leader, soon after
its `next_heartbeat`.

Outputs are callbacks: `send(peer, message)`; `on_events(index, events)`, in log order, every applied index exactly
once, or (after an installed snapshot) the image's difference at the snapshot's index; `on_leader(leader)` as a hint
for people; `on_configuration(configuration)` when the log names other voters, for the code that dials them.

A node that the log does not name as a voter is an *observer*: it receives committed entries from the leader, proposes
and reads like any other, and counts toward no majority.

Errors: `RemoteProtocolError` from `on_message` means that the peer broke the protocol: the caller drops that link,
and nothing else happened (only after a false claim to lead, this node is in the next term). `InvariantViolation`,
`DiskFailed` and `DiskFull` from any call mean that the node must stop, because it no longer knows what it promised.
They are never retried, and every later call raises the same error again; no peer's message leads to them. If the
journal cannot be written for lack of descriptors or memory, the write is retried in every tick, for
`SHORTAGE_SECONDS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from metadata.commands.cluster import NoOp, RegisterBroker
from metadata.commands.envelope import ClientSession, Command, decode, encode
from metadata.image import invariants as image_invariants
from metadata.image.image import ClusterImage
from metadata.raft.engine import Ready
from metadata.raft.pysyncobj_engine import PySyncObjEngine
from metadata.raft.pysyncobj_node import EngineChecks
from metadata.records.events import MetadataEvent
from metadata.voters.changes import VoterChange
from metadata.voters.configuration import Configuration
from metadata.voters.directories import VoterDirectories
from metadata.voters.identity import QuorumIdentity
from raftlog.config import TimingConfig
from raftlog.errors import InvalidRequest, InvariantViolation, RemoteProtocolError, ResourceShortage
from raftlog.model import NO_BROKER, BrokerId, DirectoryId, Endpoint, Incarnation, QuorumStatus
from raftlog.ports import Buffer, Clock, Disk, Random

from . import protocol
from .controlling import Controlling
from .forwarded import Forwarded
from .lanes import Lanes, is_urgent
from .limits import QuorumLimits
from .machine import Snapshots, StateMachine
from .own_broker import OwnBroker
from .plausibility import check_plausible
from .port import Outcome
from .proposals import Done, Proposals
from .protocol import (
    BrokerHeartbeat,
    ChangeVoters,
    EngineFrame,
    Frame,
    HeartbeatAnswer,
    Propose,
    Proposed,
    StatusAnswer,
    StatusQuestion,
    VotersChanged,
)
from .questions import Barriers, StatusQuestions
from .received import ReceivedSnapshots
from .voter_requests import VoterChangeQueue, VoterChanges

ROUNDS_PER_TICK = 3
"""The most rounds in one tick. A round carries out what the previous one staged, so a single voter commits at once."""

APPLY_SECONDS = 0.004
"""Seconds for which a round may apply entries, and after which no other round follows; the rest waits for the next
tick."""

SHORTAGE_SECONDS = 30.0
"""Seconds for which journal writes are retried while descriptors or memory are short; then the node stops."""

TOO_MANY = "too many proposals are undecided: retry later"


def check_command(command: bytes) -> None:
    """Check a command that a leader sent. Raises `RemoteProtocolError` if this node could not apply it.

    Once committed, such a command would stop the node, at each start again.
    """
    decode(command)


class StopOnError:
    """The guard around every call of one node.

    The first error that is not a peer's fault stops the node permanently, because it no longer knows what it
    promised: every later call raises it again.
    """

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __enter__(self) -> None:
        if self.error is not None:
            raise self.error

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None and not isinstance(error, RemoteProtocolError):
            self.error = error


class Outgoing:
    """The outgoing frames of one node: the engine's messages at once, answers and questions at the end of a tick."""

    def __init__(self, send: Callable[[BrokerId, bytes], None]) -> None:
        """`send` puts a frame on the link to a peer, if there is one."""
        self._send = send
        self._queued: list[tuple[BrokerId, Frame]] = []

    def send_engine(self, said: Iterable[tuple[BrokerId, bytes]]) -> None:
        """Send the engine's messages. A message to many peers is one object, and is framed once."""
        framed: dict[int, bytes] = {}
        kept = list(said)  # keeps their identities unique
        for peer, message in kept:
            frame = framed.get(id(message))
            if frame is None:
                frame = framed[id(message)] = protocol.encode(EngineFrame(message))
            self._send(peer, frame)

    def queue(self, peer: BrokerId, frame: Frame) -> None:
        """Queue a frame until the end of the tick."""
        self._queued.append((peer, frame))

    def flush(self) -> None:
        """Send the queued frames."""
        queued, self._queued = self._queued, []
        for peer, frame in queued:
            self._send(peer, protocol.encode(frame))


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Counts of one node, for its status."""

    sequence: int
    """The last number given to a proposal of this node's session."""
    proposals: int
    """Proposals of this node that have no outcome yet."""
    proposal_bytes: int
    oldest_sequence: int | None
    """The smallest number among them; None if there is none."""
    undecided: int
    """Proposals handed to the engine here, of this node and of others, that have no outcome yet."""


class QuorumNode:
    """A node of the metadata quorum and the broker beside it. Single-threaded."""

    def __init__(
        self,
        identity: QuorumIdentity,
        *,
        disk: Disk,
        clock: Clock,
        random: Random,
        timing: TimingConfig,
        send: Callable[[BrokerId, bytes], None],
        on_events: Callable[[int, Sequence[MetadataEvent]], None],
        on_leader: Callable[[BrokerId], None] | None = None,
        on_configuration: Callable[[Configuration], None] | None = None,
        on_fault: Callable[[BrokerId, RemoteProtocolError], None] = lambda peer, error: None,
        limits: QuorumLimits | None = None,
        peers_are_proven: bool = True,
    ) -> None:
        """Open the journal (blocking). The state found on disk comes through `on_events` at the first `tick`.

        `on_fault` is called for a peer's fault that is found after its message was taken. `peers_are_proven`: whether
        certificates prove who the peers are.

        Raises `InvalidRequest` if the folder was never prepared or is another node's, `DiskDamaged` if it is damaged,
        `InvariantViolation` if another version wrote it, and `DiskFailed`.
        """
        self._identity = identity
        self._clock = clock
        self._limits = limits if limits is not None else QuorumLimits()
        self._outgoing = Outgoing(send)
        self._on_leader = on_leader or (lambda leader: None)
        self._on_configuration = on_configuration or (lambda configuration: None)
        self._configuration: Configuration | None = None
        self._leader: BrokerId = NO_BROKER
        checks = EngineChecks(check_command, snapshots=True, peers_are_proven=peers_are_proven)
        now = clock.monotonic()
        self.engine = PySyncObjEngine(identity, disk=disk, now=now, random=random, timing=timing, checks=checks)
        needed = not self.engine.base_configuration.is_pinned
        self._directories = VoterDirectories(disk, identity, needed=needed)
        self._machine = StateMachine(on_events)
        self._snapshots = Snapshots(self._machine, self.engine, self._limits)
        self._received = ReceivedSnapshots(self.engine, self._machine, on_fault)
        self._lanes = Lanes(self.engine.propose)
        # An answer to a question of this node's previous process must not match a question of this one.
        first_id = int.from_bytes(random.randbytes(7), "big")
        self._proposals = Proposals(identity.node_id, first_id, self._lanes.submit, self._outgoing.queue)
        self._controlling = Controlling(timing.broker_session_ms / 1000, self._lanes.submit)
        self._broker = OwnBroker(identity.node_id, timing, self._proposals)
        self._connected: set[BrokerId] = set()
        self.reaches_leader = False
        self._led = (-1, 0)
        """The term that this node leads, and the index that must be applied before it is the controller."""
        check = lambda command: check_plausible(self._machine.image, command)  # noqa: E731
        self._forwarded = Forwarded(self._limits, self._lanes.submit, self._outgoing.queue, check)
        self._session_id = random.randbytes(16)
        self._sequence = 0
        add = self._proposals.add
        self._barriers = Barriers(lambda by, done: add(encode(NoOp()), urgent=True, deadline=by, done=done))
        self._questions = StatusQuestions(first_id)
        self._changes = VoterChanges(first_id, self._ask_change)
        self._desk = VoterChangeQueue(self.engine, self._lanes)
        self._touched = True
        self._next_look: float | None = None
        """When time gives the next tick something to do (None until it is computed), unless an input has
        (`_touched`)."""
        self._short_since: float | None = None
        """When the journal first could not be written for lack of descriptors or memory; None while it can."""
        self._or_stop = StopOnError()

    # --- Links -------------------------------------------------------------------------------------------------------

    def on_hello(self, peer: BrokerId, directory_id: DirectoryId, endpoint: Endpoint | None = None) -> None:
        """Process the hello of a link on which the peer sends: it names the peer's disk."""
        with self._or_stop:
            self._touched = True
            voter = self.engine.base_configuration.voter(peer)
            if voter is not None and not voter.pinned:
                # Even if a later entry names its disk: that entry may be truncated.
                self.engine.distrust(peer, not self._directories.is_the_same(peer, directory_id))
            self.engine.meet(peer, directory_id, endpoint)

    def on_gone(self, peer: BrokerId) -> None:
        """Record that the peer's link to this node closed."""
        with self._or_stop:
            self._touched = True
            self.engine.forget(peer)

    def on_connected(self, peer: BrokerId) -> None:
        """Record that messages can be sent to this peer."""
        with self._or_stop:
            self._touched = True
            self._connected.add(peer)
            self.engine.peer_connected(peer)

    def on_disconnected(self, peer: BrokerId) -> None:
        """Record that messages to this peer are lost from now on."""
        with self._or_stop:
            self._touched = True
            self._connected.discard(peer)
            self.engine.peer_disconnected(peer)

    def on_message(self, peer: BrokerId, message: Buffer) -> None:
        """Process a message from a peer whose handshake was accepted. Raises `RemoteProtocolError`."""
        with self._or_stop:
            frame = protocol.decode(message)
            before = self._touched
            self._touched = True
            match frame:
                case EngineFrame(packed):
                    self._touched = self.engine.step(peer, packed) or before
                case HeartbeatAnswer():
                    self._touched = before  # only its absence would matter, and the controller's fence reports that
                case BrokerHeartbeat():
                    self._on_heartbeat(peer, frame)
                case Propose():
                    self._forwarded.on_propose(peer, frame)
                case Proposed():
                    self._proposals.on_proposed(peer, frame, self._clock.monotonic())
                case StatusQuestion(request_id):
                    self._outgoing.queue(peer, StatusAnswer.of(request_id, self.status()))
                case StatusAnswer(request_id):
                    self._questions.answer(request_id, frame.status)
                case ChangeVoters():
                    self._desk.answer(frame, lambda answer: self._outgoing.queue(peer, answer))
                case VotersChanged():
                    self._changes.on_answer(frame)
                case _:
                    raise RemoteProtocolError("a second hello")

    # --- The broker's requests ----------------------------------------------------------------------------------------

    def propose(self, command: Command, done: Done, *, timeout: float = 5.0) -> None:
        """Propose a command to the quorum's leader, wherever it is.

        `done` is called exactly once, from a later `tick`, within `timeout` seconds.
        """
        self._touched = True
        urgent = is_urgent(command)
        sequence = None if isinstance(command, NoOp) else self._sequence + 1
        if not self._proposals.have_room(0, sequence, self._limits, urgent=urgent):
            self._proposals.refuse(done, TOO_MANY)
            return
        applied = self._machine.applied_index
        session = None if sequence is None else ClientSession(self._session_id, sequence, applied)
        try:
            envelope = encode(command, session=session)
        except InvalidRequest as error:
            self._proposals.refuse(done, error.detail)
            return
        if not self._proposals.have_room(len(envelope), sequence, self._limits, urgent=urgent):
            self._proposals.refuse(done, TOO_MANY)
            return
        self._sequence = self._sequence if sequence is None else sequence
        deadline = self._clock.monotonic() + timeout
        self._proposals.add(envelope, urgent=urgent, deadline=deadline, done=done, sequence=sequence)

    def read_barrier(self, done: Done, *, timeout: float = 5.0) -> None:
        """Call `done` with an index that includes everything acknowledged before this call.

        A view that has reached it answers a linearizable read (S7). Barriers requested together share one log entry.
        """
        self._touched = True
        if len(self._barriers) >= self._limits.proposals_max:
            self._proposals.refuse(done, "too many reads wait for the quorum: retry later")
            return
        self._barriers.ask(self._clock.monotonic() + timeout, done)

    def leader_status(self, done: Callable[[QuorumStatus], None], *, timeout: float = 1.0) -> None:
        """Call `done` with the leader's status, or with this node's if the leader does not answer in time."""
        self._touched = True
        now = self._clock.monotonic()
        if self._leader in self._connected:
            self._outgoing.queue(self._leader, StatusQuestion(self._questions.ask(now + timeout, done)))
        else:
            self._questions.ask(now, done)

    def change_voters(
        self, change: VoterChange, done: Callable[[VotersChanged], None], *, plan: bool = False, timeout: float = 10.0
    ) -> None:
        """Request that the leader add or remove one voter, or with `plan` only report the result.

        `done` is called once, within `timeout` seconds.
        """
        self._touched = True
        self._changes.add(change, plan=plan, deadline=self._clock.monotonic() + timeout, done=done)

    def _ask_change(self, leader: BrokerId, asked: ChangeVoters, told: Callable[[VotersChanged], None]) -> None:
        if leader == self._identity.node_id:
            self._desk.answer(asked, told)
        else:
            self._outgoing.queue(leader, asked)

    def register(self, command: RegisterBroker, done: Done) -> None:
        """Register the broker of this process, then send its heartbeats.

        A barrier first determines which registration it replaces; then it is proposed until the state machine answers.
        `done` is called once: with applied (if the result is a refusal, another process holds the id and this one
        must stop), or with unknown if the node closes first.
        """
        self._touched = True
        self._barriers.ask(math.inf, lambda barrier: self._register(command, barrier, done))

    def _register(self, command: RegisterBroker, barrier: Outcome, done: Done) -> None:
        self._broker.register(command, barrier, done)
        self._touched = True

    def stop_broker(self, done: Callable[[bool], None], *, timeout: float = 5.0) -> None:
        """Announce an orderly stop of this broker in its heartbeats.

        `done(True)` is called when it is fenced and so leads nothing any more, `done(False)` if that did not happen
        in time.
        """
        self._touched = True
        self._broker.stop(self._clock.monotonic() + timeout, done)

    def status(self) -> QuorumStatus:
        """Return the status as this node knows it now."""
        return self.engine.status()

    def facts(self) -> NodeFacts:
        """Return the counts of what this node holds."""
        waiting = self._proposals
        return NodeFacts(self._sequence, len(waiting), waiting.size_bytes, waiting.oldest_sequence, self._lanes.waiting)

    @property
    def next_heartbeat(self) -> float:
        """When the leader's heartbeat is due, by the clock; infinite if this node does not lead."""
        return self.engine.next_heartbeat

    @property
    def busy(self) -> bool:
        """Whether a tick ran out of time: the caller passes in what arrived and ticks again at once."""
        return self._machine.behind or self._proposals.hurries or bool(self._lanes)

    @property
    def wants_tick(self) -> bool:
        """Whether a tick has anything to do now. It has not if the only inputs were peers' signs of life."""
        return self._touched or self._clock.monotonic() >= self.next_look

    @property
    def next_look(self) -> float:
        """When time alone gives the next tick something to do, by the clock."""
        if self._next_look is None:
            at_once = self.busy or self._questions or self._snapshots.under_way or self._received.under_way
            timed = (self.engine, self._proposals, self._barriers, self._changes, self._controlling, self._broker)
            self._next_look = -math.inf if at_once else min([part.next_due for part in timed])
        return self._next_look

    @property
    def image(self) -> ClusterImage:
        """The state after everything applied so far. Read-only for callers."""
        return self._machine.image

    # --- Time --------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do everything that is due. The caller ticks after every batch of inputs and from time to time (see the
        module)."""
        with self._or_stop:
            now = self._clock.monotonic()
            self._touched = False
            self._next_look = None
            for _ in range(ROUNDS_PER_TICK):
                if not self._round(now) or self._clock.monotonic() - now > APPLY_SECONDS:
                    break
            self._tell_controller(now)
            self._desk.pin(now)
            self._notice_configuration()
            self._snapshots.go_on()
            until = now + APPLY_SECONDS
            self._received.go_on(lambda: self._clock.monotonic() < until)
            self._outgoing.flush()
            if self._machine.between_entries:
                self._broker.notice_fence(now, self._machine.image)
                self._touched = self._broker.propose_registration(self._machine.image) or self._touched
            self._questions.end_overdue(now, self.status)
            self._proposals.finish()

    def _round(self, now: float) -> bool:
        """Stage, sync, send, apply and decide. Returns whether that staged more."""
        self._barriers.pump(now)
        leader = self.engine.leader
        self.reaches_leader = leader == self._identity.node_id or leader in self._connected
        self._proposals.pump(now, leader, self.reaches_leader)
        self._changes.pump(now, leader, self.reaches_leader)
        self._lanes.drain()
        self.engine.tick(now)
        ready = self._ready(now)
        if ready is None:
            return False
        self._outgoing.send_engine(ready.messages)
        for lost in ready.lost:
            self._lanes.lost(lost)
        self._machine.give(ready.applied)
        if self._machine.behind:
            until = self._clock.monotonic() + APPLY_SECONDS
            for applied, result in self._machine.carry_on(lambda: self._clock.monotonic() < until):
                self._lanes.applied(applied, result)
        # Entries that are not applied yet stay in the log, not in memory here.
        self.engine.hold_back(self._machine.behind)
        self._notice_leader()
        leads = self._leads()
        if not leads or self._machine.between_entries:
            self._controlling.update(leads, self.engine.term, self._machine.image, now)
            self._controlling.decide(now, self.engine.configuration.node_ids)
        return bool(self._lanes)

    def _ready(self, now: float) -> Ready | None:
        """Return the engine's `Ready`, or None if the journal could not be written for lack of descriptors or memory.

        In that case nothing was promised, and the next tick retries. To its peers this node does not respond meanwhile,
        as if it were cut off.
        """
        try:
            ready = self.engine.ready()
        except ResourceShortage:
            self._short_since = now if self._short_since is None else self._short_since
            if now - self._short_since >= SHORTAGE_SECONDS:
                raise
            self._touched = True
            return None
        self._short_since = None
        return ready

    def _leads(self) -> bool:
        """Return whether this node leads and its machine has applied what was committed before its term."""
        if not self.engine.is_leader:
            self._led = (-1, 0)
        elif self._led[0] != self.engine.term:
            self._led = (self.engine.term, self._machine.given_index)
        return self._led[0] >= 0 and self._machine.applied_index >= self._led[1]

    def _notice_leader(self) -> None:
        if self.engine.leader != self._leader:
            self._leader = self.engine.leader
            self._on_leader(self._leader)

    def _notice_configuration(self) -> None:
        if self.engine.configuration != self._configuration:
            self._configuration = self.engine.configuration
            self._on_configuration(self._configuration)

    # --- Heartbeats --------------------------------------------------------------------------------------------------

    def _tell_controller(self, now: float) -> None:
        leader = self._leader
        controller = leader if leader == self._identity.node_id or leader in self._connected else NO_BROKER
        heartbeat = self._broker.heartbeat(now, controller, self._machine.applied_index, self._clock.wall_ms())
        if heartbeat is not None and controller == self._identity.node_id:
            self._on_heartbeat(controller, heartbeat)
        elif heartbeat is not None:
            self._outgoing.queue(controller, heartbeat)

    def _on_heartbeat(self, peer: BrokerId, frame: BrokerHeartbeat) -> None:
        if frame.broker_id != peer:
            raise RemoteProtocolError(f"node {peer} sent a heartbeat of broker {frame.broker_id}")
        incarnation = Incarnation(frame.incarnation)
        known = self._controlling.heartbeat(
            peer,
            incarnation,
            frame.applied_index,
            self._clock.monotonic(),
            stopping=frame.stopping,
            wall_ms=frame.wall_ms,
        )
        if known is not None and peer != self._identity.node_id:
            self._outgoing.queue(peer, HeartbeatAnswer(frame.incarnation, known))

    # --- The end -----------------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Check everything that must hold between any two calls, for tests. Raises `InvariantViolation`."""
        self.engine.check_invariants()
        if self._machine.between_entries:
            image_invariants.check(self._machine.image)
        applied = self.engine.status().applied_index
        if self._machine.applied_index > applied:
            raise InvariantViolation(f"the image is at {self._machine.applied_index}, the engine {applied}")

    def close(self) -> None:
        """Sync and close the files. Every waiting proposal ends as unknown, or as refused if no node received it."""
        self._changes.close()
        self._barriers.close()
        self._proposals.close()
        self.engine.close(sync=self._or_stop.error is None)
