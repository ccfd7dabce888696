"""Consumer groups on one node: the members' requests, and the coordinator, which runs beside the quorum's leader.

The node that receives a join, a commit or a similar request proposes it: the quorum's leader gets them all anyway, and
the image decides. Only heartbeats have a single destination, the coordinator, and are forwarded to it by one hop.

The coordinator is created when this node becomes the quorum's leader and dropped when it no longer is. It is called
when a group or a topic has changed, and at its own next deadline: without groups it costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from http_api.service.groups import check_name
from metadata.commands.groups import (
    MAX_PARTITIONS_PER_GROUP,
    Assign,
    Commit,
    Delete,
    DeleteOffsets,
    Expire,
    Fence,
    GroupChange,
    Join,
    Leave,
    Release,
    Reset,
    TopicPartitions,
    pack_partitions,
)
from metadata.commands.groups import OffsetToCommit as CommandOffset
from metadata.commands.instances import INSTANCES_FEATURE_LEVEL, InstanceChange, SubscribeInstance
from metadata.commands.leases import LeaseChange
from metadata.commands.security import SECURITY_FEATURE_LEVEL
from metadata.controller.group_coordinator import AssignmentJob, Coordinator
from metadata.quorum.port import MetadataQuorum
from metadata.records.owners import NO_OWNER
from metadata.rules.assignors import DEFAULT_ASSIGNOR
from metadata.view import ClusterView, GroupChanged, MetadataEvent, TopicChanged, TopicRemoved
from raftlog.broker.unforeseen import raise_soon
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError, error_from_code
from raftlog.model import NO_BROKER, BrokerId, Offset, TopicId, TopicPartition
from raftlog.patterns import full_matcher
from raftlog.ports import Answer, Clock, Logger, Scheduler, Timer, Worker
from raftlog.wire import (
    CommitOffsetsRequest,
    GroupChangedResponse,
    GroupHeartbeat,
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

from .feature_levels import check_level
from .group_answers import membership_of, offsets_of
from .group_batches import GroupBatches
from .replies import Reply

HOPELESS_PAUSE_SECONDS = 30.0
"""Time before a retry that only a changed membership can help: a change too large for a command, a bug of raftlog."""
AFTER_A_BUG_SECONDS = 1.0
"""Time before the coordinator restarts after an unexpected error."""
SHORTEST_PAUSE_SECONDS = 0.001
"""Minimum time to the coordinator's next turn: timers and the clock need not agree about the last microsecond."""
INLINE_ASSIGNMENT = 500
"""Number of members and partitions up to which targets are computed on the loop, in a millisecond or two. A worker
computes larger ones."""
INLINE_OFFSETS = 500
"""Number of offsets up to which the answer to a read is built on the loop. A worker builds larger ones."""


class ForwardsHeartbeats(Protocol):
    """The part of the forwarder that is needed here."""

    def heartbeats(
        self, peer: BrokerId, request: GroupHeartbeatsRequest, answer: Answer[GroupHeartbeatsResponse]
    ) -> None: ...


