"""How a transaction ends, whoever asked for it: what commits, aborts and initialisations share."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from metadata.commands.results import Refused
from metadata.records.events import BlockChanged, ProducerChanged, ProducerIdsTaken
from metadata.records.transactions import MAX_PRODUCER_EPOCH, NamedProducer, Standing, with_ids
from raftlog.model import ProducerEpoch, ProducerId
from raftlog.transactions import Outcome, TransactionKey

from .image import ClusterImage


@dataclass(frozen=True, slots=True)
class Told:
    """It was carried out, and this is its answer."""

    keys: tuple[TransactionKey, ...] = ()
    count: int = 0


DONE = Told()

KEYS_PER_STEP = 1_000
"""Some milliseconds of work."""

ANSWERED_BY_POSITION_MS = 15_000
"""The timeout of a retired block whose outcomes a position tells for ever (it is kept for twice that): a micro-batch of
Spark's has a block, there are several a second, and with their own timeouts few queries would fill the cluster's room.
Who got no answer to a commit asks again within that time, and gets the first one; later, that the position is taken."""

Answer: TypeAlias = Refused | Told
Decision: TypeAlias = Generator[None, None, Answer]
"""One that may take long: nobody looks at the state before it has ended."""


def describe(key: TransactionKey) -> str:
    """For people."""
    return f"the transaction of producer {key.producer_id} in epoch {key.producer_epoch}"


def in_next_epoch(state: ClusterImage, producer: NamedProducer, after: int) -> NamedProducer:
    """The producer in the epoch after this one; where there is none, with another id."""
    if after < MAX_PRODUCER_EPOCH:
        return replace(producer, epoch=ProducerEpoch(after + 1))
    fresh = state.transactions.granted_below
    return replace(producer, producer_id=fresh, epoch=ProducerEpoch(0), former_id=producer.producer_id)


def put_producer(state: ClusterImage, record: NamedProducer) -> None:
    """Its id counts as granted from now on. The record goes first: an id that was granted and is in no record would be
    taken for an expired one."""
    transactions = state.transactions
    transactions.change(ProducerChanged(record))
    if record.producer_id >= transactions.granted_below:
        transactions.change(ProducerIdsTaken(ProducerId(record.producer_id + 1)))


def end_producer(state: ClusterImage, producer: NamedProducer, outcome: Outcome, now_ms: int | None) -> None:
    """Its transaction is decided; `now_ms` where the producer itself asked for that. Its epoch rises (KIP-890)."""
    record = replace(
        in_next_epoch(state, producer, producer.epoch),
        used_ms=producer.used_ms if now_ms is None else max(producer.used_ms, now_ms),
        ended=producer.key,
        outcome=outcome,
    )
    put_producer(state, record)


def end_all(
    state: ClusterImage, keys: Iterable[TransactionKey], outcome: Outcome, index: int, now_ms: int | None
) -> Generator[None, None, None]:
    """All of these are undecided; now they are not."""
    by_block: dict[ProducerId, list[int]] = {}
    for number, key in enumerate(keys, 1):
        if number % KEYS_PER_STEP == 0:
            yield
        producer = state.transactions.producer_of(key.producer_id)
        block = state.transactions.block_of(key.producer_id)
        if producer is not None:
            end_producer(state, producer, outcome, now_ms)
        elif block is not None:
            by_block.setdefault(block.first, []).append(key.producer_id)
    for first, ids in by_block.items():
        yield
        block = state.transactions.block(first)
        assert block is not None
        if outcome is Outcome.COMMITTED:
            decided = replace(block, committed=with_ids(block.committed, ids), changed=index)
        else:
            decided = replace(block, aborted=with_ids(block.aborted, ids), changed=index)
        state.transactions.change(BlockChanged(decided))


def abort_undecided(
    state: ClusterImage, keys: Iterable[TransactionKey], index: int, now_ms: int | None
) -> Generator[None, None, None]:
    """Those of them that are; nothing happens to the others. It is right at any time: nobody was told of a commit."""
    undecided = []
    for number, key in enumerate(dict.fromkeys(keys), 1):
        if number % KEYS_PER_STEP == 0:
            yield
        if state.transactions.standing(key) is Standing.UNDECIDED:
            undecided.append(key)
    yield from end_all(state, undecided, Outcome.ABORTED, index, now_ms)


def retire_block(state: ClusterImage, name: str, index: int, *, answered: bool = False) -> None:
    """What is undecided in it is aborted for good; nothing happens where no block of this name is open.

    `answered`: a position tells what became of its ids. Then nobody needs the block for long, and as nothing of it is
    open any more, its timeout is good only for how long it is kept.
    """
    block = state.transactions.open_block(name) if name else None
    if block is not None:
        timeout_ms = min(block.timeout_ms, ANSWERED_BY_POSITION_MS) if answered else block.timeout_ms
        retired = replace(block, retired=True, aborted=(), timeout_ms=timeout_ms, changed=index)
        state.transactions.change(BlockChanged(retired))


def told_after(state: ClusterImage, ended: Iterable[TransactionKey]) -> Told:
    """With what the named ones among these producers go on, having ended these last. There is nothing to tell where
    that is the next epoch for all of them (`Transactions.going_on`): answers are remembered, thousands of them."""
    keys = list(dict.fromkeys(ended))
    producers = (state.transactions.producer_of(key.producer_id) for key in keys)
    now = tuple(producer.key for producer in producers if producer is not None)
    return DONE if now == state.transactions.going_on(keys) else Told(now)
