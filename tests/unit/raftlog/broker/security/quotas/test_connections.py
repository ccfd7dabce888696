"""Connections count for the callers whose streams they carry. S11."""

from __future__ import annotations

import pytest

from raftlog.broker.security.quotas.connections import CallerConnections
from raftlog.broker.security.quotas.quotas import Held, Limits, Quotas
from raftlog.errors import RetriableError
from tests.support.security.rules import ALICE, BOB


def connections_of(most: int) -> tuple[CallerConnections, Quotas]:
    limits = {"User:alice": Limits({}, {Held.CONNECTIONS: most})}
    quotas = Quotas(limits.get, lambda: True)
    return CallerConnections(quotas), quotas


def test_streams_of_one_connection_count_once_and_until_the_last_one_ends() -> None:
    connections, quotas = connections_of(1)
    connections.enter("a", ALICE)
    connections.enter("a", ALICE)
    with pytest.raises(RetriableError, match="as many connections") as caught:
        connections.enter("b", ALICE)
    assert caught.value.code == "throttled"
    connections.leave("a", ALICE)
    with pytest.raises(RetriableError):
        connections.enter("b", ALICE)
    connections.leave("a", ALICE)
    assert quotas.holds(ALICE, Held.CONNECTIONS) == 0
    connections.enter("b", ALICE)
    assert quotas.holds(ALICE, Held.CONNECTIONS) == 1


def test_a_connection_counts_for_each_of_its_callers() -> None:
    connections, quotas = connections_of(1)
    connections.enter("a", ALICE)
    connections.enter("a", BOB)
    connections.enter("b", BOB)
    assert (quotas.holds(ALICE, Held.CONNECTIONS), quotas.holds(BOB, Held.CONNECTIONS)) == (1, 2)
