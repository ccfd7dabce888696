"""Newcomers give way to each other, an address with many to one with few (S10)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raftlog.system.newcomers import Newcomers


def newcomers(most: int = 10, most_of_address: int = 8) -> Newcomers[int]:
    return Newcomers(lambda: most, most_of_address)


def test_an_address_over_its_bound_loses_its_own_oldest() -> None:
    door = newcomers()
    assert door.arrive(100, "10.0.0.2") == []
    leaving = [door.arrive(number, "10.0.0.1") for number in range(10)]
    assert leaving == [[]] * 8 + [[0], [1]]
    assert 100 in door


def test_no_number_of_newcomers_of_one_address_cancels_those_of_another() -> None:
    door = newcomers(most_of_address=10)
    for number in range(5):
        door.arrive(100 + number, f"10.0.1.{number}")
    gone = [one for number in range(1_000) for one in door.arrive(1_000 + number, "10.0.0.1")]
    assert len(door) == 10 and all(100 + number in door for number in range(5))
    assert gone == sorted(gone) and len(gone) == 995


def test_an_attacker_who_came_first_gives_way_to_everybody() -> None:
    door = newcomers(most_of_address=10)
    for number in range(10):
        door.arrive(number, "10.0.0.1")
    assert [door.arrive(100 + number, f"10.0.1.{number}") for number in range(8)] == [[number] for number in range(8)]


def test_addresses_with_one_each_give_way_oldest_first() -> None:
    door = newcomers(most=3)
    assert [door.arrive(number, f"10.0.0.{number}") for number in range(5)] == [[], [], [], [0], [1]]


def test_the_oldest_of_the_busiest_address_gives_way_wherever_it_came_from() -> None:
    door = newcomers(most=4)
    for number, address in enumerate("abbb"):
        door.arrive(number, address)
    assert door.arrive(4, "c") == [1]


def test_an_address_that_would_have_as_many_as_the_busiest_gives_way_to_itself() -> None:
    door = newcomers(most=5)
    for number, address in enumerate("aaabb"):
        door.arrive(number, address)
    assert (door.most_of_any("a"), door.most_of_any("b"), door.most_of_any("c")) == (4, 3, 3)
    assert door.arrive(5, "b") == [3]
    assert newcomers().most_of_any("a") == 0


def test_the_addresses_of_an_ipv6_network_count_as_one() -> None:
    door = newcomers(most_of_address=2)
    leaving = [door.arrive(number, f"2001:db8::{number:x}") for number in range(4)]
    assert leaving == [[], [], [0], [1]]


def test_one_that_is_at_work_gives_way_last_of_its_address() -> None:
    door = newcomers(most_of_address=2)
    door.arrive(0, "a")
    door.arrive(1, "a")
    door.renew(0)
    assert door.arrive(2, "a") == [1]


steps = st.lists(
    st.tuples(st.sampled_from(["arrive", "arrive", "leave", "renew"]), st.integers(0, 60), st.sampled_from("abc")),
    max_size=150,
)


@given(steps, st.integers(1, 12), st.integers(1, 12))
def test_the_bounds_hold_whatever_happens(moves: list[tuple[str, int, str]], most: int, of_address: int) -> None:
    door = newcomers(most, of_address)
    known: dict[int, str] = {}
    for kind, number, address in moves:
        if kind == "arrive" and number not in known:
            counts = {one: list(known.values()).count(one) for one in known.values()}
            for leaving in door.arrive(number, address):
                own = counts.get(address, 0)
                assert known[leaving] == address or counts[known[leaving]] >= max(own + 1, *counts.values())
                del known[leaving]
            known[number] = address
        elif kind == "leave":
            assert door.leave(number) is (known.pop(number, None) is not None)
        elif kind == "renew":
            door.renew(number)
        assert len(door) == len(known) <= most
        assert all(list(known.values()).count(one) <= of_address for one in "abc")
        assert all(one in door for one in known)
