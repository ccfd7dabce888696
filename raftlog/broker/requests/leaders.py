"""Splitting a request by the leaders of its partitions, and combining the answers.

`raftlog/broker/service.py`, `fetch.py` and `deletions.py` share this. A position is the index of a partition in its
request; a slot is its answer. An answer that means "not here" leaves the slot open: it is retried while there is time,
and is final when there is none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

import msgspec

from metadata.view import ClusterView
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError
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


class Slots(Generic[Answer]):
    """Answers by position. `open` holds the positions that are still to be asked."""

    def __init__(self, count: int) -> None:
        self.answers: dict[int, Answer] = {}
        self.open = dict.fromkeys(range(count))
        self.maybe_applied: set[int] = set()
        """Positions for which an attempt of this node ended with an unknown outcome."""

    def settle(self, position: int, answer: Answer, *, final: bool) -> None:
        """Store an answer. If it is not final the slot stays open, and the answer counts if no better one arrives."""
        self.answers[position] = answer
        if final:
            del self.open[position]

    def in_order(self) -> list[Answer]:
        """Return every answer in the order of the request."""
        return [self.answers[position] for position in sorted(self.answers)]


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
        failed: Callable[[Asked, RaftlogError], Answer],
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
            slots.settle(position, failed(target, error), final=final)
        return groups

    async def retry_before(self, deadline: float) -> bool:
        """Wait a short time for the view to change. Return False if the deadline has passed."""
        loop = asyncio.get_running_loop()
        left = deadline - loop.time()
        if left <= 0:
            return False
        changed = asyncio.Event()
        unsubscribe = self._view.subscribe(lambda *_: changed.set())
        try:
            await asyncio.wait_for(changed.wait(), min(RETRY_SECONDS, left))
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
