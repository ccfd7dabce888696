"""The HTTP API in front of a broker in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.fake_broker import FakeBroker
from tests.support.http_api_client import Api, running_api


@pytest.fixture
def broker() -> FakeBroker:
    """Without topics; a module that wants some has a fixture of its own by this name."""
    return FakeBroker()


@pytest.fixture
async def api(broker: FakeBroker) -> AsyncIterator[Api]:
    async with running_api(broker) as running:
        yield running
