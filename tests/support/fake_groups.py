"""Groups for a broker in memory: the image's own rules on the fake broker's topics, and a coordinator at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from http_api.service.groups import WantedMembership, WantedOffset
from metadata.commands.groups import (
    ChangeGroups,
    Commit,
    Delete,
    GroupChange,
    Join,
    Leave,
    OffsetToCommit,
    Release,
    Reset,
    pack_partitions,
)
from metadata.controller.group_coordinator import Coordinator
from metadata.image.group_state import GroupsState
from metadata.image.groups import change_groups
from metadata.records.events import GroupEvent, TransactionEvent
from metadata.view import ClusterView
from raftlog.errors import InvalidRequest, error_from_code
from raftlog.model import ClusterTime, Offset, PartitionRecord, TopicPartition
from raftlog.patterns import full_matcher

if TYPE_CHECKING:
    from metadata.image.image import ClusterImage

NOW_MS = 1_700_000_000_000


class FakeGroups:
    """`GroupService`."""

    def __init__(self, view: ClusterView, feed: Callable[..., None]) -> None:
        """`feed(*events)` makes them the view's next entry."""
        self.groups = GroupsState(self.note)
        self.view = view
        self._feed = feed
        self._events: list[Any] = []
        self.coordinator = Coordinator(view, full_matcher, 1, offsets_retention_ms=1)

    @property
    def partitions(self) -> Mapping[TopicPartition, PartitionRecord]:
        return {record.topic_partition: record for record in self.view.partitions()}

    @property
    def time(self) -> ClusterTime:
        return self.view.time

    def stamp_ms(self, proposed_ms: int) -> int:
        return self.view.time.stamp_ms or proposed_ms

    def note(self, event: GroupEvent | TransactionEvent) -> None:
        self._events.append(event)

    def feed_events(self) -> None:
        """What was noted since the last entry, to the view."""
        events, self._events = self._events, []
        self._feed(*events)

    def change(self, change: GroupChange) -> int:
        """The index at which it was decided. Raises the refusal."""
        index = self.view.index + 1
        state: Any = self
        typed: ClusterImage = state
        result = change_groups(typed, ChangeGroups((change,)), index, 1)
        self.feed_events()
        assert self.view.index == index
        for refused in result.refusals:
            raise error_from_code(refused.code, refused.detail)
        return index

    def assign(self) -> None:
        """What a coordinator would do next."""
        for group in list(self.groups.by_id.values()):
            self.coordinator.group_changed(group.group_id)
        for job in self.coordinator.jobs(0.0):
            assign = job.run()
            self.coordinator.assigned(job.group.group_id)
            if assign is not None:
                self.change(assign)

    # --- GroupService ---

    async def join(self, wanted: WantedMembership) -> int:
        full_matcher(wanted.pattern)
        w = wanted
        who = (w.group_id, w.member_id, w.instance_id, w.client_id, w.client_host)
        what = (w.topics, w.pattern, w.assignor, w.session_timeout_ms, w.rebalance_timeout_ms)
        index = self.change(Join(*who, *what))
        self.assign()
        return index

    async def heartbeat(self, group_id: str, member_id: str, incarnation: int) -> None:
        if not self.coordinator.heartbeat(group_id, member_id, incarnation, 0.0):
            raise InvalidRequest("unknown_member", f"nobody knows {member_id}")

    async def leave(self, group_id: str, member_id: str, incarnation: int) -> None:
        self.change(Leave(group_id, member_id, incarnation, NOW_MS))
        self.assign()

    async def release(
        self, group_id: str, member_id: str, incarnation: int, generation: int, given_up: Sequence[TopicPartition]
    ) -> None:
        self.change(Release(group_id, member_id, incarnation, generation, pack_partitions(given_up)))

    def commit(
        self, group_id: str, member_id: str, incarnation: int, generation: int, offsets: Sequence[WantedOffset]
    ) -> asyncio.Future[int]:
        decided: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        decided.set_result(self.change(Commit(group_id, member_id, incarnation, generation, NOW_MS, _pack(offsets))))
        return decided

    async def reset(self, group_id: str, epoch: int, offsets: Sequence[WantedOffset], expected: Sequence[int]) -> None:
        self.change(Reset(group_id, epoch, NOW_MS, _pack(offsets), tuple(expected)))

    async def delete(self, group_id: str) -> None:
        self.change(Delete(group_id))


def _pack(offsets: Sequence[WantedOffset]) -> tuple[OffsetToCommit, ...]:
    return tuple(
        OffsetToCommit(
            one.topic_partition.topic_id,
            one.topic_partition.partition,
            Offset(one.offset),
            one.leader_epoch,
            one.metadata,
        )
        for one in offsets
    )
