"""Groups on a node: the coordinator, the way of heartbeats, and repeated proposals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import structlog

from metadata.commands.envelope import Command
from metadata.commands.groups import Assign, ChangeGroups, GroupChange
from metadata.commands.results import GroupsChanged
from metadata.controller.group_coordinator import AssignmentJob, Coordinator
from metadata.quorum.port import Fate, Outcome
from raftlog.broker.changes.group_batches import GroupBatches
from raftlog.broker.changes.groups import Groups
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError
from raftlog.model import NO_BROKER, BrokerId, QuorumStatus, TopicPartition
from raftlog.ports import Answer
from raftlog.wire import (
    AssignedTopic,
    CommitOffsetsRequest,
    CommittedOffset,
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
    ReleasedTopic,
)
from tests.support.metadata.cluster import TOPIC
from tests.support.metadata.groups import GroupCluster, tps
from tests.support.partitions.manual import ManualScheduler, ManualWorker

HERE, THERE = BrokerId(0), BrokerId(1)
PATIENCE_S = 20.0
T = TypeVar("T")


class Node:
    """The groups of one node, a quorum that always agrees, and another node that answers heartbeats as set."""

    def __init__(self, *, leader: BrokerId = HERE) -> None:
        self.cluster = GroupCluster()
        self.leader = leader
        self.cluster.view.controller = leader
        self.passed_on: list[tuple[BrokerId, GroupHeartbeat]] = []
        self.there_says: str | RaftlogError = ""
        self.lose = 0
        """The number of targets that get no answer."""
        self.quorum_answers = True
        self.caught_up = 0
        self.commands: list[Command] = []
        self.scheduler = ManualScheduler()
        self.worker = ManualWorker(self.scheduler)
        clock = self.scheduler.clock
        self.batches = GroupBatches(self, lambda index, callback: callback(), lambda: 2, clock, self.scheduler)
        self.groups = Groups(
            HERE,
            self.cluster.view,
            self,
            self.batches,
            self,
            self.catch_up,
            clock,
            self.scheduler,
            self.worker,
            structlog.get_logger(),
            offsets_retention_ms=1000,
        )

    def status(self) -> QuorumStatus:
        return QuorumStatus(HERE, self.leader, self.cluster.term, 0, 0, 0, (HERE,))

    def propose(self, command: Command, done: Callable[[Outcome], None], *, timeout: float = 5.0) -> None:
        self.commands.append(command)
        self.scheduler.call_soon(lambda: self._decide(command, done))

    def catch_up(self, done: Callable[[bool], None]) -> None:
        self.caught_up += 1
        self.scheduler.call_soon(lambda: done(self.quorum_answers))

    def _decide(self, command: Command, done: Callable[[Outcome], None]) -> None:
        assert isinstance(command, ChangeGroups)
        if self.lose and isinstance(command.changes[0], Assign):
            self.lose -= 1
            done(Outcome(Fate.UNKNOWN, detail="lost"))
            return
        result = self.cluster.apply(command)
        assert isinstance(result, GroupsChanged)
        done(Outcome(Fate.APPLIED, self.cluster.image.index, result))

    def heartbeats(
        self, peer: BrokerId, request: GroupHeartbeatsRequest, answer: Answer[GroupHeartbeatsResponse]
    ) -> None:
        self.passed_on += [(peer, heard) for heard in request.members]
        if isinstance(self.there_says, RaftlogError):
            answer(self.there_says)
        else:
            answer(GroupHeartbeatsResponse(request.correlation_id, [self.there_says] * len(request.members)))

    # --- Requests: each waits for its answer -------------------------------------------------------------------------

    def ask(self, request: Callable[[Answer[T]], None]) -> T:
        """Return the answer, or raise it if it is an error."""
        answers: list[T | RaftlogError] = []
        request(answers.append)
        self.until(lambda: bool(answers))
        (answer,) = answers
        if isinstance(answer, RaftlogError):
            raise answer
        return answer

    def join(self, member_id: str = "a", *, group_id: str = "readers", pattern: str = "") -> int:
        request = JoinGroupRequest(7, group_id, member_id, "", "", ["orders"], pattern, "", 10_000, 10_000)
        told: MembershipResponse = self.ask(lambda answer: self.groups.join(request, "10.0.0.1", answer))
        assert told.correlation_id == 7
        return told.incarnation

    def beat(
        self, member_id: str, incarnation: int, generation: int = 0, released: list[TopicPartition] | None = None
    ) -> MembershipResponse:
        given_up = [ReleasedTopic(TOPIC, [one.partition for one in released])] if released else []
        request = MemberHeartbeatRequest(8, "readers", member_id, incarnation, generation, given_up)
        return self.ask(lambda answer: self.groups.heartbeat(request, answer))

    def commit(self, member_id: str, incarnation: int, generation: int, where: TopicPartition, offset: int) -> int:
        offsets = [OffsetToCommit(where.topic_id, where.partition, offset)]
        request = CommitOffsetsRequest(0, "readers", member_id, incarnation, generation, offsets)
        return self.ask(lambda answer: self.groups.commit(request, answer))

    def committed(self) -> GroupOffsetsResponse:
        return self.ask(lambda answer: self.groups.committed(GroupOffsetsRequest(9, "readers"), answer))

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = self.scheduler.clock.monotonic() + PATIENCE_S
        self.worker.run_all()
        while not holds():
            assert self.scheduler.clock.monotonic() < deadline, "it never comes to be"
            self.scheduler.advance(0.005)
            self.worker.run_all()

    def lead(self, leader: BrokerId, term: int) -> None:
        self.leader, self.cluster.term = leader, term
        self.cluster.view.controller = leader
        self.groups.wake()


@pytest.fixture
def node() -> Any:
    made = Node()
    yield made
    made.groups.close()


def test_the_leader_of_the_quorum_coordinates(node: Node) -> None:
    incarnation = node.join()
    assert incarnation == node.cluster.member("a").incarnation
    node.until(lambda: node.cluster.owned("a") == [0, 1, 2, 3])
    node.beat("a", incarnation)
    node.join("b")
    node.until(lambda: len(node.cluster.member("a").revoking) == 2)
    a = node.cluster.member("a")
    node.beat("a", a.incarnation, a.generation, list(a.revoking))
    assert len(node.cluster.owned("b")) == 2
    node.commit("a", a.incarnation, a.generation, a.assigned[0], 7)
    assert list(node.cluster.committed().values()) == [7]
    leave = LeaveGroupRequest(0, "readers", "b", node.cluster.member("b").incarnation)
    node.ask(lambda answer: node.groups.leave(leave, answer))
    node.until(lambda: len(node.cluster.owned("a")) == 4)


def test_a_lost_target_is_proposed_again(node: Node) -> None:
    node.lose = 1
    node.join()
    node.until(lambda: node.cluster.owned("a") == [0, 1, 2, 3])
    assert node.lose == 0


def test_large_groups_are_assigned_by_a_worker(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftlog.broker.changes.groups.INLINE_ASSIGNMENT", 0)
    node.join()
    node.until(lambda: node.cluster.owned("a") == [0, 1, 2, 3])


def test_a_group_whose_assignment_fails_delays_no_other_group(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """S10: after any bug the other groups continue, and the assignment is retried."""
    run, failed = AssignmentJob.run, 0

    def fails(job: AssignmentJob) -> Assign | None:
        nonlocal failed
        if job.group.group_id == "readers" and failed < 2:
            failed += 1
            raise LookupError("a bug")
        return run(job)

    monkeypatch.setattr(AssignmentJob, "run", fails)
    monkeypatch.setattr("raftlog.broker.changes.groups.HOPELESS_PAUSE_SECONDS", 0.05)
    node.join()
    node.join("b", group_id="others")
    node.until(lambda: node.cluster.owned("b", "others") == [0, 1, 2, 3])
    monkeypatch.setattr("raftlog.broker.changes.groups.INLINE_ASSIGNMENT", 0)
    node.until(lambda: node.cluster.owned("a") == [0, 1, 2, 3])
    assert failed == 2


def test_a_bug_in_one_turn_does_not_stop_later_turns(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """S10: members that become silent afterwards are still removed."""
    decide, failed = Coordinator.decide, 0

    def fails(coordinator: Coordinator, now: float, now_ms: int) -> list[GroupChange]:
        nonlocal failed
        if node.cluster.image.groups.by_id and failed < 2:
            failed += 1
            raise MemoryError
        return decide(coordinator, now, now_ms)

    monkeypatch.setattr(Coordinator, "decide", fails)
    with pytest.raises(MemoryError):
        node.join()
    with pytest.raises(MemoryError):
        node.until(lambda: node.cluster.owned("a") == [0, 1, 2, 3])
    node.until(lambda: node.cluster.owned("a") == [0, 1, 2, 3])


def test_heartbeats_are_forwarded_to_the_coordinator(node: Node) -> None:
    node.lead(THERE, 2)
    incarnation = node.join()
    node.beat("a", incarnation)
    assert node.passed_on == [(THERE, GroupHeartbeat("readers", "a", incarnation))]
    node.there_says = "member_fenced"
    with pytest.raises(InvalidRequest) as caught:
        node.beat("a", incarnation)
    assert caught.value.code == "member_fenced"
    assert node.cluster.owned("a") == [], "who does not lead makes no targets"


def test_without_a_leader_there_is_no_coordinator(node: Node) -> None:
    node.lead(NO_BROKER, 2)
    incarnation = node.join()
    with pytest.raises(RetriableError) as caught:
        node.beat("a", incarnation)
    assert caught.value.code == "not_coordinator"


def test_a_new_leader_takes_over_existing_groups_s10(node: Node) -> None:
    node.lead(THERE, 2)
    incarnation = node.join()
    node.lead(HERE, 3)
    node.until(lambda: node.cluster.owned("a") == [0, 1, 2, 3])
    node.beat("a", incarnation)


def ask(*heard: tuple[str, str, int]) -> GroupHeartbeatsRequest:
    return GroupHeartbeatsRequest(5, [GroupHeartbeat(*one) for one in heard])


def test_the_coordinator_answers_each_heartbeat(node: Node) -> None:
    incarnation = node.join()
    answer = node.groups.hear(
        ask(
            ("readers", "a", incarnation),
            ("readers", "a", incarnation - 1),
            ("readers", "b", incarnation),
            ("others", "a", incarnation),
            ("readers", "a", incarnation + 1_000),
        )
    )
    # An incarnation above this view's index may be that of a member, which the view does not show yet.
    assert answer == GroupHeartbeatsResponse(
        5, ["", "member_fenced", "unknown_member", "unknown_member", "not_coordinator"]
    )
    node.lead(THERE, 2)
    assert node.groups.hear(ask(("readers", "a", incarnation))).errors == ["not_coordinator"]


def test_bad_patterns_are_refused_before_they_are_proposed_s11(node: Node) -> None:
    with pytest.raises(InvalidRequest, match="RE2"):
        node.join(pattern="(")
    assert node.commands == []


def test_seeking_and_deleting_go_through_the_quorum(node: Node) -> None:
    node.commit("", 0, 0, tps(0)[0], 9)
    offsets, epoch = [OffsetToCommit(TOPIC, 0, 2)], node.cluster.group().epoch
    node.ask(lambda answer: node.groups.reset("readers", epoch, offsets, [9], answer))
    assert node.cluster.committed() == {0: 2}
    node.ask(lambda answer: node.groups.delete("readers", answer))
    assert node.cluster.image.groups.by_id == {}
    with pytest.raises(InvalidRequest) as caught:
        node.ask(lambda answer: node.groups.delete("readers", answer))
    assert caught.value.code == "unknown_group"


def test_a_closed_node_coordinates_no_groups(node: Node) -> None:
    node.lead(THERE, 2)
    incarnation = node.join()
    node.groups.close()
    node.lead(HERE, 3)
    assert node.groups.hear(ask(("readers", "a", incarnation))).errors == ["not_coordinator"]
    node.scheduler.advance(1.0)
    assert node.cluster.owned("a") == []


def test_a_heartbeat_is_answered_with_the_assignment(node: Node) -> None:
    incarnation = node.join()
    node.until(lambda: node.cluster.owned("a") == [0, 1, 2, 3])
    generation = node.cluster.member("a").generation
    assigned = [AssignedTopic(TOPIC, "orders", [0, 1, 2, 3])]
    assert node.beat("a", incarnation) == MembershipResponse(8, incarnation, generation, "Stable", assigned, [])


def test_a_node_that_is_behind_catches_up_before_it_answers(node: Node) -> None:
    incarnation = node.join()
    with pytest.raises(InvalidRequest, match="must join") as future:
        node.beat("a", incarnation + 1_000)
    assert (future.value.code, node.caught_up) == ("unknown_member", 1), "no retry helps"
    node.quorum_answers = False
    with pytest.raises(RetriableError) as behind:
        node.beat("a", incarnation + 1_000)
    assert behind.value.code == "quorum_unavailable", "as long as the view may be behind"
    with pytest.raises(RetriableError) as silent:
        node.beat("a", incarnation, 10_000)
    assert silent.value.code == "quorum_unavailable"
    with pytest.raises(RetriableError):
        node.commit("a", incarnation, 10_000, tps(0)[0], 1)


def test_committed_offsets_are_read_from_a_current_view_s7(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequest) as unknown:
        node.committed()
    assert unknown.value.code == "unknown_group"
    node.commit("", 0, 0, tps(3)[0], 9)
    answer = GroupOffsetsResponse(9, [CommittedOffset(TOPIC, "orders", 3, 9)])
    assert node.committed() == answer and node.caught_up == 2
    monkeypatch.setattr("raftlog.broker.changes.groups.INLINE_OFFSETS", 0)
    assert node.committed() == answer, "a worker builds it"
    node.quorum_answers = False
    with pytest.raises(RetriableError) as silent:
        node.committed()
    assert silent.value.code == "quorum_unavailable"


def test_names_with_unprintable_characters_are_refused_s11(node: Node) -> None:
    with pytest.raises(InvalidRequest):
        node.join("a\n")
    with pytest.raises(InvalidRequest):
        node.join(group_id="\u0000")
    assert node.commands == []


def test_a_heartbeat_releases_a_bounded_number_of_partitions_s11(node: Node) -> None:
    incarnation = node.join()
    released = [ReleasedTopic(TOPIC, list(range(10_000)))] * 2
    request = MemberHeartbeatRequest(8, "readers", "a", incarnation, 0, released)
    with pytest.raises(InvalidRequest, match="at most"):
        node.ask(lambda answer: node.groups.heartbeat(request, answer))


def test_a_callback_that_raises_is_logged_and_called_once(node: Node) -> None:
    calls: list[Any] = []

    def breaks(outcome: Any) -> None:
        calls.append(outcome)
        raise LookupError("a bug")

    request = JoinGroupRequest(0, "readers", "a", "", "", ["orders"], "", "", 10_000, 10_000)
    node.groups.join(request, "", breaks)
    with pytest.raises(LookupError):
        node.scheduler.run()
    node.scheduler.run()
    assert len(calls) == 1 and isinstance(calls[0], MembershipResponse)


def test_a_decoded_request_of_any_kind_is_answered_with_its_correlation_id(node: Node) -> None:
    def asked(request: GroupRequest) -> GroupResponse:
        return node.ask(lambda answer: node.groups.ask(request, "10.0.0.1", answer))

    joined = asked(JoinGroupRequest(1, "readers", "a", "", "", ["orders"], "", "", 10_000, 10_000))
    assert isinstance(joined, MembershipResponse) and joined.correlation_id == 1
    assert node.cluster.member("a").client_host == "10.0.0.1"
    node.until(lambda: node.cluster.owned("a") == [0, 1, 2, 3])
    heard = asked(MemberHeartbeatRequest(2, "readers", "a", joined.incarnation, 0))
    assert isinstance(heard, MembershipResponse) and heard.correlation_id == 2
    offsets = [OffsetToCommit(TOPIC, 0, 5)]
    commit = CommitOffsetsRequest(3, "readers", "a", joined.incarnation, heard.generation, offsets)
    assert asked(commit) == GroupChangedResponse(3)
    assert asked(GroupOffsetsRequest(4, "readers")) == GroupOffsetsResponse(4, [CommittedOffset(TOPIC, "orders", 0, 5)])
    assert asked(LeaveGroupRequest(5, "readers", "a", joined.incarnation)) == GroupChangedResponse(5)
    with pytest.raises(InvalidRequest) as gone:
        asked(commit)
    assert gone.value.code == "unknown_member"
