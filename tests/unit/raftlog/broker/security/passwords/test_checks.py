"""The pool for checks of passwords: equal work, bounds, the memory of successes. S10, S11, S12."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest

from raftlog.broker.security.passwords import passwords
from raftlog.broker.security.passwords.check_queue import MAX_WAITING, MAX_WAITING_OF_HOST
from raftlog.broker.security.passwords.checks import (
    KNOWN_SECONDS,
    MAX_CHECKS,
    MAX_REMEMBERED,
    MAX_SHARING,
    REMEMBERED_SECONDS,
    THREADS,
    PasswordChecks,
    Stored,
)
from raftlog.errors import InvariantViolation, RaftlogError, ResourceShortage, RetriableError
from raftlog.security.secrets import Secret
from raftlog.slices import PER_TURN
from tests.support.partitions.manual import ManualClock, ManualScheduler, ManualWorker
from tests.support.security.authenticated_world import CountedHasher, hashed

GOOD, BAD = Secret("correct horse"), Secret("wrong")
ALICE = Stored(hashed("correct horse"), 1)


class Pool:
    def __init__(self, hasher: Any = None) -> None:
        self.scheduler = ManualScheduler()
        self.clock: ManualClock = self.scheduler.clock
        self.worker = ManualWorker(self.scheduler)
        self.hasher = hasher or CountedHasher()
        self.checks = PasswordChecks(self.hasher, self.clock, self.scheduler, self.worker, lambda length: b"k" * length)

    def ask(
        self, password: Secret = GOOD, stored: Stored | None = ALICE, name: str = "alice", host: str = "h"
    ) -> list[bool | RaftlogError]:
        answers: list[bool | RaftlogError] = []
        self.checks.check(name, password, stored, host, answers.append)
        return answers

    def answer(self, *arguments: Any, **named: Any) -> bool | RaftlogError:
        answers = self.ask(*arguments, **named)
        self.worker.run_all()
        (answer,) = answers
        return answer


def test_the_right_password_is_confirmed_and_no_other_s12() -> None:
    pool = Pool()
    assert pool.answer() is True
    assert pool.answer(BAD) is False
    assert pool.answer(stored=None) is False
    assert pool.answer(stored=Stored("", 1), name="bob") is False
    assert pool.answer(Secret("\0"), name="carol") is False
    assert pool.checks.running == 0


@pytest.mark.parametrize(
    ("password", "stored"),
    [(BAD, ALICE), (BAD, None), (GOOD, None), (BAD, Stored("", 1)), (Secret("\0"), ALICE), (Secret("\0"), None)],
)
def test_every_refusal_costs_one_hash_of_the_same_parameters_s12(password: Secret, stored: Stored | None) -> None:
    pool = Pool()
    for _ in range(3):
        assert pool.answer(password, stored) is False
    assert pool.hasher.calls == [("hash:", len(ALICE.phc))] * 3, "nothing is remembered of a failure"


def test_a_wrong_name_takes_as_long_as_a_wrong_password_s12() -> None:
    """The real hash on the processor's clock of this thread; interleaved, so that noise meets both alike."""
    known = Stored(passwords.new_material(Secret("correct horse")).argon2, 1)

    def cost(stored: Stored | None) -> float:
        pool = Pool(passwords)
        before = time.thread_time()
        assert pool.answer(BAD, stored) is False
        return time.thread_time() - before

    cost(known), cost(None)
    pairs = [(cost(known), cost(None)) for _ in range(9)]
    wrong_password, wrong_name = (statistics.median(times) for times in zip(*pairs, strict=True))
    assert 0.5 < wrong_name / wrong_password < 2, pairs
    assert min(wrong_password, wrong_name) > 0.005, "the hash costs something"


def test_a_thousand_requests_that_share_a_check_are_answered_in_turns() -> None:
    """Strangers can send as many with one wrong password: their refusals must not hold the loop."""
    pool = Pool()
    answers: list[bool | RaftlogError] = []
    for _ in range(MAX_SHARING):
        pool.checks.check("alice", BAD, ALICE, "h", answers.append)
    pool.worker.run_one()
    assert pool.scheduler.run_one() and len(answers) == PER_TURN
    pool.scheduler.run()
    assert answers == [False] * MAX_SHARING


def test_an_answer_that_fails_does_not_cost_others_theirs() -> None:
    pool = Pool()

    def broken(outcome: bool | RaftlogError) -> None:
        raise ZeroDivisionError

    pool.checks.check("alice", GOOD, ALICE, "h", broken)
    answers = pool.ask()
    pool.worker.run_one()
    with pytest.raises(ZeroDivisionError):
        pool.scheduler.run()
    pool.scheduler.run()
    assert answers == [True]


