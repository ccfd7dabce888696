"""Everything that is known of transactions as of some index: the image's tables, and a view's, made of the same events.

`Transactions` answers what leaders ask (`raftlog.transactions.TransactionVerdicts`). The answer about a partition has
two sources: the **ends** that commits named for it, kept until a marker is below its high watermark, and the
**standing** of the transaction as a whole. The ends come first. So what is committed and not named here (any more) is
aborted here, and so is what is not kept at all, because nobody can commit it any more (S13).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping
from itertools import islice

from raftlog.model import NO_PRODUCER_ID, Offset, ProducerEpoch, ProducerId, TopicPartition
from raftlog.transactions import Outcome, TransactionKey, Verdict

from .events import (
    BlockChanged,
    BlockRemoved,
    EndsCommitted,
    EndsForgotten,
    PartsStaged,
    PositionMoved,
    PositionRemoved,
    ProducerChanged,
    ProducerIdsTaken,
    ProducerRemoved,
    TransactionEvent,
)
from .transactions import Block, NamedProducer, Standing

UNKNOWN_IDS_TAKEN = 2**20
"""A leader may be behind with what was granted, but not by more ids than this."""
UNKNOWN_EPOCHS_TAKEN = 64
"""Likewise of one producer's epochs."""

_UNDECIDED = Verdict(Outcome.UNDECIDED)
_ABORTED = Verdict(Outcome.ABORTED)
_OPEN = (Standing.UNDECIDED, Standing.UNKNOWN)
_REFUSALS = {
    Standing.UNDECIDED: "",
    Standing.UNKNOWN: "",
    Standing.COMMITTED: "transaction_committed",
    Standing.ABORTED: "transaction_aborted",
    Standing.FENCED: "producer_fenced",
    Standing.EXPIRED: "producer_ids_expired",
}
_NO_ENDS: Mapping[TransactionKey, Offset] = {}


