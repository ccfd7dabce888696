"""Transactions as bytes inside a snapshot: topics by id, everything sorted, nothing derived, and packed in steps."""

from __future__ import annotations

from collections.abc import Generator

import msgspec

from metadata.commands.fields import WireStruct
from metadata.image.transaction_state import TransactionsState
from metadata.records.events import BlockChanged, EndsCommitted, PositionMoved, ProducerChanged
from metadata.records.groups import in_order
from metadata.records.transactions import Block, NamedProducer
from raftlog.model import Offset, ProducerEpoch, ProducerId, TopicId, TopicPartition
from raftlog.transactions import TransactionKey

from .steps import PER_STEP, encoded_in_steps, sorted_in_steps


class _Ends(WireStruct, frozen=True):
    """The ends of one partition, or a part of them if there are many."""

    topic_id: TopicId
    partition: int
    ends: tuple[tuple[ProducerId, ProducerEpoch, Offset], ...]


class _Position(WireStruct, frozen=True):
    name: str
    value: int


class _Staged(WireStruct, frozen=True):
    commit_id: bytes
    parts: tuple[tuple[int, bytes], ...]


class _PackedTransactions(WireStruct, frozen=True):
    """The tables of transactions; elements are encoded on their own, since encoding all at once would take too long."""

    producers: tuple[msgspec.Raw, ...]
    blocks: tuple[msgspec.Raw, ...]
    ends: tuple[msgspec.Raw, ...]
    positions: tuple[msgspec.Raw, ...]
    staged: tuple[_Staged, ...]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_PackedTransactions)
_producer_decoder = msgspec.msgpack.Decoder(NamedProducer)
_block_decoder = msgspec.msgpack.Decoder(Block)
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
    names = yield from sorted_in_steps(producers)
    packed_producers = yield from encoded_in_steps(producers[name] for name in names)
    packed_blocks = yield from encoded_in_steps(blocks)
    names = yield from sorted_in_steps(positions)
    packed_positions = yield from encoded_in_steps(_Position(name, positions[name]) for name in names)
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


def unpack_transactions(transactions: TransactionsState, packed: bytes | memoryview) -> Generator[None, None, None]:
    """Decode transactions into an empty state. Raises what msgspec raises for invalid bytes, `ValueError` included."""
    whole = _decoder.decode(packed)
    for number, one in enumerate(whole.producers, 1):
        transactions.change(ProducerChanged(_producer_decoder.decode(one)))
        if number % PER_STEP == 0:
            yield
    for number, one in enumerate(whole.blocks, 1):
        transactions.change(BlockChanged(_block_decoder.decode(one)))
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
