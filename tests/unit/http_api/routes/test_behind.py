"""Names and numbers that a node's view lacks are asked about before they are denied (S7)."""

from __future__ import annotations

import pytest

from http_api.models.moves import NamedPartition
from http_api.models.scrubs import StartScrub
from http_api.routes import moves, scrubs
from http_api.web.context import ApiContext
from http_api.web.hosts import HostPolicy
from http_api.web.limits import Limits
from raftlog.errors import InvalidRequest, RetriableError
from tests.support.fake_broker import FakeBroker


@pytest.fixture
def broker() -> FakeBroker:
    made = FakeBroker()
    made.add_topic("t", 2)
    return made


@pytest.fixture
def context(broker: FakeBroker) -> ApiContext:
    return ApiContext(broker, HostPolicy.of((), ()), Limits())


async def test_a_partition_to_move_may_have_been_added_elsewhere(context: ApiContext, broker: FakeBroker) -> None:
    asked = [NamedPartition("t", 2)]
    with pytest.raises(InvalidRequest, match="partitions 0 to 1"):
        await moves._partitions(context, asked)
    broker.unseen.append(lambda: broker.grow("t", 3))
    assert [tp.partition for tp in await moves._partitions(context, asked)] == [2]
    broker.quorum_answers = False
    with pytest.raises(RetriableError, match="the quorum is silent"):
        await moves._partitions(context, [NamedPartition("t", 3)])


async def test_what_is_to_be_scrubbed_may_have_been_made_elsewhere(context: ApiContext, broker: FakeBroker) -> None:
    with pytest.raises(InvalidRequest, match="no topic 'u'"):
        await scrubs._wanted(context, StartScrub("u"))
    broker.unseen.append(lambda: broker.add_topic("u", 2))
    assert len(await scrubs._wanted(context, StartScrub("u"))) == 2
    broker.unseen.append(lambda: broker.grow("u", 3))
    assert [tp.partition for tp in await scrubs._wanted(context, StartScrub("u", 2))] == [2]
    broker.quorum_answers = False
    with pytest.raises(RetriableError, match="the quorum is silent"):
        await scrubs._wanted(context, StartScrub("v"))
