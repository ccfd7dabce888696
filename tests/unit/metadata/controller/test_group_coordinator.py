"""The coordinator: full sessions after a failover, silence, partitions that are not given up in time,
targets, expiry.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakSet

import pytest

from metadata.commands.cluster import AddPartitions, CreateTopic
from metadata.commands.groups import Assign, ChangeGroups, Expire, Fence, GroupChange, Leave
from metadata.commands.results import GroupsChanged
from metadata.controller import group_coordinator as coordinator
from metadata.controller.group_coordinator import GROUPS_PER_CALL, Coordinator
from metadata.records.groups import GroupState
from raftlog.model import NO_TIME, BrokerId, TopicId
from tests.support.metadata.cluster import TOPIC
from tests.support.metadata.groups import NOW_MS, GroupCluster, join

DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS


def starts_with(pattern: str) -> Callable[[str], bool]:
    return lambda name: name.startswith(pattern.removesuffix(".*"))


class World(GroupCluster):
    """A coordinator whose proposals are decided at once."""

    def __init__(self, partitions: int = 4) -> None:
        super().__init__(partitions)
        self.now = 100.0
        self.now_ms = NOW_MS
        self.tell_time(NOW_MS)
        self.coordinator = self.elect()

    def elect(self) -> Coordinator:
        self.coordinator = Coordinator(self.view, starts_with, self.term, offsets_retention_ms=WEEK_MS)
        return self.coordinator

    def turn(self) -> list[GroupChange]:
        """One call; its proposals are applied."""
        changes = self.coordinator.decide(self.now, self.now_ms)
        for job in self.coordinator.jobs(self.now):
            assign = job.run()
            if assign is None:
                self.coordinator.assigned(job.group.group_id)
            else:
                changes.append(assign)
        for change in changes:
            result = self.apply(ChangeGroups((change,)))
            assert isinstance(result, GroupsChanged)
            self.coordinator.settled(change, self.now, done=not result.refusals)
            for group_id in sorted(self.image.groups.by_id):
                self.coordinator.group_changed(group_id)
        return changes

    def settle(self) -> None:
        for _ in range(8):
            if not self.turn():
                return
        raise AssertionError("it never has enough")

    def enter(self, *names: str, **other: object) -> None:
        self.change(*[join(name, **other) for name in names])
        self.coordinator.group_changed("readers")
        self.settle()

    def skip(self, milliseconds: int) -> None:
        """All clocks advance; nothing happens."""
        self.now += milliseconds / 1000
        self.now_ms += milliseconds
        self.tell_time(self.image.time.now_ms + milliseconds)

    def pass_time(self, seconds: float, *beating: str) -> list[GroupChange]:
        """In steps of a tenth; these members send heartbeats."""
        changes: list[GroupChange] = []
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            self.now_ms += 100
            for name in beating:
                assert self.coordinator.heartbeat("readers", name, self.member(name).incarnation, self.now)
            changes += self.turn()
        return changes


def test_members_get_targets() -> None:
    world = World()
    world.enter("a", "b")
    assert sorted(world.owned("a") + world.owned("b")) == [0, 1, 2, 3]
    assert world.group().state is GroupState.STABLE


def test_a_silent_member_is_removed_after_its_session_and_the_others_get_its_partitions() -> None:
    world = World()
    world.enter("a", "b")
    assert not [c for c in world.pass_time(9.8, "a") if isinstance(c, Fence)]
    world.pass_time(1.0, "a")
    assert sorted(world.group().members) == ["a"]
    assert world.owned("a") == [0, 1, 2, 3]


def test_a_new_coordinator_gives_each_member_a_full_session_s10() -> None:
    world = World()
    world.enter("a", "b")
    world.pass_time(9.0, "a")
    world.elect()
    assert not [c for c in world.pass_time(9.8, "a") if isinstance(c, Fence)]
    world.pass_time(1.0, "a")
    assert sorted(world.group().members) == ["a"]


def test_a_coordinator_that_was_suspended_itself_removes_no_member() -> None:
    world = World()
    world.enter("a")
    world.turn()
    world.now += 60
    assert world.turn() == []
    assert not [c for c in world.pass_time(8.0) if isinstance(c, Fence)]


def test_a_member_that_does_not_give_up_in_time_is_removed() -> None:
    world = World()
    world.enter("a", rebalance_timeout_ms=2_000)
    world.enter("b")
    assert world.group().state is GroupState.RECONCILING
    assert not [c for c in world.pass_time(1.8, "a", "b") if isinstance(c, Fence)]
    changes = world.pass_time(0.1, "a", "b")
    for _ in range(5):
        if "a" in world.group().members:
            changes += world.pass_time(0.1, *world.group().members)
    assert [c.member_id for c in changes if isinstance(c, Fence)] == ["a"]
    world.settle()
    assert world.owned("b") == [0, 1, 2, 3]


def test_a_member_that_gives_up_in_time_stays() -> None:
    world = World()
    world.enter("a", rebalance_timeout_ms=2_000)
    world.enter("b")
    world.release("a", 0, 1, 2, 3)
    world.coordinator.group_changed("readers")
    assert not [c for c in world.pass_time(5.0, "a", "b") if isinstance(c, Fence)]
    assert len(world.owned("a")) == len(world.owned("b")) == 2


def test_only_the_current_incarnation_counts() -> None:
    world = World()
    world.enter("a")
    old = world.member("a").incarnation
    world.enter("a")
    assert not world.coordinator.heartbeat("readers", "a", old, world.now)
    assert not world.coordinator.heartbeat("readers", "b", old, world.now)
    assert not world.coordinator.heartbeat("nobody", "a", old, world.now)
    world.pass_time(12.0, "a")
    assert world.member("a").incarnation > old


def test_new_and_grown_topics_are_assigned() -> None:
    world = World()
    world.enter("a", pattern="ord.*", topics=())
    world.do(AddPartitions(TOPIC, 4, ((BrokerId(0),),)))
    world.do(CreateTopic("orders-2", TopicId(b"2" * 16), ((BrokerId(0),),), ()))
    world.do(CreateTopic("other", TopicId(b"3" * 16), ((BrokerId(0),),), ()))
    world.coordinator.topics_changed()
    world.settle()
    assert len(world.member("a").owned) == 6


def test_a_lost_proposal_is_repeated() -> None:
    world = World()
    world.change(join("a"))
    world.coordinator.group_changed("readers")
    (job,) = world.coordinator.jobs(world.now)
    assign = job.run()
    assert isinstance(assign, Assign)
    assert world.turn() == [], "one at a time"
    world.coordinator.settled(assign, world.now, done=False)
    assert world.turn() == []
    world.pass_time(0.5, "a")
    assert world.owned("a") == [0, 1, 2, 3]


def test_offsets_of_a_group_without_members_expire_after_the_retention_time() -> None:
    world = World()
    world.enter("a")
    world.commit("a", {0: 5}, now_ms=world.now_ms)
    world.change(Leave("readers", "a", world.member("a").incarnation, world.now_ms + 1000))
    world.pass_time(1.0)
    world.skip(WEEK_MS - 10_000)
    assert world.turn() == []
    world.skip(60_000)
    assert world.turn() == [], "a stamp may lag by a step"
    world.skip(70_000)
    assert [type(change) for change in world.turn()] == [Expire]
    assert world.image.groups.by_id == {}


@pytest.mark.parametrize("committing", [-8 * DAY_MS, 0, 8 * DAY_MS])
@pytest.mark.parametrize("coordinating", [-8 * DAY_MS, 0, 8 * DAY_MS])
def test_no_wall_clock_makes_an_offset_old_s8(committing: int, coordinating: int) -> None:
    """The clock of the node that takes commits and the leave, and the coordinator's, are wrong all the time."""
    world = World()
    world.now_ms += coordinating
    world.enter("a")
    world.commit("a", {0: 7}, now_ms=NOW_MS + committing)
    world.change(Leave("readers", "a", world.member("a").incarnation, NOW_MS + committing))
    world.coordinator.group_changed("readers")
    for _ in range(10):
        world.skip(60_000)
        assert world.turn() == []
    assert world.committed() == {0: 7}
    world.skip(WEEK_MS)
    assert [type(change) for change in world.turn()] == [Expire], "by the cluster's time it is old"


