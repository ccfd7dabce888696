"""Mutated conversations at every port of a plain and of a secured node, beside a canary. S1, S2, S11, S12.

Run it by hand: `python -P -m pytest -q -m soak tests/integration/security/test_fuzzing.py`, each port for
`RAFTLOG_FUZZ_SECONDS`. `python -P -m tests.support.fuzzing --seconds 1800` keeps the results.
"""

from __future__ import annotations

import os

import pytest

from tests.support.fuzzing.captures import PORTS
from tests.support.fuzzing.runs import fuzz, random_seed

pytestmark = [pytest.mark.integration, pytest.mark.soak]

SECONDS = float(os.environ.get("RAFTLOG_FUZZ_SECONDS", "20"))


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("node", ["plain", "secured"])
def test_nothing_that_is_sent_to_a_port_harms(port: str, node: str) -> None:
    result = fuzz(port, random_seed(), SECONDS, secured=node == "secured")
    assert result.findings == [], result
    assert result.connections > 10 * SECONDS
