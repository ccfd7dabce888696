"""The Hypothesis profile: no deadlines (machines are noisy), and the same examples in every run of one commit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.clusters.held_port import HeldPort

settings.register_profile(
    "raftlog", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("raftlog")


@pytest.fixture
def held() -> Iterator[HeldPort]:
    """A port without a listener, unless the test opens one."""
    with HeldPort() as port:
        yield port