def test_a_wall_clock_that_leaps_and_stays_makes_no_offset_old_s8() -> None:
    world = World()
    world.commit("", {0: 5}, now_ms=world.now_ms)
    world.skip(70_000)
    world.turn()
    world.now_ms += 8 * DAY_MS
    for _ in range(10):
        world.skip(70_000)
        assert world.turn() == []
    assert world.committed() == {0: 5}


def test_without_a_time_of_the_cluster_nothing_is_old_s8() -> None:
    world = World()
    world.image.put_time(NO_TIME)
    world.view.on_events(world.image.index, world.image.take_events())
    world.commit("", {0: 5}, now_ms=NOW_MS - 8 * DAY_MS)
    for _ in range(3):
        world.now += 70.0
        assert world.turn() == []
    world.tell_time(NOW_MS)
    world.skip(WEEK_MS)
    assert world.turn() == [], "what was stamped before there was a time counts as its beginning"
    world.skip(70_000)
    assert [type(change) for change in world.turn()] == [Expire]


def test_a_coordinator_with_the_wrong_time_is_refused_s8() -> None:
    world = World()
    world.commit("", {0: 5})
    wrong = Expire("readers", world.group().epoch, world.term, NOW_MS + 1)
    world.change(wrong, refused="invalid_request")


def test_a_call_is_bounded_and_nothing_is_forgotten() -> None:
    world = World()
    for number in range(3 * GROUPS_PER_CALL):
        world.change(join("m", group=f"g-{number}"))
    world.elect()
    world.settle()
    assert {group.state for group in world.image.groups.by_id.values()} == {GroupState.STABLE}


