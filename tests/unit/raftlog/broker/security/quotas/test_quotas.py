"""Quotas hold a caller to its rate, charge it as user and as address, and cost bounded memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.broker.security.quotas import quotas
from raftlog.broker.security.quotas.quotas import (
    MAX_DEBT_SECONDS,
    MAX_WAIT_SECONDS,
    Held,
    Limits,
    Quotas,
    Rate,
    TokenBucket,
)
from raftlog.model import BrokerId
from raftlog.security.principals import Caller, Principal

ALICE = Caller(Principal("alice"), "10.0.0.1")
BOB = Caller(Principal("bob"), "10.0.0.1")
NODE = Caller(Principal("node"), "10.0.0.1", node=BrokerId(1))


def quotas_of(**limits: Limits) -> Quotas:
    by_entity = {name.replace("_at_", ":").replace("_", "."): limit for name, limit in limits.items()}
    return Quotas(by_entity.get, lambda: bool(by_entity))


def rate(kind: Rate, per_second: float) -> Limits:
    return Limits({kind: per_second}, {})


def test_a_caller_without_limits_never_waits() -> None:
    unlimited = quotas_of()
    assert unlimited.charge(ALICE, Rate.BYTES_IN, 1e12, 0.0) == 0
    other = quotas_of(User_at_bob=rate(Rate.BYTES_IN, 1))
    assert other.charge(ALICE, Rate.BYTES_IN, 1e12, 0.0) == 0


def test_a_burst_passes_and_what_is_over_it_waits_for_its_time() -> None:
    limited = quotas_of(User_at_alice=rate(Rate.BYTES_IN, 100.0))
    assert limited.charge(ALICE, Rate.BYTES_IN, 200, 0.0) == 0
    assert limited.charge(ALICE, Rate.BYTES_IN, 50, 0.0) == 0.5
    assert limited.wait(ALICE, Rate.BYTES_IN, 0.25) == 0.25
    assert limited.wait(ALICE, Rate.BYTES_IN, 0.5) == 0
    assert limited.charge(ALICE, Rate.BYTES_IN, 100, 1.5) == 0


def test_user_and_address_are_both_charged_and_the_slower_decides() -> None:
    both = quotas_of(User_at_alice=rate(Rate.REQUESTS, 10.0), Address_at_10_0_0_1=rate(Rate.REQUESTS, 5.0))
    assert both.charge(BOB, Rate.REQUESTS, 10, 0.0) == 0
    assert both.charge(ALICE, Rate.REQUESTS, 5, 0.0) == 1.0, "the address that both share has used its burst"
    assert both.charge(NODE, Rate.REQUESTS, 1_000, 0.0) == 0, "a node of the cluster is charged as neither"


def test_a_debt_is_bounded_in_time() -> None:
    limited = quotas_of(User_at_alice=rate(Rate.BYTES_OUT, 1.0))
    assert limited.charge(ALICE, Rate.BYTES_OUT, 1e9, 0.0) == MAX_DEBT_SECONDS
    assert limited.wait(ALICE, Rate.BYTES_OUT, MAX_DEBT_SECONDS) == 0


def test_a_changed_limit_holds_for_the_next_request() -> None:
    limits = {"User:alice": rate(Rate.BYTES_IN, 1000.0)}
    changing = Quotas(lambda entity: limits.get(entity), lambda: True)
    assert changing.charge(ALICE, Rate.BYTES_IN, 1, 0.0) == 0
    limits["User:alice"] = rate(Rate.BYTES_IN, 1.0)
    assert changing.charge(ALICE, Rate.BYTES_IN, 12, 0.0) == 10.0
    limits.clear()
    assert changing.charge(ALICE, Rate.BYTES_IN, 1e9, 0.0) == 0


def test_a_count_is_held_to_its_limit_and_released() -> None:
    limited = quotas_of(User_at_alice=Limits({}, {Held.CONNECTIONS: 2}))
    assert [limited.hold(ALICE, Held.CONNECTIONS) for _ in range(3)] == [True, True, False]
    assert limited.holds(ALICE, Held.CONNECTIONS) == 2
    assert limited.hold(BOB, Held.CONNECTIONS), "another user at the same address"
    limited.release(ALICE, Held.CONNECTIONS)
    assert limited.hold(ALICE, Held.CONNECTIONS)


def test_a_refused_count_changes_nothing() -> None:
    limited = quotas_of(Address_at_10_0_0_1=Limits({}, {Held.CONNECTIONS: 1}))
    assert limited.hold(ALICE, Held.CONNECTIONS)
    assert not limited.hold(BOB, Held.CONNECTIONS)
    assert limited.holds(BOB, Held.CONNECTIONS) == 0
    limited.release(ALICE, Held.CONNECTIONS)
    assert limited.hold(BOB, Held.CONNECTIONS)


def test_the_number_of_buckets_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MAX_BUCKETS", 3)
    limited = Quotas(lambda entity: rate(Rate.REQUESTS, 1.0) if entity.startswith("Address") else None, lambda: True)

    def charged(host: str) -> float:
        return limited.charge(Caller(Principal("x"), host), Rate.REQUESTS, 4, 0.0)

    assert charged("h1") == 2.0
    assert charged("h2") == 2.0
    assert charged("h3") == 2.0
    assert charged("h1") == 6.0, "h1 was used again, so it is not the one that is forgotten"
    assert charged("h4") == 2.0
    assert charged("h2") == 2.0, "h2 was forgotten"
    assert charged("h3") == 2.0, "h3 was forgotten for h2"
    assert charged("h1") == 2.0, "and h1 for h3"


@given(
    requests=st.lists(st.tuples(st.floats(0, 3), st.floats(0, 500)), max_size=60),
    per_second=st.floats(1, 1000),
)
def test_a_caller_that_waits_as_asked_gets_its_rate_and_no_more(
    requests: list[tuple[float, float]], per_second: float
) -> None:
    """Over any time the tokens taken are at most burst + rate x time + the last request, which goes into debt."""
    burst = per_second * 2
    bucket = TokenBucket(per_second, burst, 0.0)
    now = taken = last = 0.0
    for pause, amount in requests:
        now += pause
        wait = bucket.take(amount, now)
        taken, last = taken + amount, amount
        if wait >= MAX_DEBT_SECONDS - 1e-6:
            return  # part of the debt is forgiven
        assert taken <= burst + per_second * now + last + 1e-6 * (1 + taken)
        now += wait
    assert bucket.wait(now) <= 1e-6


def test_clocks_that_stand_still_or_go_back_give_nothing_away() -> None:
    bucket = TokenBucket(10.0, 10.0, 100.0)
    assert bucket.take(20, 100.0) == 1.0
    assert bucket.wait(50.0) == 1.0
    assert bucket.wait(100.5) == 0.5


def test_an_amount_that_must_not_be_owed_waits_for_its_tokens() -> None:
    hourly = quotas_of(User_at_alice=rate(Rate.TOPICS_CREATED, 2 / 3600))
    assert hourly.wait_for(ALICE, Rate.TOPICS_CREATED, 2, 0.0) == 0
    assert hourly.charge(ALICE, Rate.TOPICS_CREATED, 2, 0.0) == 0
    assert hourly.wait_for(ALICE, Rate.TOPICS_CREATED, 1, 0.0) == 1800
    assert hourly.wait_for(ALICE, Rate.TOPICS_CREATED, 1, 1800.0) == 0
    assert hourly.wait_for(ALICE, Rate.TOPICS_CREATED, 3, 7200.0) == MAX_WAIT_SECONDS, "more than an hour's worth"
    assert hourly.wait_for(BOB, Rate.TOPICS_CREATED, 3, 0.0) == 0
    none = quotas_of(User_at_alice=rate(Rate.TOPICS_CREATED, 0.0))
    assert none.wait_for(ALICE, Rate.TOPICS_CREATED, 1, 0.0) == MAX_WAIT_SECONDS, "zero forbids"
    assert quotas_of().wait_for(ALICE, Rate.TOPICS_CREATED, 1, 0.0) == 0
