"""The tables of transactions as of some index: the image's and a view's alike, built from the same events.

One mapping from events to tables serves both, so the two cannot disagree; the price is an event for each staged part.

`Transactions` answers the queries of partition leaders (`raftlog.transactions.TransactionVerdicts`). The answer about a
partition has two sources: the **ends** that commits named for it, kept until a marker is below its high watermark, and
the **standing** of the transaction as a whole. The ends come first. So if a transaction is committed and no end names
this partition (any more), its open records here are aborted; so are those of a transaction that is no longer kept,
because it can never be committed (S13).
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
"""The bound on how many ids a leader's copy may lag behind the granted ones."""
UNKNOWN_EPOCHS_TAKEN = 64
"""The same bound for the epochs of one producer."""

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
    """Producers, blocks, ends and positions. Only the feeder calls `on_event`."""

    def __init__(self) -> None:
        self.granted_below = ProducerId(0)
        """The first producer id that has not been granted for any purpose."""
        self.ends_count = 0
        """The number of ends that are not marked yet."""
        self.ids_in_blocks = 0
        self.range_count = 0
        """The number of outcome ranges of all blocks."""
        self._producers: dict[str, NamedProducer] = {}
        self._names: dict[ProducerId, str] = {}
        """Producer id, current or former → the producer's name."""
        self._blocks: dict[ProducerId, Block] = {}
        self._firsts: list[ProducerId] = []
        """The first id of each block, sorted."""
        self._open_blocks: dict[str, ProducerId] = {}
        """Name → the block that is not retired."""
        self._ends: dict[TopicPartition, dict[TransactionKey, Offset]] = {}
        self._ends_of: dict[TransactionKey, int] = {}
        """Transaction → the number of its partitions that are not marked yet."""
        self._positions: dict[str, int] = {}
        self._staged: dict[bytes, int] = {}

    # --- What leaders ask: `raftlog.transactions.TransactionVerdicts` ------------------------------------------------

    def verdict(self, key: TransactionKey, topic_partition: TopicPartition) -> Verdict:
        """Return the verdict on records of this transaction that a leader finds open (S13)."""
        end_offset = self._ends.get(topic_partition, _NO_ENDS).get(key)
        if end_offset is not None:
            return Verdict(Outcome.COMMITTED, end_offset)
        return _UNDECIDED if self.standing(key) in _OPEN else _ABORTED

    def unmarked(self, topic_partition: TopicPartition, most: int | None = None) -> list[TransactionKey]:
        """Return up to `most` commits whose marker has not been reported below this partition's high watermark."""
        return list(islice(self._ends.get(topic_partition, ()), most))

    def refusal(self, key: TransactionKey) -> str:
        """Return the error code for further records of the transaction; empty if they are accepted."""
        standing = self.standing(key)
        if standing is Standing.UNKNOWN and not self.is_near(key):
            return "unknown_transaction"
        return _REFUSALS[standing]

    def timeout_ms(self, key: TransactionKey) -> int | None:
        """Return how long the transaction may stay open, or None if it is unknown here."""
        found = self.producer_of(key.producer_id) or self.block_of(key.producer_id)
        return None if found is None else found.timeout_ms

    # --- Reading -----------------------------------------------------------------------------------------------------

    def standing(self, key: TransactionKey) -> Standing:
        """Return the standing of the transaction as a whole."""
        producer = self.producer_of(key.producer_id)
        if producer is not None:
            return producer.standing(key)
        block = self.block_of(key.producer_id)
        if block is not None:
            return block.standing(key)
        return Standing.EXPIRED if key.producer_id < self.granted_below else Standing.UNKNOWN

    def is_near(self, key: TransactionKey) -> bool:
        """Return whether a transaction that is unknown here may already be known to other nodes."""
        producer = self.producer_of(key.producer_id)
        if producer is not None:
            return key.producer_epoch - producer.epoch <= UNKNOWN_EPOCHS_TAKEN
        return key.producer_id - self.granted_below < UNKNOWN_IDS_TAKEN

    def producer(self, transactional_id: str) -> NamedProducer | None:
        return self._producers.get(transactional_id)

    def producer_of(self, producer_id: ProducerId) -> NamedProducer | None:
        """Return the named producer that has this id, or had it before its epochs were exhausted."""
        name = self._names.get(producer_id)
        return None if name is None else self._producers[name]

    def producers(self) -> list[NamedProducer]:
        """Return all of them, sorted by name."""
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
        """Return the block that contains this id."""
        place = bisect_right(self._firsts, producer_id) - 1
        if place < 0:
            return None
        block = self._blocks[self._firsts[place]]
        return block if producer_id < block.end else None

    def open_block(self, name: str) -> Block | None:
        """Return the block of this name that is not retired."""
        first = self._open_blocks.get(name)
        return None if first is None else self._blocks[first]

    def blocks(self) -> list[Block]:
        """Return all blocks, sorted by id."""
        return [self._blocks[first] for first in self._firsts]

    @property
    def block_count(self) -> int:
        return len(self._blocks)

    def going_on(self, ended: Iterable[TransactionKey]) -> tuple[TransactionKey, ...]:
        """Return the next keys of the named producers among these, as they are if no answer says otherwise."""
        return tuple(
            TransactionKey(key.producer_id, ProducerEpoch(key.producer_epoch + 1))
            for key in dict.fromkeys(ended)
            if key.producer_id in self._names
        )

    def unmarked_count(self, key: TransactionKey) -> int:
        """Return the number of partitions in which a commit is not known to be visible yet."""
        return self._ends_of.get(key, 0)

    def end_offset(self, key: TransactionKey, topic_partition: TopicPartition) -> Offset | None:
        """Return the end that a commit named for this partition, until it is marked there."""
        return self._ends.get(topic_partition, _NO_ENDS).get(key)

    def position(self, name: str) -> int:
        """Return the position of this name, or -1 if there is none."""
        return self._positions.get(name, -1)

    def positions(self) -> list[tuple[str, int]]:
        """Return all of them, sorted by name."""
        return sorted(self.position_items())

    def position_items(self) -> list[tuple[str, int]]:
        """A copy, in no particular order."""
        return list(self._positions.items())

    @property
    def position_count(self) -> int:
        return len(self._positions)

    def staged(self) -> list[tuple[bytes, int]]:
        """Return each staged commit and the number of its parts that have arrived."""
        return list(self._staged.items())

    def partitions_with_ends(self) -> list[TopicPartition]:
        """Return the partitions in which some commit is not marked yet, in no particular order."""
        return list(self._ends)

    @property
    def is_empty(self) -> bool:
        """Return whether all tables are empty."""
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
        """Add ends, none of which may be present."""
        for topic_partition, of_partition in ends.items():
            self._ends.setdefault(topic_partition, {}).update(of_partition)
            self.ends_count += len(of_partition)
            for key in of_partition:
                self._ends_of[key] = self._ends_of.get(key, 0) + 1

    def _forget_ends(self, topic_partition: TopicPartition, keys: Iterable[TransactionKey]) -> None:
        """Remove ends, all of which must be present."""
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