def test_a_check_of_sessions_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an election all sessions end at the same time."""
    monkeypatch.setattr(coordinator, "SESSIONS_PER_CALL", 2)
    world = World()
    world.enter("a", "b", "c", "d", "e")
    world.pass_time(9.9, "a", "b")
    world.now += 0.2
    looked = []
    while world.coordinator.next_call(world.now) == world.now and len(looked) < 9:
        looked.append(sum(isinstance(change, Fence) for change in world.turn()))
    assert sum(looked) == 3 and max(looked) <= 2
    world.settle()
    assert sorted(world.group().members) == ["a", "b"]


def test_removals_are_bounded_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as one call allows, neither fewer nor more: a failed rack of members is removed after a few calls."""
    monkeypatch.setattr(coordinator, "REMOVALS_PER_CALL", 3)
    world = World()
    world.enter("a", "b", "c", "d", "e", "f", "g")
    world.pass_time(9.9)
    world.now += 0.2
    removed = []
    while world.coordinator.next_call(world.now) == world.now and len(removed) < 9:
        removed.append(sum(isinstance(change, Fence) for change in world.turn()))
    assert [number for number in removed if number] == [3, 3, 1]
    assert not world.group().members


def test_patterns_without_subscribers_are_not_kept() -> None:
    """A node may coordinate for months, and each pattern that it has met costs a compiled one."""
    world, alive = World(), WeakSet[Callable[[str], bool]]()

    def matcher(pattern: str) -> Callable[[str], bool]:
        fits = starts_with(pattern)
        alive.add(fits)
        return fits

    coordinator = Coordinator(world.view, matcher, world.term, offsets_retention_ms=WEEK_MS)
    for generation in "ab":
        patterns = [f"{generation}-{number}.*" for number in range(600)]
        world.change(*[join(f"m-{number}", topics=(), pattern=one) for number, one in enumerate(patterns)])
        coordinator.group_changed("readers")
        (job,) = coordinator.jobs(world.now)
        coordinator.assigned(job.group.group_id)
    assert 0 < len(alive) <= 1_000, "of twelve hundred"
    world.change(join("m-0", topics=(), pattern="o.*"))
    coordinator.group_changed("readers")
    (job,) = coordinator.jobs(world.now)
    assert {member: topics for member, topics in job.subscriptions.items() if topics} == {"m-0": {TOPIC}}


def test_without_work_it_need_not_be_called() -> None:
    world = World()
    world.turn()
    assert world.coordinator.next_call(world.now) is None
    world.enter("a")
    due = world.coordinator.next_call(world.now)
    assert due == pytest.approx(world.now + 0.5, abs=0.5)