class TestMemory:
    def test_a_success_is_remembered_for_a_minute(self) -> None:
        pool = Pool()
        pool.answer()
        pool.clock.advance(REMEMBERED_SECONDS - 1)
        assert pool.ask() == [True] and len(pool.hasher.calls) == 1
        pool.clock.advance(1)
        assert pool.ask() == [] and len(pool.worker.pending) == 1

    def test_it_is_of_one_name_one_password_and_one_version_s12(self) -> None:
        pool = Pool()
        pool.answer()
        for arguments in (
            {"password": BAD},
            {"name": "bob"},
            {"stored": Stored(ALICE.phc, 2)},
            {"stored": None},
            {"name": "alic", "password": Secret("ecorrect horse")},
        ):
            assert pool.ask(**arguments) == [], arguments

    def test_it_is_bounded_s11(self) -> None:
        pool = Pool()
        for number in range(MAX_REMEMBERED + 10):
            pool.answer(name=f"user{number}")
        assert pool.ask(name=f"user{MAX_REMEMBERED + 9}") == [True]
        assert pool.ask(name="user10") == [True]
        assert pool.ask(name="user9") == []

    def test_it_shows_no_password_s12(self) -> None:
        pool = Pool()
        pool.answer()
        pool.ask(BAD)
        shown = repr(vars(pool.checks))
        assert GOOD.reveal() not in shown and BAD.reveal() not in shown


class TestBounds:
    def test_equal_checks_share_one_computation(self) -> None:
        pool = Pool()
        answers = [pool.ask() for _ in range(100)] + [pool.ask(BAD)]
        assert len(pool.worker.pending) == 2
        pool.worker.run_all()
        assert answers == [[True]] * 100 + [[False]] and len(pool.hasher.calls) == 2

    def test_a_full_queue_is_overloaded_and_empties_s10(self) -> None:
        pool = Pool()
        for number in range(MAX_CHECKS):
            assert pool.ask(name=f"user{number}", host=f"h{number}") == []
        late = pool.ask(name="late", host="late")
        pool.scheduler.run()
        (refused,) = late
        assert isinstance(refused, RetriableError) and refused.code == "overloaded"
        pool.worker.run_all()
        assert pool.checks.running == 0 and pool.answer(name="late", host="late") is True

    def test_one_address_leaves_room_for_others_s10(self) -> None:
        pool = Pool()
        most = THREADS + MAX_WAITING_OF_HOST
        for number in range(most):
            assert pool.ask(BAD, name=f"user{number}", host="attacker") == []
        more = pool.ask(BAD, name="more", host="attacker")
        pool.scheduler.run()
        (refused,) = more
        assert (
            isinstance(refused, RetriableError) and "from this address; retry later, or use a token" in refused.detail
        )
        assert pool.ask(host="honest") == [] and pool.checks.running == most + 1
        pool.worker.run_all()
        assert pool.ask(BAD, name="more", host="attacker") == []

    def test_the_requests_that_share_a_check_are_bounded_s11(self) -> None:
        pool = Pool()
        answers = [pool.ask() for _ in range(MAX_SHARING + 1)]
        assert isinstance(answers[-1][0], RetriableError)
        pool.worker.run_all()
        assert answers[:-1] == [[True]] * MAX_SHARING


class Flood:
    """Hosts that send wrong passwords as fast as they are refused."""

    def __init__(self, pool: Pool, hosts: int) -> None:
        self.pool = pool
        self.hosts = [f"198.51.100.{number}" for number in range(hosts)]
        self.sent = 0

    def fill(self) -> None:
        for _ in range(MAX_CHECKS):
            for host in self.hosts:
                self.sent += 1
                self.pool.ask(BAD, name=f"user{self.sent}", stored=None, host=host)

    def turns_until(self, answers: list[bool | RaftlogError]) -> int:
        """Compute one check after the other beside the flood, until there is an answer; return their number."""
        for turn in range(10 * MAX_CHECKS):
            self.pool.scheduler.run()
            if answers:
                assert answers in ([True], [False]), "it was checked"
                return turn
            self.fill()
            self.pool.worker.run_one()
        raise AssertionError("no answer")


