"""A cluster with transactions: short names for producers' requests, and for the image's answers."""

from __future__ import annotations

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
from metadata.snapshot.encoder import encode_snapshot
from raftlog.model import Offset, ProducerEpoch, ProducerId, TopicPartition
from raftlog.transactions import Outcome, TransactionKey, Verdict
from raftlog.wire import GroupMoves, OffsetMove, PositionMove, TopicEnds, TransactionOutput

from .cluster import TOPIC
from .groups import NOW_MS, GroupCluster

ABORTED = Verdict(Outcome.ABORTED)
UNDECIDED = Verdict(Outcome.UNDECIDED)


def committed(end_offset: int) -> Verdict:
    return Verdict(Outcome.COMMITTED, Offset(end_offset))


def key(producer_id: int, epoch: int = 0) -> TransactionKey:
    return TransactionKey(ProducerId(producer_id), ProducerEpoch(epoch))


def tp(number: int) -> TopicPartition:
    return TopicPartition(TOPIC, number)


def output(of: TransactionKey, ends: dict[int, int]) -> TransactionOutput:
    """Ends by partition of the one topic."""
    named = (TopicEnds(TOPIC, tuple(ends), tuple(Offset(end) for end in ends.values())),) if ends else ()
    return TransactionOutput(*of, named)


def moves(group: str, offsets: dict[int, tuple[int, int]]) -> GroupMoves:
    """Of a group without members: partition → (start, end)."""
    packed = tuple(OffsetMove(TOPIC, number, start, Offset(end)) for number, (start, end) in offsets.items())
    return GroupMoves(group, "", 0, 0, packed)


def commit(
    *outputs: TransactionOutput,
    groups: tuple[GroupMoves, ...] = (),
    positions: dict[str, tuple[int, int]] | None = None,
    block: str = "",
) -> Commit:
    packed = tuple(PositionMove(name, current, new) for name, (current, new) in (positions or {}).items())
    return Commit(outputs, groups, packed, block, NOW_MS)


class TransactionCluster(GroupCluster):
    """Four partitions of `orders`. Every request goes through the image and its invariants."""

    def ask(self, *changes: TransactionChange) -> TransactionsChanged:
        result = self.apply(ChangeTransactions(changes))
        assert isinstance(result, TransactionsChanged), result
        return result

    def do_change(self, change: TransactionChange) -> tuple[TransactionKey, ...]:
        """Apply a change that must succeed; return the keys of its answer."""
        answers = self.ask(change).answers
        assert [one.code for one in answers] in ([], [""]), answers
        told = tuple(key for one in answers for key in one.keys)
        if told or not isinstance(change, Commit | Abort):
            return told
        ended = [output.key for output in change.outputs] if isinstance(change, Commit) else change.keys
        return self.view.transactions.going_on(ended)

    def refuse(self, change: TransactionChange, code: str, *, changes_nothing: bool = False) -> str:
        """Apply a change that must be refused with this code; return the detail."""
        before = self.state()
        (answer,) = self.ask(change).answers
        assert answer.code == code, answer
        if changes_nothing:
            assert self.state() == before
            assert self.events == []
        return answer.detail

    def state(self) -> bytes:
        """The state without the index."""
        index, self.image.index = self.image.index, 0
        try:
            return encode_snapshot(self.image)
        finally:
            self.image.index = index

    def initialize(self, name: str = "app", *, timeout_ms: int = 60_000, now_ms: int = NOW_MS) -> TransactionKey:
        (first,) = self.do_change(Initialize(name, timeout_ms, now_ms))
        return first

    def open_block(self, name: str = "", count: int = 10, timeout_ms: int = 60_000) -> list[TransactionKey]:
        """Open a block; return the keys of its ids."""
        (answer,) = self.ask(OpenBlock(name, count, timeout_ms)).answers
        assert not answer.code, answer
        return [key(answer.keys[0].producer_id + number) for number in range(answer.count)]

    def abort(self, *keys: TransactionKey) -> tuple[TransactionKey, ...]:
        return self.do_change(Abort(tuple(keys), NOW_MS))

    def overdue(self, *keys: TransactionKey) -> None:
        self.do_change(AbortOverdue(tuple(keys)))

    def mark(self, number: int, *keys: TransactionKey) -> None:
        """The leader has their markers below the high watermark."""
        epoch = self.image.partitions[tp(number)].leader_epoch
        self.do_change(Marked(TOPIC, number, epoch, keys))

    def verdict(self, of: TransactionKey, number: int) -> Verdict:
        """The verdict of the view for the leader of that partition, which must equal the image's."""
        told = self.view.transactions.verdict(of, tp(number))
        assert told == self.image.transactions.verdict(of, tp(number))
        return told

    def position(self, name: str) -> int:
        return self.view.transactions.position(name)
