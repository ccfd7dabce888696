"""Simulated applications that write transactions.

An application begins a transaction, writes to some partitions, and ends it: by a commit of what was acknowledged, alone
or together with a group's offsets, a position or another producer's output; by an abort; or not at all. It retries if
an answer does not come. It is also careless, and none of that may break anything: it resends what it had sent, even
after the end; lets a late copy of its initialization arrive when it has long begun; writes behind the end that it
names; continues beside a successor of its name that has fenced it; and starts from offsets that it read before it
began.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from jepsen_like.simulator.brokers.history import Fate, Send
from jepsen_like.simulator.brokers.node import SimNode
from jepsen_like.simulator.load.clients import REQUEST_TIMEOUT, Clients
from metadata.view import ClusterView
from raftlog.client.transactions.api import ABORTED_BY_REFUSAL
from raftlog.errors import CODES
from raftlog.model import Offset, ProducerEpoch, ProducerId, TopicPartition
from raftlog.records.batch import encode
from raftlog.transactions import ATTEMPT_BYTES, TransactionKey
from raftlog.wire import (
    AbortRequest,
    CommitRequest,
    GroupMoves,
    InitializeRequest,
    OffsetMove,
    OpenBlockRequest,
    PositionMove,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    TransactionOutput,
    TransactionResponse,
)

from .requests import Outcome, TransactionRequests
from .truth import GROUP, POSITION, Attempt, TransactionTruth

PRODUCE_TIMEOUT_MS = 800
TRIES_MAX = 12
BLOCK_IDS = 20
VISIBLE_WITHIN_MS = 2_000


@dataclass(slots=True)
class Written:
    """One producer's part of a commit."""

    key: TransactionKey
    sequences: dict[TopicPartition, int] = field(default_factory=dict)
    ends: dict[TopicPartition, Offset] = field(default_factory=dict)
    """The end of what was acknowledged, which the commit names."""
    waiting: int = 0
    failed: bool = False
    copies: list[tuple[TopicPartition, bytes, Send]] = field(default_factory=list)


