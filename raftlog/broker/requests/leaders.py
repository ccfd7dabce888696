"""Splitting a request by the leaders of its partitions, and combining the answers.

`raftlog/broker/service.py`, `fetch.py` and `deletions.py` share this. A position is the index of a partition in its
request; a slot is its answer. An answer that means "not here" leaves the slot open: it is retried while there is time,
and is final when there is none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, TypeVar

import msgspec

from metadata.view import ClusterView
from raftlog.errors import Applied, InvalidRequest, NotLeader, RaftlogError, RetriableError, error_from_code
from raftlog.model import NO_BROKER, BrokerId, TopicId, TopicPartition
from raftlog.wire import (
    DeletedPartition,
    DeleteRecordsPartition,
    FetchedPartition,
    FetchPartition,
    FoundOffset,
    OffsetQuery,
    ProducedPartition,
    ProducePartition,
)

RETRY_SECONDS = 0.05
"""Pause before a retry in seconds, unless a change of the view ends it earlier."""
READ_PATIENCE_SECONDS = 3.0
"""Time beyond their own wait for which fetches and offset lookups look for a leader, in seconds: a failover takes
less."""

ASKS_ELSEWHERE = frozenset({"not_leader", "leader_not_available", "stale_incarnation"})
"""Errors that mean: nothing was done here, and another leader may do it."""

_DENIALS = frozenset({"unknown_topic", "unknown_partition"})

Asked = TypeVar("Asked", ProducePartition, FetchPartition, OffsetQuery, DeleteRecordsPartition)
Answer = TypeVar("Answer", ProducedPartition, FetchedPartition, FoundOffset, DeletedPartition)


def left_ms(deadline: float) -> int:
    """Return the time until a deadline of the loop's clock: what another broker gets, not the whole time again."""
    return max(int((deadline - asyncio.get_running_loop().time()) * 1000), 0)


def failed(kind: type[Answer], target: Asked, error: RaftlogError) -> Answer:
    """Return an error as a partition's answer."""
    leader = error.leader if isinstance(error, NotLeader) else -1
    return kind(target.topic_id, target.partition, error.code, error.detail, leader=leader)


class Slots(Generic[Answer]):
    """Answers by position. `open` holds the positions that are still to be asked."""

    def __init__(self, kind: type[Answer], count: int) -> None:
        self._kind: type[Answer] = kind
        self.answers: dict[int, Answer] = {}
        self.open = dict.fromkeys(range(count))
        self.maybe_applied: set[int] = set()
        """Positions for which an attempt of this node ended with an unknown outcome."""

    def settle(self, position: int, answer: Answer, *, final: bool) -> None:
        """Store an answer. If it is not final the slot stays open, and the answer counts if no better one arrives."""
        self.answers[position] = answer
        if final:
            del self.open[position]

    def fail(self, position: int, target: Asked, error: RaftlogError, *, final: bool) -> None:
        """Store an error as the answer, as `settle` does."""
        self.settle(position, failed(self._kind, target, error), final=final)

    def in_order(self) -> list[Answer]:
        """Return every answer in the order of the request."""
        return [
            self._corrected(answer) if position in self.maybe_applied else answer
            for position, answer in sorted(self.answers.items())
        ]

    def _corrected(self, answer: Answer) -> Answer:
        """Return the last attempt's answer, corrected for earlier attempts, which may have been applied (S1, S11)."""
        if not answer.error or error_from_code(answer.error, "").applied is not Applied.NO:
            return answer
        why = (
            f"an earlier attempt may have been carried out, and the last one failed with {answer.error}: "
            f"{answer.detail}"
        )
        return self._kind(answer.topic_id, answer.partition, "outcome_unknown", why)


