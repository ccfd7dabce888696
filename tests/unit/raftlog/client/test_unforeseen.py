"""An unexpected exception ends no loop of the client: waiting callers get an answer or an error."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from raftlog import Consumer, Producer
from raftlog.client.blocking import handover as blocking_handover
from raftlog.client.blocking.handover import Handover
from raftlog.client.cluster import attempts, transport
from raftlog.client.cluster.api import HttpApi
from raftlog.client.cluster.metadata import ClusterMetadata
from raftlog.client.consuming import offsets
from raftlog.client.consuming.reader_index import ReaderIndex
from raftlog.errors import ClientClosed, RaftlogError
from spark_source.driver.cluster import ReadTopic
from spark_source.driver.group_progress import GroupProgress
from spark_source.driver.latest import LatestBounds
from spark_source.reading.log_bounds import PartitionBounds
from tests.support.client.fake_cluster import FakeCluster
from tests.support.http.api_client import eventually


class Bug(Exception):
    """An unexpected exception."""


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(nodes=1) as started:
        started.create_topic("t")
        yield started


@pytest.fixture(autouse=True)
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "AFTER_A_BUG_SECONDS", 0.01)


def break_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[str]:
    """The next call of this asynchronous function raises `Bug`; the returned value says whether it did."""
    real, broken = getattr(owner, name), list[str]()

    async def breaks(*args: Any, **kwargs: Any) -> Any:
        if not broken:
            broken.append(name)
            raise Bug(name)
        return await real(*args, **kwargs)

    monkeypatch.setattr(owner, name, breaks)
    return broken


@pytest.mark.parametrize(("owner", "name"), [(ClusterMetadata, "refresh"), (HttpApi, "post"), (transport, "connect")])
async def test_a_producer_continues(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    broken = break_once(monkeypatch, owner, name)
    async with asyncio.timeout(10), Producer(cluster.bootstrap, linger_ms=0) as producer:
        assert (await producer.send_and_wait("t", b"a", partition=0)).offset == 0
        await producer.flush()
    assert broken


@pytest.mark.parametrize(
    ("owner", "name"), [(ClusterMetadata, "refresh"), (offsets, "find_offsets"), (transport, "connect")]
)
async def test_a_consumer_continues(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    async with asyncio.timeout(10), Producer(cluster.bootstrap, linger_ms=0) as producer:
        await producer.send_and_wait("t", b"a", partition=0)
    broken = break_once(monkeypatch, owner, name)
    async with asyncio.timeout(10), Consumer(cluster.bootstrap, "t", start="@1") as consumer:
        assert [record.value for record in await consumer.poll(timeout=9)] == [b"a"]
    assert broken


async def test_a_poll_fails_if_fetching_has_stopped(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async with asyncio.timeout(10), Consumer(cluster.bootstrap, "t") as consumer:
        assert await consumer.poll(timeout=0.05) == []

        def breaks(books: ReaderIndex) -> Any:
            raise Bug("leaders")

        monkeypatch.setattr(ReaderIndex, "leaders", breaks)
        with pytest.raises(RaftlogError, match="has stopped reading") as told:
            while True:
                cluster.wake()
                await consumer.poll(timeout=0.2)
        assert told.value.code == "internal_error"


def test_a_caller_that_waits_for_room_gets_an_error_if_the_thread_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking_handover, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(blocking_handover, "QUEUE_BYTES", 1)

    class Thread:
        closed = False

        def call_soon(self, callback: Any) -> None:
            pass

    thread, told = Thread(), list[BaseException]()
    handover = Handover(thread)  # type: ignore[arg-type]
    target: Any = None
    handover.put(target, 1, ())

    def put() -> None:
        try:
            handover.put(target, 1, ())
        except ClientClosed as error:
            told.append(error)

    waiting = threading.Thread(target=put, daemon=True)
    waiting.start()
    thread.closed = True
    waiting.join(10.0)
    assert len(told) == 1


# --- Spark ------------------------------------------------------------------------------------------------------------


class BrokenCluster:
    """A cluster for Spark's driver in which every call raises."""

    calls = 0

    async def commit(self, group: str, offsets: Any) -> None:
        self.calls += 1
        raise Bug("commit")

    async def subscribed(self) -> dict[str, ReadTopic]:
        return {"t": ReadTopic("t", "id", (0,))}

    async def bounds(self, topics: Any) -> dict[tuple[str, int], PartitionBounds]:
        return {("id", 0): PartitionBounds(0, 1)}

    async def wait_for_news(self, ends: Any, seconds: float) -> None:
        self.calls += 1
        raise Bug("wait")


async def test_a_failed_commit_of_sparks_progress_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    broken: Any = BrokenCluster()
    progress = GroupProgress(broken, "g")
    for number in (1, 2):
        done: Any = SimpleNamespace(positions=lambda number=number: [("t", "id", 0, number)])
        progress.publish(done)
        await progress.written(5.0)
        assert broken.calls == number and caplog.text.count("could not be written") == number
    await progress.close()


async def test_a_failed_long_poll_of_spark_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_source.driver.latest.CALM_S", 0.0)
    broken: Any = BrokenCluster()
    latest = LatestBounds(broken, 1.0)
    await latest.picture()
    await eventually(lambda: "waiting for news ended" in caplog.text)
    await latest.close()
    assert broken.calls == 1
