"""A transaction counts for its caller from its first batch until it is decided. S11."""

from __future__ import annotations

from raftlog.broker.security.quotas.open_transactions import OpenTransactions
from raftlog.broker.security.quotas.quotas import Held, Limits, Quotas
from raftlog.model import ProducerEpoch, ProducerId
from raftlog.security.principals import Caller
from raftlog.transactions import TransactionKey
from tests.support.security.rules import ALICE, BOB


class World:
    """Transactions that are open until a test decides them."""

    def __init__(self, **most: int) -> None:
        limits = {f"User:{name}": Limits({}, {Held.OPEN_TRANSACTIONS: count}) for name, count in most.items()}
        self.quotas = Quotas(limits.get, lambda: bool(limits))
        self.decided: set[TransactionKey] = set()
        self.transactions = OpenTransactions(self.quotas, lambda key: key not in self.decided)

    def begin(self, number: int, caller: Caller = ALICE) -> str:
        error = self.transactions.begin(caller, key(number))
        return "" if error is None else error.code

    def decide(self, *numbers: int) -> None:
        self.decided |= set(map(key, numbers))


def key(number: int) -> TransactionKey:
    return TransactionKey(ProducerId(number), ProducerEpoch(0))


def test_a_transaction_too_many_waits_until_another_has_ended() -> None:
    w = World(alice=2)
    assert [w.begin(1), w.begin(2), w.begin(3)] == ["", "", "throttled"]
    assert [w.begin(1), w.begin(2)] == ["", ""], "further batches of those that are open"
    assert w.begin(4, BOB) == ""
    w.decide(1)
    assert [w.begin(3), w.begin(5)] == ["", "throttled"]
    assert w.quotas.holds(ALICE, Held.OPEN_TRANSACTIONS) == 2


def test_a_quota_of_none_permits_none() -> None:
    w = World(alice=0)
    assert w.begin(1) == "throttled"
    assert len(w.transactions) == 0


def test_what_is_decided_or_unknown_is_left_to_the_partition() -> None:
    w = World(alice=0)
    w.decide(1)
    assert w.begin(1) == ""
    assert w.quotas.holds(ALICE, Held.OPEN_TRANSACTIONS) == 0


def test_what_has_ended_does_not_pile_up_without_a_limit() -> None:
    w = World()
    for number in range(1_000):
        assert w.begin(number) == ""
        w.decide(number)
    assert len(w.transactions) <= 2
    assert w.quotas.holds(ALICE, Held.OPEN_TRANSACTIONS) == len(w.transactions)


def test_every_ended_transaction_of_a_caller_is_found_in_turn() -> None:
    w = World(alice=500)
    assert {w.begin(number) for number in range(500)} == {""}
    w.decide(499)
    codes = [w.begin(1_000 + number) for number in range(6)]
    assert codes.count("") == 1, "it is found after at most five looks at a hundred"