class Leaders:
    """The leaders of partitions, according to this node's view."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self.may_be_behind = False
        """Whether the quorum was silent at the last read: something that is not in the view may exist nevertheless."""

    def of(self, topic_id: bytes, partition: int) -> BrokerId:
        """Return the leader, or `NO_BROKER`."""
        record = self._view.partition(TopicPartition(TopicId(topic_id), partition))
        return NO_BROKER if record is None else record.leader

    def has_heard_of(self, topic_id: bytes, partition: int) -> bool:
        """Return whether this node's view has such a partition."""
        topic = self._view.topic_by_id(TopicId(topic_id))
        return topic is not None and partition < topic.partition_count

    def weighed(self, answer: Answer) -> Answer:
        """Return a leader's answer, corrected if it denies a partition that this view has.

        Then either that leader is behind and will know the partition in a moment, or it was deleted and this view will
        show that. Until then the partition has no leader (S7).
        """
        if answer.error not in _DENIALS or not self.has_heard_of(answer.topic_id, answer.partition):
            return answer
        why = f"its leader does not know it yet, or it was just deleted: {answer.detail}"
        return msgspec.structs.replace(answer, error="leader_not_available", detail=why)

    def groups(
        self,
        asked: Sequence[Asked],
        slots: Slots[Answer],
        positions: Iterable[int] | None = None,
    ) -> dict[BrokerId, list[int]]:
        """Return open positions by the leader to ask; `positions` None: all of them.

        Positions without a leader are settled here.
        """
        groups: dict[BrokerId, list[int]] = {}
        for position in list(slots.open if positions is None else positions):
            target = asked[position]
            leader = self.of(target.topic_id, target.partition)
            if leader != NO_BROKER:
                groups.setdefault(leader, []).append(position)
                continue
            error = self._why_nobody(TopicId(target.topic_id), target.partition)
            final = not error.retriable or error.code == "metadata_behind"  # another node may not be behind
            slots.fail(position, target, error, final=final)
        return groups

    async def ask_until(
        self,
        deadline: float,
        asked: Sequence[Asked],
        slots: Slots[Answer],
        ask: Callable[[BrokerId, list[int]], Awaitable[None]],
    ) -> None:
        """Ask each leader for its positions, and those that are still open again, until the deadline."""
        while slots.open:
            groups = self.groups(asked, slots)
            await asyncio.gather(*(ask(leader, positions) for leader, positions in groups.items()))
            if slots.open and not await self.retry_before(deadline):
                return

    async def retry_before(self, deadline: float) -> bool:
        """Wait a short time for the view to change. Return False if the deadline has passed."""
        loop = asyncio.get_running_loop()
        left = deadline - loop.time()
        if left <= 0:
            return False
        changed = asyncio.Event()
        unsubscribe = self._view.subscribe(lambda *_: changed.set())
        try:
            # Not `wait_for`: before Python 3.12 it may swallow the cancellation of a request whose client has left.
            async with asyncio.timeout(min(RETRY_SECONDS, left)):
                await changed.wait()
        except TimeoutError:
            return loop.time() < deadline
        finally:
            unsubscribe()
        return True

    def _why_nobody(self, topic_id: TopicId, partition: int) -> RaftlogError:
        topic = self._view.topic_by_id(topic_id)
        if topic is None and self.may_be_behind:
            silent = f"topic {topic_id.hex()} is unknown here, and the quorum is silent: another node may know it"
            return RetriableError("metadata_behind", silent)
        if topic is None:
            return InvalidRequest("unknown_topic", f"there is no topic with id {topic_id.hex()}")
        topic_partition = TopicPartition(topic_id, partition)
        if self._view.partition(topic_partition) is None:
            if self.may_be_behind:
                silent = f"{topic.name}/{partition} is unknown here, and the quorum is silent: another node may know it"
                return RetriableError("metadata_behind", silent)
            highest = topic.partition_count - 1
            return InvalidRequest("unknown_partition", f"topic {topic.name!r} has partitions 0 to {highest}")
        waits_for = self._view.explain_offline(topic_partition)
        return RetriableError("leader_not_available", f"{topic.name}/{partition} has no leader now: {waits_for}")
