"""The HTTP API in front of a broker in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.client.fake_broker import FakeBroker
from tests.support.http.api_client import Api, running_api


@pytest.fixture
def broker() -> FakeBroker:
    """A broker without topics; a module that needs some overrides this fixture."""
    return FakeBroker()


@pytest.fixture
async def api(broker: FakeBroker) -> AsyncIterator[Api]:
    async with running_api(broker) as running:
        yield running
