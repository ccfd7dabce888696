"""The limits that apply to an entity: its own, and for what these leave open the default of its kind."""

from __future__ import annotations

from metadata.records.security import EVERY_ADDRESS, EVERY_USER, QuotaLimits
from metadata.records.security_table import SecurityTable
from raftlog.security.principals import USER

from .quotas import Held, Limits, Rate

MAX_RESOLVED = 50_000
"""Most entities whose limits are remembered; they are all forgotten when there are more."""


class QuotaTable:
    """The resolved limits as of the table's version."""

    def __init__(self, table: SecurityTable) -> None:
        self._table = table
        self._version = -1
        self._resolved: dict[str, Limits | None] = {}

    def is_limited(self) -> bool:
        """Return whether any limit exists."""
        return self._table.quota_count > 0

    def limits_of(self, entity: str) -> Limits | None:
        """Return the limits of a user or address; None: it has none."""
        if self._version != self._table.version or len(self._resolved) >= MAX_RESOLVED:
            self._version = self._table.version
            self._resolved.clear()
        if entity not in self._resolved:
            self._resolved[entity] = self._resolve(entity)
        return self._resolved[entity]

    def _resolve(self, entity: str) -> Limits | None:
        every = EVERY_USER if entity.startswith(f"{USER}:") else EVERY_ADDRESS
        own, default = self._table.quota(entity), self._table.quota(every)
        rates = {rate: value for rate in Rate if (value := _first(own, default, rate.field)) is not None}
        counts = {held: value for held in Held if (value := _first(own, default, held.value)) is not None}
        if not rates and not counts:
            return None
        return Limits({rate: value / rate.per_seconds for rate, value in rates.items()}, counts)


def _first(own: QuotaLimits | None, default: QuotaLimits | None, field: str) -> int | None:
    for limits in (own, default):
        value: int | None = None if limits is None else getattr(limits, field)
        if value is not None:
            return value
    return None
