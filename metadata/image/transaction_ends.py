"""The end of a transaction: the parts that commits, aborts and initializations share."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from metadata.commands.results import Refused
from metadata.records.events import BlockChanged, ProducerChanged, ProducerIdsTaken
from metadata.records.transactions import MAX_PRODUCER_EPOCH, NamedProducer, Standing, with_ids
from raftlog.model import ProducerEpoch, ProducerId
from raftlog.transactions import Outcome, TransactionKey

from .image import ClusterImage


class EndOutcome(msgspec.Struct, frozen=True):
    """The answer to a change that was carried out."""

    keys: tuple[TransactionKey, ...] = ()
    count: int = 0


DONE = EndOutcome()

KEYS_PER_STEP = 1_000
"""The transactions ended in one step: some milliseconds of work."""

ANSWERED_BY_POSITION_MS = 15_000
"""The timeout of a retired block whose outcomes a position reveals permanently (it is kept for twice that).

Each micro-batch of Spark has a block, and there are several a second: with their own timeouts few queries would fill
the cluster's capacity. A retry of a commit within that time gets the first answer; later, that the position is taken.
"""

Answer: TypeAlias = Refused | EndOutcome
Decision: TypeAlias = Generator[None, None, Answer]
"""A decision that may take long: the state is not read before it has ended."""


def describe(key: TransactionKey) -> str:
    """Return the transaction's name for error texts."""
    return f"the transaction of producer {key.producer_id} in epoch {key.producer_epoch}"


def in_next_epoch(state: ClusterImage, producer: NamedProducer, after: int) -> NamedProducer:
    """Return the producer in the next epoch, or with another id if the epochs are exhausted."""
    if after < MAX_PRODUCER_EPOCH:
        return replace(producer, epoch=ProducerEpoch(after + 1))
    fresh = state.transactions.granted_below
    return replace(producer, producer_id=fresh, epoch=ProducerEpoch(0), former_id=producer.producer_id)


def put_producer(state: ClusterImage, record: NamedProducer) -> None:
    """Store a producer; its id counts as granted from now on.

    The record goes first: an id that was granted and is in no record would count as expired.
    """
    transactions = state.transactions
    transactions.change(ProducerChanged(record))
    if record.producer_id >= transactions.granted_below:
        transactions.change(ProducerIdsTaken(ProducerId(record.producer_id + 1)))


def end_producer(state: ClusterImage, producer: NamedProducer, outcome: Outcome, now_ms: int | None) -> None:
    """Decide the producer's transaction and raise its epoch (KIP-890); `now_ms` is set if the producer itself asked."""
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
    """Decide these transactions, all of which are undecided."""
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
    """Abort the undecided ones among these. It is correct at any time: no commit of them was acknowledged."""
    undecided = []
    for number, key in enumerate(dict.fromkeys(keys), 1):
        if number % KEYS_PER_STEP == 0:
            yield
        if state.transactions.standing(key) is Standing.UNDECIDED:
            undecided.append(key)
    yield from end_all(state, undecided, Outcome.ABORTED, index, now_ms)


def retire_block(state: ClusterImage, name: str, index: int, *, answered: bool = False) -> None:
    """Retire a block: its undecided ids are aborted permanently; without an open block of this name there is no effect.

    `answered`: a position records the outcome of its ids. Then the block is needed only briefly, and as none of its ids
    is open any more, its timeout only determines how long it is kept.
    """
    block = state.transactions.open_block(name) if name else None
    if block is not None:
        timeout_ms = min(block.timeout_ms, ANSWERED_BY_POSITION_MS) if answered else block.timeout_ms
        retired = replace(block, retired=True, aborted=(), timeout_ms=timeout_ms, changed=index)
        state.transactions.change(BlockChanged(retired))


def told_after(state: ClusterImage, ended: Iterable[TransactionKey]) -> EndOutcome:
    """Return the next keys of the named producers among these, which have just ended.

    The answer is empty if that is the next epoch for all of them (`Transactions.going_on`): thousands of answers are
    remembered.
    """
    keys = list(dict.fromkeys(ended))
    producers = (state.transactions.producer_of(key.producer_id) for key in keys)
    now = tuple(producer.key for producer in producers if producer is not None)
    return DONE if now == state.transactions.going_on(keys) else EndOutcome(now)
