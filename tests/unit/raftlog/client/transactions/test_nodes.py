"""Requests of transactional producers on data connections: which node gets them, and what failures cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from raftlog.client.cluster.api import HttpApi
from raftlog.client.cluster.channel import NodeChannel
from raftlog.client.transactions import api as transaction_api
from raftlog.client.transactions.api import TransactionApi
from raftlog.errors import ClientClosed, InvalidRequest, RemoteProtocolError, RetriableError
from raftlog.wire import CommitRequest, PositionMove, TransactionResponse
from tests.support.client.fake_cluster import FakeCluster

TIMEOUT = 5.0


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(nodes=3) as started:
        yield started


@pytest.fixture
async def api(cluster: FakeCluster) -> AsyncIterator[TransactionApi]:
    http = HttpApi(cluster.bootstrap)
    yield TransactionApi(http)
    await http.close()


async def initialize(api: TransactionApi, name: str = "p") -> tuple[int, int]:
    return await api.initialize(name, 60_000, name.encode().ljust(16, b"-"), None, timeout=TIMEOUT)


def streams(cluster: FakeCluster) -> list[int]:
    """The nodes with a stream of the client."""
    return [number for number, node in cluster.nodes.items() if node.streams()]


async def test_requests_go_to_one_node_on_one_connection(cluster: FakeCluster, api: TransactionApi) -> None:
    for number in range(5):
        await initialize(api, f"p{number}")
    assert streams(cluster) == [1]
    assert [path for node in cluster.nodes.values() for path in node.api_calls] == ["GET /v1/cluster"]


async def test_a_dead_node_is_passed_over(cluster: FakeCluster, api: TransactionApi) -> None:
    first = await initialize(api)
    await cluster.nodes[1].kill()
    second, _ = await api.commit(CommitRequest(0, (), positions=(PositionMove("q", -1, 1),)), timeout=TIMEOUT)
    assert second == ()
    assert await api.abort([first], timeout=TIMEOUT) == ((first[0], 1),)  # type: ignore[list-item]
    assert streams(cluster) == [2]


async def test_another_node_is_asked_if_one_stays_silent(
    cluster: FakeCluster, api: TransactionApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first decision determines the answer, so that both may carry it out."""
    monkeypatch.setattr(transaction_api, "HEDGE_AFTER", 0.05)
    await initialize(api)
    silent = [asyncio.Event()]

    def hold(what: str) -> object:
        return silent.pop().wait() if silent else None

    cluster.transactions.before_answer = hold
    assert await initialize(api) == await initialize(api)
    assert streams(cluster) == [1, 2]


async def test_a_lost_answer_is_made_up_for_by_a_retry(cluster: FakeCluster, api: TransactionApi) -> None:
    cluster.transactions.lose_answers = {"initialize": 2}
    key = await initialize(api)
    assert await initialize(api) == key
    assert len(cluster.transactions.asked("initialize")) == 4


async def test_a_refusal_is_final_and_a_shortage_is_not(cluster: FakeCluster, api: TransactionApi) -> None:
    cluster.transactions.refuse = {"initialize": "producer_fenced"}
    with pytest.raises(InvalidRequest) as fenced:
        await initialize(api)
    assert fenced.value.code == "producer_fenced" and len(cluster.transactions.asked("initialize")) == 1
    cluster.transactions.refuse = {"initialize": "overloaded"}
    with pytest.raises(RetriableError) as busy:
        await api.initialize("p", 60_000, bytes(16), None, timeout=0.3)
    assert busy.value.code == "overloaded" and len(cluster.transactions.asked("initialize")) > 3


async def test_a_request_that_no_node_could_read_is_refused_here_s11(cluster: FakeCluster, api: TransactionApi) -> None:
    for bad in (CommitRequest(0, (), positions=(PositionMove("", -1, 1),)), CommitRequest(0, (), block="x" * 600)):
        with pytest.raises(InvalidRequest):
            await api.commit(bad, timeout=TIMEOUT)
    assert cluster.transactions.requests == []


async def test_an_answer_without_a_key_is_a_protocol_error(
    cluster: FakeCluster, api: TransactionApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster.transactions, "change", lambda request: TransactionResponse(request.correlation_id))
    with pytest.raises(RemoteProtocolError):
        await initialize(api)
    with pytest.raises(RemoteProtocolError):
        await api.open_block("", 5, 60_000, timeout=TIMEOUT)


async def test_all_callers_of_one_user_share_the_connections_which_close_with_the_api(cluster: FakeCluster) -> None:
    http = HttpApi(cluster.bootstrap)
    assert NodeChannel.of(http) is NodeChannel.of(http)
    await asyncio.gather(*(initialize(TransactionApi(http), f"p{number}") for number in range(5)))
    assert streams(cluster) == [1]
    await http.close()
    await cluster.until(lambda: not streams(cluster))
    with pytest.raises(ClientClosed):
        await initialize(TransactionApi(http))
