"""The amount that a fetcher may request: never more than `prefetch_bytes` together, and never too
little for an answer.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from raftlog import Consumer
from raftlog.client.consuming.fetch_budget import (
    PARTITION_BYTES,
    REQUEST_BYTES,
    SMALLEST_SHARE,
    WORTH_ASKING,
    FetchBudget,
)
from raftlog.client.consuming.fetcher import Fetcher
from raftlog.config import KIB, MIB
from raftlog.records.batch import encode, stamp
from tests.support.client.fake_cluster import FakeCluster
from tests.support.client.parts import fetchers

__all__ = ["fetchers"]


def granted(budget: FetchBudget, named: int, **more: int) -> int:
    known = {"waiting": 0, "open_bytes": 0, "brokers": 3, "buffered": 0} | more
    waiting = known.pop("waiting")
    return budget.grant(named, waiting, **known)


def test_a_poll_reserves_what_it_requests_and_not_an_answers_limit() -> None:
    budget = FetchBudget(32 * MIB)
    assert [granted(budget, 2 * MIB) for _ in range(6)] == [2 * MIB] * 6
    assert budget.asked_bytes == 12 * MIB
    assert granted(budget, 100 * MIB) == REQUEST_BYTES
    for _ in range(6):
        budget.over(2 * MIB)
    budget.over(REQUEST_BYTES)
    assert budget.asked_bytes == 0


def test_nothing_is_requested_in_small_pieces() -> None:
    """Six busy partitions, each with its share: otherwise there would be room for a batch or two, which would be
    requested."""
    budget = FetchBudget(32 * MIB)
    assert granted(budget, 2 * MIB, buffered=32 * MIB - 300 * KIB) == 0
    assert granted(budget, 2 * MIB, buffered=32 * MIB) == 0
    assert granted(budget, 2 * MIB, buffered=31 * MIB) == WORTH_ASKING
    assert granted(budget, 100 * KIB, buffered=30 * MIB) == 100 * KIB, "who wants little gets it"
    assert budget.asked_bytes == WORTH_ASKING + 100 * KIB


def test_idle_brokers_leave_room_for_all_others() -> None:
    """However many brokers there are, and whatever waits at them: half of the budget is left for new requests."""
    for brokers in (1, 3, 8, 30, 100):
        budget = FetchBudget(32 * MIB)
        for _ in range(brokers):
            assert granted(budget, 0, waiting=100 * MIB, brokers=brokers) > 0
        assert budget.asked_bytes <= 16 * MIB
        assert granted(budget, PARTITION_BYTES, brokers=brokers) == PARTITION_BYTES


def test_the_data_of_an_open_poll_is_not_reserved_again() -> None:
    budget = FetchBudget(32 * MIB)
    first = granted(budget, 2 * MIB)
    assert granted(budget, 2 * MIB, waiting=2 * MIB, open_bytes=first) == 2 * MIB
    assert granted(budget, 0, waiting=4 * MIB, open_bytes=4 * MIB) == 0


def test_shares_are_equal_and_never_too_small() -> None:
    budget = FetchBudget(32 * MIB)
    assert [budget.share(count) for count in (0, 1, 6, 512, 10_000)] == [
        32 * MIB, 32 * MIB, 32 * MIB // 6, SMALLEST_SHARE, SMALLEST_SHARE
    ]  # fmt: skip


def test_all_shares_together_stay_within_it() -> None:
    dice = random.Random(7)
    for _ in range(50):
        total = dice.choice([MIB, 4 * MIB, 32 * MIB])
        budget, polls, buffered = FetchBudget(total), list[int](), 0
        for _ in range(200):
            if polls and dice.random() < 0.5:
                one = polls.pop(dice.randrange(len(polls)))
                budget.over(one)
                buffered += dice.randint(0, one)
            elif dice.random() < 0.3:
                buffered = dice.randint(0, buffered)
            else:
                share = budget.share(dice.choice([1, 6, 1000]))
                one = granted(budget, dice.randint(0, share), waiting=dice.randint(0, 8 * MIB), buffered=buffered)
                polls += [one] if one else []
            assert budget.asked_bytes == sum(polls)
            assert budget.asked_bytes + buffered <= total
        for one in polls:
            budget.over(one)
        assert granted(budget, SMALLEST_SHARE) == SMALLEST_SHARE, "and it never comes to a halt"


@pytest.mark.parametrize("prefetch", [MIB, 32 * MIB])
async def test_a_log_is_read_in_few_large_answers(fetchers: list[Fetcher], prefetch: int) -> None:
    """Each of six partitions is requested up to its share, however fast they are read."""
    async with FakeCluster(2) as cluster:
        topic = cluster.create_topic("t", partitions=6)
        size = 40 if prefetch == MIB else 400
        batch_of_eight = encode([b"x" * 1000] * 8, base_timestamp_ms=1000)
        for partition in topic.partitions:
            for _ in range(size):
                partition.put(b"".join(map(bytes, stamp(batch_of_eight, partition.end_offset, partition.leader_epoch))))
        read = 0
        async with Consumer(cluster.bootstrap, "t", prefetch_bytes=prefetch) as consumer, asyncio.timeout(20):
            (fetcher,) = fetchers
            while read < 6 * size * 8:
                batch = await consumer.next_batch()
                read += 0 if batch is None else len(batch)
                facts = fetcher.facts()
                assert facts.buffered_bytes + facts.requested_bytes <= prefetch + 6 * 8200, (
                    "a batch for each partition may come on top"
                )
            assert fetcher.facts().requested_bytes == fetcher.facts().open_bytes
        asked = [request for node in cluster.nodes.values() for request in node.fetching.asked if request.added]
        pieces = -(-size * 8 * 1000 // (min(PARTITION_BYTES, prefetch // 6) // 2))
        assert len(asked) <= 6 * (pieces + 3)
