"""Observation of a simulated world from outside: the operations of its clients and its faults, as they happen.

Watching draws no random number and schedules no event, so that a seed keeps its trace.

| world | operations |
|---|---|
| `clients` | `send` of producers, `poll` of readers and of members |
| `cluster`, `transactions` | `send` and `poll`, of applications too; `commit` of transactions |
| `quorum`, `security`, `consumers` | on registers `create`, `delete`, `grant` and so on, `read` |
| `groups` | the same; of members `join`, `heartbeat`, … |
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from jepsen_like.run_records import Fault
from jepsen_like.simulator.brokers.history import Fate, Read, Send
from jepsen_like.simulator.cluster import run
from jepsen_like.simulator.consumers import run as consumers_run
from jepsen_like.simulator.groups import run as group_run
from jepsen_like.simulator.groups.members import SimMember
from jepsen_like.simulator.library import run as client_run
from jepsen_like.simulator.library.clients import Application, ProducerApplication
from jepsen_like.simulator.load.clients import REQUEST_TIMEOUT
from jepsen_like.simulator.load.consumers import SimConsumer
from jepsen_like.simulator.quorum import run as quorum_run
from jepsen_like.simulator.quorum.clients import QuorumClients
from jepsen_like.simulator.security import run as security_run
from jepsen_like.simulator.transactions import run as transaction_run
from jepsen_like.simulator.transactions.truth import Attempt, TransactionTruth
from raftlog.client.consuming.records import ConsumerRecord
from raftlog.client.producing.delivery import RecordMetadata
from raftlog.errors import RaftlogError
from raftlog.ports import Answer

WORLDS: dict[str, tuple[Any, str]] = {
    "cluster": (run, "SimulatedWorld"),
    "transactions": (transaction_run, "TransactionWorld"),
    "quorum": (quorum_run, "QuorumWorld"),
    "groups": (group_run, "GroupWorld"),
    "consumers": (consumers_run, "ConsumersWorld"),
    "security": (security_run, "SecurityWorld"),
    "clients": (client_run, "ClientWorld"),
}
"""Kind → the module of its world, and the name of the class."""

MEMBERS_ASK = {"joined": "join", "heard": "heartbeat", "found": "committed", "done": "commit"}
"""Method that receives a member's answer → the request; any other method: a leave."""
NOTED_MAX = 5
"""Maximum number of lines in a fault's evidence."""


@dataclass(slots=True)
class Began:
    """An operation without an end so far."""

    lane: int
    life: int
    f: str
    node: str


@dataclass(slots=True)
class Line:
    """A line of the history, before processes are numbered."""

    lane: int
    life: int
    kind: Any
    f: str
    value: Any
    time: int
    node: str = ""
    error: Any = None


