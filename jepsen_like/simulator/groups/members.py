"""Simulated members of one consumer group: the product's `Member` and what a `GroupConsumer` does with its plans.

Each reads by counting: a position that rises at every poll. So what a member would have processed is known, and nothing
of partitions need be simulated. Members crash, are started again, are cut off from all nodes, and hang. Requests and
answers get lost, heartbeats go to two nodes at once, commits come twice and late: whatever a client's retries do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jepsen_like.simulator.world.heap import EventHeap
from metadata.commands.groups import Commit as CommitChange
from metadata.commands.groups import Join, Leave, OffsetToCommit
from raftlog.client.groups.api import GroupPartition, MembershipInfo
from raftlog.client.groups.member import Member
from raftlog.model import Offset, TopicId, TopicPartition

from .node import Answer, GroupSimNode
from .truth import Commit, GroupTruth, Tenure

GROUP = "readers"
PATTERN = "register-.*"
STEP_SECONDS = 0.05
REQUEST_SECONDS = 2.0
LOSS = 0.1
"""The share of requests that get lost."""
COMMIT_COPY_SECONDS = 8.0
"""A request may come late, whatever its sender has done meanwhile."""
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
    """One process: it is made, and once it has crashed it never does anything again."""

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
        self._session = 0
        self._generation = 0
        self._asking = False
        """A join or a heartbeat is under way."""
        self._busy = False
        """Its program waits for a commit or for committed offsets."""
        self._commits = 0
        self._step()
        self._poll()

    # --- Talking to nodes --------------------------------------------------------------------------------------------

    def _ask(
        self, ask: Callable[[GroupSimNode, Answer], None], answer: Answer, *, again: float = 0.0, late: float = 0.0
    ) -> None:
        """Of one node and, with the probability `again`, of another, up to `late` seconds later. The first answer
        counts; `lost` after a while without any."""
        over = False

        def hear(code: str, found: Any) -> None:
            nonlocal over
            if not over and not self.crashed:
                over = True
                answer(code, found)

        delays = [self._latency()]
        if self._rng.random() < again:
            delays.append(self._latency() + self._rng.uniform(0.0, late))
        for delay in delays:
            running = [node for node in self._nodes if node.running and node.quorum is not None]
            if running:
                self._send(self._rng.choice(running), delay, ask, hear)
        self._heap.schedule(REQUEST_SECONDS, lambda: hear("lost", None))

    def _send(
        self, node: GroupSimNode, delay: float, ask: Callable[[GroupSimNode, Answer], None], hear: Answer
    ) -> None:
        def answered(code: str, found: Any) -> None:
            if not self._is_cut_off:
                self._heap.schedule(self._latency(), lambda: hear(code, found))

        if not self._is_cut_off and self._rng.random() >= LOSS:
            self._heap.schedule(delay, lambda: ask(node, answered), node.life)

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
        timeouts = int(settings.session * 1000), int(settings.rebalance * 1000)
        join = Join(GROUP, self.member_id, self._instance_id, "sim", "sim", (), PATTERN, settings.assignor, *timeouts)

        def ask(node: GroupSimNode, answer: Answer) -> None:
            def decided(code: str, index: Any) -> None:
                answer(*((code, None) if code else node.membership(GROUP, self.member_id, index)))

            node.change(join, decided)

        def joined(code: str, told: MembershipInfo | None) -> None:
            self._asking = False
            if told is not None:
                self.member.joined(told, self._heap.now)

        self._ask(ask, joined)

    def _beat(self, current: MembershipInfo) -> None:
        self._asking = True
        generation, named = self.member.heartbeat()
        released = [_unnamed(one) for one in named]

        def ask(node: GroupSimNode, answer: Answer) -> None:
            node.heartbeat(GROUP, current, generation, released, answer)

        def heard(code: str, told: MembershipInfo | None) -> None:
            self._asking = False
            if code in LOST:
                self._lose()
            elif told is not None:
                self.member.heard(told, named, self._heap.now)
            else:
                self.member.silence(self._heap.now)

        self._ask(ask, heard, again=0.3, late=1.0)

    def _lose(self, *, leave: MembershipInfo | None = None) -> None:
        self.member.lost()
        if leave is not None and not self._instance_id:
            left = Leave(GROUP, leave.member_id, leave.incarnation, 0)
            self._ask(lambda node, answer: node.change(left, answer), lambda code, found: None)

    # --- Its program -------------------------------------------------------------------------------------------------

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
        """As `GroupConsumer._reconcile`."""
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

        def ask(node: GroupSimNode, answer: Answer) -> None:
            def caught_up(well: bool) -> None:
                answer(*(("", dict(node.view.groups.offsets(GROUP))) if well else ("quorum_unavailable", None)))

            node.catch_up(caught_up)

        def found(code: str, offsets: Any) -> None:
            self._busy = False
            if code or self.member.session != session:
                return
            for one in new:
                partition = _unnamed(one)
                committed = offsets.get(partition)
                start = 0 if committed is None else int(committed.offset)
                tenure = self._truth.tenure(partition, self.member_id, told.incarnation, told.generation)
                self._truth.begins(partition, tenure, start)
                self.positions[one] = start
                self.reading[partition] = tenure
            self._truth.check(self)

        self._ask(ask, found)

    def _commit(self, ends: dict[GroupPartition, int], then: Callable[[], None], *, waits: bool = False) -> None:
        """Perhaps twice, the second time late: a commit that was asked for again."""
        current = self.member.current
        if current is None or self.member.session != self._session:
            then()
            return
        offsets = []
        for one, offset in ends.items():
            self._commits += 1
            token, partition = f"{self.member_id}/{self._commits}", _unnamed(one)
            self._truth.commits[token] = Commit(partition, offset, self.reading[partition])
            offsets.append(OffsetToCommit(partition.topic_id, partition.partition, Offset(offset), -1, token))
        change = CommitChange(GROUP, current.member_id, current.incarnation, self._generation, 0, tuple(offsets))
        self._busy = self._busy or waits

        def done(code: str, found: Any) -> None:
            if waits:
                self._busy = False
            then()

        def ask(node: GroupSimNode, answer: Answer) -> None:
            asked = self._truth.index

            def decided(code: str, index: Any) -> None:
                if not code:
                    self._truth.taken((one.metadata for one in offsets), asked, index)
                answer(code, index)

            node.change(change, decided)

        self._ask(ask, done, again=0.4, late=COMMIT_COPY_SECONDS)

    def _stop(self, partitions: list[GroupPartition]) -> None:
        for one in partitions:
            del self.positions[one]
            del self.reading[_unnamed(one)]


def _unnamed(one: GroupPartition) -> TopicPartition:
    return TopicPartition(TopicId(bytes.fromhex(one.topic_id)), one.partition)
