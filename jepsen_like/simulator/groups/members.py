"""Simulated members of one consumer group: the product's `Member` and `GroupProgress`, and a program that follows them.

A program reads by counting: its positions rise at every poll. So what a member would have processed is known, and no
partition needs to be simulated. Members crash, start again, are cut off from all nodes, and hang. Requests and answers
are lost, heartbeats go to two nodes at once, and commits arrive twice and late, as the retries of a client do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jepsen_like.simulator.world.heap import EventHeap
from raftlog.api.groups import GroupPartition, MembershipInfo
from raftlog.broker.changes.groups import Groups
from raftlog.client.groups.api import released_topics
from raftlog.client.groups.member import Member
from raftlog.client.groups.progress import GroupProgress
from raftlog.errors import RaftlogError, RetriableError
from raftlog.model import TopicId, TopicPartition
from raftlog.ports import Answer
from raftlog.wire import (
    CommitOffsetsRequest,
    GroupOffsetsRequest,
    GroupOffsetsResponse,
    GroupRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    MemberHeartbeatRequest,
    MembershipResponse,
    OffsetToCommit,
    decode_request,
)

from .heartbeat_links import message_of
from .node import GroupSimNode
from .truth import Commit, GroupTruth, Tenure

GROUP = "readers"
PATTERN = "register-.*"
STEP_SECONDS = 0.05
REQUEST_SECONDS = 2.0
LOSS = 0.1
"""Share of requests that are lost."""
COMMIT_COPY_SECONDS = 8.0
"""Maximum delay of a commit's second copy, whatever its member has done meanwhile."""
LOST = ("unknown_member", "member_fenced")


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """Times of all members, in seconds; short ones, so that they run out."""

    session: float = 3.0
    rebalance: float = 4.0
    heartbeat_interval: float = 0.5
    max_poll_interval: float = 3.0
    assignor: str = "uniform"


