"""Consumer groups on one node: the consumers' requests, and the coordinator, which runs beside the quorum's leader.

The node that receives a join, a commit or a similar request proposes it: the quorum's leader gets them all anyway, and
the image decides. Only heartbeats have a single destination, the coordinator, and are forwarded to it by one hop.

The coordinator is created when this node becomes the quorum's leader and dropped when it no longer is. It is called
when a group or a topic has changed, and at its own next deadline: without groups it costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from http_api.service.groups import WantedMembership, WantedOffset
from metadata.commands.groups import (
    Assign,
    Commit,
    Delete,
    Expire,
    Fence,
    GroupChange,
    Join,
    Leave,
    OffsetToCommit,
    Release,
    Reset,
    pack_partitions,
)
from metadata.controller.group_coordinator import AssignmentJob, Coordinator
from metadata.quorum.port import MetadataQuorum
from metadata.rules.assignors import DEFAULT_ASSIGNOR
from metadata.view import ClusterView, GroupChanged, MetadataEvent, TopicChanged, TopicRemoved
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError, error_from_code
from raftlog.model import NO_BROKER, BrokerId, Offset, TopicPartition
from raftlog.patterns import full_matcher
from raftlog.ports import Clock, Logger
from raftlog.wire import GroupHeartbeat, GroupHeartbeatsRequest, GroupHeartbeatsResponse

from .group_batches import GroupBatches

HOPELESS_PAUSE_SECONDS = 30.0
"""Time before a retry that only a changed membership can help: a change too large for a command, a bug of raftlog."""
AFTER_A_BUG_SECONDS = 1.0
"""Time before the coordinator restarts after an unexpected error."""
INLINE_ASSIGNMENT = 500
"""Number of members and partitions up to which targets are computed on the loop, in a millisecond or two. A thread
computes larger ones."""


class PassesOn(Protocol):
    """The part of the forwarder that is needed here."""

    async def heartbeats(self, peer: BrokerId, request: GroupHeartbeatsRequest) -> GroupHeartbeatsResponse: ...


class Groups:
    """See `http_api.service.groups.GroupService`. All calls are made on the broker's loop. It must be closed."""

    def __init__(
        self,
        node_id: BrokerId,
        view: ClusterView,
        quorum: MetadataQuorum,
        batches: GroupBatches,
        forwarder: PassesOn,
        clock: Clock,
        logger: Logger,
        *,
        offsets_retention_ms: int,
    ) -> None:
        self._node_id = node_id
        self._view = view
        self._quorum = quorum
        self._batches = batches
        self._forwarder = forwarder
        self._clock = clock
        self._logger = logger
        self._retention_ms = offsets_retention_ms
        self._coordinator: Coordinator | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._woken = False
        self._closed = False
        self._assigning: set[asyncio.Task[None]] = set()
        self._unsubscribe = view.subscribe(self._on_events)

    def close(self) -> None:
        """Stop coordinating. Changes that were proposed may still be decided."""
        self._closed = True
        self._unsubscribe()
        self._coordinator = None
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._assigning):
            task.cancel()

    # --- Requests of consumers ---------------------------------------------------------------------------------------

    async def join(self, wanted: WantedMembership) -> int:
        full_matcher(wanted.pattern)
        change = Join(
            wanted.group_id,
            wanted.member_id,
            wanted.instance_id,
            wanted.client_id,
            wanted.client_host,
            wanted.topics,
            wanted.pattern,
            wanted.assignor or DEFAULT_ASSIGNOR,
            wanted.session_timeout_ms,
            wanted.rebalance_timeout_ms,
        )
        return await self._batches.submit(change)

    async def leave(self, group_id: str, member_id: str, incarnation: int) -> None:
        await self._batches.submit(Leave(group_id, member_id, incarnation, self._clock.wall_ms()))

    async def release(
        self, group_id: str, member_id: str, incarnation: int, generation: int, given_up: Sequence[TopicPartition]
    ) -> None:
        packed = pack_partitions(given_up)
        await self._batches.submit(Release(group_id, member_id, incarnation, generation, packed))

    def commit(
        self, group_id: str, member_id: str, incarnation: int, generation: int, offsets: Sequence[WantedOffset]
    ) -> asyncio.Future[int]:
        packed = _pack(offsets)
        now_ms = self._clock.wall_ms()
        return self._batches.submit(Commit(group_id, member_id, incarnation, generation, now_ms, packed))

    async def reset(self, group_id: str, epoch: int, offsets: Sequence[WantedOffset], expected: Sequence[int]) -> None:
        await self._batches.submit(Reset(group_id, epoch, self._clock.wall_ms(), _pack(offsets), tuple(expected)))

    async def delete(self, group_id: str) -> None:
        await self._batches.submit(Delete(group_id))

    async def heartbeat(self, group_id: str, member_id: str, incarnation: int) -> None:
        heard = GroupHeartbeat(group_id, member_id, incarnation)
        coordinator = self._view.controller
        if coordinator == NO_BROKER:
            raise RetriableError("not_coordinator", "no coordinator is known: the quorum has no leader")
        request = GroupHeartbeatsRequest(0, [heard])
        if coordinator == self._node_id:
            answer = self.hear(request)
        else:
            answer = await self._forwarder.heartbeats(coordinator, request)
        (code,) = answer.errors
        if code:
            raise error_from_code(code, f"the coordinator, node {coordinator}, refused member {member_id!r}")

    def hear(self, request: GroupHeartbeatsRequest) -> GroupHeartbeatsResponse:
        """Answer heartbeats as the coordinator, if this node is it."""
        return GroupHeartbeatsResponse(request.correlation_id, [self._hear(one) for one in request.members])

    def _hear(self, heard: GroupHeartbeat) -> str:
        coordinator = self._present_coordinator()
        # An incarnation is the index of its log entry. A view that has not reached it must not call the member unknown.
        if coordinator is None or self._view.index < heard.incarnation:
            return "not_coordinator"
        if coordinator.heartbeat(heard.group_id, heard.member_id, heard.incarnation, self._loop.time()):
            return ""
        group = self._view.groups.group(heard.group_id)
        member = None if group is None else group.members.get(heard.member_id)
        return "unknown_member" if member is None else "member_fenced"

    # --- The coordinator ---------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Schedule one turn, soon, for all that happens in this turn of the loop."""
        if not self._woken and not self._closed:
            self._woken = True
            self._loop.call_soon(self._turn)

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
            self._timer = self._loop.call_later(AFTER_A_BUG_SECONDS, self._turn)
            raise
        if due is not None and not self._woken:
            self._timer = self._loop.call_at(due, self._turn)

    def _coordinate(self) -> float | None:
        """Do what is due. Return when to come again; None: never."""
        coordinator = self._present_coordinator()
        if coordinator is None:
            return None
        now = self._loop.time()
        for change in coordinator.decide(now, self._clock.wall_ms()):
            self._propose(coordinator, change)
        for job in coordinator.jobs(now):
            if job.left_out:
                self._logger.warning("group_too_large", group=job.group.group_id, topics_left_out=list(job.left_out))
            self._assign(coordinator, job)
        return coordinator.next_call(now)

    def _assign(self, coordinator: Coordinator, job: AssignmentJob) -> None:
        async def in_thread() -> None:
            with self._or_later(coordinator, job):
                self._propose_targets(coordinator, job, await asyncio.to_thread(job.run))

        if job.size <= INLINE_ASSIGNMENT:
            with self._or_later(coordinator, job):
                self._propose_targets(coordinator, job, job.run())
        else:
            task = self._loop.create_task(in_thread())
            self._assigning.add(task)
            task.add_done_callback(self._assigning.discard)

    @contextmanager
    def _or_later(self, coordinator: Coordinator, job: AssignmentJob) -> Iterator[None]:
        """Postpone a failed assignment: an error for one group must not end the coordination of all others."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  logged and retried
            self._logger.error("group_assignment_failed", group=job.group.group_id, error=repr(error))
            coordinator.assigned(job.group.group_id, again_at=self._loop.time() + HOPELESS_PAUSE_SECONDS)

    def _propose_targets(self, coordinator: Coordinator, job: AssignmentJob, assign: Assign | None) -> None:
        if assign is None:
            coordinator.assigned(job.group.group_id)
        elif self._coordinator is coordinator:
            self._propose(coordinator, assign)

    def _propose(self, coordinator: Coordinator, change: GroupChange) -> None:
        def settled(error: BaseException | None, pause: float = 0.0) -> None:
            if error is not None and not isinstance(error, RaftlogError):
                self._unforeseen(change, error)
                pause = AFTER_A_BUG_SECONDS
            if error is None and isinstance(change, Fence):
                self._logger.info("group_member_removed", group=change.group_id, member=change.member_id)
            if error is None and isinstance(change, Expire):
                self._logger.info("group_offsets_expired", group=change.group_id)
            coordinator.settled(change, self._loop.time() + pause, done=error is None)
            self.wake()

        try:
            decided = self._batches.submit(change)
        except RaftlogError as error:
            self._logger.warning("group_change_refused", change=type(change).__name__, error=str(error))
            settled(error, 0.0 if error.retriable else HOPELESS_PAUSE_SECONDS)
            return
        except Exception as error:  # noqa: BLE001  reported and retried later
            settled(error)
            return
        decided.add_done_callback(lambda future: settled(None if future.cancelled() else future.exception()))

    def _unforeseen(self, change: GroupChange, error: BaseException) -> None:
        self._loop.call_exception_handler({"message": f"a {type(change).__name__} broke", "exception": error})

    def _matcher(self, pattern: str) -> Callable[[str], bool]:
        try:
            return full_matcher(pattern)
        except InvalidRequest as error:
            # The pattern was checked when the member joined, perhaps by a node with another version of the engine.
            self._logger.error("group_pattern_unreadable", pattern=pattern[:64], error=error.detail)
            return lambda name: False


def _pack(offsets: Sequence[WantedOffset]) -> tuple[OffsetToCommit, ...]:
    return tuple(
        [
            OffsetToCommit(where.topic_id, where.partition, Offset(offset), leader_epoch, metadata)
            for where, offset, leader_epoch, metadata in offsets
        ]
    )
