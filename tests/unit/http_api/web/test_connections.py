"""Connections give way to others: idle ones, strangers first, and those of the address with the most (S10, S12)."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from http_api.web.connections import Connections
from http_api.web.limits import Limits


def connections(**limits: Any) -> Connections[int]:
    return Connections(Limits(**{"max_connections": 8, "max_strangers": 6, "max_strangers_per_address": 4} | limits))


def test_strangers_are_few_in_all_and_of_one_address() -> None:
    door = connections()
    assert [door.arrive(number, "a", 0.0, is_known=False) for number in range(5)] == [[], [], [], [], [0]]
    assert [door.arrive(10 + number, "b", 0.0, is_known=False) for number in range(3)] == [[], [], [1]]
    assert door.strangers == 6


def test_a_stranger_has_little_time_and_a_known_connection_keeps_its_place() -> None:
    door = connections(stranger_timeout_s=30.0)
    for number in range(3):
        door.arrive(number, "a", float(number), is_known=False)
    door.begin(0)
    door.recognize(0)
    door.begin(1)
    assert door.overdue(29.0) == [] and door.overdue(100.0) == [2]
    door.end(1)
    assert door.overdue(100.0) == [1], "it had a request in progress, and is a stranger's still"
    door.end(0)
    assert door.overdue(1e9) == [] and len(door) == 1


def test_the_longest_idle_connection_of_the_busiest_address_gives_way() -> None:
    door = connections()
    for number in range(5):
        door.arrive(number, "a", 0.0, is_known=True)
    for number in range(3):
        door.arrive(10 + number, "b", 0.0, is_known=True)
    door.begin(0)
    door.end(0)
    assert door.arrive(20, "c", 0.0, is_known=True) == [1]
    assert door.arrive(21, "d", 0.0, is_known=True) == [2]


def test_no_number_of_idle_connections_of_one_address_costs_another_its_only_one() -> None:
    door = connections()
    door.arrive(100, "b", 0.0, is_known=True)
    for number in range(50):
        door.arrive(number, "a", 0.0, is_known=True)
    door.arrive(101, "c", 0.0, is_known=False)
    for number in range(50, 100):
        door.arrive(number, "a", 0.0, is_known=True)
    door.begin(100)
    door.end(100)
    door.recognize(101)
    assert door.arrive(102, "b", 0.0, is_known=True) != [100]
    assert len(door) <= 8


def test_strangers_give_way_before_known_connections() -> None:
    door = connections()
    for number in range(5):
        door.arrive(number, "a", 0.0, is_known=True)
    for number in range(3):
        door.arrive(10 + number, "b", 0.0, is_known=False)
    assert door.arrive(20, "c", 0.0, is_known=False) == [10]


def test_a_stranger_that_has_sent_a_request_gives_way_after_one_that_has_not() -> None:
    door = connections(max_strangers_per_address=2)
    for number in range(2):
        door.arrive(number, "a", 0.0, is_known=False)
    door.begin(0)
    assert door.arrive(2, "a", 0.0, is_known=False) == [1]


def test_a_stranger_between_two_requests_is_no_known_connection() -> None:
    door = connections(max_connections=3)
    door.arrive(0, "a", 0.0, is_known=True)
    door.arrive(1, "a", 0.0, is_known=False)
    door.begin(1)
    door.end(1)
    door.arrive(2, "b", 0.0, is_known=True)
    door.begin(2)
    assert door.arrive(3, "c", 0.0, is_known=True) == [1]


def test_a_connection_that_is_recognized_by_its_request_is_at_work_until_its_end() -> None:
    door = connections(max_connections=1)
    door.arrive(0, "a", 0.0, is_known=False)
    door.begin(0)
    door.recognize(0)
    assert door.arrive(1, "b", 0.0, is_known=True) == [1]
    door.end(0)
    assert door.arrive(1, "b", 0.0, is_known=True) == [0]


def test_a_connection_that_left_at_work_is_not_remembered_as_such() -> None:
    door = connections(max_connections=1)
    door.arrive(0, "a", 0.0, is_known=True)
    door.begin(0)
    door.leave(0)
    door.arrive(0, "a", 0.0, is_known=True)
    door.begin(0)
    assert door.arrive(1, "b", 0.0, is_known=True) == [1]


def test_an_address_over_its_share_loses_its_oldest_stranger_that_is_not_at_work() -> None:
    door = connections()
    door.arrive(100, "b", 0.0, is_known=False)
    for number in range(3):
        door.arrive(number, "a", 0.0, is_known=False)
    for number in range(3, 6):
        door.arrive(number, "a", 0.0, is_known=True)
    door.begin(0)
    door.recognize(100)
    assert door.arrive(6, "a", 0.0, is_known=True) == [1]


def test_the_only_stranger_of_an_address_stays_while_a_known_address_has_several() -> None:
    door = connections()
    door.arrive(0, "b", 0.0, is_known=False)
    door.arrive(1, "b", 0.0, is_known=True)
    for number in range(2, 8):
        door.arrive(number, "a", 0.0, is_known=True)
    assert door.arrive(8, "c", 0.0, is_known=True) == [2]


def test_a_stranger_gives_way_if_no_address_has_several() -> None:
    door = connections()
    for number in range(7):
        door.arrive(number, f"a{number}", 0.0, is_known=True)
    door.arrive(7, "b", 0.0, is_known=False)
    assert door.arrive(8, "c", 0.0, is_known=True) == [7]


def test_an_address_with_as_many_as_the_busiest_gives_way_to_itself() -> None:
    door = connections()
    for number in range(8):
        door.arrive(number, "a" if number < 4 else "b", 0.0, is_known=True)
    assert door.arrive(8, "b", 0.0, is_known=True) == [4]
    assert door.arrive(9, "c", 0.0, is_known=True) == [0]


def test_the_addresses_of_an_ipv6_network_share_one_part() -> None:
    door = connections()
    for number in range(6):
        door.arrive(number, f"2001:db8::{number}", 0.0, is_known=True)
        door.begin(number)
    assert door.arrive(6, "2001:db8::77", 0.0, is_known=True) == [6]
    assert door.arrive(7, "2001:db8:0:1::1", 0.0, is_known=True) == []


def test_a_connection_at_work_is_not_cut_and_the_new_one_is_refused() -> None:
    door = connections()
    for number in range(8):
        door.arrive(number, f"a{number}", 0.0, is_known=True)
        door.begin(number)
    assert door.arrive(20, "c", 0.0, is_known=True) == [20]
    door.end(3)
    assert door.arrive(20, "c", 0.0, is_known=True) == [3]


def test_one_address_leaves_a_share_to_others() -> None:
    door = connections()
    for number in range(6):
        door.arrive(number, "a", 0.0, is_known=True)
        door.begin(number)
    assert door.arrive(6, "a", 0.0, is_known=True) == [6], "a quarter of all is for others"
    assert door.arrive(7, "b", 0.0, is_known=True) == []
    door.end(2)
    assert door.arrive(8, "a", 0.0, is_known=True) == [2], "its own idle one gives way"


def test_handshakes_have_a_share_of_their_own() -> None:
    door = connections(max_connections=80)
    assert door.most == 80
    door.shares_with_handshakes = True
    assert (door.most, door.most_handshakes()) == (70, 10)
    door.most_now = lambda: 16
    assert (door.most, door.most_handshakes()) == (14, 2)
    door.most_now = lambda: 4
    assert (door.most, door.most_handshakes()) == (3, 1), "there is always one"
    few = connections(max_connections=80, max_handshakes=3)
    assert few.most_handshakes() == 3


def test_waiting_bytes_are_bounded_for_a_stranger_and_for_all() -> None:
    door = connections(max_stranger_bytes=100, max_waiting_bytes=1_000)
    for number in range(4):
        door.arrive(number, f"a{number}", 0.0, is_known=number > 0)
    assert door.hold(0, 100) == [] and door.hold(0, 101) == [0] and door.waiting_bytes == 0
    assert door.hold(1, 400) == door.hold(2, 500) == [] and door.hold(3, 200) == [2]
    assert door.waiting_bytes == 600
    door.hold(1, 0)
    door.leave(3)
    assert door.waiting_bytes == 0


steps = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "known", "begin", "end", "recognize", "hold", "leave", "overdue"]),
        st.integers(0, 30),
        st.sampled_from("abc"),
        st.integers(0, 300),
    ),
    max_size=200,
)


@given(steps)
def test_the_bounds_hold_whatever_happens(moves: list[tuple[str, int, str, int]]) -> None:
    door = connections(max_stranger_bytes=200, max_waiting_bytes=500, stranger_timeout_s=10.0)
    known: set[int] = set()
    for now, (kind, number, address, count) in enumerate(moves):
        leaving: list[int] = []
        if kind in ("arrive", "known") and number not in known:
            leaving = door.arrive(number, address, float(now), is_known=kind == "known")
            known.add(number)
        elif kind == "hold":
            leaving = door.hold(number, count)
        elif kind == "overdue":
            leaving = door.overdue(float(now))
        elif kind == "leave":
            door.leave(number)
            known.discard(number)
        elif kind in ("begin", "end", "recognize"):
            getattr(door, kind)(number)
        assert len(set(leaving)) == len(leaving) and known >= set(leaving)
        known -= set(leaving)
        assert len(door) == len(known) <= 8
        assert door.strangers <= 6 and 0 <= door.waiting_bytes <= 500
