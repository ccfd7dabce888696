"""A simulated node of the quorum that also takes care of consumer groups: its view, the requests of members, and, while
it leads, their coordinator.

The decisions are the product's (`Coordinator`, the image). What is written here once more is the shell around them,
which in a node lives on an asyncio loop (`raftlog/broker/changes/groups.py`, `http_api/routes/groups.py`): who is
asked, in which order, and what is waited for.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from jepsen_like.simulator.quorum.node import QuorumSimNode
from metadata.commands.groups import Assign, ChangeGroups, Expire, Fence, GroupChange, Release, pack_partitions
from metadata.commands.results import GroupsChanged
from metadata.controller.group_coordinator import Coordinator
from metadata.quorum.port import Fate, Outcome
from metadata.records.events import MetadataEvent
from metadata.view import ClusterView, GroupChanged, MemberRecord, TopicChanged, TopicRemoved
from raftlog.client.groups.api import AssignedTopic, MembershipInfo
from raftlog.model import TopicPartition
from raftlog.patterns import full_matcher
from raftlog.version import FEATURE_LEVEL

TURN_SECONDS = 0.1
PROPOSAL_SECONDS = 1.5
WEEK_MS = 7 * 86_400_000
"""As in production: nothing that a run commits is so old."""

Answer: TypeAlias = "Callable[[str, Any], None]"
"""A code ("" where all is well) and what was asked for."""


class GroupSimNode(QuorumSimNode):
    """See `QuorumSimNode`; `others` are all nodes, and are given to it later."""

    others: Sequence[GroupSimNode] = ()
    feature_level = FEATURE_LEVEL

    def start(self) -> None:
        self.view = ClusterView()
        self._coordinator: Coordinator | None = None
        self._reached: list[tuple[int, int, Callable[[], None]]] = []
        """A heap of (index that the view must come to, order of asking, what to do then)."""
        self._asked = 0
        super().start()
        self._turn_later()

    def _on_events(self, index: int, events: Sequence[MetadataEvent]) -> None:
        self.view.on_events(index, events)
        if self._coordinator is not None:
            for event in events:
                if isinstance(event, GroupChanged):
                    self._coordinator.group_changed(event.record.group_id)
            if any(isinstance(event, TopicChanged | TopicRemoved) for event in events):
                self._coordinator.topics_changed()
        super()._on_events(index, events)
        while self._reached and self._reached[0][0] <= index:
            heapq.heappop(self._reached)[2]()

    # --- Requests ----------------------------------------------------------------------------------------------------

    def change(self, change: GroupChange, answer: Answer) -> None:
        """Bring it to the quorum; the answer's second part is the index at which it was decided, which the view has."""
        assert self.quorum is not None

        def decided(outcome: Outcome) -> None:
            result = outcome.result
            if isinstance(result, GroupsChanged):
                code = result.refusals[0].code if result.refusals else ""
                self._when_view_reaches(outcome.index, lambda: answer(code, outcome.index))
            else:
                answer("outcome_unknown" if outcome.fate is Fate.UNKNOWN else "quorum_unavailable", None)

        self.quorum.propose(ChangeGroups((change,)), decided, timeout=PROPOSAL_SECONDS)
        self.tick_soon()

    def catch_up(self, then: Callable[[bool], None]) -> None:
        """Until the view has everything that was acknowledged before (S7)."""
        assert self.quorum is not None

        def passed(outcome: Outcome) -> None:
            if outcome.fate is Fate.APPLIED:
                self._when_view_reaches(outcome.index, lambda: then(True))
            else:
                then(False)

        self.quorum.read_barrier(passed, timeout=PROPOSAL_SECONDS)
        self.tick_soon()

    def heartbeat(
        self,
        group_id: str,
        told: MembershipInfo,
        generation: int,
        released: Sequence[TopicPartition],
        answer: Answer,
    ) -> None:
        """What was given up is decided, the coordinator hears of the member, and it is told how things are."""
        member_id, incarnation = told.member_id, told.incarnation

        def heard(code: str) -> None:
            if code:
                answer(code, None)
            else:
                answer(*self.membership(group_id, member_id, incarnation))

        def pass_on(code: str, _: Any) -> None:
            if code:
                answer(code, None)
            else:
                self._pass_on(group_id, member_id, incarnation, heard)

        def caught_up(well: bool) -> None:
            if not well:
                answer("quorum_unavailable", None)
            elif released:
                packed = pack_partitions(released)
                self.change(Release(group_id, member_id, incarnation, generation, packed), pass_on)
            else:
                pass_on("", None)

        if self.view.index < max(incarnation, generation):
            self.catch_up(caught_up)
        else:
            caught_up(True)

    def membership(self, group_id: str, member_id: str, incarnation: int) -> tuple[str, MembershipInfo | None]:
        """As the view has it."""
        group = self.view.groups.group(group_id)
        member = None if group is None else group.members.get(member_id)
        if group is None or member is None:
            return "unknown_member", None
        if member.incarnation != incarnation:
            return "member_fenced", None
        return "", self._told(member, group.state.value)

    def _told(self, member: MemberRecord, state: str) -> MembershipInfo:
        assigned, revoking = self._by_topic(member.assigned), self._by_topic(member.revoking)
        return MembershipInfo(member.member_id, member.incarnation, member.generation, state, assigned, revoking)

    def _by_topic(self, partitions: Sequence[TopicPartition]) -> list[AssignedTopic]:
        found: dict[bytes, AssignedTopic] = {}
        for one in partitions:
            topic = self.view.topic_by_id(one.topic_id)
            if topic is not None:
                empty = AssignedTopic(topic.name, topic.topic_id.hex(), [])
                found.setdefault(topic.topic_id, empty).partitions.append(one.partition)
        return list(found.values())

    # --- The coordinator ---------------------------------------------------------------------------------------------

    def _pass_on(self, group_id: str, member_id: str, incarnation: int, heard: Callable[[str], None]) -> None:
        """To whoever leads, if there is a way; whose answer may get lost, too."""
        leader = None if self.quorum is None else self.quorum.status().leader
        other = next((node for node in self.others if node.node_id == leader), None)
        if other is None:
            heard("not_coordinator")
            return
        life = self.life

        def arrive() -> None:
            code = other.hear(group_id, member_id, incarnation)
            if other is self or (other.node_id, self.node_id) not in self.network.cuts:
                self.heap.schedule(self._way(other), lambda: heard(code), life)

        if other is self or (self.node_id, other.node_id) not in self.network.cuts:
            self.heap.schedule(self._way(other), arrive, other.life)

    def _way(self, other: GroupSimNode) -> float:
        return 0.0 if other is self else self.random.uniform(0.0002, 0.003)

    def hear(self, group_id: str, member_id: str, incarnation: int) -> str:
        """As the coordinator, if it is it."""
        coordinator = self._present_coordinator()
        if coordinator is None or self.view.index < incarnation:
            return "not_coordinator"
        if coordinator.heartbeat(group_id, member_id, incarnation, self.clock.monotonic()):
            return ""
        group = self.view.groups.group(group_id)
        return "unknown_member" if group is None or member_id not in group.members else "member_fenced"

    def _present_coordinator(self) -> Coordinator | None:
        status = None if self.quorum is None else self.quorum.status()
        if status is None or status.leader != self.node_id:
            self._coordinator = None
        elif self._coordinator is None or self._coordinator.term != status.term:
            self._coordinator = Coordinator(self.view, full_matcher, status.term, offsets_retention_ms=WEEK_MS)
        return self._coordinator

    def _turn_later(self) -> None:
        self.heap.schedule(TURN_SECONDS, self._turn, self.life)

    def _turn(self) -> None:
        self._turn_later()
        coordinator = self._present_coordinator()
        if coordinator is None:
            return
        now = self.clock.monotonic()
        for change in coordinator.decide(now, self.clock.wall_ms()):
            self._propose(coordinator, change)
        for job in coordinator.jobs(now):
            assign = job.run()
            if assign is None:
                coordinator.assigned(job.group.group_id)
            else:
                self._propose(coordinator, assign)

    def _propose(self, coordinator: Coordinator, change: GroupChange) -> None:
        assert isinstance(change, Assign | Fence | Expire)

        def settled(code: str, _: Any) -> None:
            coordinator.settled(change, self.clock.monotonic(), done=not code)

        self.change(change, settled)

    def _when_view_reaches(self, index: int, then: Callable[[], None]) -> None:
        if index <= self.view.index:
            then()
        else:
            self._asked += 1
            heapq.heappush(self._reached, (index, self._asked, then))