@dataclass(slots=True)
class Watch:
    """The observations of one world.

    A lane is a client with one operation at a time; it begins another life after an operation with unknown outcome.
    """

    world: Any = None
    lines: list[Line] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    free: dict[object, list[int]] = field(default_factory=dict)
    """Client → its idle lanes."""
    lives: list[int] = field(default_factory=list)
    """Lane → the number of its lives so far."""
    open_sends: list[tuple[Began, Send]] = field(default_factory=list)
    reads: dict[object, list[Read]] = field(default_factory=dict)
    """Reads of consumers that no poll has reported yet."""
    commits: dict[int, tuple[Attempt, Began]] = field(default_factory=dict)
    """Commits without an answer yet, by the identity of the attempt."""
    refused: int = 0
    """Refused calls of the quorum's clients."""
    seen: tuple[int, int] = (0, 0)
    """Number of sends and reads of the world's history that were processed."""

    def now(self) -> int:
        return int(self.world.heap.now * 1e9)

    def begin(self, who: object, f: str, value: Any, node: str = "") -> Began:
        lanes = self.free.setdefault(who, [])
        if lanes:
            lane = lanes.pop()
        else:
            lane = len(self.lives)
            self.lives.append(0)
        began = Began(lane, self.lives[lane], f, node)
        self.lines.append(Line(lane, began.life, "invoke", f, value, self.now(), node))
        return began

    def end(self, who: object, began: Began, kind: str, value: Any = None, error: Any = None) -> None:
        line = Line(began.lane, began.life, kind, began.f, value, self.now(), began.node, error)
        self.lines.append(line)
        self.lives[began.lane] += kind == "info"
        self.free[who].append(began.lane)

    def take_back(self, line: int) -> None:
        """Remove an invocation: the call was not sent."""
        self.free[self.lines[line].node].append(self.lines[line].lane)
        del self.lines[line:]

    # --- Of clusters -------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """After an event, record which sends began and ended, and what was read."""
        history = getattr(self.world, "history", None)
        if history is None:
            return
        sends, reads = self.seen
        for send in history.sends[sends:]:
            key = str(send.topic_partition)
            value = [["send", key, _text(one)] for one in send.values if one is not None]
            self.open_sends.append((self.begin(("producer", send.producer), "send", value), send))
        for read in history.reads[reads:]:
            self.reads.setdefault((read.consumer, read.topic_partition), []).append(read)
        self.seen = len(history.sends), len(history.reads)
        if any(send.fate is not None for _, send in self.open_sends):
            for began, send in self.open_sends:
                if send.fate is not None:
                    self._sent(began, send)
            self.open_sends = [one for one in self.open_sends if one[1].fate is None]

    def _sent(self, began: Began, send: Send) -> None:
        assert send.fate is not None
        key, at = str(send.topic_partition), send.base_offset if send.fate is Fate.OK else -1
        numbered = [(number, one) for number, one in enumerate(send.values) if one is not None]
        told = [["send", key, [at + number if at >= 0 else None, _text(one)]] for number, one in numbered]
        self.end(("producer", send.producer), began, send.fate.value, told)

    def poll(self, consumer: SimConsumer, then: Callable[[], None]) -> Callable[[], None]:
        """Record a poll, and return the callback that replaces `then`."""
        who = (consumer.number, consumer.topic_partition)
        began, at = self.begin(("consumer", *who), "poll", [["poll"]]), self.world.heap.now

        def over() -> None:
            self.look()
            pairs = [[offset, _text(one)] for read in self.reads.pop(who, []) for offset, one in read.records if one]
            silent = not pairs and self.world.heap.now >= at + REQUEST_TIMEOUT
            told = [["poll", {str(consumer.topic_partition): pairs} if pairs else {}]]
            self.end(("consumer", *who), began, "fail" if silent else "ok", told, "no answer" if silent else None)
            then()

        return over

    # --- Of the quorum -----------------------------------------------------------------------------------------------

    def called(self, clients: QuorumClients, operation: Any, then: Callable[[bool], None]) -> Callable[[bool], None]:
        """Record a call at a voter, as `poll` does."""
        node = f"n{operation.node + 1}"
        began = self.begin(node, operation.kind, f"register-{operation.subject}", node)

        def over(applied: bool) -> None:
            # A refusal is counted right before this callback; a read without an answer has changed nothing.
            refused, self.refused = clients.counts["refused"] - self.refused, clients.counts["refused"]
            failed = "fail" if refused or operation.kind == "read" else "info"
            self.end(node, began, "ok" if applied else failed)
            then(applied)

        return over

    def asked(self, member: SimMember, answer: Answer[Any]) -> Answer[Any]:
        """Record a group member's request, as `poll` does."""
        f = MEMBERS_ASK.get(getattr(answer, "__name__", ""), "leave")
        began = self.begin(member.member_id, f, member.member_id)

        def over(outcome: Any) -> None:
            code = outcome.code if isinstance(outcome, RaftlogError) else None
            kind = "ok" if code is None else "info" if code == "outcome_unknown" else "fail"
            self.end(member.member_id, began, kind, error=code)
            answer(outcome)

        return over

    # --- Of the client library ---------------------------------------------------------------------------------------

    async def delivered(
        self, producer: str, topic: str, value: bytes, delivery: Awaitable[RecordMetadata]
    ) -> RecordMetadata:
        """Record one record of a producer, as `poll` does."""
        began = self.begin(producer, "send", [["send", topic, _text(value)]])
        try:
            told = await delivery
        except RaftlogError as error:
            self.end(producer, began, "info" if error.code == "outcome_unknown" else "fail", error=error.code)
            raise
        self.end(producer, began, "ok", [["send", f"{topic}/{told.partition}", [told.offset, _text(value)]]])
        return told

    async def taken(self, reader: str, records: Awaitable[list[ConsumerRecord]]) -> list[ConsumerRecord]:
        """Record a poll of a reader or a member, as `poll` does."""
        began = self.begin(reader, "poll", [["poll"]])
        try:
            found = await records
        except RaftlogError as error:
            self.end(reader, began, "fail", error=error.code)
            raise
        told: dict[str, list[list[Any]]] = {}
        for one in found:
            told.setdefault(f"{one.topic}/{one.partition}", []).append([one.offset, _text(one.value)])
        self.end(reader, began, "ok", [["poll", told]])
        return found

    # --- Transactions ------------------------------------------------------------------------------------------------

    def attempted(self, attempt: Attempt) -> None:
        ends = {str(place): end for ends in attempt.outputs.values() for place, end in ends.items()}
        self.commits[id(attempt)] = attempt, self.begin("commits", "commit", ends)

    def decided(self, attempt: Attempt, kind: str, code: str = "") -> None:
        _, began = self.commits.pop(id(attempt), (None, None))
        if began is not None:
            self.end("commits", began, kind, error=code or None)

    # --- Faults ------------------------------------------------------------------------------------------------------

    def inject(self, fault: Any) -> None:
        """Replace the world's own `inject`: call it, and take what it traces as the evidence."""
        world = self.world
        before, last = sum(world.faults.injected.values()), _last(world.trace.lines)
        type(world.faults).inject(world.faults, fault)
        noted = _since(world.trace.lines, last)
        bit = sum(world.faults.injected.values()) > before
        named = sorted({int(number) for line in noted for number in re.findall(r"\bnode-(\d+) ", line)})
        began, healed = self.now(), int(world.schedule.seconds * 1e9)
        self.faults.append(
            Fault(
                kind=fault.kind,
                targets=tuple(f"n{number + 1}" for number in named or [int(fault.node)]),
                began=began,
                ended=max(began, min(began + int(fault.seconds * 1e9), healed)),
                evidence={"noted": noted} if bit else {},
                error="" if bit else "the fault had no target",
            )
        )


