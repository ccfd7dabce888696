"""A member's decisions: what it believes, what it takes up, when it speaks, when it gives its place up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raftlog.api.groups import AssignedTopic, GroupPartition, MembershipInfo
from raftlog.client.groups.member import HURRY_INTERVAL, Member

TOPIC_ID = "0" * 32


def tps(*numbers: int) -> list[GroupPartition]:
    return [GroupPartition("t", number, TOPIC_ID) for number in numbers]


def says(
    generation: int, assigned: Sequence[int], revoking: Sequence[int] = (), state: str = "Stable"
) -> MembershipInfo:
    def topics(numbers: Sequence[int]) -> list[AssignedTopic]:
        return [AssignedTopic("t", TOPIC_ID, list(numbers))] if numbers else []

    return MembershipInfo("g", "m", 5, generation, state, topics(assigned), topics(revoking))


def member(**settings: Any) -> Member:
    made = Member(**{"heartbeat_interval": 3.0, "max_poll_interval": 300.0, "now": 0.0, **settings})
    made.poll_began(0.0)
    made.joined(says(5, []), 0.0)
    return made


def test_what_is_new_and_what_goes() -> None:
    a = member()
    assert a.heard(says(7, [0, 1]), [], 1.0)
    assert a.plan([]).new == tps(0, 1)
    assert a.heard(says(9, [0], [1], "Reconciling"), [], 2.0)
    plan = a.plan(tps(0, 1))
    assert (plan.revoked, plan.lost, plan.new, plan.free) == (tps(1), [], [], tps(1))
    a.release(plan.free)
    assert a.heartbeat() == (9, tps(1))
    assert a.heard(says(10, [0]), tps(1), 3.0)
    assert not a.releases
    assert a.plan(tps(0, 3)).lost == tps(3), "its topic was deleted: there is nothing to commit"


def test_who_answers_with_what_is_over_is_not_believed() -> None:
    """One owner at a time: a node that is behind must not give back what was given up."""
    a = member()
    a.heard(says(9, [0]), [], 1.0)
    assert not a.heard(says(7, [0, 1]), [], 2.0)
    assert a.current is not None and a.current.generation == 9
    assert a.plan(tps(0)).new == []


def test_what_is_being_given_up_is_not_taken_up_before_that_is_confirmed() -> None:
    """The heartbeat that says so may be on its way, while the partition is first meant to stay and then to go on."""
    a = member()
    a.heard(says(7, [0], [1], "Reconciling"), [], 1.0)
    a.release(tps(1))
    assert a.heard(says(8, [0, 1]), [], 2.0), "the group has changed its mind"
    assert a.plan(tps(0)).new == []
    generation, named = a.heartbeat()
    assert (generation, named) == (8, tps(1))
    assert a.heard(says(9, [0, 1]), named, 3.0)
    assert a.plan(tps(0)).new == tps(1)


def test_a_release_that_came_too_late_to_matter_is_looked_at_all_the_same() -> None:
    a = member()
    a.heard(says(7, [0, 1]), [], 1.0)
    a.release(tps(1))
    assert a.plan(tps(0)).new == []
    assert a.heard(says(7, [0, 1]), tps(1), 2.0), "nothing new is said, but one may be taken up now"
    assert a.plan(tps(0)).new == tps(1)


def test_heartbeats_hurry_while_things_move_and_less_so_the_longer_it_takes() -> None:
    a = member()
    assert a.next_heartbeat() == 3.0 - 0.0, "stable"
    a.heard(says(7, [0], [], "Reconciling"), [], 10.0)
    assert a.next_heartbeat() == 10.0 + HURRY_INTERVAL
    now, beats = 10.0, 0
    while now < 70.0:
        now = a.next_heartbeat()
        a.heard(says(7, [0], [], "Reconciling"), [], now)
        beats += 1
    assert beats < 45, "a minute's wait is no minute of ten heartbeats a second"
    assert a.next_heartbeat() == now + 3.0
    a.heard(says(8, [0], [], "Reconciling"), [], now)
    assert a.next_heartbeat() == now + HURRY_INTERVAL
    a.release(tps(1))
    assert a.next_heartbeat() == now, "others wait for it"
    a.silence(now)
    assert a.next_heartbeat() > now, "nobody answers: no hurry"


def test_a_program_that_hangs_gives_its_place_up() -> None:
    """KIP-62."""
    a = member(max_poll_interval=60.0)
    assert a.overdue_at is None and not a.is_overdue(1_000.0), "it waits inside of poll"
    a.poll_ended(100.0)
    assert a.overdue_at == 160.0
    a.shows_life(150.0)
    assert not a.is_overdue(209.0) and a.is_overdue(210.0)
    a.lost()
    assert (a.session, a.current, a.is_overdue(300.0)) == (1, None, False)
    assert a.may_join is False, "whoever hangs must not own anything again"
    a.poll_began(400.0)
    assert a.may_join


def test_who_loses_its_place_while_it_polls_may_join_at_once() -> None:
    a = member()
    a.release(tps(0))
    a.lost()
    assert a.may_join and not a.releases