class SimMember:
    """One process. After a crash it never does anything again."""

    def __init__(
        self,
        name: str,
        instance_id: str,
        settings: MemberSettings,
        heap: EventHeap,
        nodes: Sequence[GroupSimNode],
        truth: GroupTruth,
        rng: random.Random,
    ) -> None:
        self.member_id = name
        self.crashed = False
        self.positions: dict[GroupPartition, int] = {}
        self.reading: dict[TopicPartition, Tenure] = {}
        self.cut_off_until = 0.0
        self.hangs_until = 0.0
        self._instance_id = instance_id
        self._settings = settings
        self._heap = heap
        self._nodes = nodes
        self._truth = truth
        self._rng = rng
        self.member = Member(
            heartbeat_interval=settings.heartbeat_interval, max_poll_interval=settings.max_poll_interval, now=heap.now
        )
        self._progress = GroupProgress()
        self._session = 0
        self._generation = 0
        self._asking = False
        """Whether a join or a heartbeat is in flight."""
        self._busy = False
        """Whether the program waits for a commit or for committed offsets."""
        self._commits = 0
        self._step()
        self._poll()

    # --- Requests ----------------------------------------------------------------------------------------------------

    def _ask(self, request: GroupRequest, answer: Answer[Any], *, again: float = 0.0, late: float = 0.0) -> None:
        """Send a request to one node and, with the probability `again`, to another, up to `late` seconds later.

        The first answer counts. Without any the outcome is unknown.
        """
        over = False

        def hear(outcome: Any) -> None:
            nonlocal over
            if not over and not self.crashed:
                over = True
                answer(outcome)

        message = message_of(request)
        delays = [self._latency()]
        if self._rng.random() < again:
            delays.append(self._latency() + self._rng.uniform(0.0, late))
        for delay in delays:
            running = [node for node in self._nodes if node.running and node.quorum is not None]
            if running:
                self._send(self._rng.choice(running), delay, message, hear)
        silence = RetriableError("outcome_unknown", "no answer")
        self._heap.schedule(REQUEST_SECONDS, lambda: hear(silence))

    def _send(self, node: GroupSimNode, delay: float, message: bytes, hear: Answer[Any]) -> None:
        def answered(outcome: Any) -> None:
            if not self._is_cut_off:
                self._heap.schedule(self._latency(), lambda: hear(outcome))

        if not self._is_cut_off and self._rng.random() >= LOSS:
            self._heap.schedule(delay, lambda: self._arrive(node.groups, message, answered), node.life)

    def _arrive(self, groups: Groups, message: bytes, answer: Answer[Any]) -> None:
        request, _ = decode_request(message)
        if isinstance(request, CommitOffsetsRequest):
            groups.commit(request, self._judged(request, answer), decoded=True)
        else:
            assert isinstance(request, GroupRequest)
            groups.ask(request, "sim", answer)

    def _judged(self, commit: CommitOffsetsRequest, answer: Answer[Any]) -> Answer[int]:
        """Return a callback that tells the truth of an accepted commit."""
        asked = self._truth.index

        def decided(outcome: int | RaftlogError) -> None:
            if isinstance(outcome, int):
                self._truth.taken((one.metadata for one in commit.offsets), asked, outcome)
            answer(outcome)

        return decided

    def _latency(self) -> float:
        return self._rng.uniform(0.0002, 0.003)

    @property
    def _is_cut_off(self) -> bool:
        return self._heap.now < self.cut_off_until

    # --- Membership --------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        if self.crashed:
            return
        now, member = self._heap.now, self.member
        if not self._asking:
            current = member.current
            if current is None:
                if member.may_join:
                    self._join()
            elif member.is_overdue(now):
                self._lose(leave=current)
            elif now >= member.next_heartbeat():
                self._beat(current)
        self._heap.schedule(STEP_SECONDS, self._step)

    def _join(self) -> None:
        self._asking = True
        settings = self._settings

        def joined(outcome: MembershipResponse | RaftlogError) -> None:
            self._asking = False
            if isinstance(outcome, MembershipResponse):
                self.member.joined(MembershipInfo.of(GROUP, self.member_id, outcome), self._heap.now)

        request = JoinGroupRequest(
            0,
            GROUP,
            self.member_id,
            self._instance_id,
            "sim",
            [],
            PATTERN,
            settings.assignor,
            int(settings.session * 1000),
            int(settings.rebalance * 1000),
        )
        self._ask(request, joined)

    def _beat(self, current: MembershipInfo) -> None:
        self._asking = True
        generation, named = self.member.heartbeat()

        def heard(outcome: MembershipResponse | RaftlogError) -> None:
            self._asking = False
            if isinstance(outcome, MembershipResponse):
                self.member.heard(MembershipInfo.of(GROUP, self.member_id, outcome), named, self._heap.now)
            elif outcome.code in LOST:
                self._lose()
            else:
                self.member.silence(self._heap.now)

        released = released_topics(named)
        request = MemberHeartbeatRequest(0, GROUP, self.member_id, current.incarnation, generation, released)
        self._ask(request, heard, again=0.3, late=1.0)

    def _lose(self, *, leave: MembershipInfo | None = None) -> None:
        self.member.lost()
        if leave is not None and not self._instance_id:
            self._ask(LeaveGroupRequest(0, GROUP, leave.member_id, leave.incarnation), lambda outcome: None)

    # --- The program -------------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        if self.crashed:
            return
        now = self._heap.now
        self._heap.schedule(self._rng.uniform(0.05, 0.4), self._poll)
        if now < self.hangs_until or self._busy:
            return
        self.member.poll_began(now)
        self._reconcile()
        self.member.poll_ended(now)
        for partition in self.positions:
            self.positions[partition] += self._rng.randrange(4)
        if self.positions and self._rng.random() < 0.4:
            self._commit(dict(self.positions), lambda: None)

    def _reconcile(self) -> None:
        """Follow the group's assignment, as `GroupConsumer._reconcile` does."""
        member = self.member
        if member.session != self._session:
            self._session = member.session
            self._stop(list(self.positions))
        if member.current is None:
            return
        plan = member.plan(self.positions)
        self._stop(plan.lost)
        self._generation = member.current.generation
        if plan.revoked:
            ends = {one: self.positions[one] for one in plan.revoked}
            self._commit(ends, lambda: self._given_up(plan.revoked, plan.free), waits=True)
            return
        member.release(one for one in plan.free if one not in self.positions)
        if plan.new:
            self._begin(plan.new, member.current)

    def _given_up(self, revoked: list[GroupPartition], free: list[GroupPartition]) -> None:
        self._stop(revoked)
        if self.member.session == self._session:
            self.member.release(one for one in free if one not in self.positions)

    def _begin(self, new: list[GroupPartition], told: MembershipInfo) -> None:
        self._busy = True
        session = self._session

        def found(outcome: GroupOffsetsResponse | RaftlogError) -> None:
            self._busy = False
            if isinstance(outcome, RaftlogError) or self.member.session != session:
                return
            committed = {(one.topic_id, one.partition): one.offset for one in outcome.offsets}
            for one in new:
                partition = _unnamed(one)
                start = committed.get((partition.topic_id, partition.partition), 0)
                tenure = self._truth.tenure(partition, self.member_id, told.incarnation, told.generation)
                self._truth.begins(partition, tenure, start)
                self.positions[one] = start
                self.reading[partition] = tenure
                if (partition.topic_id, partition.partition) in committed:
                    self._progress.committed[one] = start
                self._progress.begin({one: start})
            self._truth.check(self)

        self._ask(GroupOffsetsRequest(0, GROUP), found)

    def _commit(self, ends: dict[GroupPartition, int], then: Callable[[], None], *, waits: bool = False) -> None:
        """Commit these offsets, perhaps twice, the second time late. `waits`: the program waits for the outcome."""
        current = self.member.current
        wanted = self._progress.uncommitted(ends)
        if not wanted or current is None or self.member.session != self._session:
            then()
            return
        offsets = []
        for one, offset in wanted.items():
            self._commits += 1
            token, partition = f"{self.member_id}/{self._commits}", _unnamed(one)
            self._truth.commits[token] = Commit(partition, offset, self.reading[partition])
            offsets.append(OffsetToCommit(partition.topic_id, partition.partition, offset, -1, token))
        self._busy = self._busy or waits

        def done(outcome: int | RaftlogError) -> None:
            if waits:
                self._busy = False
            if isinstance(outcome, int):
                self._progress.committed.update(wanted)
            then()

        request = CommitOffsetsRequest(0, GROUP, current.member_id, current.incarnation, self._generation, offsets)
        self._ask(request, done, again=0.4, late=COMMIT_COPY_SECONDS)

    def _stop(self, partitions: list[GroupPartition]) -> None:
        self._progress.forget(partitions, self.positions)
        for one in partitions:
            del self.positions[one]
            del self.reading[_unnamed(one)]


def _unnamed(one: GroupPartition) -> TopicPartition:
    return TopicPartition(TopicId(bytes.fromhex(one.topic_id)), one.partition)