class Transactions:
    """Read as you like; `on_event` is for whoever feeds it."""

    def __init__(self) -> None:
        self.granted_below = ProducerId(0)
        """Every producer id below was granted, for whatever purpose."""
        self.ends_count = 0
        """Named offsets that are not marked yet."""
        self.ids_in_blocks = 0
        self.range_count = 0
        """Of all blocks' outcomes."""
        self._producers: dict[str, NamedProducer] = {}
        self._names: dict[ProducerId, str] = {}
        """Producer id, of now or former → its name."""
        self._blocks: dict[ProducerId, Block] = {}
        self._firsts: list[ProducerId] = []
        """Of the blocks, sorted."""
        self._open_blocks: dict[str, ProducerId] = {}
        """Name → the block that is not retired."""
        self._ends: dict[TopicPartition, dict[TransactionKey, Offset]] = {}
        self._ends_of: dict[TransactionKey, int] = {}
        """How many partitions of a transaction are not marked yet."""
        self._positions: dict[str, int] = {}
        self._staged: dict[bytes, int] = {}

    # --- What leaders ask: `raftlog.transactions.TransactionVerdicts` ------------------------------------------------

    def verdict(self, key: TransactionKey, topic_partition: TopicPartition) -> Verdict:
        """What a leader makes of records of this transaction that it finds open (S13)."""
        end_offset = self._ends.get(topic_partition, _NO_ENDS).get(key)
        if end_offset is not None:
            return Verdict(Outcome.COMMITTED, end_offset)
        return _UNDECIDED if self.standing(key) in _OPEN else _ABORTED

    def unmarked(self, topic_partition: TopicPartition, most: int | None = None) -> list[TransactionKey]:
        """Commits whose marker in this partition nobody has reported below its high watermark; `most` of them."""
        return list(islice(self._ends.get(topic_partition, ()), most))

    def refusal(self, key: TransactionKey) -> str:
        """Why no more records of the transaction are taken, as a code; empty where they are."""
        standing = self.standing(key)
        if standing is Standing.UNKNOWN and not self.is_near(key):
            return "unknown_transaction"
        return _REFUSALS[standing]

    def timeout_ms(self, key: TransactionKey) -> int | None:
        """How long it may stay open; None where the transaction is not known here."""
        found = self.producer_of(key.producer_id) or self.block_of(key.producer_id)
        return None if found is None else found.timeout_ms

    # --- Reading -----------------------------------------------------------------------------------------------------

    def standing(self, key: TransactionKey) -> Standing:
        """What is known of it as a whole."""
        producer = self.producer_of(key.producer_id)
        if producer is not None:
            return producer.standing(key)
        block = self.block_of(key.producer_id)
        if block is not None:
            return block.standing(key)
        return Standing.EXPIRED if key.producer_id < self.granted_below else Standing.UNKNOWN

    def is_near(self, key: TransactionKey) -> bool:
        """Of what is unknown: others may know it by now."""
        producer = self.producer_of(key.producer_id)
        if producer is not None:
            return key.producer_epoch - producer.epoch <= UNKNOWN_EPOCHS_TAKEN
        return key.producer_id - self.granted_below < UNKNOWN_IDS_TAKEN

    def producer(self, transactional_id: str) -> NamedProducer | None:
        return self._producers.get(transactional_id)

    def producer_of(self, producer_id: ProducerId) -> NamedProducer | None:
        """Whose id this is, or was before its epochs came to their end."""
        name = self._names.get(producer_id)
        return None if name is None else self._producers[name]

    def producers(self) -> list[NamedProducer]:
        """All of them, by name."""
        return [self._producers[name] for name in sorted(self._producers)]

    @property
    def producer_count(self) -> int:
        return len(self._producers)

    def names_of_producers(self) -> list[str]:
        """In no particular order."""
        return list(self._producers)

    def block(self, first: ProducerId) -> Block | None:
        return self._blocks.get(first)

    def block_of(self, producer_id: ProducerId) -> Block | None:
        """The block that this id is of."""
        place = bisect_right(self._firsts, producer_id) - 1
        if place < 0:
            return None
        block = self._blocks[self._firsts[place]]
        return block if producer_id < block.end else None

    def open_block(self, name: str) -> Block | None:
        """The one of this name that is not retired."""
        first = self._open_blocks.get(name)
        return None if first is None else self._blocks[first]

    def blocks(self) -> list[Block]:
        """All that are kept, by their ids."""
        return [self._blocks[first] for first in self._firsts]

    @property
    def block_count(self) -> int:
        return len(self._blocks)

    def going_on(self, ended: Iterable[TransactionKey]) -> tuple[TransactionKey, ...]:
        """The keys with which the named ones among these producers go on, where no answer says otherwise."""
        return tuple(
            TransactionKey(key.producer_id, ProducerEpoch(key.producer_epoch + 1))
            for key in dict.fromkeys(ended)
            if key.producer_id in self._names
        )

    def unmarked_count(self, key: TransactionKey) -> int:
        """In how many partitions a commit is not known to be visible yet."""
        return self._ends_of.get(key, 0)

    def end_offset(self, key: TransactionKey, topic_partition: TopicPartition) -> Offset | None:
        """What a commit named for this partition, while it is not marked there."""
        return self._ends.get(topic_partition, _NO_ENDS).get(key)

    def position(self, name: str) -> int:
        """-1: there is none."""
        return self._positions.get(name, -1)

    def positions(self) -> list[tuple[str, int]]:
        """All of them, by name."""
        return sorted(self.position_items())

    def position_items(self) -> list[tuple[str, int]]:
        """A copy, in no particular order."""
        return list(self._positions.items())

    @property
    def position_count(self) -> int:
        return len(self._positions)

    def staged(self) -> list[tuple[bytes, int]]:
        """Commits to come, and how many parts of each are there."""
        return list(self._staged.items())

    def partitions_with_ends(self) -> list[TopicPartition]:
        """Where some commit is not marked yet; in no particular order."""
        return list(self._ends)

    @property
    def is_empty(self) -> bool:
        """Nothing of transactions is kept."""
        return not (self._producers or self._blocks or self._ends or self._positions or self._staged)

    # --- Following ---------------------------------------------------------------------------------------------------

    def on_event(self, event: TransactionEvent) -> None:
        match event:
            case EndsCommitted(ends):
                self._add_ends(ends)
            case EndsForgotten(topic_partition, keys):
                self._forget_ends(topic_partition, keys)
            case BlockChanged(block):
                self._put_block(block)
            case ProducerChanged(producer):
                self._put_producer(producer)
            case PositionMoved(name, value):
                self._positions[name] = value
            case PositionRemoved(name):
                self._positions.pop(name, None)
            case ProducerIdsTaken(below):
                self.granted_below = below
            case PartsStaged(commit_id, count):
                if count:
                    self._staged[commit_id] = count
                else:
                    self._staged.pop(commit_id, None)
            case BlockRemoved(first):
                self._remove_block(first)
            case ProducerRemoved(name):
                self._remove_producer(name)

    def _add_ends(self, ends: Mapping[TopicPartition, Mapping[TransactionKey, Offset]]) -> None:
        """None of them is there yet."""
        for topic_partition, of_partition in ends.items():
            self._ends.setdefault(topic_partition, {}).update(of_partition)
            self.ends_count += len(of_partition)
            for key in of_partition:
                self._ends_of[key] = self._ends_of.get(key, 0) + 1

    def _forget_ends(self, topic_partition: TopicPartition, keys: Iterable[TransactionKey]) -> None:
        """All of them are there."""
        of_partition = self._ends[topic_partition]
        for key in keys:
            del of_partition[key]
            self.ends_count -= 1
            left = self._ends_of[key] - 1
            if left:
                self._ends_of[key] = left
            else:
                del self._ends_of[key]
        if not of_partition:
            del self._ends[topic_partition]

    def _put_block(self, block: Block) -> None:
        before = self._blocks.get(block.first)
        if before is None:
            insort(self._firsts, block.first)
            self.ids_in_blocks += block.count
        else:
            self.range_count -= len(before.committed) + len(before.aborted)
        self._blocks[block.first] = block
        self.range_count += len(block.committed) + len(block.aborted)
        if block.name and not block.retired:
            self._open_blocks[block.name] = block.first
        elif self._open_blocks.get(block.name) == block.first:
            del self._open_blocks[block.name]

    def _remove_block(self, first: ProducerId) -> None:
        block = self._blocks.pop(first)
        del self._firsts[bisect_right(self._firsts, first) - 1]
        self.ids_in_blocks -= block.count
        self.range_count -= len(block.committed) + len(block.aborted)
        if self._open_blocks.get(block.name) == first:
            del self._open_blocks[block.name]

    def _put_producer(self, producer: NamedProducer) -> None:
        before = self._producers.get(producer.transactional_id)
        if before is None or (before.producer_id, before.former_id) != (producer.producer_id, producer.former_id):
            self._forget_names(before)
            for producer_id in (producer.producer_id, producer.former_id):
                if producer_id != NO_PRODUCER_ID:
                    self._names[producer_id] = producer.transactional_id
        self._producers[producer.transactional_id] = producer

    def _remove_producer(self, name: str) -> None:
        self._forget_names(self._producers.pop(name))

    def _forget_names(self, producer: NamedProducer | None) -> None:
        if producer is not None:
            self._names.pop(producer.producer_id, None)
            self._names.pop(producer.former_id, None)
