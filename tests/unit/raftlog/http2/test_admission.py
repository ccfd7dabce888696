"""Strangers' connections give way to newer ones, and no number of them keeps nodes from each other (S10, S12)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raftlog.http2.admission import Admission
from raftlog.http2.limits import Http2Limits

LIMITS = Http2Limits(max_strangers=10, max_strangers_per_address=4, reserved_for_nodes=5)


def admission(most: int = 40) -> Admission[int]:
    return Admission(LIMITS, lambda: most, has_nodes=True)


def test_the_oldest_of_an_address_gives_way_to_its_own_newer_ones() -> None:
    door = admission()
    door.arrive(100, "10.0.0.9")
    leaving = [door.arrive(number, "10.0.0.1") for number in range(6)]
    assert leaving == [[], [], [], [], [0], [1]]
    assert door.strangers == 5, "the other address keeps its connection"


def test_the_oldest_of_all_gives_way_if_there_are_too_many() -> None:
    door = admission()
    leaving = [door.arrive(number, f"10.0.0.{number}") for number in range(12)]
    assert leaving[9:] == [[], [0], [1]] and door.strangers == 10


def test_clients_leave_the_reserved_connections_to_nodes() -> None:
    door = admission(most=20)
    for number in range(30):
        assert door.arrive(number, f"10.0.0.{number}") == []
        if not door.admit(number, is_node=False):
            door.leave(number)
            assert number >= 15
    assert door.count == 15
    for node in range(100, 105):
        assert door.arrive(node, "10.0.1.1") == [] and door.admit(node, is_node=True)
    assert door.count == 20
    assert door.arrive(200, "10.0.1.1") == [200], "all connections are in use, and none of them is a stranger's"


def test_a_node_arrives_although_strangers_hold_the_rest() -> None:
    door = admission(most=20)
    for number in range(15):
        door.arrive(number, "10.0.0.1")
        assert door.admit(number, is_node=False)
    strangers = [100 + number for number in range(5)]
    for number in strangers:
        assert door.arrive(number, f"10.0.2.{number}") == []
    assert door.arrive(7000, "10.0.3.1") == [100]
    assert door.admit(7000, is_node=True) and door.count == 20


def test_a_clients_connection_may_turn_out_to_be_a_nodes() -> None:
    door = admission(most=4)
    for number in range(3):
        door.arrive(number, "10.0.0.1")
        assert door.admit(number, is_node=False) and door.admit(number, is_node=False)
    door.arrive(3, "10.0.0.1")
    assert not door.admit(3, is_node=False) and door.admit(3, is_node=True)
    assert door.admit(0, is_node=True)
    door.arrive(4, "10.0.0.1")
    assert door.count == 4


steps = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(0, 60), st.sampled_from(["a", "b", "c"])),
        st.tuples(st.just("client"), st.integers(0, 60), st.just("")),
        st.tuples(st.just("node"), st.integers(0, 60), st.just("")),
        st.tuples(st.just("leave"), st.integers(0, 60), st.just("")),
    ),
    max_size=200,
)


@given(steps, st.integers(1, 30))
def test_the_bounds_hold_whatever_happens(moves: list[tuple[str, int, str]], most: int) -> None:
    door = admission(most)
    known: set[int] = set()
    for kind, number, address in moves:
        if kind == "arrive" and number not in known:
            leaving = door.arrive(number, address)
            known = (known | {number}) - set(leaving)
        elif kind == "leave":
            door.leave(number)
            known.discard(number)
        elif number in known:
            door.admit(number, is_node=kind == "node")
        assert door.count == len(known) <= most
        assert door.strangers <= LIMITS.max_strangers
