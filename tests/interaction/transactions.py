"""Story commands about transactions: producers' batches, decisions, and leaders' reports to the quorum.

The real image decides, and each broker has a real view of the decisions, which it reads when the story says so. Reports
are made by the node's real shell and wait, as proposals do.
"""

from __future__ import annotations

from collections.abc import Callable

from metadata.commands.envelope import Command
from metadata.commands.results import TransactionsChanged
from metadata.commands.transactions import (
    Abort,
    AbortOverdue,
    ChangeTransactions,
    Commit,
    Initialize,
    Marked,
    OpenBlock,
    TransactionChange,
)
from metadata.quorum.port import Fate, Outcome
from partitions.manager import Produced
from raftlog.errors import RaftlogError
from raftlog.model import Acks, Offset, ProducerEpoch, ProducerId
from raftlog.ports import Part
from raftlog.records.batch import Control, ControlKind, RecordBatch, encode, split_batches
from raftlog.transactions import TransactionKey
from raftlog.wire import FetchedPartition, FetchPartition, TopicEnds, TransactionOutput
from tests.support.metadata.cluster import TOPIC, TP

from .shorter_logs import ShorterLogs
from .wires import bytes_of

WALL_MS = 1_000_000
"""The timestamp of the quorum's commands; no story depends on their age."""


class Transactions(ShorterLogs):
    """Transactions are written `producer:epoch`, or `producer` for epoch 0."""

    # --- Producers ---

    def do_write(self, number: str, key: str, *values: str, seq: str = "0") -> None:
        """Send one batch of a transaction. Answers are printed by the command during which they arrive."""
        of, shown = _key(key), ",".join(values)
        batch = encode(
            [value.encode() for value in values],
            base_timestamp_ms=self.scheduler.clock.wall_ms(),
            producer_id=of.producer_id,
            producer_epoch=of.producer_epoch,
            base_sequence=int(seq),
            transactional=True,
        )

        def done(answer: Produced | RaftlogError) -> None:
            if isinstance(answer, Produced):
                self.say(f"{number} answers {shown}: offset {answer.base_offset}")
            else:
                self.say(f"{number} answers {shown}: {answer.code} (applied: {answer.applied.value})")

        self.manager(number).produce(TP, batch, Acks.ALL, done)

    def do_read_committed(self, number: str, offset: str = "0", wait: str = "0") -> None:
        """Fetch as a consumer, and show the records without those that it must skip."""

        def done(answers: list[FetchedPartition], parts: list[Part]) -> None:
            (answer,) = answers
            if answer.error:
                self.say(f"{number} committed: {answer.error}")
                return
            values = []
            for batch in map(RecordBatch, split_batches(b"".join(map(bytes_of, parts)))):
                of = (batch.header.producer_id, batch.header.producer_epoch)
                skipped = any(
                    (one.producer_id, one.producer_epoch) == of
                    and one.first_offset <= batch.header.base_offset < one.end_offset
                    for one in answer.aborted
                )
                values += [] if skipped else batch.values()
            shown = " ".join((value or b"").decode() for value in values) or "nothing"
            self.say(f"{number} committed: {shown} stable={answer.last_stable_offset} hw={answer.high_watermark}")

        asked = FetchPartition(TP.topic_id, TP.partition, int(offset), 1 << 20)
        wait_ms = int(float(wait) * 1000)
        self.manager(number).fetch([asked], done, min_bytes=1, max_bytes=1 << 20, max_wait_ms=wait_ms, isolation=1)

    # --- The quorum ---

    def do_open_block(self, count: str, timeout: str = "60") -> None:
        """Grant producer ids without a name; their numbers count from 0."""
        self._ask(OpenBlock("", int(count), int(float(timeout) * 1000)))

    def do_initialize(self, name: str) -> None:
        """Initialize a producer with this name."""
        self._ask(Initialize(name, 60_000, WALL_MS))

    def do_commit(self, *ends: str) -> None:
        """Commit all of `key@end…` or nothing. `key` alone names no partition."""
        outputs = []
        for text in ends:
            key, _, end = text.partition("@")
            named = (TopicEnds(TOPIC, (TP.partition,), (Offset(int(end)),)),) if end else ()
            outputs.append(TransactionOutput(*_key(key), named))
        self._ask(Commit(tuple(outputs), (), (), "", WALL_MS))

    def do_abort(self, *keys: str) -> None:
        self._ask(Abort(tuple(map(_key, keys)), WALL_MS))

    def _ask(self, change: TransactionChange) -> None:
        result = self.quorum.apply(ChangeTransactions((change,)))
        assert isinstance(result, TransactionsChanged)
        for answer in result.answers:
            # The client knows the key with which a named producer continues.
            self.say(f"refused: {answer.code}" if answer.code else "decided")

    # --- Reports ---

    def report(self, number: int, command: Command, done: Callable[[Outcome], None]) -> None:
        """Queue a leader's report until it is applied."""
        assert isinstance(command, ChangeTransactions)
        self._reported += 1
        name = f"r{self._reported}"
        self.reports[name] = (number, command, done)
        for change in command.changes:
            assert isinstance(change, Marked | AbortOverdue)
            what = "marked" if isinstance(change, Marked) else "overdue"
            self.say(f"{number} reports {name}: {what} " + " ".join(_shown(key) for key in change.keys))

    def do_report(self, name: str, answer: str = "given") -> None:
        """Apply a report; with `lost` it never arrives, and its reporter gets an unknown outcome."""
        _, command, done = self.reports.pop(name)
        if answer == "lost":
            done(Outcome(Fate.UNKNOWN))
            return
        result = self.quorum.apply(command)
        done(Outcome(Fate.APPLIED, len(self.quorum.log), result))

    def do_waited_for(self) -> None:
        """Show the commits whose markers are not reported yet."""
        waiting = self.quorum.image.transactions.unmarked(TP)
        self.say("the quorum waits for " + (" ".join(map(_shown, waiting)) or "nothing"))


def describe_control(control: Control) -> str:
    """`commit 7@3`: the records of producer 7 below offset 3."""
    name = ControlKind(control.kind).name.lower()
    named = [
        _shown(TransactionKey(ProducerId(entry.producer_id), ProducerEpoch(entry.producer_epoch)))
        + (f"@{entry.named_offset}" if entry.named_offset >= 0 else "")
        for entry in control.entries
    ]
    return f"<{name} {' '.join(named)}>"


def _key(text: str) -> TransactionKey:
    producer, _, epoch = text.partition(":")
    return TransactionKey(ProducerId(int(producer)), ProducerEpoch(int(epoch or 0)))


def _shown(key: TransactionKey) -> str:
    return f"{key.producer_id}:{key.producer_epoch}" if key.producer_epoch else str(key.producer_id)
