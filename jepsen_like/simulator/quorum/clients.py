"""Clients of the simulated quorum, and the check that their answers are linearizable (S7).

Each operation is one call at one voter, made in the way the voter's own broker makes it: grant a block of producer ids,
create a register that is empty (compare-and-set from nothing), delete one by its id (compare-and-set to nothing), write
one, or read one after a read barrier. The voter forwards a command to the leader under its session, and sends it again
after a lost attempt.

The log itself is the witness of linearizability: an operation's place is the index of its first copy. The operation is
correct if this place is after every index that had been answered when the operation began, and if the answer is what
the model computes at that place. A read's place is its barrier.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from jepsen_like.simulator.world.heap import EventHeap, Life
from jepsen_like.simulator.world.violation import Violation
from metadata.commands.cluster import AlterTopic, CreateTopic, DeleteTopic, GrantProducerIds
from metadata.commands.envelope import Command
from metadata.commands.results import Done, ProducerIdsGranted
from metadata.quorum.port import Fate, Outcome
from raftlog.model import NO_INCARNATION, TopicId

from .model import REGISTERS, VALUE
from .node import QuorumSimNode
from .schedule import Operation
from .truth import QuorumTruth

TIMEOUT = 2.0
"""Timeout of an operation in seconds, by its node's clock..."""
PATIENCE = 6.0
"""...and by virtual time, as long as the node's process lives and is not stopped."""


@dataclass(slots=True)
class Call:
    """An open operation, made in one life of a node."""

    operation: Operation
    life: Life
    began: float
    answered_before: int
    """The greatest index in any answer at the time the operation began."""
    command: Command | None = None
    timed: bool = True
    """No outcome has arrived yet. (After its barrier a read waits for its node's image, for which no limit is known
    while the node is isolated.)
    """
    over: bool = False


