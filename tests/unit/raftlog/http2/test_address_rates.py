"""A peer that connects again does not get a new budget for frames without content (S10)."""

from __future__ import annotations

import pytest

from raftlog.http2 import Http2Limits, address_rates
from raftlog.http2.address_rates import AddressRates

LIMITS = Http2Limits(address_control_frames_per_second=10.0, address_control_frames_burst=100)


def test_connections_of_an_address_share_their_rate() -> None:
    rates = AddressRates(LIMITS)
    used = [rates.of("10.0.0.1", 0.0).allow(0.0) for _ in range(101)]
    assert used == [True] * 100 + [False]
    assert rates.of("10.0.0.2", 0.0).allow(0.0)
    assert rates.of("10.0.0.1", 1.0).allow(1.0)
    assert rates.of("2001:db8::1", 0.0) is rates.of("2001:db8::2", 0.0)


def test_the_number_of_addresses_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_rates, "MAX_ADDRESSES", 3)
    rates = AddressRates(LIMITS)
    first, second = rates.of("a", 0.0), rates.of("b", 0.0)
    assert rates.of("a", 0.0) is first
    rates.of("c", 0.0)
    rates.of("d", 0.0)
    assert len(rates) == 3 and rates.of("a", 0.0) is first and rates.of("b", 0.0) is not second
