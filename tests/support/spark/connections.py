"""The connections that a test makes a Spark process open."""

from __future__ import annotations

import pytest

from spark_source import connections
from spark_source.connections import Connections
from tests.support.recorded import recorded


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Connections]:
    """The connections that were opened since. The test closes them."""
    return recorded(monkeypatch, connections, "Connections")
