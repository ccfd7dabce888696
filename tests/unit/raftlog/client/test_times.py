"""Times as `datetime`: with a time zone they are milliseconds, without one they are refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

import raftlog.sync
from raftlog import Admin, Consumer
from raftlog.client.settings import GroupConsumerSettings, ProducerSettings
from raftlog.client.times import in_milliseconds, milliseconds_of, seconds_of, start_at
from raftlog.errors import InvalidRequest
from tests.support.client.fake_cluster import FakeCluster


def test_a_time_is_rounded_down_to_milliseconds() -> None:
    assert milliseconds_of(datetime(1970, 1, 1, tzinfo=UTC)) == 0
    assert milliseconds_of(datetime(2025, 1, 1, 0, 0, 0, 1999, tzinfo=UTC)) == 1_735_689_600_001
    east = timezone(timedelta(hours=2))
    assert milliseconds_of(datetime(2025, 1, 1, 2, tzinfo=east)) == milliseconds_of(datetime(2025, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize("time", [datetime(2025, 1, 1), datetime(1969, 12, 31, tzinfo=UTC)])
def test_a_time_that_means_no_moment_since_1970_is_refused(time: datetime) -> None:
    with pytest.raises(InvalidRequest, match="timestamp_out_of_range"):
        milliseconds_of(time)


def test_a_consumer_may_start_at_a_time() -> None:
    assert start_at(datetime(2025, 1, 1, tzinfo=UTC)) == "@1735689600000"
    assert (start_at("latest"), start_at(7)) == ("latest", 7)


def test_durations_are_numbers_or_timedeltas() -> None:
    assert seconds_of(2.5) == 2.5 and seconds_of(timedelta(minutes=2)) == 120
    assert in_milliseconds(7) == 7 and in_milliseconds(timedelta(seconds=1.5)) == 1_500
    settings = ProducerSettings.of(None, {"linger_ms": timedelta(milliseconds=20)})
    assert settings.linger_ms == 20 and settings.linger == 0.02
    member = GroupConsumerSettings.of(None, {"session_timeout_ms": timedelta(seconds=30)})
    assert member.session_timeout_ms == 30_000
    with pytest.raises(InvalidRequest, match="linger_ms must be a number between 0 and"):
        ProducerSettings.of(None, {"linger_ms": timedelta(days=2)})


async def test_calls_take_timedeltas() -> None:
    moment = timedelta(milliseconds=20)
    async with FakeCluster() as cluster:
        cluster.create_topic("t")
        async with Consumer(cluster.bootstrap, "t", max_wait_ms=moment) as consumer:
            assert await consumer.poll(timeout=moment) == [] and await consumer.next_batch(moment) is None
        async with Admin(cluster.bootstrap, timeout=timedelta(seconds=10)) as admin:
            assert [topic.name for topic in await admin.list_topics()] == ["t"]
        with pytest.raises(InvalidRequest, match="timeout must be between"):
            Admin(cluster.bootstrap, timeout=timedelta(0))


def test_the_blocking_client_takes_timedeltas() -> None:
    with raftlog.sync.Producer("127.0.0.1:1", linger_ms=timedelta(0)) as producer:
        producer.flush(timeout=timedelta(seconds=5))
