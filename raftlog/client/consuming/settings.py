"""Settings shared by consumers, group consumers and fetchers."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.config import MIB

DEFAULT_PREFETCH_BYTES = 32 * MIB


@dataclass(frozen=True, slots=True)
class FetcherSettings:
    """A consumer's settings.

    Times are in seconds.
    """

    prefetch_bytes: int
    max_wait: float
    min_bytes: int
    on_out_of_range: str
    """`"error"`, `"earliest"` or `"latest"`."""
    isolation: int
    """1: read committed records only; 0: everything."""