class QuorumClients:
    """All clients of one run."""

    def __init__(self, heap: EventHeap, nodes: list[QuorumSimNode], truth: QuorumTruth, rng: random.Random) -> None:
        self._heap = heap
        self._nodes = nodes
        self._truth = truth
        self._rng = rng
        self._number = 0
        self._answered = 0
        self._open: list[Call] = []
        self._refused: list[Command] = []
        self._reads: dict[int, list[tuple[Call, int]]] = {}
        """Node → the reads with a known barrier, each with the index that the node's image must reach."""
        self.counts = {"applied": 0, "refused": 0, "unknown": 0, "reads": 0}

    # --- Calling -----------------------------------------------------------------------------------------------------

    def begin(self, operation: Operation, node: QuorumSimNode) -> Call:
        """Record a call at a running process. It must end in time; the caller then sets `over`."""
        assert node.life is not None
        call = Call(operation, node.life, self._heap.now, self._answered)
        self._open.append(call)
        return call

    def call(self, operation: Operation, *, then: Callable[[bool], None] = lambda applied: None) -> bool:
        """Begin an operation; returns False if the node cannot be asked. `then` is called with whether it was
        applied.
        """
        node = self._nodes[operation.node]
        if not node.running or node.quorum is None:
            return False
        command = None if operation.kind == "read" else self._command(node, operation)
        if command is None and operation.kind != "read":
            return False
        call = self.begin(operation, node)
        if command is None:
            node.quorum.read_barrier(lambda outcome: then(self._barrier(node, call, outcome)), timeout=TIMEOUT)
        else:
            call.command = command
            node.quorum.propose(command, lambda outcome: then(self._outcome(call, outcome)), timeout=TIMEOUT)
        node.tick_soon()
        return True

    def _command(self, node: QuorumSimNode, operation: Operation) -> Command | None:
        """The command to propose, from this node's view. Every command has unique content."""
        assert node.quorum is not None
        self._number += 1
        name = REGISTERS[operation.subject]
        value = ((VALUE, str(100_000 + self._number)),)
        held = node.quorum.image.topic_ids.get(name)
        if operation.kind == "grant" or (operation.kind == "delete" and held is None):
            if node.incarnation == NO_INCARNATION:
                return None
            return GrantProducerIds(node.node_id, node.incarnation, self._number)
        if operation.kind == "create" or held is None:
            topic_id = TopicId(self._number.to_bytes(16, "big"))
            return CreateTopic(name, topic_id, ((node.node_id,),), value)
        return DeleteTopic(held) if operation.kind == "delete" else AlterTopic(held, value)

    # --- Answers -----------------------------------------------------------------------------------------------------

    def _outcome(self, call: Call, outcome: Outcome) -> bool:
        call.over = True
        self.counts[outcome.fate.value] += 1
        if outcome.fate is Fate.APPLIED:
            self._check_applied(call, outcome)
            self._answered = max(self._answered, outcome.index)
        elif outcome.fate is Fate.REFUSED and call.command is not None:
            self._refused.append(call.command)
        return outcome.fate is Fate.APPLIED

    def _check_applied(self, call: Call, outcome: Outcome) -> None:
        assert call.command is not None
        told = f"{call.command} at node {call.operation.node} was answered with {outcome}"
        fact = self._truth.model.facts.get(call.command)
        if outcome.index > self._truth.commit_index:
            raise Violation(f"S7.9: {told}; committed is {self._truth.commit_index}")
        if fact is None or fact.index > outcome.index:
            raise Violation(f"S7.9: {told}; the log has {fact}")
        if not isinstance(call.command, DeleteTopic) and fact.index <= call.answered_before:
            raise Violation(f"S7.9: {told}; {fact} is before {call.answered_before}, answered before it began")
        if isinstance(outcome.result, ProducerIdsGranted):
            wrong = (outcome.result.first, fact.changed) != (fact.granted, True)
        else:
            wrong = isinstance(outcome.result, Done) is not fact.changed
        # Two clients may delete one topic by commands of the same content: the refusal of the second is correct.
        if wrong and not isinstance(call.command, DeleteTopic):
            raise Violation(f"S7.9: {told}; the log has {fact}")

    def _barrier(self, node: QuorumSimNode, call: Call, outcome: Outcome) -> bool:
        call.timed = False
        if outcome.fate is not Fate.APPLIED:
            call.over = True
            return False
        if outcome.index < call.answered_before:
            raise Violation(
                f"S7.9: a read at node {node.node_id} may be answered as of {outcome.index}; {call.answered_before} "
                "had been answered when it began"
            )
        self._reads.setdefault(int(node.node_id), []).append((call, outcome.index))
        self.applied(node)
        return True

    def applied(self, node: QuorumSimNode) -> None:
        """The node's image changed: answer the reads that waited for it. `QuorumTruth` checks the image itself."""
        waiting = self._reads.get(int(node.node_id))
        if not waiting or node.quorum is None:
            return
        for call, index in waiting:
            if node.quorum.image.index >= index or index <= 1:
                call.over = True
                self.counts["reads"] += 1
                self._answered = max(self._answered, node.quorum.image.index)
        self._reads[int(node.node_id)] = [(call, index) for call, index in waiting if not call.over]

    # --- At the end
    # ----------------------------------------------------------------------------------------------------

    def check_patience(self, stopped: Callable[[int], bool]) -> None:
        """S10: every call is answered, or its process died. `stopped(node)`: the node was halted or slowed
        meanwhile.
        """
        now = self._heap.now
        still: list[Call] = []
        for call in self._open:
            if call.over or not call.life.alive:
                continue
            if call.timed and now - call.began > PATIENCE and not stopped(call.operation.node):
                raise Violation(f"S10: {call.command or call.operation} at node {call.operation.node} is not answered")
            still.append(call)
        self._open = still

    @property
    def waiting(self) -> int:
        """Unanswered calls at living processes."""
        return sum(1 for call in self._open if not call.over and call.life.alive)

    def check_refused(self) -> None:
        """S7.9: a command with a definite refusal is not in the log."""
        for command in self._refused:
            fact = self._truth.model.facts.get(command)
            if fact is not None and not isinstance(command, DeleteTopic):
                raise Violation(f"S7.9: {command} was refused for certain, and the log has {fact}")
