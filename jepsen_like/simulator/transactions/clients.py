"""Simulated applications that write transactions.

An application begins a transaction, writes to some partitions, and ends it: by a commit of what was acknowledged, alone
or together with a group's offsets, a position, or another producer's output; by an abort; or not at all. It asks again
where an answer does not come. Carelessly, it sends once more what it had sent, also after the end; has it that a
request to begin comes again when it is long at work; writes behind the
end that it names; goes on beside a successor of its name that has fenced it; and starts from offsets that it read
before it began. None of that may break anything.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from jepsen_like.simulator.brokers.history import Fate, Send
from jepsen_like.simulator.brokers.node import SimNode
from jepsen_like.simulator.load.clients import REQUEST_TIMEOUT, Clients
from metadata.commands.results import TransactionAnswer
from metadata.commands.transactions import (
    Abort,
    Commit,
    GroupMoves,
    Initialize,
    Key,
    Move,
    OpenBlock,
    Output,
    Position,
    TopicEnds,
    pack_keys,
)
from metadata.records.transactions import ATTEMPT_BYTES
from raftlog.errors import CODES
from raftlog.model import ProducerEpoch, ProducerId, TopicPartition
from raftlog.records.batch import encode
from raftlog.transactions import TransactionKey
from raftlog.wire import (
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)

from .quorum import Quorum
from .truth import GROUP, POSITION, Attempt, TransactionTruth

PRODUCE_TIMEOUT_MS = 800
TRIES_MAX = 12
BLOCK_IDS = 20

FORGET = "producer_fenced"
"""Whoever is told this knows nothing of the outcome."""
NO_OUTCOME = (FORGET, "outcome_unknown", "producer_ids_expired", "overloaded", "unknown_transaction", "invalid_request")
"""Refusals of a commit after which it may be committed, or may have been."""


@dataclass(slots=True)
class Written:
    """One producer's part of a transaction."""

    key: TransactionKey
    sequences: dict[TopicPartition, int] = field(default_factory=dict)
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    """Acknowledged, and to be named."""
    waiting: int = 0
    failed: bool = False
    copies: list[tuple[TopicPartition, bytes, Send]] = field(default_factory=list)


