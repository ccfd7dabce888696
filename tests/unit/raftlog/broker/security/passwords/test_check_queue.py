"""Turns between hosts, and drops when too many checks wait. S10, S11, S12."""

from __future__ import annotations

import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from raftlog.broker.security.passwords.check_queue import (
    MAX_WAITING,
    MAX_WAITING_OF_HOST,
    PREFERRED_TURNS,
    CheckQueue,
    Dropped,
    Waiting,
)


class Queue:
    def __init__(self) -> None:
        self.queue: CheckQueue[str] = CheckQueue()
        self.numbers: Counter[str] = Counter()

    def put(self, host: str, *, credential: bool = False, known: bool = False) -> Dropped[str] | None:
        """Add the host's next check: `a0`, `a1`, ..."""
        key = f"{host}{self.numbers[host]}"
        self.numbers[host] += 1
        return self.queue.put(Waiting(key, host, credential, known))

    def put_many(self, hosts: str) -> None:
        for host in hosts:
            assert self.put(host) is None

    def taken(self) -> list[str]:
        """Take all."""
        return list(iter(self.queue.take, None))

    def fill_with_one_each(self, *, known: bool = False) -> None:
        for number in range(MAX_WAITING):
            assert self.put(f"h{number}-", known=known) is None


class TestTurns:
    def test_hosts_take_turns_in_the_order_of_their_arrival_s10(self) -> None:
        queue = Queue()
        queue.put_many("aaabbc")
        assert queue.taken() == ["a0", "b0", "c0", "a1", "b1", "a2"]

    def test_a_host_that_comes_back_goes_to_the_end(self) -> None:
        queue = Queue()
        queue.put_many("ab")
        assert queue.queue.take() == "a0"
        queue.put_many("a")
        assert queue.taken() == ["b0", "a1"]

    def test_checks_of_hosts_and_credentials_with_a_success_come_first(self) -> None:
        queue = Queue()
        queue.put_many("ab")
        queue.put("h", known=True)
        queue.put("c", credential=True)
        assert queue.taken() == ["h0", "c0", "a0", "b0"]

    def test_they_do_not_keep_the_others_out_s10(self) -> None:
        queue = Queue()
        queue.put_many("ab")
        for _ in range(2 * PREFERRED_TURNS + 1):
            queue.put("h", known=True)
        taken = queue.taken()
        assert [taken.index("a0"), taken.index("b0")] == [PREFERRED_TURNS, 2 * PREFERRED_TURNS + 1]

    def test_a_known_credential_does_not_wait_for_the_guesses_from_its_address(self) -> None:
        queue = Queue()
        for _ in range(5):
            queue.put("nat", known=True)
        queue.put("nat", known=True, credential=True)
        assert queue.taken()[:2] == ["nat0", "nat5"]

    def test_an_empty_queue_has_none(self) -> None:
        assert Queue().taken() == []


class TestDrops:
    def test_the_newest_check_of_the_busiest_host_is_dropped_for_another_s10(self) -> None:
        queue = Queue()
        queue.put_many("a" * 16 + "b" * 15 + "c" * 15 + "d" * 15 + "e" * 3)
        assert len(queue.queue) == MAX_WAITING
        assert queue.put("new") == Dropped("a15", is_of_busiest_host=True)
        assert "new0" in queue.taken()

    def test_the_busiest_host_gets_no_more_itself(self) -> None:
        queue = Queue()
        queue.put_many("a" * 16 + "b" * 16 + "c" * 16 + "d" * 15 + "e")
        assert queue.put("d") == Dropped("d15", is_of_busiest_host=True)

    def test_a_host_has_a_bound_of_its_own_s11(self) -> None:
        queue = Queue()
        queue.put_many("a" * MAX_WAITING_OF_HOST)
        assert queue.put("a") == Dropped(f"a{MAX_WAITING_OF_HOST}", is_of_busiest_host=True)

    def test_within_it_a_known_credential_replaces_a_guess(self) -> None:
        queue = Queue()
        queue.put_many("a" * MAX_WAITING_OF_HOST)
        assert queue.put("a", credential=True) == Dropped(f"a{MAX_WAITING_OF_HOST - 1}", is_of_busiest_host=True)
        assert queue.taken()[0] == f"a{MAX_WAITING_OF_HOST}"

    def test_if_no_host_has_two_the_check_that_arrives_is_dropped(self) -> None:
        queue = Queue()
        queue.fill_with_one_each()
        assert queue.put("new") == Dropped("new0", is_of_busiest_host=False)

    def test_unless_it_is_preferred_s10(self) -> None:
        queue = Queue()
        queue.fill_with_one_each()
        assert queue.put("new", known=True) == Dropped(f"h{MAX_WAITING - 1}-0", is_of_busiest_host=False)
        assert queue.taken()[0] == "new0"

    def test_among_preferred_ones_the_check_that_arrives_is_dropped(self) -> None:
        queue = Queue()
        queue.fill_with_one_each(known=True)
        assert queue.put("new", known=True) == Dropped("new0", is_of_busiest_host=False)

    def test_among_equally_busy_hosts_one_without_success_loses(self) -> None:
        queue = Queue()
        for host, known in (("a", True), ("b", False), ("c", True), ("d", True)):
            for _ in range(16):
                assert queue.put(host, known=known) is None
        assert queue.put("new") == Dropped("b15", is_of_busiest_host=True)


_CALLS = st.lists(
    st.one_of(st.none(), st.tuples(st.integers(0, 80), st.booleans(), st.booleans())), min_size=1, max_size=400
)


@given(_CALLS)
def test_each_check_is_taken_or_dropped_once_and_the_room_is_bounded_s11(
    calls: list[tuple[int, bool, bool] | None],
) -> None:
    queue = Queue()
    waiting: dict[str, str] = {}
    for call in calls:
        if call is None:
            taken = queue.queue.take()
            assert (taken is None) == (not waiting)
            if taken is not None:
                del waiting[taken]
        else:
            host = f"{call[0]}-"
            waiting[f"{host}{queue.numbers[host]}"] = host
            dropped = queue.put(host, credential=call[1], known=call[2])
            if dropped is not None:
                del waiting[dropped.key]
        assert len(queue.queue) == len(waiting) <= MAX_WAITING
        assert max(Counter(waiting.values()).values(), default=0) <= MAX_WAITING_OF_HOST
    assert sorted(queue.taken()) == sorted(waiting)


@given(st.integers(1, 40), st.booleans())
def test_a_host_waits_at_most_for_one_turn_of_each_other_s10(hosts: int, known: bool) -> None:
    """Whatever the others add meanwhile, and however many of them had a success."""
    queue = Queue()

    def flood() -> None:
        for number in itertools.islice(itertools.cycle(range(hosts)), 2 * MAX_WAITING):
            queue.put(f"h{number}-", known=known)

    flood()
    assert queue.put("honest") != Dropped("honest0", is_of_busiest_host=True)
    turns = 0
    while queue.queue.take() != "honest0":
        turns += 1
        flood()
        assert turns <= (PREFERRED_TURNS if known else hosts)
