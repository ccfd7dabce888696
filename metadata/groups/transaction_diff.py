"""From one state of transactions to another, as events, and the ends of many commits in pieces: both some at a time.

What is *not* here: what events do to tables (`transaction_state.py`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from itertools import islice, repeat

from raftlog.model import Offset, TopicPartition
from raftlog.transactions import TransactionKey

from ..image_events import (
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
from .records import in_order
from .transaction_state import TransactionsState

COMPARED_PER_STEP = 2_000
"""Records, or ends: some milliseconds of work."""

ENDS_PER_EVENT = 250
"""Offsets in one `EndsCommitted`: whoever takes over so many events at a time does so many times as much."""


def slices_of_ends(
    ends: Mapping[TopicPartition, Mapping[TransactionKey, Offset]],
) -> Iterator[dict[TopicPartition, dict[TransactionKey, Offset]]]:
    """The same in pieces of at most `ENDS_PER_EVENT` offsets."""
    piece: dict[TopicPartition, dict[TransactionKey, Offset]] = {}
    room = ENDS_PER_EVENT
    for topic_partition, of_partition in ends.items():
        rest = iter(of_partition.items())
        while some := dict(islice(rest, room)):
            piece[topic_partition] = some
            room -= len(some)
            if not room:
                yield piece
                piece, room = {}, ENDS_PER_EVENT
    if piece:
        yield piece


def transactions_diff(old: TransactionsState, new: TransactionsState) -> Generator[None, None, list[TransactionEvent]]:
    """The events that lead a follower of `old` to `new`, in steps; the ends of commits before the outcomes."""
    events: list[TransactionEvent] = []
    for number, event in enumerate(_differences(old, new), 1):
        if event is not None:
            events.append(event)
        if number % COMPARED_PER_STEP == 0:
            yield
    return events


def _differences(old: TransactionsState, new: TransactionsState) -> Iterator[TransactionEvent | None]:
    """None: nothing, so far."""
    for topic_partition in in_order(new.partitions_with_ends()):
        before, after = old.ends_of(topic_partition), new.ends_of(topic_partition)
        added = {key: after[key] for key in sorted(after) if key not in before}
        for piece in slices_of_ends({topic_partition: added}):
            yield EndsCommitted(piece)
            yield from repeat(None, ENDS_PER_EVENT)
    yield from _changed_records(old, new)
    for topic_partition in in_order(old.partitions_with_ends()):
        before, after = old.ends_of(topic_partition), new.ends_of(topic_partition)
        gone = tuple(key for key in sorted(before) if key not in after)
        if gone:
            yield EndsForgotten(topic_partition, gone)
    # Last: what was granted and is in no record counts as expired.
    if new.granted_below != old.granted_below:
        yield ProducerIdsTaken(new.granted_below)


def _changed_records(old: TransactionsState, new: TransactionsState) -> Iterator[TransactionEvent | None]:
    producers, blocks, _, positions = new.copies()
    for producer in producers.values():
        changed = producer != old.producer(producer.transactional_id)
        yield ProducerChanged(producer) if changed else None
    for block in blocks:
        yield BlockChanged(block) if block != old.block(block.first) else None
    for name, value in positions.items():
        yield PositionMoved(name, value) if value != old.position(name) else None
    staged_before = dict(old.staged())
    for commit_id, count in new.staged():
        if staged_before.pop(commit_id, 0) != count:
            yield PartsStaged(commit_id, count)
    for commit_id in staged_before:
        yield PartsStaged(commit_id, 0)
    for name in old.names_of_producers():
        yield ProducerRemoved(name) if new.producer(name) is None else None
    for name, _ in old.position_items():
        yield PositionRemoved(name) if new.position(name) < 0 else None
    for block in old.blocks():
        yield BlockRemoved(block.first) if new.block(block.first) is None else None
