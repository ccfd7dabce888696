"""Heartbeats: full sessions for all at first, silence that counts, stalls that do not."""

from __future__ import annotations

from metadata.controller.heartbeats import Sessions
from raftlog.model import BrokerId, Incarnation

ONE, OLD, NEW = BrokerId(1), Incarnation(5), Incarnation(9)


def watched(sessions: Sessions, start: float, end: float) -> None:
    """The controller watches all the time between."""
    steps = round((end - start) * 100)
    for step in range(steps + 1):
        sessions.watch(start + step * (end - start) / max(1, steps))


def test_a_session_begins_with_its_full_length_without_a_heartbeat() -> None:
    sessions = Sessions(0.9)
    sessions.watch(100.0)
    sessions.begin(ONE, OLD, 100.0)
    watched(sessions, 100.0, 100.89)
    assert not sessions.is_over(ONE, OLD, 100.89)
    assert not sessions.is_heard(ONE, OLD, 100.89), "it is not known to be there either"
    watched(sessions, 100.89, 100.9)
    assert sessions.is_over(ONE, OLD, 100.9)


def test_starting_again_does_not_prolong_a_session() -> None:
    sessions = Sessions(0.9)
    for step in range(90):
        sessions.watch(step / 100)
        sessions.begin(ONE, OLD, step / 100)
    sessions.watch(0.9)
    assert sessions.is_over(ONE, OLD, 0.9)


def test_a_heartbeat_prolongs() -> None:
    sessions = Sessions(0.9)
    sessions.begin(ONE, OLD, 0.0)
    watched(sessions, 0.0, 0.5)
    assert sessions.heartbeat(ONE, OLD, 3, 0.5)
    watched(sessions, 0.5, 1.39)
    assert sessions.is_heard(ONE, OLD, 1.39)
    watched(sessions, 1.39, 1.4)
    assert sessions.is_over(ONE, OLD, 1.4)
    assert not sessions.is_heard(ONE, OLD, 1.4)


def test_only_the_registered_incarnation_counts() -> None:
    sessions = Sessions(0.9)
    assert not sessions.heartbeat(ONE, OLD, 3, 0.0)
    sessions.begin(ONE, OLD, 0.0)
    assert not sessions.heartbeat(ONE, NEW, 3, 0.0)
    sessions.heartbeat(ONE, OLD, 3, 0.0)
    sessions.begin(ONE, NEW, 0.5)
    assert not sessions.heartbeat(ONE, OLD, 3, 0.5)
    assert not sessions.is_heard(ONE, NEW, 0.5)
    assert not sessions.is_over(ONE, NEW, 1.3), "the new life has a full session"
    assert not sessions.is_over(ONE, OLD, 9.9), "nothing is said of others"


def test_the_applied_index_only_rises() -> None:
    sessions = Sessions(0.9)
    sessions.begin(ONE, OLD, 0.0)
    sessions.heartbeat(ONE, OLD, 7, 0.0)
    sessions.heartbeat(ONE, OLD, 6, 0.1)
    assert sessions.has_applied(ONE, OLD, 7)
    assert not sessions.has_applied(ONE, OLD, 8)


def test_a_stopping_brokers_session_ends_at_once_and_permanently() -> None:
    sessions = Sessions(0.9)
    sessions.begin(ONE, OLD, 0.0)
    sessions.heartbeat(ONE, OLD, 7, 0.0, stopping=True)
    assert sessions.is_over(ONE, OLD, 0.0)
    sessions.heartbeat(ONE, OLD, 8, 0.1)
    assert sessions.is_over(ONE, OLD, 0.1)
    assert not sessions.is_heard(ONE, OLD, 0.1)


def test_a_stall_of_the_controller_does_not_count_as_silence() -> None:
    sessions = Sessions(0.9)
    sessions.begin(ONE, OLD, 0.0)
    sessions.watch(0.0)
    sessions.watch(60.0)
    assert not sessions.is_over(ONE, OLD, 60.0)


def test_a_controller_that_is_always_slow_still_fences() -> None:
    sessions = Sessions(0.9)
    sessions.begin(ONE, OLD, 0.0)
    for now in (0.0, 5.0, 10.0, 15.0, 20.0):
        sessions.watch(now)
    assert sessions.is_over(ONE, OLD, 20.0)