class SimApplication:
    """Processes, one after the other, under one transactional id or without one."""

    def __init__(
        self,
        number: int,
        name: str,
        clients: Clients,
        truth: TransactionTruth,
        partitions: Callable[[], list[TopicPartition]],
        rng: random.Random,
    ) -> None:
        """`name` empty: producer ids come from blocks. `partitions` returns where it may write now."""
        self.number = number
        self.stopped = False
        self.busy = False
        """Whether it is in a transaction."""
        self.ended = 0
        self._name = name
        self._clients = clients
        self._truth = truth
        self._partitions = partitions
        self._rng = rng
        self._requests = TransactionRequests(clients, rng)
        self._keys: list[TransactionKey] = []
        """Keys for the next transactions."""
        self._attempt: bytes | None = None
        """The id of the initialization that has no answer yet."""
        self._last: TransactionKey | None = None
        """The key of a named process's last transaction, whatever its outcome."""
        self._values = 0
        self._timeout_ms = rng.choice((1_000, 3_000, 10_000))
        self._starts: dict[TopicPartition, int] = {}
        """The group's offsets as it read them last, perhaps before another application moved them."""
        self._stale = rng.random() < 0.3

    def run(self) -> None:
        """Write one transaction after the other, until it is stopped."""
        if self.stopped:
            self.busy = False
            return
        self.busy = True
        if self._rng.random() < 0.1 and self._name:
            self._restart()
        wanted = 2 if not self._name and self._rng.random() < 0.3 else 1
        if self._stale:
            self._read_starts()
        if len(self._keys) >= wanted:
            self._write()
        elif self._name:
            self._initialize()
        else:
            self._requests.ask(OpenBlockRequest(0, "", BLOCK_IDS, self._timeout_ms), self._got_block)

    def _later(self, seconds: float) -> None:
        self._clients.heap.schedule(self._rng.uniform(0.2, 1.0) * seconds, self.run)

    def _restart(self) -> None:
        """Become another process of this name, which has no state of the one before."""
        self._keys.clear()
        self._attempt = self._last = None

    def _initialize(self) -> None:
        """Retry one initialization until it is answered; a copy of some requests arrives long after that."""
        if self._attempt is None:
            self._attempt = self._rng.randbytes(ATTEMPT_BYTES)
        request = InitializeRequest(0, self._name, self._timeout_ms, self._attempt, self._last)
        self._requests.ask(request, self._got_keys)
        if self._rng.random() < 0.3:
            late = self._rng.uniform(0.1, 6.0)
            self._clients.heap.schedule(late, lambda: self._requests.ask(request, self._truth.told_again))

    def _got_keys(self, outcome: Outcome | None) -> None:
        if isinstance(outcome, TransactionResponse):
            self._keys = list(outcome.keys)
            self._attempt = None
            self._write()
            return
        if outcome is not None and outcome.code == "producer_fenced":
            self._restart()  # another process has the name, so this one ends
        self._later(1.0)

    def _got_block(self, outcome: Outcome | None) -> None:
        if not isinstance(outcome, TransactionResponse):
            self._later(1.0)
            return
        first = outcome.keys[0].producer_id
        self._keys = [TransactionKey(ProducerId(first + i), ProducerEpoch(0)) for i in range(outcome.count)]
        self._write()

    # --- Writing -----------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        together = 2 if not self._name and len(self._keys) > 1 and self._rng.random() < 0.3 else 1
        parts = [Written(self._keys[i]) for i in range(together)]
        if self._name:
            self._last = self._keys[0]
        else:
            del self._keys[:together]
        if not self._stale:
            self._read_starts()  # after the initialization: no earlier epoch moves them any more (R5)
        where = self._partitions()
        if not where:
            self._later(2.0)
            return
        for written in parts:
            self._truth.began(written.key)
            for topic_partition in self._rng.sample(where, min(len(where), self._rng.choice((1, 2, 3)))):
                for _ in range(self._rng.choice((1, 1, 2))):
                    self._send_next(written, topic_partition)
        self._wait(parts, 0)

    def _wait(self, parts: list[Written], looks: int) -> None:
        """Wait until everything is acknowledged; some applications wait less."""
        if any(written.failed for written in parts) or looks > 40 or self._rng.random() < 0.01:
            self._abort(parts)
        elif any(written.waiting for written in parts):
            self._clients.heap.schedule(0.1, lambda: self._wait(parts, looks + 1))
        elif self._rng.random() < 0.1:
            self._hang(parts)
        elif self._rng.random() < 0.15:
            self._abort(parts)
        else:
            self._commit(parts)

    def _hang(self, parts: list[Written]) -> None:
        """Let the transaction become overdue; the process may be back, and not know that."""
        if self._rng.random() < 0.5:
            self._clients.heap.schedule(
                self._rng.uniform(0.5, 2.0) * self._timeout_ms / 1000, lambda: self._commit(parts)
            )
        else:
            self._keys = self._keys if not self._name else []
            self._later(4.0)

    def _send_next(self, written: Written, topic_partition: TopicPartition, *, stray: bool = False) -> None:
        count = self._rng.choice((1, 2, 3))
        values: list[bytes | None] = [f"t{self.number}:{self._values + i}".encode() for i in range(count)]
        self._values += count
        sequence = written.sequences.get(topic_partition, 0)
        written.sequences[topic_partition] = sequence + count
        batch = encode(
            values,
            base_timestamp_ms=self._clients.wall_ms(),
            producer_id=written.key.producer_id,
            producer_epoch=written.key.producer_epoch,
            base_sequence=sequence,
            transactional=True,
        )
        send = Send(self.number, topic_partition, tuple(values), self._clients.heap.now, -1)
        self._clients.history.sends.append(send)
        written.copies.append((topic_partition, batch, send))
        written.waiting += not stray
        self._send(written, topic_partition, batch, send, 0 if not stray else TRIES_MAX)

    def _send(self, written: Written, topic_partition: TopicPartition, batch: bytes, send: Send, tries: int) -> None:
        """Send a batch until it is acknowledged or finally refused."""
        target = self._clients.leader_of(topic_partition)

        def again() -> None:
            if send.fate is None and tries < TRIES_MAX:
                self._send(written, topic_partition, batch, send, tries + 1)
            elif send.fate is None:
                send.fate = Fate.INFO
                written.failed = True

        def hear(answer: ProducedPartition) -> None:
            if send.fate is Fate.OK:
                return
            if not answer.error:
                counts = send.fate is None and tries < TRIES_MAX
                send.fate, send.base_offset = Fate.OK, answer.base_offset
                written.waiting -= counts
                if counts:
                    end = Offset(answer.base_offset + len(send.values))
                    written.ends[topic_partition] = max(written.ends.get(topic_partition, end), end)
            elif not CODES[answer.error].retriable and answer.error not in ("unknown_topic", "unknown_partition"):
                send.fate = send.fate or Fate.INFO
                written.failed = True

        if target is not None:
            # A stray batch's only attempt is marked as resent as well, which is safe.
            self._request(target, topic_partition, batch, send, hear, resent=tries > 0)
        self._clients.heap.schedule(REQUEST_TIMEOUT, again)

    def _request(
        self,
        target: SimNode,
        topic_partition: TopicPartition,
        batch: bytes,
        send: Send,
        hear: Callable[[ProducedPartition], None],
        *,
        resent: bool,
    ) -> None:
        clients = self._clients
        part = ProducePartition(topic_partition.topic_id, topic_partition.partition, len(batch), resent)

        def deliver() -> None:
            assert target.broker is not None
            request = ProduceRequest(1, -1, PRODUCE_TIMEOUT_MS, [part])
            target.broker.local.produce(request, [memoryview(batch)], answered)

        def answered(response: ProduceResponse) -> None:
            answer = response.partitions[0]
            if not answer.error:
                clients.truth.acknowledged(target, topic_partition, answer.base_offset + len(send.values))
            clients.answer(target, lambda: hear(answer))

        clients.send(target, deliver)

    # --- Ending ------------------------------------------------------------------------------------------------------

    def _commit(self, parts: list[Written]) -> None:
        for written in parts:
            if written.ends and self._rng.random() < 0.2:  # behind the end that is named
                self._send_next(written, self._rng.choice(list(written.ends)), stray=True)
        moves, position = {}, None
        if self._rng.random() < 0.5 and self._starts:
            one = self._rng.choice(list(self._starts))
            start = self._starts[one]
            moves = {one: (start, max(start + self._rng.randrange(1, 4), 0))}
        if self._rng.random() < 0.3:
            position = (self._position, self._position + 1)
        attempt = Attempt({written.key: dict(written.ends) for written in parts}, moves, position)
        self._truth.attempted(attempt)
        moved = tuple(
            OffsetMove(one.topic_id, one.partition, start, Offset(end)) for one, (start, end) in moves.items()
        )
        within_ms = VISIBLE_WITHIN_MS if self._rng.random() < 0.3 else 0
        request = CommitRequest(
            0,
            tuple(TransactionOutput.of(written.key, written.ends) for written in parts),
            (GroupMoves(GROUP, "", 0, 0, moved),) if moved else (),
            (PositionMove(POSITION, *position),) if position is not None else (),
            visible_within_ms=within_ms,
        )

        def check(response: TransactionResponse, view: ClusterView) -> None:
            if response.visible:
                there = [one for ends in attempt.outputs.values() for one in ends if view.partition(one) is not None]
                self._truth.told_visible(attempt, {one: self._clients.truth.of(one).log for one in there})

        def hear(outcome: Outcome | None) -> None:
            if isinstance(outcome, TransactionResponse):
                self._truth.told_committed(attempt)
            elif outcome is not None and outcome.code in ABORTED_BY_REFUSAL and outcome.code != "position_taken":
                self._truth.told_refused(attempt, outcome.code)
            self._over(parts, outcome)

        self._requests.ask(request, hear, check=check, patience=within_ms / 1000)
        if self._rng.random() < 0.1:  # a second copy, which arrives at any time
            late = self._rng.uniform(0.1, 6.0)
            self._clients.heap.schedule(late, lambda: self._requests.ask(request, lambda _: None))

    def _abort(self, parts: list[Written]) -> None:
        keys = tuple(written.key for written in parts)

        def hear(outcome: Outcome | None) -> None:
            if isinstance(outcome, TransactionResponse):
                self._truth.told_aborted(keys)
            self._over(parts, outcome)

        self._requests.ask(AbortRequest(0, keys), hear)

    def _over(self, parts: list[Written], outcome: Outcome | None) -> None:
        self.ended += 1
        if self._name:
            # A process that does not know how its transaction ended initializes again.
            self._keys = list(outcome.keys) if isinstance(outcome, TransactionResponse) else []
        for written in parts:
            for topic_partition, batch, send in written.copies:
                if self._rng.random() < 0.1:  # a copy that was long in flight
                    self._clients.heap.schedule(
                        self._rng.uniform(0.0, 5.0),
                        lambda tp=topic_partition, b=batch, s=send: self._send_late(tp, b, s),  # type: ignore[misc]
                    )
        self._later(1.0)

    def _send_late(self, topic_partition: TopicPartition, batch: bytes, send: Send) -> None:
        target = self._clients.leader_of(topic_partition)
        if target is not None:
            self._request(target, topic_partition, batch, send, lambda answer: None, resent=True)

    def _read_starts(self) -> None:
        """Read the group's offsets and the position at any node, whose view may lag."""
        running = [node.broker for node in self._clients.nodes if node.running and node.broker is not None]
        if not running:
            return
        view = self._rng.choice(running).view
        offsets = view.groups.offsets(GROUP)
        self._starts = {one: offsets[one].offset if one in offsets else -1 for one in self._partitions()}
        self._position = view.transactions.position(POSITION)

    _position = -1
