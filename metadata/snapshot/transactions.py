"""Transactions as bytes inside a snapshot: topics by id, everything sorted, nothing derived, and packed in steps."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from heapq import merge

import msgspec

from metadata.image.transaction_state import TransactionsState
from metadata.records.events import BlockChanged, EndsCommitted, PositionMoved, ProducerChanged
from metadata.records.groups import in_order
from metadata.records.transactions import Block, NamedProducer, Ranges
from raftlog.model import Offset, ProducerEpoch, ProducerId, TopicId, TopicPartition
from raftlog.transactions import Outcome, TransactionKey

PER_STEP = 1_000
"""Some milliseconds of work."""


class _Part(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, gc=False):
    """Base of everything here."""


class _Producer(_Part, frozen=True):
    transactional_id: str
    producer_id: ProducerId
    epoch: ProducerEpoch
    timeout_ms: int
    used_ms: int
    ended: tuple[ProducerId, ProducerEpoch] | None
    outcome: int
    former_id: ProducerId
    attempts: bytes = b""


class _Block(_Part, frozen=True):
    first: ProducerId
    count: int
    name: str
    timeout_ms: int
    changed: int
    retired: bool
    committed: Ranges
    aborted: Ranges


class _Ends(_Part, frozen=True):
    """The ends of one partition, or a part of them if there are many."""

    topic_id: TopicId
    partition: int
    ends: tuple[tuple[ProducerId, ProducerEpoch, Offset], ...]


class _Position(_Part, frozen=True):
    name: str
    value: int


class _Staged(_Part, frozen=True):
    commit_id: bytes
    parts: tuple[tuple[int, bytes], ...]


class _PackedTransactions(_Part, frozen=True):
    """The tables of transactions; elements are encoded on their own, since encoding all at once would take too long."""

    producers: tuple[msgspec.Raw, ...]
    blocks: tuple[msgspec.Raw, ...]
    ends: tuple[msgspec.Raw, ...]
    positions: tuple[msgspec.Raw, ...]
    staged: tuple[_Staged, ...]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_PackedTransactions)
_producer_decoder = msgspec.msgpack.Decoder(_Producer)
_block_decoder = msgspec.msgpack.Decoder(_Block)
_ends_decoder = msgspec.msgpack.Decoder(_Ends)
_position_decoder = msgspec.msgpack.Decoder(_Position)


def pack_transactions(transactions: TransactionsState) -> Generator[None, None, msgspec.Raw]:
    """Encode the current state in steps; later changes are not included. Equal states give equal bytes."""
    staged = tuple(
        _Staged(commit_id, tuple(sorted(parts.items()))) for commit_id, parts in sorted(transactions.parts.items())
    )
    return _pack(*transactions.copies(), staged)


def _pack(
    producers: dict[str, NamedProducer],
    blocks: list[Block],
    ends: dict[TopicPartition, dict[TransactionKey, Offset]],
    positions: dict[str, int],
    staged: tuple[_Staged, ...],
) -> Generator[None, None, msgspec.Raw]:
    names = yield from _sorted_in_steps(producers)
    packed_producers = yield from _in_steps(_pack_producer(producers[name]) for name in names)
    packed_blocks = yield from _in_steps(_pack_block(block) for block in blocks)
    names = yield from _sorted_in_steps(positions)
    packed_positions = yield from _in_steps(_Position(name, positions[name]) for name in names)
    packed_ends = []
    for topic_partition in in_order(ends):
        of_partition = ends[topic_partition]
        keys = sorted(of_partition)
        yield
        for start in range(0, len(keys), PER_STEP):
            triples = tuple((*key, of_partition[key]) for key in keys[start : start + PER_STEP])
            packed = _Ends(topic_partition.topic_id, topic_partition.partition, triples)
            packed_ends.append(msgspec.Raw(_encoder.encode(packed)))
            yield
    whole = _PackedTransactions(packed_producers, packed_blocks, tuple(packed_ends), packed_positions, staged)
    return msgspec.Raw(_encoder.encode(whole))


def _in_steps(parts: Iterable[_Part]) -> Generator[None, None, tuple[msgspec.Raw, ...]]:
    packed = []
    for number, part in enumerate(parts, 1):
        packed.append(msgspec.Raw(_encoder.encode(part)))
        if number % PER_STEP == 0:
            yield
    return tuple(packed)


def unpack_transactions(transactions: TransactionsState, packed: bytes | memoryview) -> Generator[None, None, None]:
    """Decode transactions into an empty state. Raises what msgspec raises for invalid bytes, `ValueError` included."""
    whole = _decoder.decode(packed)
    for number, one in enumerate(whole.producers, 1):
        transactions.change(ProducerChanged(_unpack_producer(_producer_decoder.decode(one))))
        if number % PER_STEP == 0:
            yield
    for number, one in enumerate(whole.blocks, 1):
        transactions.change(BlockChanged(_unpack_block(_block_decoder.decode(one))))
        if number % PER_STEP == 0:
            yield
    for one in whole.ends:
        of_partition = _ends_decoder.decode(one)
        ends = {TransactionKey(producer, epoch): end for producer, epoch, end in of_partition.ends}
        name = TopicPartition(of_partition.topic_id, of_partition.partition)
        transactions.change(EndsCommitted({name: ends}))
        yield
    for number, one in enumerate(whole.positions, 1):
        position = _position_decoder.decode(one)
        transactions.change(PositionMoved(position.name, position.value))
        if number % PER_STEP == 0:
            yield
    for staged in whole.staged:
        for part, piece in staged.parts:
            transactions.stage(staged.commit_id, part, piece)


def _pack_producer(producer: NamedProducer) -> _Producer:
    return _Producer(
        producer.transactional_id,
        producer.producer_id,
        producer.epoch,
        producer.timeout_ms,
        producer.used_ms,
        None if producer.ended is None else (producer.ended.producer_id, producer.ended.producer_epoch),
        producer.outcome.value,
        producer.former_id,
        producer.attempts,
    )


def _unpack_producer(packed: _Producer) -> NamedProducer:
    return NamedProducer(
        packed.transactional_id,
        packed.producer_id,
        packed.epoch,
        packed.timeout_ms,
        packed.used_ms,
        None if packed.ended is None else TransactionKey(*packed.ended),
        Outcome(packed.outcome),
        packed.former_id,
        packed.attempts,
    )


def _pack_block(block: Block) -> _Block:
    return _Block(
        block.first,
        block.count,
        block.name,
        block.timeout_ms,
        block.changed,
        block.retired,
        block.committed,
        block.aborted,
    )


def _unpack_block(packed: _Block) -> Block:
    return Block(
        packed.first,
        packed.count,
        packed.name,
        packed.timeout_ms,
        packed.changed,
        packed.retired,
        packed.committed,
        packed.aborted,
    )


def _sorted_in_steps(names: Iterable[str]) -> Generator[None, None, Iterator[str]]:
    """Sort many names in steps."""
    whole = list(names)
    parts = []
    for start in range(0, len(whole), PER_STEP):
        parts.append(sorted(whole[start : start + PER_STEP]))
        yield
    return merge(*parts)
