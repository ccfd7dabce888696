"""The times of recent successes: their age and their number are bounded. S11."""

from __future__ import annotations

from raftlog.broker.security.passwords.successes import Successes


def test_a_success_counts_for_a_time() -> None:
    successes: Successes[str] = Successes(10, 100.0)
    successes.note("a", 5.0)
    assert successes.is_within("a", 60.0, 64.9) and not successes.is_within("a", 60.0, 65.0)
    assert successes.is_within("a", 1000.0, 104.9) and not successes.is_within("a", 1000.0, 105.0)
    assert not successes.is_within("b", 60.0, 5.0)


def test_it_counts_from_the_last_one() -> None:
    successes: Successes[str] = Successes(10, 100.0)
    successes.note("a", 0.0)
    successes.note("a", 90.0)
    assert successes.is_within("a", 100.0, 150.0) and len(successes) == 1


def test_the_oldest_is_forgotten_first_and_old_ones_take_no_room_s11() -> None:
    successes: Successes[str] = Successes(2, 100.0)
    for key, time in (("a", 0.0), ("b", 1.0), ("a", 2.0), ("c", 3.0)):
        successes.note(key, time)
    assert [successes.is_within(key, 100.0, 4.0) for key in "abc"] == [True, False, True]
    successes.note("d", 200.0)
    assert len(successes) == 1