class Groups:
    """See `http_api.service.groups.GroupService`. All calls are made on the scheduler's thread. It must be closed."""

    def __init__(
        self,
        node_id: BrokerId,
        view: ClusterView,
        quorum: MetadataQuorum,
        batches: GroupBatches,
        forwarder: ForwardsHeartbeats,
        catch_up: Callable[[Callable[[bool], None]], None],
        clock: Clock,
        scheduler: Scheduler,
        worker: Worker,
        logger: Logger,
        *,
        offsets_retention_ms: int,
    ) -> None:
        """`catch_up` brings the view up to everything that is decided; its callback gets False if that fails (S7)."""
        self._node_id = node_id
        self._view = view
        self._quorum = quorum
        self._batches = batches
        self._forwarder = forwarder
        self._catch_up = catch_up
        self._clock = clock
        self._scheduler = scheduler
        self._worker = worker
        self._logger = logger
        self._retention_ms = offsets_retention_ms
        self._coordinator: Coordinator | None = None
        self._timer: Timer | None = None
        self._woken = False
        self._closed = False
        self._unsubscribe = view.subscribe(self._on_events)

    def close(self) -> None:
        """Stop coordinating. Changes that were proposed may still be decided."""
        self._closed = True
        self._unsubscribe()
        self._coordinator = None
        if self._timer is not None:
            self._timer.cancel()

    # --- Requests of members -----------------------------------------------------------------------------------------

    def ask(
        self, request: GroupRequest, client_host: str, answer: Answer[GroupResponse], principal: str = NO_OWNER
    ) -> None:
        """Carry out a request that was decoded from a message. `principal`: as in `GroupService`."""

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

    def join(
        self,
        request: JoinGroupRequest,
        client_host: str,
        answer: Answer[MembershipResponse],
        principal: str = NO_OWNER,
    ) -> None:
        reply = Reply(self._scheduler, answer)

        def propose() -> None:
            check_name("a group", request.group_id)
            check_name("a member", request.member_id)
            full_matcher(request.pattern)
            change = Join(
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
            )
            self._batches.submit(change, reply.then(joined), principal=principal)

        def joined(incarnation: int) -> None:
            number, group_id, member_id = request.correlation_id, request.group_id, request.member_id
            reply.give(membership_of(self._view, number, group_id, member_id, incarnation))

        reply.attempt(propose)

    def heartbeat(self, request: MemberHeartbeatRequest, answer: Answer[MembershipResponse]) -> None:
        reply = Reply(self._scheduler, answer)
        group_id, member_id, incarnation = request.group_id, request.member_id, request.incarnation

        def release() -> None:
            if self._view.index < incarnation:
                # The view is current, so no entry of this index exists, and no member has this incarnation.
                told = f"group {group_id!r} has no member {member_id!r} of incarnation {incarnation}: it must join"
                raise InvalidRequest("unknown_member", told)
            if not request.released:
                renew(0)
                return
            if sum(len(one.partitions) for one in request.released) > MAX_PARTITIONS_PER_GROUP:
                raise InvalidRequest(
                    "invalid_request", f"a heartbeat can release at most {MAX_PARTITIONS_PER_GROUP} partitions"
                )
            released = [TopicPartitions(TopicId(one.topic_id), tuple(one.partitions)) for one in request.released]
            change = Release(group_id, member_id, incarnation, request.generation, tuple(released))
            self._batches.submit(change, reply.then(renew))

        def renew(_: int) -> None:
            self._renew(GroupHeartbeat(group_id, member_id, incarnation), reply.then(renewed))

        def renewed(code: str) -> None:
            if code:
                raise error_from_code(code, f"the coordinator refused member {member_id!r}")
            reply.give(membership_of(self._view, request.correlation_id, group_id, member_id, incarnation))

        # A stale node would return an assignment that is no longer valid.
        self._when_current(max(incarnation, request.generation), f"member {member_id!r}", release, reply)

    def leave(self, request: LeaveGroupRequest, answer: Answer[int]) -> None:
        self._submit(Leave(request.group_id, request.member_id, request.incarnation, self._clock.wall_ms()), answer)

    def commit(
        self,
        request: CommitOffsetsRequest,
        answer: Answer[int],
        *,
        decoded: bool = False,
        principal: str = NO_OWNER,
    ) -> None:
        reply = Reply(self._scheduler, answer)

        def propose() -> None:
            check_name("a group", request.group_id)
            change = Commit(
                request.group_id,
                request.member_id,
                request.incarnation,
                request.generation,
                self._clock.wall_ms(),
                command_offsets(request.offsets),
            )
            self._batches.submit(change, reply.give, decodable=decoded, principal=principal)

        self._when_current(request.generation, "a partition", propose, reply)

    def committed(self, request: GroupOffsetsRequest, answer: Answer[GroupOffsetsResponse]) -> None:
        reply = Reply(self._scheduler, answer)

        def look_up() -> None:
            if self._view.groups.group(request.group_id) is None:
                raise InvalidRequest("unknown_group", f"there is no group {request.group_id!r}")
            found = dict(self._view.groups.offsets(request.group_id))
            if len(found) <= INLINE_OFFSETS:
                reply.give(offsets_of(self._view, request.correlation_id, found))
            else:
                self._worker.submit(lambda: offsets_of(self._view, request.correlation_id, found), computed)

        def computed(response: GroupOffsetsResponse | None, error: BaseException | None) -> None:
            reply.attempt(lambda: reply.give(_result(response, error)))

        self._catch_up(lambda current: self._if_current(current, f"group {request.group_id!r}", look_up, reply))

    # --- Requests of operators ---------------------------------------------------------------------------------------

    def reset(
        self,
        group_id: str,
        epoch: int,
        offsets: Sequence[OffsetToCommit],
        expected: Sequence[int],
        answer: Answer[int],
        principal: str = NO_OWNER,
    ) -> None:
        change = Reset(group_id, epoch, self._clock.wall_ms(), command_offsets(offsets), tuple(expected))
        self._submit(change, answer, principal)

    def delete(self, group_id: str, answer: Answer[int]) -> None:
        self._submit(Delete(group_id), answer)

    def delete_offsets(self, group_id: str, partitions: Sequence[TopicPartition], answer: Answer[int]) -> None:
        reply = Reply(self._scheduler, answer)

        def propose() -> None:
            check_level(self._view.feature_level, SECURITY_FEATURE_LEVEL, "offsets can be deleted")
            change = DeleteOffsets(group_id, pack_partitions(partitions))
            self._batches.submit(change, reply.give)

        reply.attempt(propose)

    # --- HTTP consumers ----------------------------------------------------------------------------------------------

    def change_instance(self, change: InstanceChange, answer: Answer[int], principal: str = NO_OWNER) -> None:
        """Change an HTTP consumer. `answer` gets the index of the decision, once this node's view shows it, or the
        error."""
        reply = Reply(self._scheduler, answer)

        def propose() -> None:
            check_name("a group", change.group_id)
            check_name("a consumer", change.name)
            if isinstance(change, SubscribeInstance):
                full_matcher(change.pattern)
            check_level(self._view.feature_level, INSTANCES_FEATURE_LEVEL, "there are HTTP consumers")
            self._batches.submit(change, reply.give, principal=principal)

        reply.attempt(propose)

    # --- Leases ------------------------------------------------------------------------------------------------------

    def change_lease(self, change: LeaseChange, answer: Answer[int], principal: str = NO_OWNER) -> None:
        """Change a lease. `answer` gets the index of the decision, once this node's view shows it, or the error."""
        reply = Reply(self._scheduler, answer)

        def propose() -> None:
            check_name("a group", change.group_id)
            check_level(self._view.feature_level, INSTANCES_FEATURE_LEVEL, "there are leases")
            self._batches.submit(change, reply.give, principal=principal)

        reply.attempt(propose)

    # --- Inside a request --------------------------------------------------------------------------------------------

    def _submit(self, change: GroupChange, answer: Answer[int], principal: str = NO_OWNER) -> None:
        reply = Reply(self._scheduler, answer)
        reply.attempt(lambda: self._batches.submit(change, reply.give, principal=principal))

    def _when_current(self, index: int, what: str, step: Callable[[], None], reply: Reply[Any]) -> None:
        """Take a step once the view has reached `index`."""
        if self._view.index >= index:
            reply.attempt(step)
        else:
            self._catch_up(lambda current: self._if_current(current, what, step, reply))

    def _if_current(self, current: bool, what: str, step: Callable[[], None], reply: Reply[Any]) -> None:
        if current:
            reply.attempt(step)
        else:
            reply.give(RetriableError("quorum_unavailable", f"{what} is not known here, and the quorum is silent"))

    # --- Heartbeats --------------------------------------------------------------------------------------------------

    def _renew(self, heard: GroupHeartbeat, answer: Answer[str]) -> None:
        """Renew a member's session with the coordinator. The result is the coordinator's code, empty if it did."""
        coordinator = self._view.controller
        if coordinator == NO_BROKER:
            answer(RetriableError("not_coordinator", "no coordinator is known: the quorum has no leader"))
        elif coordinator == self._node_id:
            answer(self._hear(heard))
        else:
            self._forwarder.heartbeats(
                coordinator,
                GroupHeartbeatsRequest(0, [heard]),
                lambda told: answer(told if isinstance(told, RaftlogError) else told.errors[0]),
            )

    def hear(self, request: GroupHeartbeatsRequest) -> GroupHeartbeatsResponse:
        """Answer heartbeats as the coordinator, if this node is it."""
        return GroupHeartbeatsResponse(request.correlation_id, [self._hear(one) for one in request.members])

    def _hear(self, heard: GroupHeartbeat) -> str:
        coordinator = self._present_coordinator()
        # An incarnation is the index of its log entry. A view that has not reached it must not call the member unknown.
        if coordinator is None or self._view.index < heard.incarnation:
            return "not_coordinator"
        if coordinator.heartbeat(heard.group_id, heard.member_id, heard.incarnation, self._clock.monotonic()):
            return ""
        group = self._view.groups.group(heard.group_id)
        member = None if group is None else group.members.get(heard.member_id)
        return "unknown_member" if member is None else "member_fenced"

    # --- The coordinator ---------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Schedule one turn, soon, for all that happens in this turn of the loop."""
        if not self._woken and not self._closed:
            self._woken = True
            self._scheduler.call_soon(self._turn)

    def _on_events(self, index: int, events: Sequence[MetadataEvent]) -> None:
        changed = [event.record.group_id for event in events if isinstance(event, GroupChanged)]
        coordinator = self._coordinator
        if coordinator is None:
            if changed:
                self.wake()  # A new coordinator looks at everything first.
            return
        for group_id in changed:
            coordinator.group_changed(group_id)
        if any(isinstance(event, TopicChanged | TopicRemoved) for event in events):
            coordinator.topics_changed()
        if coordinator.has_work:
            self.wake()

    def _present_coordinator(self) -> Coordinator | None:
        status = self._quorum.status()
        if status.leader != self._node_id or self._closed:
            self._coordinator = None
        elif self._coordinator is None or self._coordinator.term != status.term:
            self._coordinator = Coordinator(
                self._view, self._matcher, status.term, offsets_retention_ms=self._retention_ms
            )
            self.wake()
        return self._coordinator

    def _turn(self) -> None:
        self._woken = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            due = self._coordinate()
        except Exception:
            # The loop reports the error. The half-done work is dropped with this coordinator: the next one knows
            # nothing and gives every member a full session, as after a failover (S10).
            self._coordinator = None
            self._timer = self._scheduler.call_later(AFTER_A_BUG_SECONDS, self._turn)
            raise
        if due is not None and not self._woken:
            pause = max(due - self._clock.monotonic(), SHORTEST_PAUSE_SECONDS)
            self._timer = self._scheduler.call_later(pause, self._turn)

    def _coordinate(self) -> float | None:
        """Do what is due. Return when to come again; None: never."""
        coordinator = self._present_coordinator()
        if coordinator is None:
            return None
        now = self._clock.monotonic()
        for change in coordinator.decide(now, self._clock.wall_ms()):
            self._propose(coordinator, change)
        for job in coordinator.jobs(now):
            if job.left_out:
                self._logger.warning("group_too_large", group=job.group.group_id, topics_left_out=list(job.left_out))
            self._assign(coordinator, job)
        return coordinator.next_call(now)

    def _assign(self, coordinator: Coordinator, job: AssignmentJob) -> None:
        def computed(assign: Assign | None, error: BaseException | None) -> None:
            if error is not None:
                # An error for one group must not end the coordination of all others.
                self._logger.error("group_assignment_failed", group=job.group.group_id, error=repr(error))
                coordinator.assigned(job.group.group_id, again_at=self._clock.monotonic() + HOPELESS_PAUSE_SECONDS)
            elif assign is None:
                coordinator.assigned(job.group.group_id)
            elif self._coordinator is coordinator:
                self._propose(coordinator, assign)

        if job.size > INLINE_ASSIGNMENT:
            self._worker.submit(job.run, computed)
            return
        try:
            assign = job.run()
        except Exception as error:  # noqa: BLE001  as if a worker had met it
            computed(None, error)
        else:
            computed(assign, None)

    def _propose(self, coordinator: Coordinator, change: GroupChange) -> None:
        def settled(error: RaftlogError | None, pause: float = 0.0) -> None:
            if error is None and isinstance(change, Fence):
                self._logger.info("group_member_removed", group=change.group_id, member=change.member_id)
            if error is None and isinstance(change, Expire):
                self._logger.info("group_offsets_expired", group=change.group_id)
            coordinator.settled(change, self._clock.monotonic() + pause, done=error is None)
            self.wake()

        try:
            self._batches.submit(change, lambda told: settled(told if isinstance(told, RaftlogError) else None))
        except RaftlogError as error:
            self._logger.warning("group_change_refused", change=type(change).__name__, error=str(error))
            settled(error, 0.0 if error.retriable else HOPELESS_PAUSE_SECONDS)
        except Exception as error:  # noqa: BLE001  reported and retried later
            raise_soon(self._scheduler, error)
            settled(RetriableError("outcome_unknown", repr(error)), AFTER_A_BUG_SECONDS)

    def _matcher(self, pattern: str) -> Callable[[str], bool]:
        try:
            return full_matcher(pattern)
        except InvalidRequest as error:
            # The pattern was checked when the member joined, perhaps by a node with another version of the engine.
            self._logger.error("group_pattern_unreadable", pattern=pattern[:64], error=error.detail)
            return lambda name: False


def command_offsets(offsets: Sequence[OffsetToCommit]) -> tuple[CommandOffset, ...]:
    return tuple(
        [
            CommandOffset(TopicId(one.topic_id), one.partition, Offset(one.offset), one.leader_epoch, one.metadata)
            for one in offsets
        ]
    )


def _result(response: GroupOffsetsResponse | None, error: BaseException | None) -> GroupOffsetsResponse:
    """Return the response, or raise the error that a worker met."""
    if error is not None:
        raise error
    assert response is not None
    return response
