"""The effects of changes on transactions, commits apart: initialization, aborts, blocks and expiry. Deterministic and
total.

The rules, each of which some schedule violates if it is left out (S13):

* **An end is remembered** as long as its producer may retry: an aborted id is never committed later.
* **Each initialization and each end raises a named producer's epoch**, so a late batch of one transaction is never
  mistaken for one of the next. A retry of the last end gets the first answer; an older epoch is fenced.
* **A retried initialization has no effect**: bumping the epoch again would fence the producer that asked; and one that
  arrives after another's would fence that producer, which has taken its place.
* **An id that is no longer kept has ended**: it can never be committed, and leaders abort its open records, unless the
  ends of a commit name them. Those stay, whatever expires, until a marker is below the high watermark everywhere.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable

from msgspec.structs import replace

from metadata.commands.results import Refused, TransactionAnswer, TransactionsChanged
from metadata.commands.security import SECURITY_FEATURE_LEVEL
from metadata.commands.transactions import (
    Abort,
    AbortOverdue,
    ChangeTransactions,
    ChangeTransactionsAs,
    Commit,
    CommitStaged,
    Expire,
    Initialize,
    Marked,
    OpenBlock,
    RemovePosition,
    RetireBlock,
    StagePart,
    TransactionChange,
    decode_piece,
)
from metadata.records.events import (
    BlockChanged,
    BlockRemoved,
    EndsForgotten,
    PositionRemoved,
    ProducerIdsTaken,
    ProducerRemoved,
)
from metadata.records.owners import NO_OWNER, Owned
from metadata.records.transactions import Block, NamedProducer, Standing, with_attempt
from raftlog.config import MIB
from raftlog.model import ProducerEpoch, ProducerId, TopicId, TopicPartition
from raftlog.transactions import Outcome, TransactionKey

from .image import ClusterImage
from .shares import own, refuse_records
from .transaction_commit import commit
from .transaction_ends import (
    DONE,
    Answer,
    Decision,
    EndOutcome,
    abort_undecided,
    describe,
    in_next_epoch,
    put_producer,
    retire_block,
    told_after,
)

MAX_PRODUCERS = 50_000
"""The most named producers. As for all limits below, every node keeps them in memory and in every snapshot."""
MAX_BLOCKS = 10_000
MAX_IDS_IN_BLOCKS = 20_000_000
MAX_RANGES = 250_000
"""The most outcome ranges of all blocks: beyond that no block is opened."""
MAX_STAGED_COMMITS = 256
MAX_STAGED_BYTES = 16 * MIB
PARTITIONS_PER_STEP = 128
ENDS_PER_STEP = 1_000
"""The ends handled in one step; this and the bound above are some milliseconds of work."""


def change_transactions(
    state: ClusterImage, command: ChangeTransactions, index: int, term: int
) -> Generator[None, None, TransactionsChanged]:
    """Apply each change on its own, in order and in steps."""
    answers = []
    principals = command.principals if isinstance(command, ChangeTransactionsAs) else (NO_OWNER,) * len(command.changes)
    for position, (change, principal) in enumerate(zip(command.changes, principals, strict=True)):
        answer = yield from _change(state, change, index, term, principal)
        if isinstance(answer, Refused):
            answers.append(TransactionAnswer(position, answer.code, answer.detail, (), 0))
        elif answer != DONE:
            answers.append(TransactionAnswer(position, "", "", tuple(answer.keys), answer.count))
        yield
    return TransactionsChanged(tuple(answers))


def _change(state: ClusterImage, change: TransactionChange, index: int, term: int, principal: str) -> Decision:
    match change:
        case Commit() | CommitStaged():
            return (yield from commit(state, change, index, principal))
        case Marked():
            return _marked(state, change)
        case Initialize():
            return _initialize(state, change, principal)
        case Abort():
            return (yield from _abort(state, change, index))
        case OpenBlock():
            return _open_block(state, change, index, principal)
        case RetireBlock():
            retire_block(state, change.name, index)
            return DONE
        case AbortOverdue():
            return (yield from _abort_overdue(state, change, index))
        case StagePart():
            return _stage(state, change)
        case Expire():
            return _expire(state, change, term)
        case RemovePosition():
            return _remove_position(state, change)


def strike_topic(state: ClusterImage, topic_id: TopicId) -> Generator[None, None, None]:
    """Drop the ends in a topic that is about to be deleted: no commit waits for markers in its partitions any more."""
    topic = state.topics.get(topic_id)
    for number in range(0 if topic is None else topic.partition_count):
        topic_partition = TopicPartition(topic_id, number)
        # Sorted: a node that began from a snapshot holds them in another order.
        unmarked = sorted(state.transactions.unmarked(topic_partition))
        for start in range(0, len(unmarked), ENDS_PER_STEP):
            yield
            _forget(state, topic_partition, unmarked[start : start + ENDS_PER_STEP])
        if number % PARTITIONS_PER_STEP == 0:
            yield


def _forget(state: ClusterImage, topic_partition: TopicPartition, keys: Iterable[TransactionKey]) -> None:
    """Drop those of these ends that exist."""
    transactions = state.transactions
    known = [key for key in dict.fromkeys(keys) if transactions.end_offset(key, topic_partition) is not None]
    if known:
        transactions.change(EndsForgotten(topic_partition, tuple(known)))


# --- Who has transactions --------------------------------------------------------------------------------------------


def _initialize(state: ClusterImage, change: Initialize, principal: str) -> Answer:
    transactions = state.transactions
    known = transactions.producer(change.transactional_id)
    now_ms = state.stamp_ms(change.now_ms)
    attempt = change.attempt if change.attempt and any(change.attempt) else None
    turn = None if known is None or attempt is None else known.turn_of(attempt)
    if known is None:
        if transactions.producer_count >= MAX_PRODUCERS:
            return Refused("overloaded", f"the cluster has {MAX_PRODUCERS} transactional ids, which is the most")
        refused = refuse_records(state, principal, Owned.TRANSACTIONAL_ID, 1, MAX_PRODUCERS)
        if refused is not None:
            return refused
        own(state, principal, Owned.TRANSACTIONAL_ID, change.transactional_id)
        first = transactions.granted_below
        record = NamedProducer(change.transactional_id, first, ProducerEpoch(0), change.timeout_ms, now_ms)
    elif turn == 0:
        return EndOutcome((known.key,))
    elif turn is not None or (change.after is not None and change.after not in (known.key, known.ended)):
        name = change.transactional_id
        return Refused("producer_fenced", f"{name!r} was initialised again since: another producer has its place")
    else:
        # Nothing is marked as ended: requests with the previous epochs are fenced.
        record = replace(
            in_next_epoch(state, known, known.epoch),
            timeout_ms=change.timeout_ms,
            used_ms=max(known.used_ms, now_ms),
            ended=None,
            outcome=Outcome.UNDECIDED,
        )
    record = replace(record, attempts=with_attempt(record.attempts, attempt))
    put_producer(state, record)
    return EndOutcome((record.key,))


def _open_block(state: ClusterImage, change: OpenBlock, index: int, principal: str) -> Answer:
    transactions = state.transactions
    block = transactions.open_block(change.name) if change.name else None
    if block is None:
        too_many = (
            transactions.block_count >= MAX_BLOCKS
            or transactions.ids_in_blocks + change.count > MAX_IDS_IN_BLOCKS
            or transactions.range_count >= MAX_RANGES
        )
        if too_many:
            return Refused("overloaded", "the cluster keeps too many blocks of producer ids: some must expire first")
        refused = refuse_records(state, principal, Owned.BLOCK, 1, MAX_BLOCKS)
        if refused is not None:
            return refused
        own(state, principal, Owned.BLOCK, transactions.granted_below)
        block = Block(transactions.granted_below, change.count, change.name, change.timeout_ms, index)
        transactions.change(BlockChanged(block))
        transactions.change(ProducerIdsTaken(ProducerId(block.end)))
    return EndOutcome((TransactionKey(block.first, ProducerEpoch(0)),), block.count)


# --- Ends without a trace --------------------------------------------------------------------------------------------

_NOT_ABORTED = (
    (Standing.COMMITTED, "transaction_committed", "is committed"),
    (Standing.FENCED, "producer_fenced", "is of an older epoch: another producer has taken its place"),
    (Standing.EXPIRED, "outcome_unknown", "is not remembered any more: it may have been committed"),
    (Standing.UNKNOWN, "unknown_transaction", "was never begun"),
)
"""Reasons to refuse an abort, the most severe first."""


def _abort(state: ClusterImage, change: Abort, index: int) -> Decision:
    keys = list(change.keys)
    yield from abort_undecided(state, keys, index, state.stamp_ms(change.now_ms))
    # A producer has its id from this state, so an unknown one is a stranger's: an operator finds it open in a log.
    passed = set() if state.feature_level < SECURITY_FEATURE_LEVEL else _pass_over_unknown(state, keys)
    keys = [key for key in keys if key not in passed]
    standings = {state.transactions.standing(key): key for key in reversed(keys)}
    for standing, code, why in _NOT_ABORTED:
        if standing in standings:
            return Refused(code, f"{describe(standings[standing])} {why}")
    return told_after(state, keys)


def _abort_overdue(state: ClusterImage, change: AbortOverdue, index: int) -> Decision:
    keys = list(change.keys)
    yield from abort_undecided(state, keys, index, None)
    for key in keys:
        if _is_passable(state, key):
            _pass_over(state, key)
    return DONE


def _pass_over_unknown(state: ClusterImage, keys: Iterable[TransactionKey]) -> set[TransactionKey]:
    """Abort the unknown ones among these, and return them."""
    unknown = {key for key in keys if _is_passable(state, key)}
    for key in sorted(unknown):
        if _is_passable(state, key):  # The others are aborted with those before.
            _pass_over(state, key)
    return unknown


def _is_passable(state: ClusterImage, key: TransactionKey) -> bool:
    return state.transactions.standing(key) is Standing.UNKNOWN and state.transactions.is_near(key)


def _pass_over(state: ClusterImage, key: TransactionKey) -> None:
    """Abort a transaction of an id that was never granted and never will be."""
    producer = state.transactions.producer_of(key.producer_id)
    if producer is None:
        state.transactions.change(ProducerIdsTaken(ProducerId(key.producer_id + 1)))
        return
    passed = in_next_epoch(state, producer, key.producer_epoch)
    put_producer(state, replace(passed, ended=None, outcome=Outcome.UNDECIDED))


# --- What is staged, and what is forgotten ---------------------------------------------------------------------------


def _stage(state: ClusterImage, change: StagePart) -> Answer:
    transactions = state.transactions
    known = transactions.parts.get(change.commit_id, {})
    if change.number in known:
        if known[change.number] == change.piece:
            return DONE
        return Refused("invalid_request", f"part {change.number} of this commit is already staged with other content")
    if decode_piece(change.piece) is None:
        return Refused("invalid_request", f"part {change.number} of this commit cannot be read")
    if not known and len(transactions.parts) >= MAX_STAGED_COMMITS:
        return Refused("overloaded", f"{MAX_STAGED_COMMITS} large commits are under way, which is the most")
    if transactions.staged_bytes + len(change.piece) > MAX_STAGED_BYTES:
        return Refused("overloaded", f"large commits of {MAX_STAGED_BYTES} bytes are under way, which is the most")
    transactions.stage(change.commit_id, change.number, change.piece)
    return DONE


def _marked(state: ClusterImage, change: Marked) -> Answer:
    record = state.partitions.get(change.topic_partition)
    if record is None:
        return Refused("unknown_partition", f"there is no partition {change.topic_partition}")
    if record.leader_epoch != change.leader_epoch:
        return Refused("fenced_leader_epoch", f"{change.topic_partition} is in leader epoch {record.leader_epoch}")
    _forget(state, change.topic_partition, list(change.keys))
    return DONE


def _remove_position(state: ClusterImage, change: RemovePosition) -> Answer:
    value = state.transactions.position(change.name)
    if value < 0:
        return DONE
    if value != change.value:
        return Refused("offset_moved", f"position {change.name!r} is at {value}, not at {change.value}")
    state.transactions.change(PositionRemoved(change.name))
    return DONE


def _expire(state: ClusterImage, change: Expire, term: int) -> Answer:
    if change.term != term:
        return Refused("not_coordinator", f"a coordinator's change of term {change.term} in an entry of term {term}")
    transactions = state.transactions
    for expired in change.blocks:
        block = transactions.block(expired.first)
        if block is not None and block.changed == expired.changed:
            transactions.change(BlockRemoved(block.first))
    for unused in change.producers:
        producer = transactions.producer(unused.transactional_id)
        if producer is not None and producer.key == (unused.producer_id, unused.producer_epoch):
            transactions.change(ProducerRemoved(producer.transactional_id))
    for abandoned in change.parts:
        if len(transactions.parts.get(abandoned.commit_id, ())) == abandoned.parts:
            transactions.drop_parts(abandoned.commit_id)
    return DONE
