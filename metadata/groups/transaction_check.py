"""What must hold of the image's transactions after every command. Looks at everything: for tests and the simulator."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING

from raftlog.transactions import Outcome, TransactionKey

from .transaction_commit import MAX_ENDS
from .transaction_records import MAX_PRODUCER_EPOCH, Block, NamedProducer, Ranges
from .transaction_state import TransactionsState

if TYPE_CHECKING:
    from ..image_state import ImageState


def check_transactions(state: ImageState) -> Iterable[str]:
    """What is wrong, in words; nothing, if nothing is."""
    transactions = state.transactions
    for producer in transactions.producers():
        yield from _check_producer(transactions, producer)
    for block in transactions.blocks():
        yield from _check_block(transactions, block)
    for before, after in pairwise(transactions.blocks()):
        if before.end > after.first:
            yield f"blocks of producer ids overlap at {after.first}"
    if transactions.ids_in_blocks != sum(block.count for block in transactions.blocks()):
        yield "the number of ids in blocks is not what is counted"
    if transactions.range_count != sum(len(b.committed) + len(b.aborted) for b in transactions.blocks()):
        yield "the number of ranges is not what is counted"
    yield from _check_ends(state)
    if transactions.staged_bytes != sum(len(p) for parts in transactions.parts.values() for p in parts.values()):
        yield "the bytes of staged parts are not what is counted"
    if {name: len(parts) for name, parts in transactions.parts.items()} != dict(transactions.staged()):
        yield "the staged parts are not what is told of them"


def _check_producer(transactions: TransactionsState, producer: NamedProducer) -> Iterable[str]:
    name = f"producer {producer.transactional_id!r}"
    if not 0 <= producer.epoch <= MAX_PRODUCER_EPOCH:
        yield f"{name}: epoch {producer.epoch}"
    if producer.producer_id >= transactions.granted_below:
        yield f"{name}: an id that was not granted"
    if transactions.producer_of(producer.producer_id) is not producer:
        yield f"{name}: it is not found by its id"
    if transactions.block_of(producer.producer_id) is not None:
        yield f"{name}: its id is of a block"
    if (producer.ended is None) != (producer.outcome is Outcome.UNDECIDED):
        yield f"{name}: an outcome of nothing"
    if producer.ended is not None and producer.key != _after(producer, producer.ended):
        yield f"{name}: it goes on with {producer.key}, after {producer.ended}"


def _after(producer: NamedProducer, ended: TransactionKey) -> tuple[int, int]:
    if ended.producer_epoch < MAX_PRODUCER_EPOCH:
        return ended.producer_id, ended.producer_epoch + 1
    return producer.producer_id, 0


def _check_block(transactions: TransactionsState, block: Block) -> Iterable[str]:
    name = f"the block from {block.first}"
    if block.end > transactions.granted_below:
        yield f"{name}: ids that were not granted"
    if block.retired and block.aborted:
        yield f"{name}: aborted one by one, and as a whole"
    for ranges in (block.committed, block.aborted):
        if not _is_tidy(ranges, block):
            yield f"{name}: {ranges} is not in order"
    decided = sum(end - first for first, end in (*block.committed, *block.aborted))
    both = {one for first, end in (*block.committed, *block.aborted) for one in range(first, end)}
    if len(both) != decided:
        yield f"{name}: an id is committed and aborted"


def _is_tidy(ranges: Ranges, block: Block) -> bool:
    within = all(block.first <= first < end <= block.end for first, end in ranges)
    return within and all(before[1] < after[0] for before, after in pairwise(ranges))


def _check_ends(state: ImageState) -> Iterable[str]:
    transactions = state.transactions
    count = 0
    partitions_of: dict[TransactionKey, int] = {}
    for topic_partition in transactions.partitions_with_ends():
        ends = transactions.ends_of(topic_partition)
        if topic_partition not in state.partitions:
            yield f"the ends of commits in {topic_partition}, which is no more"
        if not ends:
            yield f"no ends in {topic_partition}"
        for key in ends:
            count += 1
            partitions_of[key] = partitions_of.get(key, 0) + 1
            if key.producer_id >= transactions.granted_below:
                yield f"{key} is committed and was never granted"
    if count != transactions.ends_count or count > MAX_ENDS:
        yield "the number of ends is not what is counted"
    if any(transactions.unmarked_count(key) != number for key, number in partitions_of.items()):
        yield "the number of a transaction's ends is not what is counted"
