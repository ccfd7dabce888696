"""The image's tables of transactions, whose every change is an event."""

from __future__ import annotations

from collections.abc import Callable

from metadata.records.events import PartsStaged, TransactionEvent
from metadata.records.transaction_table import Transactions
from metadata.records.transactions import Block, NamedProducer
from raftlog.model import Offset, TopicPartition
from raftlog.transactions import TransactionKey


class TransactionsState(Transactions):
    """The image's tables; every change is noted as an event."""

    def __init__(self, note: Callable[[TransactionEvent], None]) -> None:
        super().__init__()
        self.parts: dict[bytes, dict[int, bytes]] = {}
        """Commit id → part number → the staged piece."""
        self.staged_bytes = 0
        self._note = note

    def change(self, event: TransactionEvent) -> None:
        self.on_event(event)
        self._note(event)

    def stage(self, commit_id: bytes, number: int, piece: bytes) -> None:
        """Stage a part that is not there yet."""
        parts = self.parts.setdefault(commit_id, {})
        parts[number] = piece
        self.staged_bytes += len(piece)
        self.change(PartsStaged(commit_id, len(parts)))

    def drop_parts(self, commit_id: bytes) -> None:
        parts = self.parts.pop(commit_id, None)
        if parts is not None:
            self.staged_bytes -= sum(map(len, parts.values()))
            self.change(PartsStaged(commit_id, 0))

    def copies(
        self,
    ) -> tuple[
        dict[str, NamedProducer],
        list[Block],
        dict[TopicPartition, dict[TransactionKey, Offset]],
        dict[str, int],
    ]:
        """Return current copies of producers, blocks, ends and positions, to be iterated in steps."""
        ends = {topic_partition: of_partition.copy() for topic_partition, of_partition in self._ends.items()}
        return self._producers.copy(), self.blocks(), ends, self._positions.copy()

    def ends_of(self, topic_partition: TopicPartition) -> dict[TransactionKey, Offset]:
        """Return a copy of the partition's ends."""
        return dict(self._ends.get(topic_partition, {}))
