"""One profile for Hypothesis: no deadlines (machines are noisy), and the same examples in every run of one commit."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "raftlog", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("raftlog")
