"""A partition's window counts from the oldest unanswered batch, not by the number of unanswered ones.

A leader keeps the last five batches of a producer. If the first of five were answered last, or never, while the others'
answers let five more go, the leader would have dropped the first by the time that it is resent (S1).
"""

from __future__ import annotations

from raftlog.client.producing.batch import Batch
from raftlog.client.producing.partition_queue import MAX_IN_FLIGHT_BATCHES, PartitionQueue


def queue_of(count: int) -> PartitionQueue[None]:
    queue: PartitionQueue[None] = PartitionQueue("t", 0, idempotent=True)
    queue.producer_id, queue.producer_epoch = 7, 0
    for number in range(count):
        batch: Batch[None] = Batch("t", 0, 1000, None, 0.0, 0)
        batch.values = [b"%d" % number]
        queue.ready.append(batch)
    return queue


def launch_all(queue: PartitionQueue[None]) -> list[Batch[None]]:
    launched = []
    while queue.head_may_go(0.0):
        launched.append(queue.launch())
    return launched


def test_answers_behind_an_open_batch_let_no_new_batch_go() -> None:
    queue = queue_of(20)
    first, *others = launch_all(queue)
    assert len(others) == MAX_IN_FLIGHT_BATCHES - 1
    for answered in others:
        queue.in_flight.remove(answered)
    assert not queue.head_may_go(0.0)
    assert not queue.is_idle
    queue.in_flight.remove(first)
    assert len(launch_all(queue)) == MAX_IN_FLIGHT_BATCHES


def test_the_window_opens_by_the_number_answered_at_its_beginning() -> None:
    queue = queue_of(20)
    launched = launch_all(queue)
    queue.in_flight.remove(launched[0])
    queue.in_flight.remove(launched[3])
    assert len(launch_all(queue)) == 1


def test_a_resent_batch_keeps_its_place_in_the_window() -> None:
    queue = queue_of(20)
    launched = launch_all(queue)
    for answered in launched[1:4]:
        queue.in_flight.remove(answered)
    queue.take_back()
    again = launch_all(queue)
    assert again == [launched[0], launched[4]]
