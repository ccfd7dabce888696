"""What the HTTP API asks of the broker about transactions.

`raftlog/broker/changes/transactions.py` is the real one. What transactions *are* is read from the view
(`view.transactions`), after `catch_up` where it must be what the quorum has decided by now (S7).
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
    """`[first, first + count)`: each id is good for one transaction, of epoch 0."""

    first: ProducerId
    count: int


@dataclass(frozen=True, slots=True)
class WantedOutput:
    """What one transaction wrote: for each partition the end (exclusive) of its last acknowledged batch."""

    key: TransactionKey
    end_offsets: tuple[tuple[TopicPartition, Offset], ...]


@dataclass(frozen=True, slots=True)
class WantedMove:
    """A group's offset goes from `start` to `end`. Refused unless it is at `start` (-1: nothing is committed there)."""

    topic_partition: TopicPartition
    start: int
    end: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class WantedGroupOffsets:
    """Consumed by one member of one group; no member id: of a group that has no members."""

    group_id: str
    member_id: str
    incarnation: int
    generation: int
    moves: tuple[WantedMove, ...]


@dataclass(frozen=True, slots=True)
class WantedPosition:
    """A named counter goes from `current` (-1: there is none) up to `new`."""

    name: str
    current: int
    new: int


@dataclass(frozen=True, slots=True)
class WantedCommit:
    """All of it, or nothing."""

    outputs: tuple[WantedOutput, ...]
    group_offsets: tuple[WantedGroupOffsets, ...] = ()
    positions: tuple[WantedPosition, ...] = ()
    block: str = ""
    """The name of a block that is retired with it: whatever of its ids this does not commit is aborted for good."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """Records of a transaction in one partition, and no marker for them yet."""

    key: TransactionKey
    topic_partition: TopicPartition
    first_offset: Offset
    started_ms: int = -1
    """When the first of them came, by this node's clock; -1: that was before it led the partition."""


class NotVisibleYet(RetriableError):
    """A commit is decided, and its markers did not come within the time that was given for them."""

    def __init__(self, going_on: tuple[TransactionKey, ...]) -> None:
        """`going_on`: the commit's answer."""
        detail = "the transaction is committed, and not visible in all of its partitions yet"
        super().__init__("request_timed_out", detail)
        self.going_on = going_on


class TransactionService(Protocol):
    """Changes are decided when a call returns, and the view shows them; but for those of `commit` and `abort`, which it
    shows a moment later, or after `catch_up`. All raise `InvalidRequest` for what is refused and `RetriableError`
    (`outcome_unknown`, `quorum_unavailable`, `overloaded`); each may be tried again as it was."""

    async def initialize(
        self,
        transactional_id: str,
        timeout_ms: int,
        attempt: bytes | None = None,
        after: TransactionKey | None = None,
    ) -> TransactionKey:
        """A producer of this name begins: earlier ones are fenced, what they left undecided is aborted. `attempt` (16
        bytes): the same one again is answered as the first, or `producer_fenced` where another one came since; `after`:
        its last transaction, likewise."""
        ...

    async def open_block(self, name: str, count: int, timeout_ms: int) -> ProducerIdBlock:
        """Producer ids without a name. The same `name` (empty: none) gets the same block until it is retired."""
        ...

    async def retire_block(self, name: str) -> None:
        """What is undecided in it is aborted for good."""
        ...

    async def remove_position(self, name: str, value: int) -> None:
        """Forget it where it stands at `value`. Raises `InvalidRequest` (`offset_moved`)."""
        ...

    async def commit(self, wanted: WantedCommit, *, visible_within_s: float = 0) -> tuple[TransactionKey, ...]:
        """The keys with which the named producers among `wanted.outputs` go on, in their order; unnamed ones have
        none. With `visible_within_s` it also waits for all markers; raises `NotVisibleYet` where they do not come in
        time (it is committed all the same)."""
        ...

    def open_here(self) -> Sequence[OpenTransaction]:
        """What is open in partitions that this node leads, a bounded number."""
        ...

    async def abort(self, keys: Sequence[TransactionKey]) -> tuple[TransactionKey, ...]:
        """The same for an end without a trace. Raises `transaction_committed` where one is committed."""
        ...
