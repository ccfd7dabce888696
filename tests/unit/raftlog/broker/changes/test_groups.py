"""Groups on a node: who coordinates, whom heartbeats go to, and what becomes of proposals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import structlog

from http_api.service.groups import WantedMembership, WantedOffset
from metadata.commands.envelope import Command
from metadata.commands.groups import Assign, ChangeGroups, GroupChange
from metadata.commands.results import GroupsChanged
from metadata.controller.group_coordinator import AssignmentJob, Coordinator
from metadata.quorum.port import Fate, Outcome
from raftlog.broker.changes.group_batches import GroupBatches
from raftlog.broker.changes.groups import Groups
from raftlog.errors import InvalidRequest, RetriableError
from raftlog.model import NO_BROKER, BrokerId, QuorumStatus
from raftlog.system.clock import ManualClock
from raftlog.wire import GroupHeartbeat, GroupHeartbeatsRequest, GroupHeartbeatsResponse
from tests.support.groups import GroupCluster, tps

HERE, THERE = BrokerId(0), BrokerId(1)
PATIENCE_S = 20.0


class Node:
    """One node's groups, a quorum of one mind, and another node that answers heartbeats as it is told."""

    def __init__(self, *, leader: BrokerId = HERE) -> None:
        self.cluster = GroupCluster()
        self.leader = leader
        self.cluster.view.controller = leader
        self.passed_on: list[tuple[BrokerId, GroupHeartbeat]] = []
        self.there_says = ""
        self.lose = 0
        """So many targets get no answer."""
        self.commands: list[Command] = []
        batches = GroupBatches(self, lambda index, callback: callback(), lambda: 2)
        logger, clock = structlog.get_logger(), ManualClock()
        self.groups = Groups(HERE, self.cluster.view, self, batches, self, clock, logger, offsets_retention_ms=1000)

    def status(self) -> QuorumStatus:
        return QuorumStatus(HERE, self.leader, self.cluster.term, 0, 0, 0, (HERE,))

    def propose(self, command: Command, done: Callable[[Outcome], None], *, timeout: float = 5.0) -> None:
        self.commands.append(command)
        asyncio.get_running_loop().call_soon(self._decide, command, done)

    def _decide(self, command: Command, done: Callable[[Outcome], None]) -> None:
        assert isinstance(command, ChangeGroups)
        if self.lose and isinstance(command.changes[0], Assign):
            self.lose -= 1
            done(Outcome(Fate.UNKNOWN, detail="lost"))
            return
        result = self.cluster.apply(command)
        assert isinstance(result, GroupsChanged)
        done(Outcome(Fate.APPLIED, self.cluster.image.index, result))

    async def heartbeats(self, peer: BrokerId, request: GroupHeartbeatsRequest) -> GroupHeartbeatsResponse:
        self.passed_on += [(peer, heard) for heard in request.members]
        return GroupHeartbeatsResponse(request.correlation_id, [self.there_says] * len(request.members))

    async def join(self, member_id: str = "a", *, group_id: str = "readers", **other: Any) -> int:
        asked: dict[str, Any] = {"topics": ("orders",), "pattern": "", "assignor": "", **other}
        timeouts = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000}
        who = {"group_id": group_id, "member_id": member_id, "instance_id": "", "client_id": "", "client_host": ""}
        return await self.groups.join(WantedMembership(**who, **asked, **timeouts))

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():  # noqa: ASYNC110 - no event tells when the coordinator had its turn
                await asyncio.sleep(0.005)

    def lead(self, leader: BrokerId, term: int) -> None:
        self.leader, self.cluster.term = leader, term
        self.cluster.view.controller = leader
        self.groups.wake()


@pytest.fixture
async def node() -> Any:
    made = Node()
    yield made
    made.groups.close()


async def test_the_quorums_leader_coordinates(node: Node) -> None:
    incarnation = await node.join()
    assert incarnation == node.cluster.member("a").incarnation
    await node.until(lambda: node.cluster.owned("a") == [0, 1, 2, 3])
    await node.groups.heartbeat("readers", "a", incarnation)
    await node.join("b")
    await node.until(lambda: len(node.cluster.member("a").revoking) == 2)
    a = node.cluster.member("a")
    await node.groups.release("readers", "a", a.incarnation, a.generation, a.revoking)
    assert len(node.cluster.owned("b")) == 2
    await node.groups.commit("readers", "a", a.incarnation, a.generation, [WantedOffset(a.assigned[0], 7)])
    assert list(node.cluster.committed().values()) == [7]
    await node.groups.leave("readers", "b", node.cluster.member("b").incarnation)
    await node.until(lambda: len(node.cluster.owned("a")) == 4)


async def test_a_target_that_was_lost_on_its_way_is_made_again(node: Node) -> None:
    node.lose = 1
    await node.join()
    await node.until(lambda: node.cluster.owned("a") == [0, 1, 2, 3])
    assert node.lose == 0