class TestTurns:
    """Wrong passwords of some hosts, and the right one of another."""

    def test_five_hosts_of_wrong_passwords_do_not_keep_a_sixth_out_s10(self) -> None:
        pool = Pool()
        flood = Flood(pool, hosts=5)
        flood.fill()
        answers = pool.ask(host="192.0.2.1")
        assert flood.turns_until(answers) <= THREADS + len(flood.hosts) + 1
        assert answers == [True] and pool.checks.running <= MAX_CHECKS

    def test_a_host_with_a_success_comes_first_s10(self) -> None:
        pool = Pool()
        assert pool.answer(host="192.0.2.1") is True
        pool.clock.advance(KNOWN_SECONDS - 1)
        flood = Flood(pool, hosts=20)
        flood.fill()
        assert flood.turns_until(pool.ask(name="bob", host="192.0.2.1")) <= THREADS + 2

    def test_a_credential_with_a_success_comes_first_from_any_host_and_after_its_minute_s10(self) -> None:
        pool = Pool()
        assert pool.answer(host="192.0.2.1") is True
        pool.clock.advance(REMEMBERED_SECONDS)
        flood = Flood(pool, hosts=20)
        flood.fill()
        assert flood.turns_until(pool.ask(host=flood.hosts[0])) <= THREADS + 2

    def test_after_an_hour_it_has_its_turn_like_any_other(self) -> None:
        pool = Pool()
        assert pool.answer(host="192.0.2.1") is True
        pool.clock.advance(KNOWN_SECONDS)
        flood = Flood(pool, hosts=20)
        flood.fill()
        turns = flood.turns_until(pool.ask(host="192.0.2.1"))
        assert len(flood.hosts) <= turns <= THREADS + len(flood.hosts) + 1

    def test_a_known_name_waits_as_long_as_an_unknown_one_s12(self) -> None:
        """Otherwise the order would tell which names exist, and which of them work at present."""

        def turns(name: str, stored: Stored | None) -> int:
            pool = Pool()
            assert pool.answer(host="192.0.2.1") is True
            flood = Flood(pool, hosts=20)
            flood.fill()
            return flood.turns_until(pool.ask(BAD, name=name, stored=stored, host="203.0.113.1"))

        assert turns("alice", ALICE) == turns("nobody", None) == turns("bob", Stored("", 1))

    def test_one_wrong_password_under_flood_costs_one_hash_s12(self) -> None:
        for stored in (ALICE, None, Stored("", 1)):
            pool = Pool()
            flood = Flood(pool, hosts=5)
            flood.fill()
            turns = flood.turns_until(pool.ask(BAD, stored=stored, host="203.0.113.1"))
            assert len(pool.hasher.calls) == turns and len(set(pool.hasher.calls)) == 1

    def test_the_dropped_check_is_answered_and_what_its_answer_does_harms_no_other_request_s10(self) -> None:
        pool = Pool()
        seen: list[bool | RaftlogError] = []

        def raising(answer: bool | RaftlogError) -> None:
            seen.append(answer)
            raise ZeroDivisionError

        for number in range(THREADS + MAX_WAITING_OF_HOST - 1):
            pool.ask(BAD, name=f"user{number}", host="busy")
        pool.checks.check("last", BAD, None, "busy", raising)
        for number in range(MAX_WAITING - MAX_WAITING_OF_HOST):
            pool.ask(BAD, name=f"other{number}", stored=None, host=f"h{number % 4}")
        answers = pool.ask(host="192.0.2.1")
        with pytest.raises(ZeroDivisionError):
            pool.scheduler.run()
        (dropped,) = seen
        assert isinstance(dropped, RetriableError) and dropped.code == "overloaded"
        pool.worker.run_all()
        assert answers == [True] and len(seen) == 1 and pool.checks.running == 0


class TestErrors:
    def test_a_lack_of_memory_is_retriable_s10(self) -> None:
        pool = Pool()
        pool.hasher.error = ResourceShortage("no memory")
        answer = pool.answer()
        assert isinstance(answer, RetriableError) and answer.code == "overloaded"
        pool.hasher.error = None
        assert pool.answer() is True

    def test_a_bug_is_reported_and_nobody_gets_in_s12(self) -> None:
        pool = Pool()
        pool.hasher.error = ZeroDivisionError("secret of a library")
        answers = pool.ask()
        with pytest.raises(ZeroDivisionError):
            pool.worker.run_all()
        (answer,) = answers
        assert isinstance(answer, InvariantViolation) and "secret" not in answer.detail
        assert pool.checks.running == 0

    def test_a_callback_that_raises_leaves_the_counts_right(self) -> None:
        pool = Pool()
        raising: Callable[[bool | RaftlogError], None] = lambda answer: 1 / 0  # type: ignore[assignment, return-value]  # noqa: E731
        pool.checks.check("alice", GOOD, ALICE, "h", raising)
        with pytest.raises(ZeroDivisionError):
            pool.worker.run_all()
        assert pool.checks.running == 0 and pool.ask() == [True]
