"""The blocking transaction's queue, from a thread of its own, against a cluster in memory."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from raftlog.client.blocking.handover import RECORD_BYTES
from raftlog.client.blocking.transaction import Transaction
from raftlog.sync import Producer
from tests.support.client.fake_cluster import FakeCluster
from tests.support.client.fake_transactions import seen


class Handover:
    """A handover of records to the loop's thread that keeps them."""

    thread = None

    def __init__(self) -> None:
        self.put_sizes: list[int] = []

    def put(self, target: object, size: int, arguments: object) -> None:
        self.put_sizes.append(size)


@pytest.mark.parametrize(
    ("value", "key", "size"),
    [(b"12345", b"123", 8), (b"12345", None, 5), (None, b"123", 3), (None, None, 0), (b"", b"", 0)],
)
def test_a_queued_record_is_counted_with_its_key_and_value(value: bytes | None, key: bytes | None, size: int) -> None:
    """The queue is bounded in bytes, so each byte counts; a tombstone has no value, most records have no key."""
    handover = Handover()
    Transaction(SimpleNamespace(trace_context=None), handover).send("t", value, key)  # type: ignore[arg-type]
    assert handover.put_sizes == [RECORD_BYTES + size]


async def test_records_with_keys_are_committed_together_s13() -> None:
    def program(bootstrap: str) -> list[tuple[int, int]]:
        with Producer(bootstrap, transactional_id="p") as producer:
            with producer.transaction() as transaction:
                sent = [transaction.send("t", b"%d" % number, b"key", number % 2) for number in range(10)]
                transaction.send_many("t", [b"many", None], keys=[b"a", b"b"], partition=0)
            return [(place.partition, place.offset) for place in (one.result(10) for one in sent)]

    async with FakeCluster() as cluster:
        topic = cluster.create_topic("t", partitions=2)
        places = await asyncio.to_thread(program, cluster.bootstrap)
        assert places == [(number % 2, number // 2) for number in range(10)]
        evens, odds = ([b"%d" % number for number in range(first, 10, 2)] for first in (0, 1))
        assert seen(topic) == [*evens, b"many", None, *odds]
