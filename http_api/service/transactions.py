"""The broker's port for transactions.

`raftlog/broker/changes/transactions.py` implements it. The state of transactions is read from the view
(`view.transactions`), after `catch_up` where the answer must be linearizable (S7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from raftlog.errors import RetriableError
from raftlog.model import Offset, ProducerId, TopicPartition
from raftlog.transactions import TransactionKey


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """The producer ids `[first, first + count)`, each valid for one transaction, of epoch 0."""

    first: ProducerId
    count: int


@dataclass(frozen=True, slots=True)
class WantedOutput:
    """The partitions that one transaction wrote, each with the end offset (exclusive) of its last acknowledged
    batch."""

    key: TransactionKey
    end_offsets: tuple[tuple[TopicPartition, Offset], ...]


@dataclass(frozen=True, slots=True)
class WantedMove:
    """A move of a group's offset from `start` to `end`. Refused unless the offset is at `start` (-1: none
    committed)."""

    topic_partition: TopicPartition
    start: int
    end: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class WantedGroupOffsets:
    """Offsets consumed by one member of a group; without a member id, of a group that has no members."""

    group_id: str
    member_id: str
    incarnation: int
    generation: int
    moves: tuple[WantedMove, ...]


@dataclass(frozen=True, slots=True)
class WantedPosition:
    """An advance of a named counter from `current` (-1: it does not exist) to `new`."""

    name: str
    current: int
    new: int


@dataclass(frozen=True, slots=True)
class WantedCommit:
    """The content of one commit, applied as a whole or not at all."""

    outputs: tuple[WantedOutput, ...]
    group_offsets: tuple[WantedGroupOffsets, ...] = ()
    positions: tuple[WantedPosition, ...] = ()
    block: str = ""
    """The name of a block that is retired with the commit: ids of it that this does not commit are aborted
    permanently."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """Records of a transaction in one partition that have no marker yet."""

    key: TransactionKey
    topic_partition: TopicPartition
    first_offset: Offset
    started_ms: int = -1
    """The arrival of the first record by this node's clock, in ms; -1 if it arrived before this node led the
    partition."""


class NotVisibleYet(RetriableError):
    """The commit is decided, but its markers were not written within the time allowed."""

    def __init__(self, going_on: tuple[TransactionKey, ...]) -> None:
        """`going_on`: the answer of the commit itself."""
        detail = "the transaction is committed, and not visible in all of its partitions yet"
        super().__init__("request_timed_out", detail)
        self.going_on = going_on


class TransactionService(Protocol):
    """When a call returns, its change is decided and visible in the view; changes by `commit` and `abort` become
    visible a moment later, or after `catch_up`. Every call raises `InvalidRequest` if the change is refused, and
    `RetriableError` (`outcome_unknown`, `quorum_unavailable`, `overloaded`); every call may be retried unchanged."""

    async def initialize(
        self,
        transactional_id: str,
        timeout_ms: int,
        attempt: bytes | None = None,
        after: TransactionKey | None = None,
    ) -> TransactionKey:
        """Initialize a producer of this name: earlier producers are fenced and their undecided transactions aborted. A
        retry with the same `attempt` (16 bytes) gets the first answer again, or `producer_fenced` if another producer
        has come since; `after`, the producer's last transaction, makes a retry recognizable likewise."""
        ...

    async def open_block(self, name: str, count: int, timeout_ms: int) -> ProducerIdBlock:
        """Return a block of producer ids without a transactional id. A block's `name` (empty: none) returns the same
        block until it is retired."""
        ...

    async def retire_block(self, name: str) -> None:
        """Retire the block; its undecided transactions are aborted permanently."""
        ...

    async def remove_position(self, name: str, value: int) -> None:
        """Remove the position if it stands at `value`. Raises `InvalidRequest` (`offset_moved`) otherwise."""
        ...

    async def commit(self, wanted: WantedCommit, *, visible_within_s: float = 0) -> tuple[TransactionKey, ...]:
        """Commit, and return the next keys of the named producers in `wanted.outputs`, in order; unnamed producers have
        none. With `visible_within_s` the call also waits for all markers, and raises `NotVisibleYet` if they are late
        (the transaction is committed nonetheless)."""
        ...

    def open_here(self) -> Sequence[OpenTransaction]:
        """Return the open transactions in partitions that this node leads, a bounded number of them."""
        ...

    async def abort(self, keys: Sequence[TransactionKey]) -> tuple[TransactionKey, ...]:
        """Abort, with the same answer as `commit`. Raises `transaction_committed` if one of them is already
        committed."""
        ...
