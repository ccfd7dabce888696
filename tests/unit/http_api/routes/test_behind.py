"""Names and numbers that a node's view lacks are asked about before they are denied (S7)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from raftlog.api.scrubs import Scrub
from raftlog.model import TopicPartition
from tests.support.client.fake_broker import FakeBroker
from tests.support.http.api_client import Answer, Api, running_api


class Moves:
    """The broker's moves; elections succeed."""

    def __init__(self) -> None:
        self.elected: list[list[int]] = []
        """Partition numbers by election."""

    async def elect_preferred(self, partitions: Sequence[TopicPartition]) -> list[None]:
        self.elected.append([one.partition for one in partitions])
        return [None] * len(partitions)


class Scrubs:
    """The broker's scrubs."""

    def __init__(self) -> None:
        self.scrubbed: list[list[int]] = []
        """Partition numbers by scrub."""

    def scrub_now(self, partitions: Sequence[TopicPartition]) -> None:
        self.scrubbed.append([one.partition for one in partitions])

    def progress(self) -> Scrub:
        return Scrub(1, False, 0, 0, 0, 0, [])


class Behind(FakeBroker):
    """A broker whose view lacks what the quorum has decided elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.add_topic("t", 2)
        self.moves = Moves()
        self.scrubs = Scrubs()


@pytest.fixture
def broker() -> Behind:
    return Behind()


@pytest.fixture
async def api(broker: Behind) -> AsyncIterator[Api]:
    async with running_api(broker) as running:
        yield running


async def elect(api: Api, partition: int) -> Answer:
    return await api.post(
        "/v1/cluster/elections", {"kind": "preferred", "partitions": [{"topic": "t", "partition": partition}]}
    )


async def test_a_partition_to_move_may_have_been_added_elsewhere(api: Api, broker: Behind) -> None:
    assert "partitions 0 to 1" in (await elect(api, 2)).problem("unknown_partition")["detail"]
    broker.unseen.append(lambda: broker.grow("t", 3))
    assert (await elect(api, 2)).status == 200
    broker.quorum_answers = False
    assert "the quorum does not answer" in (await elect(api, 3)).problem("quorum_unavailable")["detail"]
    assert broker.moves.elected == [[2]]


async def test_what_is_to_be_scrubbed_may_have_been_made_elsewhere(api: Api, broker: Behind) -> None:
    async def scrub(**wanted: str | int) -> Answer:
        return await api.post("/v1/scrub", wanted)

    assert "no topic 'u'" in (await scrub(topic="u")).problem("unknown_topic")["detail"]
    broker.unseen.append(lambda: broker.add_topic("u", 2))
    assert (await scrub(topic="u")).status == 202
    broker.unseen.append(lambda: broker.grow("u", 3))
    assert (await scrub(topic="u", partition=2)).status == 202
    broker.quorum_answers = False
    assert "the quorum does not answer" in (await scrub(topic="v")).problem("quorum_unavailable")["detail"]
    assert broker.scrubs.scrubbed == [[0, 1], [2]]
