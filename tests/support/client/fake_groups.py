"""Groups for a broker in memory: the image's own rules on the fake broker's topics, and a coordinator that acts at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from metadata.commands.groups import (
    ChangeGroupsAs,
    Commit,
    Delete,
    DeleteOffsets,
    GroupChange,
    Join,
    Leave,
    Release,
    Reset,
    TopicPartitions,
    pack_partitions,
)
from metadata.commands.instances import InstanceChange
from metadata.commands.leases import LeaseChange
from metadata.controller.group_coordinator import Coordinator
from metadata.image.group_state import GroupsState
from metadata.image.groups import change_groups
from metadata.image.instance_state import InstancesState
from metadata.image.instances import change_instance
from metadata.image.lease_state import LeasesState
from metadata.image.leases import change_lease
from metadata.records.events import GroupEvent, OwnerEvent, TransactionEvent
from metadata.records.instances import InstanceEvent
from metadata.records.leases import LeaseEvent
from metadata.records.owner_table import EVENTS_OF_OWNERS, Owners
from metadata.records.security_table import SecurityTable
from metadata.rules.assignors import DEFAULT_ASSIGNOR
from metadata.view import ClusterView
from raftlog.broker.changes.group_answers import membership_of, offsets_of
from raftlog.broker.changes.groups import command_offsets
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError, error_from_code
from raftlog.model import BrokerId, BrokerRecord, ClusterTime, PartitionRecord, TopicId, TopicPartition, TopicRecord
from raftlog.patterns import full_matcher
from raftlog.ports import Answer
from raftlog.wire import (
    CommitOffsetsRequest,
    GroupChangedResponse,
    GroupHeartbeatsRequest,
    GroupHeartbeatsResponse,
    GroupOffsetsRequest,
    GroupOffsetsResponse,
    GroupRequest,
    GroupResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    MemberHeartbeatRequest,
    MembershipResponse,
    OffsetToCommit,
)

if TYPE_CHECKING:
    from metadata.image.image import ClusterImage

NOW_MS = 1_700_000_000_000
T = TypeVar("T")


class FakeGroups:
    """`GroupService`."""

    def __init__(self, view: ClusterView, feed: Callable[..., None], catch_up: Callable[[], bool]) -> None:
        """`feed(*events)` makes them the view's next entry; `catch_up` returns False if the quorum is silent."""
        self._catch_up = catch_up
        self.owners = Owners()
        self.groups = GroupsState(self.note, self.owners)
        self.instances = InstancesState(self.note)
        self.leases = LeasesState(self.note)
        self.view = view
        self._feed = feed
        self._events: list[Any] = []
        self.coordinator = Coordinator(view, full_matcher, 1, offsets_retention_ms=1)

    @property
    def partitions(self) -> Mapping[TopicPartition, PartitionRecord]:
        return {record.topic_partition: record for record in self.view.partitions()}

    @property
    def topics(self) -> Mapping[TopicId, TopicRecord]:
        return {topic.topic_id: topic for topic in self.view.topics()}

    @property
    def time(self) -> ClusterTime:
        return self.view.time

    def stamp_ms(self, proposed_ms: int) -> int:
        return self.view.time.stamp_ms or proposed_ms

    @property
    def feature_level(self) -> int:
        return self.view.feature_level

    @property
    def security(self) -> SecurityTable:
        return self.view.security

    def note(self, event: GroupEvent | InstanceEvent | LeaseEvent | TransactionEvent | OwnerEvent) -> None:
        if type(event) in EVENTS_OF_OWNERS:
            self.owners.on_event(event)
        self._events.append(event)

    def feed_events(self) -> None:
        """Send the events since the last entry to the view."""
        events, self._events = self._events, []
        self._feed(*events)

    @property
    def brokers(self) -> Mapping[BrokerId, BrokerRecord]:
        return {broker.broker_id: broker for broker in self.view.brokers()}

    def change_instance(self, change: InstanceChange, answer: Answer[int], principal: str = "") -> None:
        """Apply a change of an HTTP consumer, as `Groups` does."""
        index = self.view.index + 1
        state: Any = self
        refused = change_instance(state, change, index, principal)
        self.feed_events()
        answer(index if refused is None else refused.error())

    def change_lease(self, change: LeaseChange, answer: Answer[int], principal: str = "") -> None:
        """Apply a change of a lease, as `Groups` does."""
        index = self.view.index + 1
        state: Any = self
        refused = change_lease(state, change, index, principal)
        self.feed_events()
        answer(index if refused is None else refused.error())

    def change(self, change: GroupChange, principal: str = "") -> int:
        """Apply the change of a principal and return its index. Raises the refusal."""
        index = self.view.index + 1
        state: Any = self
        typed: ClusterImage = state
        result = change_groups(typed, ChangeGroupsAs((change,), (principal,)), index, 1)
        self.feed_events()
        assert self.view.index == index
        for refused in result.refusals:
            raise error_from_code(refused.code, refused.detail)
        return index

    def assign(self) -> None:
        """Take the coordinator's next step."""
        for group in list(self.groups.by_id.values()):
            self.coordinator.group_changed(group.group_id)
        for job in self.coordinator.jobs(0.0):
            assign = job.run()
            self.coordinator.assigned(job.group.group_id)
            if assign is not None:
                self.change(assign)

    # --- GroupService ---

    def join(
        self,
        request: JoinGroupRequest,
        client_host: str,
        answer: Answer[MembershipResponse],
        principal: str = "",
    ) -> None:
        def joined() -> MembershipResponse:
            full_matcher(request.pattern)
            index = self.change(
                Join(
                    request.group_id,
                    request.member_id,
                    request.instance_id,
                    request.client_id,
                    client_host,
                    tuple(request.topics),
                    request.pattern,
                    request.assignor or DEFAULT_ASSIGNOR,
                    request.session_timeout_ms,
                    request.rebalance_timeout_ms,
                ),
                principal,
            )
            self.assign()
            return membership_of(self.view, request.correlation_id, request.group_id, request.member_id, index)

        _answer(answer, joined)

    def heartbeat(self, request: MemberHeartbeatRequest, answer: Answer[MembershipResponse]) -> None:
        group_id, member_id, incarnation = request.group_id, request.member_id, request.incarnation

        def heard() -> MembershipResponse:
            self._see(max(incarnation, request.generation))
            if request.released:
                released = [TopicPartitions(TopicId(one.topic_id), tuple(one.partitions)) for one in request.released]
                self.change(Release(group_id, member_id, incarnation, request.generation, tuple(released)))
            if not self.coordinator.heartbeat(group_id, member_id, incarnation, 0.0):
                raise InvalidRequest("unknown_member", f"nobody knows {member_id}")
            return membership_of(self.view, request.correlation_id, group_id, member_id, incarnation)

        _answer(answer, heard)

    def leave(self, request: LeaveGroupRequest, answer: Answer[int]) -> None:
        def left() -> int:
            index = self.change(Leave(request.group_id, request.member_id, request.incarnation, NOW_MS))
            self.assign()
            return index

        _answer(answer, left)

    def commit(
        self, request: CommitOffsetsRequest, answer: Answer[int], *, decoded: bool = False, principal: str = ""
    ) -> None:
        who = (request.group_id, request.member_id, request.incarnation, request.generation)

        def committed() -> int:
            self._see(request.generation)
            return self.change(Commit(*who, NOW_MS, command_offsets(request.offsets)), principal)

        _answer(answer, committed)

    def committed(self, request: GroupOffsetsRequest, answer: Answer[GroupOffsetsResponse]) -> None:
        def found() -> GroupOffsetsResponse:
            self._see(self.view.index + 1)
            if self.view.groups.group(request.group_id) is None:
                raise InvalidRequest("unknown_group", f"there is no group {request.group_id}")
            return offsets_of(self.view, request.correlation_id, dict(self.view.groups.offsets(request.group_id)))

        _answer(answer, found)

    def ask(self, request: GroupRequest, client_host: str, answer: Answer[GroupResponse], principal: str = "") -> None:
        def changed(outcome: int | RaftlogError) -> None:
            answer(outcome if isinstance(outcome, RaftlogError) else GroupChangedResponse(request.correlation_id))

        match request:
            case CommitOffsetsRequest():
                self.commit(request, changed, decoded=True, principal=principal)
            case MemberHeartbeatRequest():
                self.heartbeat(request, answer)
            case JoinGroupRequest():
                self.join(request, client_host, answer, principal)
            case LeaveGroupRequest():
                self.leave(request, changed)
            case GroupOffsetsRequest():
                self.committed(request, answer)

    def _see(self, index: int) -> None:
        if self.view.index < index and not self._catch_up():
            raise RetriableError("quorum_unavailable", "the quorum is silent")

    def hear(self, request: GroupHeartbeatsRequest) -> GroupHeartbeatsResponse:
        raise AssertionError("no broker forwards here")

    def reset(
        self,
        group_id: str,
        epoch: int,
        offsets: Sequence[OffsetToCommit],
        expected: Sequence[int],
        answer: Answer[int],
        principal: str = "",
    ) -> None:
        change = Reset(group_id, epoch, NOW_MS, command_offsets(offsets), tuple(expected))
        _answer(answer, lambda: self.change(change, principal))

    def delete(self, group_id: str, answer: Answer[int]) -> None:
        _answer(answer, lambda: self.change(Delete(group_id)))

    def delete_offsets(self, group_id: str, partitions: Sequence[TopicPartition], answer: Answer[int]) -> None:
        _answer(answer, lambda: self.change(DeleteOffsets(group_id, pack_partitions(partitions))))


def _answer(answer: Answer[T], compute: Callable[[], T]) -> None:
    try:
        outcome: T | RaftlogError = compute()
    except RaftlogError as error:
        outcome = error
    answer(outcome)