async def test_large_groups_are_assigned_by_a_thread(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftlog.broker.changes.groups.INLINE_ASSIGNMENT", 0)
    await node.join()
    await node.until(lambda: node.cluster.owned("a") == [0, 1, 2, 3])


async def test_a_group_that_cannot_be_assigned_holds_up_no_other(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """S10: whatever the bug, other groups go on, and this one is tried again."""
    run, failed = AssignmentJob.run, 0

    def fails(job: AssignmentJob) -> Assign | None:
        nonlocal failed
        if job.group.group_id == "readers" and failed < 2:
            failed += 1
            raise LookupError("a bug")
        return run(job)

    monkeypatch.setattr(AssignmentJob, "run", fails)
    monkeypatch.setattr("raftlog.broker.changes.groups.HOPELESS_PAUSE_SECONDS", 0.05)
    await node.join()
    await node.join("b", group_id="others")
    await node.until(lambda: node.cluster.owned("b", "others") == [0, 1, 2, 3])
    monkeypatch.setattr("raftlog.broker.changes.groups.INLINE_ASSIGNMENT", 0)
    await node.until(lambda: node.cluster.owned("a") == [0, 1, 2, 3])
    assert failed == 2


async def test_a_bug_in_a_turn_does_not_end_all_that_follow(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """S10: members that fall silent afterwards are removed all the same."""
    decide, failed = Coordinator.decide, 0

    def fails(coordinator: Coordinator, now: float, now_ms: int) -> list[GroupChange]:
        nonlocal failed
        if node.cluster.image.groups.by_id and failed < 2:
            failed += 1
            raise MemoryError
        return decide(coordinator, now, now_ms)

    monkeypatch.setattr(Coordinator, "decide", fails)
    monkeypatch.setattr("raftlog.broker.changes.groups.AFTER_A_BUG_SECONDS", 0.05)
    heard: list[BaseException] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: heard.append(context["exception"]))
    await node.join()
    await node.until(lambda: node.cluster.owned("a") == [0, 1, 2, 3])
    assert failed == 2 and [type(error) for error in heard] == [MemoryError] * 2, "nor does it go unheard"


async def test_another_node_coordinates_and_hears(node: Node) -> None:
    node.lead(THERE, 2)
    incarnation = await node.join()
    await node.groups.heartbeat("readers", "a", incarnation)
    assert node.passed_on == [(THERE, GroupHeartbeat("readers", "a", incarnation))]
    node.there_says = "member_fenced"
    with pytest.raises(InvalidRequest) as caught:
        await node.groups.heartbeat("readers", "a", incarnation)
    assert caught.value.code == "member_fenced"
    assert node.cluster.owned("a") == [], "who does not lead makes no targets"


async def test_nobody_coordinates_without_a_leader(node: Node) -> None:
    node.lead(NO_BROKER, 2)
    incarnation = await node.join()
    with pytest.raises(RetriableError) as caught:
        await node.groups.heartbeat("readers", "a", incarnation)
    assert caught.value.code == "not_coordinator"


async def test_a_new_leader_takes_over_what_it_finds_s10(node: Node) -> None:
    node.lead(THERE, 2)
    incarnation = await node.join()
    node.lead(HERE, 3)
    await node.until(lambda: node.cluster.owned("a") == [0, 1, 2, 3])
    await node.groups.heartbeat("readers", "a", incarnation)


def ask(*heard: tuple[str, str, int]) -> GroupHeartbeatsRequest:
    return GroupHeartbeatsRequest(5, [GroupHeartbeat(*one) for one in heard])


async def test_what_the_coordinator_says_of_whom_it_hears(node: Node) -> None:
    incarnation = await node.join()
    answer = node.groups.hear(
        ask(
            ("readers", "a", incarnation),
            ("readers", "a", incarnation - 1),
            ("readers", "b", incarnation),
            ("others", "a", incarnation),
            ("readers", "a", incarnation + 1_000),
        )
    )
    # Who names an entry that this view has not seen may be a member all the same.
    assert answer == GroupHeartbeatsResponse(
        5, ["", "member_fenced", "unknown_member", "unknown_member", "not_coordinator"]
    )
    node.lead(THERE, 2)
    assert node.groups.hear(ask(("readers", "a", incarnation))).errors == ["not_coordinator"]


async def test_bad_patterns_are_refused_before_they_are_proposed_s11(node: Node) -> None:
    with pytest.raises(InvalidRequest, match="RE2"):
        await node.join(pattern="(")
    assert node.commands == []


async def test_seeking_and_deleting_go_through_the_quorum(node: Node) -> None:
    await node.groups.commit("readers", "", 0, 0, [WantedOffset(tps(0)[0], 9)])
    await node.groups.reset("readers", node.cluster.group().epoch, [WantedOffset(tps(0)[0], 2)], [9])
    assert node.cluster.committed() == {0: 2}
    await node.groups.delete("readers")
    assert node.cluster.image.groups.by_id == {}
    with pytest.raises(InvalidRequest) as caught:
        await node.groups.delete("readers")
    assert caught.value.code == "unknown_group"


async def test_who_is_closed_coordinates_nothing() -> None:
    node = Node()
    incarnation = await node.join()
    node.groups.close()
    assert node.groups.hear(ask(("readers", "a", incarnation))).errors == ["not_coordinator"]
    node.groups.wake()
    await asyncio.sleep(0)
    assert not asyncio.all_tasks() - {asyncio.current_task()}
