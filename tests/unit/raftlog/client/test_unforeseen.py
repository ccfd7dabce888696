"""An exception that nobody foresaw ends no loop of the client: whoever waits is answered, or told what is wrong."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from raftlog import Consumer, Producer
from raftlog.client.blocking import handover as blocking_handover
from raftlog.client.blocking.handover import Handover
from raftlog.client.cluster import refresher, transport
from raftlog.client.cluster.api import HttpApi
from raftlog.client.cluster.metadata import ClusterMetadata
from raftlog.client.consuming import offsets
from raftlog.client.consuming.reader_index import ReaderBooks
from raftlog.client.producing import producer_ids as identity
from raftlog.errors import RaftlogError, RetriableError
from spark_source.driver.group_progress import GroupProgress
from spark_source.driver.latest import LatestBounds
from spark_source.reading.log_bounds import PartitionBounds, TopicBounds
from tests.support.fake_cluster import FakeCluster


class Bug(Exception):
    """Nobody foresaw this one."""


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(nodes=1) as started:
        started.create_topic("t")
        yield started


@pytest.fixture(autouse=True)
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (refresher, identity, offsets):
        monkeypatch.setattr(module, "AFTER_A_BUG_SECONDS", 0.01)


def break_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[str]:
    """The next call of this asynchronous function raises `Bug`; what is returned says whether it did."""
    real, broken = getattr(owner, name), list[str]()

    async def breaks(*args: Any, **kwargs: Any) -> Any:
        if not broken:
            broken.append(name)
            raise Bug(name)
        return await real(*args, **kwargs)

    monkeypatch.setattr(owner, name, breaks)
    return broken


@pytest.mark.parametrize(("owner", "name"), [(ClusterMetadata, "refresh"), (HttpApi, "post"), (transport, "connect")])
async def test_a_producer_goes_on(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    broken = break_once(monkeypatch, owner, name)
    async with asyncio.timeout(10), Producer(cluster.bootstrap, linger_ms=0) as producer:
        assert (await producer.send_and_wait("t", b"a", partition=0)).offset == 0
        await producer.flush()
    assert broken


@pytest.mark.parametrize(
    ("owner", "name"), [(ClusterMetadata, "refresh"), (offsets, "find_offsets"), (transport, "connect")]
)
async def test_a_consumer_goes_on(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    async with asyncio.timeout(10), Producer(cluster.bootstrap, linger_ms=0) as producer:
        await producer.send_and_wait("t", b"a", partition=0)
    broken = break_once(monkeypatch, owner, name)
    async with asyncio.timeout(10), Consumer(cluster.bootstrap, "t", start="@1") as consumer:
        assert [record.value for record in await consumer.poll(timeout=9)] == [b"a"]
    assert broken


async def test_a_poll_is_told_that_nothing_is_fetched_any_more(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(10), Consumer(cluster.bootstrap, "t") as consumer:
        assert await consumer.poll(timeout=0.05) == []

        def breaks(books: ReaderBooks) -> Any:
            raise Bug("leaders")

        monkeypatch.setattr(ReaderBooks, "leaders", breaks)
        with pytest.raises(RaftlogError, match="has stopped reading") as told:
            while True:
                cluster.wake()
                await consumer.poll(timeout=0.2)
        assert told.value.code == "internal_error"


def test_who_waits_for_room_is_told_that_the_thread_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking_handover, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(blocking_handover, "QUEUE_BYTES", 1)

    class Thread:
        closed = False

        def call_soon(self, callback: Any) -> None:
            pass

    thread, told = Thread(), list[BaseException]()
    handover = Handover(thread)  # type: ignore[arg-type]
    target: Any = None
    handover.put((), 1, target)

    def put() -> None:
        try:
            handover.put((), 1, target)
        except RetriableError as error:
            told.append(error)

    waiting = threading.Thread(target=put, daemon=True)
    waiting.start()
    thread.closed = True
    waiting.join(10.0)
    assert len(told) == 1


# --- Spark ------------------------------------------------------------------------------------------------------------


class BrokenCluster:
    """Asked by Spark; everything breaks."""

    calls = 0

    async def commit(self, group: str, offsets: Any) -> None:
        self.calls += 1
        raise Bug("commit")

    async def wait_for_news(self, ends: Any, seconds: float) -> None:
        self.calls += 1
        raise Bug("wait")


async def test_sparks_progress_that_cannot_be_written_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    broken: Any = BrokenCluster()
    progress: Any = GroupProgress(broken, "g")
    progress._wanted = {("t", 0): 1}
    await progress._write()
    assert broken.calls == 1 and "could not be written" in caplog.text
    assert progress._task is None


async def test_sparks_wait_for_news_that_breaks_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_source.driver.latest.RETRY_PAUSE_S", 0.0)
    broken: Any = BrokenCluster()
    latest: Any = LatestBounds(broken, 1.0)
    latest._picture = {"t": TopicBounds("t", "id", {0: PartitionBounds(0, 1)})}
    await latest._wait_for_news()
    assert broken.calls == 1 and "waiting for news ended" in caplog.text