class SimApplication:
    """One process after the other under one name, or without; see the module."""

    def __init__(
        self,
        number: int,
        name: str,
        clients: Clients,
        truth: TransactionTruth,
        partitions: Callable[[], list[TopicPartition]],
        rng: random.Random,
    ) -> None:
        """`name` empty: ids come from blocks. `partitions`: where it may write now."""
        self.number = number
        self.stopped = False
        self.busy = False
        """In a transaction."""
        self.ended = 0
        self._name = name
        self._clients = clients
        self._truth = truth
        self._partitions = partitions
        self._rng = rng
        self._quorum = Quorum(clients, rng)
        self._keys: list[TransactionKey] = []
        """To be used for the next transactions."""
        self._attempt: bytes | None = None
        """Of the initialisation that has no answer yet."""
        self._last: TransactionKey | None = None
        """Of a named process: of its last transaction, whatever became of that."""
        self._values = 0
        self._timeout_ms = rng.choice((1_000, 3_000, 10_000))
        self._starts: dict[TopicPartition, int] = {}
        """Of the group, as it was read last; perhaps before somebody else moved on."""
        self._stale = rng.random() < 0.3

    def run(self) -> None:
        """One transaction after the other, until it is stopped."""
        if self.stopped:
            self.busy = False
            return
        self.busy = True
        if self._rng.random() < 0.1 and self._name:
            self._begin_anew()
        wanted = 2 if not self._name and self._rng.random() < 0.3 else 1
        if self._stale:
            self._read_starts()
        if len(self._keys) >= wanted:
            self._write()
        elif self._name:
            self._initialize()
        else:
            self._quorum.ask(OpenBlock("", BLOCK_IDS, self._timeout_ms), self._got_block)

    def _later(self, seconds: float) -> None:
        self._clients.heap.schedule(self._rng.uniform(0.2, 1.0) * seconds, self.run)

    def _begin_anew(self) -> None:
        """Another process of this name: it has nothing of what the one before had."""
        self._keys.clear()
        self._attempt = self._last = None

    def _initialize(self) -> None:
        """Until there is an answer, for the same attempt; some of these come again, long after that."""
        if self._attempt is None:
            self._attempt = self._rng.randbytes(ATTEMPT_BYTES)
        after = Key(*self._last) if self._last is not None else None
        change = Initialize(self._name, self._timeout_ms, self._clients.wall_ms(), self._attempt, after)
        self._quorum.ask(change, self._got_keys)
        if self._rng.random() < 0.3:
            late = self._rng.uniform(0.1, 6.0)
            self._clients.heap.schedule(late, lambda: self._quorum.ask(change, self._truth.told_again))

    def _got_keys(self, answer: TransactionAnswer | None) -> None:
        if answer is not None and answer.code == FORGET:
            self._begin_anew()  # somebody else has the name by now, and this process is over
        if answer is None or answer.code:
            self._later(1.0)
            return
        self._keys = [packed.key for packed in answer.keys]
        self._attempt = None
        self._write()

    def _got_block(self, answer: TransactionAnswer | None) -> None:
        if answer is None or answer.code:
            self._later(1.0)
            return
        first = answer.keys[0].producer_id
        self._keys = [TransactionKey(ProducerId(first + i), ProducerEpoch(0)) for i in range(answer.count)]
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
            self._read_starts()  # after the initialisation: nobody of an earlier epoch moves them any more (R5)
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
        """Until all is acknowledged; for some, not so long."""
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
        """Its transaction is overdue; it may be back, and know nothing of that."""
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
        """Until it is acknowledged or refused for good."""
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
                    end = answer.base_offset + len(send.values)
                    written.ends[topic_partition] = max(written.ends.get(topic_partition, 0), end)
            elif not CODES[answer.error].retriable and answer.error not in ("unknown_topic", "unknown_partition"):
                send.fate = send.fate or Fate.INFO
                written.failed = True

        if target is not None:
            # A stray one's only attempt is marked as well: to mark too much is safe.
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
            moves = {one: (self._starts[one], self._starts[one] + self._rng.randrange(1, 4))}
            moves[one] = (moves[one][0], max(moves[one][1], 0))
        if self._rng.random() < 0.3:
            position = (self._position, self._position + 1)
        attempt = Attempt({written.key: dict(written.ends) for written in parts}, moves, position)
        self._truth.attempted(attempt)
        change = Commit(
            tuple(Output(*key, _packed(ends)) for key, ends in attempt.outputs.items()),
            (GroupMoves(GROUP, "", 0, 0, _moves(moves)),) if moves else (),
            (Position(POSITION, *position),) if position is not None else (),
            "",
            self._clients.wall_ms(),
        )

        def hear(answer: TransactionAnswer | None) -> None:
            if answer is not None and not answer.code:
                self._truth.told_committed(attempt)
            elif answer is not None and answer.code not in NO_OUTCOME and answer.code != "position_taken":
                self._truth.told_refused(attempt, answer.code)
            self._over(parts, answer)

        self._quorum.ask(change, hear)
        if self._rng.random() < 0.1:  # and a second copy of it, which comes whenever it comes
            self._clients.heap.schedule(self._rng.uniform(0.1, 6.0), lambda: self._quorum.ask(change, lambda _: None))

    def _abort(self, parts: list[Written]) -> None:
        keys = [written.key for written in parts]

        def hear(answer: TransactionAnswer | None) -> None:
            if answer is not None and not answer.code:
                self._truth.told_aborted(keys)
            self._over(parts, answer)

        self._quorum.ask(Abort(pack_keys(keys), self._clients.wall_ms()), hear)

    def _over(self, parts: list[Written], answer: TransactionAnswer | None) -> None:
        self.ended += 1
        if self._name:
            self._keys = _goes_on_with(answer, parts[0].key)
        for written in parts:
            for topic_partition, batch, send in written.copies:
                if self._rng.random() < 0.1:  # what was on its way for long
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
        """Of the group and the position: from a node that has applied what it was told to, or from any."""
        running = [node.broker for node in self._clients.nodes if node.running and node.broker is not None]
        if not running:
            return
        view = self._rng.choice(running).view
        offsets = view.groups.offsets(GROUP)
        self._starts = {one: offsets[one].offset if one in offsets else -1 for one in self._partitions()}
        self._position = view.transactions.position(POSITION)

    _position = -1


def _goes_on_with(answer: TransactionAnswer | None, ended: TransactionKey) -> list[TransactionKey]:
    """What a named process is told, which is the next epoch where nothing is said. Whoever does not know how its
    transaction ended begins anew."""
    if answer is None or answer.code:
        return []
    next_epoch = TransactionKey(ended.producer_id, ProducerEpoch(ended.producer_epoch + 1))
    return [packed.key for packed in answer.keys] or [next_epoch]


def _packed(ends: Mapping[TopicPartition, int]) -> tuple[TopicEnds, ...]:
    by_topic: dict[bytes, list[tuple[int, int]]] = {}
    for topic_partition, end in ends.items():
        by_topic.setdefault(topic_partition.topic_id, []).append((topic_partition.partition, end))
    return tuple(
        TopicEnds(topic_id, tuple(p for p, _ in sorted(found)), tuple(e for _, e in sorted(found)))  # type: ignore[arg-type,misc]
        for topic_id, found in by_topic.items()
    )


def _moves(moves: dict[TopicPartition, tuple[int, int]]) -> tuple[Move, ...]:
    return tuple(Move(one.topic_id, one.partition, start, end) for one, (start, end) in moves.items())  # type: ignore[arg-type]
