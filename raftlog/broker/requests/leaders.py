"""Splitting a request by the leaders of its partitions, and putting the answers together again.

What `raftlog/broker/service.py` and `fetch.py` share. A position is the place of a partition in its request; a slot is
its answer. An answer that says "not here" leaves the slot open: it is asked again while there is time, and counts as it
is when there is none.
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
"""How long a retry waits where no change of the view wakes it earlier."""
READ_PATIENCE_SECONDS = 3.0
"""How long fetches and offset queries look for a leader beyond their own wait: a failover takes less."""

ASKS_ELSEWHERE = frozenset({"not_leader", "leader_not_available", "stale_incarnation"})
"""Errors that say: nothing was done here, and another leader may do it."""

_DENIALS = frozenset({"unknown_topic", "unknown_partition"})

Asked = TypeVar("Asked", ProducePartition, FetchPartition, OffsetQuery, DeleteRecordsPartition)
Answer = TypeVar("Answer", ProducedPartition, FetchedPartition, FoundOffset, DeletedPartition)


class Slots(Generic[Answer]):
    """Answers by position; `open` are those still to be asked."""

    def __init__(self, count: int) -> None:
        self.answers: dict[int, Answer] = {}
        self.open = dict.fromkeys(range(count))
        self.maybe_applied: set[int] = set()
        """An attempt of this node ended without telling whether it was applied."""

    def settle(self, position: int, answer: Answer, *, final: bool) -> None:
        """Keep an answer. One that is not final stays open, and counts if nothing better comes."""
        self.answers[position] = answer
        if final:
            del self.open[position]

    def in_order(self) -> list[Answer]:
        """Every answer, in the order asked."""
        return [self.answers[position] for position in sorted(self.answers)]


class Leaders:
    """Who leads what, by this node's view."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self.may_be_behind = False
        """The quorum was silent when it was asked last: what is not in the view may exist all the same."""

    def of(self, topic_id: bytes, partition: int) -> BrokerId:
        """The leader, or `NO_BROKER`."""
        record = self._view.partition(TopicPartition(TopicId(topic_id), partition))
        return NO_BROKER if record is None else record.leader

    def has_heard_of(self, topic_id: bytes, partition: int) -> bool:
        """Whether there is such a partition, by this node's view."""
        topic = self._view.topic_by_id(TopicId(topic_id))
        return topic is not None and partition < topic.partition_count

    def weighed(self, answer: Answer) -> Answer:
        """A leader's answer; one that denies a partition which this view has is none. Either that leader is behind, and
        will know it in a moment, or it was deleted, and this view will show that: until then nobody leads it (S7)."""
        if answer.error not in _DENIALS or not self.has_heard_of(answer.topic_id, answer.partition):
            return answer
        why = f"its leader does not know it yet, or it was deleted just now: {answer.detail}"
        return msgspec.structs.replace(answer, error="leader_not_available", detail=why)

    def groups(
        self,
        asked: Sequence[Asked],
        slots: Slots[Answer],
        failed: Callable[[Asked, RaftlogError], Answer],
        positions: Iterable[int] | None = None,
    ) -> dict[BrokerId, list[int]]:
        """Open positions (None: all of them) by the leader to ask; what has none is settled here."""
        groups: dict[BrokerId, list[int]] = {}
        for position in list(slots.open if positions is None else positions):
            target = asked[position]
            leader = self.of(target.topic_id, target.partition)
            if leader != NO_BROKER:
                groups.setdefault(leader, []).append(position)
                continue
            error = self._why_nobody(TopicId(target.topic_id), target.partition)
            final = not error.retriable or error.code == "metadata_behind"  # which another node may not be
            slots.settle(position, failed(target, error), final=final)
        return groups

    async def retry_before(self, deadline: float) -> bool:
        """Wait for the view to change, a little while at most. False: time is up."""
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
            silent = f"topic {topic_id.hex()} is not known here, and the quorum is silent: another node may know it"
            return RetriableError("metadata_behind", silent)
        if topic is None:
            return InvalidRequest("unknown_topic", f"there is no topic with id {topic_id.hex()}")
        topic_partition = TopicPartition(topic_id, partition)
        if self._view.partition(topic_partition) is None:
            if self.may_be_behind:
                silent = (
                    f"{topic.name}/{partition} is not known here, and the quorum is silent: another node may know it"
                )
                return RetriableError("metadata_behind", silent)
            highest = topic.partition_count - 1
            return InvalidRequest("unknown_partition", f"topic {topic.name!r} has partitions 0 to {highest}")
        waits_for = self._view.explain_offline(topic_partition)
        return RetriableError("leader_not_available", f"{topic.name}/{partition} has no leader now: {waits_for}")
