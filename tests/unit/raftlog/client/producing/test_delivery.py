"""Deliveries: shared by the records of a batch, awaited by any number of callers, or by none."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.client.producing.delivery import Delivery, DeliveryFuture, RecordDelivery, RecordMetadata
from raftlog.errors import RetriableError

DONE = Delivery("t", 3, 100, 10, 7)
LOST = RetriableError("connection_lost", "gone")


def test_a_delivery_knows_its_offsets() -> None:
    assert (DONE.base_offset, DONE.end_offset) == (100, 110)


async def test_any_number_of_callers_may_wait_before_and_after() -> None:
    delivery = DeliveryFuture()
    waiting = [asyncio.create_task(delivery.settled()) for _ in range(3)]
    results = asyncio.gather(*(asyncio.ensure_future(delivery) for _ in range(3)))
    await asyncio.sleep(0)
    with pytest.raises(asyncio.InvalidStateError):
        delivery.result()
    told: list[DeliveryFuture] = []
    delivery.add_done_callback(told.append)
    delivery.deliver(DONE)
    delivery.add_done_callback(told.append)
    assert told == [delivery, delivery]
    assert await results == [DONE] * 3
    assert await delivery is DONE and delivery.result() is DONE and delivery.exception() is None
    await asyncio.gather(*waiting)


async def test_an_error_counts_as_read_by_any_reader() -> None:
    delivery = DeliveryFuture()
    settled = asyncio.create_task(delivery.settled())
    await asyncio.sleep(0)
    delivery.fail(LOST)
    await settled
    assert delivery.done() and not delivery.observed
    with pytest.raises(RetriableError):
        await delivery
    assert delivery.observed
    other = DeliveryFuture()
    other.fail(LOST)
    assert other.exception() is LOST and other.observed


async def test_a_record_has_its_own_offset_and_time() -> None:
    delivery = DeliveryFuture()
    records = [RecordDelivery(delivery, index, None if index else 55) for index in range(3)]
    tasks = [asyncio.create_task(record) for record in records[:2]]
    await asyncio.sleep(0)
    tasks[1].cancel()
    delivery.deliver(DONE)
    assert await tasks[0] == RecordMetadata("t", 3, 100, 55)
    with pytest.raises(asyncio.CancelledError):
        await tasks[1]
    assert await records[2] == RecordMetadata("t", 3, 102, 7)
    stamped, unanswered = DeliveryFuture(), DeliveryFuture()
    stamped.deliver(Delivery("t", 3, 100, 10, 7, log_append_time=True))
    unanswered.deliver(Delivery("t", 3, -1, 10, 7))
    assert (await RecordDelivery(stamped, 0, 55)).timestamp_ms == 7
    assert (await RecordDelivery(unanswered, 4, None)).offset == -1


async def test_a_record_that_waited_alone_follows_its_batch() -> None:
    batch, record, failing = DeliveryFuture(), DeliveryFuture(), DeliveryFuture()
    batch.deliver(DONE)
    record.follow(4, batch)
    assert record.result() == Delivery("t", 3, 104, 1, 7)
    lost = DeliveryFuture()
    lost.fail(LOST)
    failing.follow(4, lost)
    with pytest.raises(RetriableError):
        failing.result()


async def test_awaiting_is_optional() -> None:
    """No warning for a record's delivery that is dropped: the record was sent."""
    RecordDelivery(DeliveryFuture(), 0, None).close()


def test_deliveries_show_their_state() -> None:
    delivery = DeliveryFuture()
    record = RecordDelivery(delivery, 2, None)
    assert repr(delivery) == "<DeliveryFuture pending>"
    assert repr(record) == "<RecordDelivery 2 of <DeliveryFuture pending>>"
    delivery.deliver(DONE)
    assert "base_offset=100" in repr(delivery) and "base_offset=100" in repr(record)
    failed = DeliveryFuture()
    failed.fail(LOST)
    assert repr(failed) == "<DeliveryFuture failed: connection_lost: gone>"
    assert not failed.observed, "showing an error does not count as reading it"
    record.close()
