"""The rates of frames without content, by address: a peer that connects again does not get a new budget. A pure core.

An address of IPv6 counts as its /64 network.
"""

from __future__ import annotations

from raftlog.security.principals import network_of

from .limits import Http2Limits, RateLimit

MAX_ADDRESSES = 4_096
"""Addresses that are remembered; beyond it, the one that has not been used for longest is forgotten."""


class AddressRates:
    """The rates of the addresses whose connections one loop serves."""

    def __init__(self, limits: Http2Limits) -> None:
        self._limits = limits
        self._rates: dict[str, RateLimit] = {}
        """By network, the one used for the latest connection last."""

    def __len__(self) -> int:
        return len(self._rates)

    def of(self, address: str, now: float) -> RateLimit:
        """Return the rate of an address, for a connection that begins now."""
        network = network_of(address)
        rate = self._rates.pop(network, None)
        if rate is None:
            limits = self._limits
            rate = RateLimit(limits.address_control_frames_per_second, limits.address_control_frames_burst, now)
        self._rates[network] = rate
        if len(self._rates) > MAX_ADDRESSES:
            del self._rates[next(iter(self._rates))]
        return rate