@contextmanager
def watching(kind: str, watch: Watch) -> Iterator[None]:
    """Watch the next world of this kind."""
    module, name = WORLDS[kind]
    make = getattr(module, name)

    def made(schedule: Any) -> Any:
        world = watch.world = make(schedule)
        world.faults.inject = watch.inject
        run_event = world._run_event

        def run_and_look(event: Any) -> None:
            run_event(event)
            watch.look()

        world._run_event = run_and_look
        return world

    with ExitStack() as stack:
        for owner, method, by in ((module, name, made), *_listening(watch)):
            stack.enter_context(mock.patch.object(owner, method, by))
        yield


def _listening(watch: Watch) -> Iterator[tuple[Any, str, Any]]:
    """Yield the replacements of the clients' methods, which record each call: (owner, name, function)."""
    poll, call, ask = SimConsumer.poll, QuorumClients.call, SimMember._ask
    attempted, committed, refused = (
        TransactionTruth.attempted, TransactionTruth.told_committed, TransactionTruth.told_refused
    )  # fmt: skip

    def heard_poll(self: SimConsumer, then: Callable[[], None]) -> None:
        poll(self, watch.poll(self, then))

    def heard_call(self: QuorumClients, operation: Any, *, then: Any = lambda applied: None) -> bool:
        asked = len(watch.lines)
        over = watch.called(self, operation, then)
        if not call(self, operation, then=over):
            watch.take_back(asked)
            return False
        return True

    def heard_ask(self: SimMember, request: Any, answer: Any, **how: float) -> None:
        ask(self, request, watch.asked(self, answer), **how)

    def heard_attempt(self: TransactionTruth, attempt: Attempt) -> None:
        watch.attempted(attempt)
        attempted(self, attempt)

    def heard_commit(self: TransactionTruth, attempt: Attempt) -> None:
        watch.decided(attempt, "ok")
        committed(self, attempt)

    def heard_refusal(self: TransactionTruth, attempt: Attempt, code: str) -> None:
        watch.decided(attempt, "fail", code)
        refused(self, attempt, code)

    hear, take = ProducerApplication._hear, Application.take

    async def heard_delivery(self: ProducerApplication, topic: str, value: bytes, delivery: Any) -> bool:
        return await hear(self, topic, value, watch.delivered(self.name, topic, value, delivery))

    async def heard_take(self: Application, consumer: Any, most: int) -> list[ConsumerRecord]:
        return await watch.taken(self.name, take(self, consumer, most))

    yield ProducerApplication, "_hear", heard_delivery
    yield Application, "take", heard_take
    yield SimConsumer, "poll", heard_poll
    yield QuorumClients, "call", heard_call
    yield SimMember, "_ask", heard_ask
    yield TransactionTruth, "attempted", heard_attempt
    yield TransactionTruth, "told_committed", heard_commit
    yield TransactionTruth, "told_refused", heard_refusal


def _last(lines: Sequence[str]) -> str:
    return lines[-1] if lines else ""


def _since(lines: Sequence[str], last: str) -> list[str]:
    """Return the first lines after `last`."""
    new: list[str] = []
    for line in reversed(lines):
        if line is last:
            break
        new.append(line.strip())
    return new[::-1][:NOTED_MAX]


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "replace")
