"""A connection to the HTTP API counts for the caller of its latest request. S11."""

from __future__ import annotations

import pytest

from raftlog.broker.security.quotas.api_connections import ApiConnections
from raftlog.broker.security.quotas.connections import CallerConnections
from raftlog.broker.security.quotas.quotas import Held, Limits, Quotas
from raftlog.errors import RetriableError
from tests.support.security.rules import ALICE, BOB


def quotas_of(**most: int) -> Quotas:
    limits = {f"User:{name}": Limits({}, {Held.CONNECTIONS: count}) for name, count in most.items()}
    return Quotas(limits.get, lambda: True)


def test_a_connection_counts_once_until_it_is_closed() -> None:
    quotas = quotas_of(alice=1)
    connections = ApiConnections(quotas)
    connections.enter("a", ALICE)
    connections.enter("a", ALICE)
    with pytest.raises(RetriableError, match="as many connections") as caught:
        connections.enter("b", ALICE)
    assert caught.value.code == "throttled"
    connections.leave("b")
    connections.leave("a")
    connections.leave("a")
    assert quotas.holds(ALICE, Held.CONNECTIONS) == 0
    connections.enter("b", ALICE)
    assert quotas.holds(ALICE, Held.CONNECTIONS) == 1


def test_a_connection_of_another_caller_counts_for_the_first_no_longer() -> None:
    quotas = quotas_of(alice=1, bob=0)
    connections = ApiConnections(quotas)
    connections.enter("a", ALICE)
    with pytest.raises(RetriableError):
        connections.enter("a", BOB)
    assert (quotas.holds(ALICE, Held.CONNECTIONS), quotas.holds(BOB, Held.CONNECTIONS)) == (0, 0)
    connections.enter("b", ALICE)
    with pytest.raises(RetriableError):
        connections.enter("a", ALICE)


def test_both_doors_of_a_node_count_together() -> None:
    quotas = quotas_of(alice=2)
    api, data = ApiConnections(quotas), CallerConnections(quotas)
    api.enter("a", ALICE)
    data.enter("b", ALICE)
    for enter in (api.enter, data.enter):
        with pytest.raises(RetriableError):
            enter("c", ALICE)
