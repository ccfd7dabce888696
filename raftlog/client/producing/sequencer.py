"""The schedule of batches: which go to which broker now, and when failed ones are retried. A pure core.

`partition_queue.py` keeps each partition's order; the sequencer knows the leaders, pauses and producer ids of all of
them. An event and the time go in, the decided batches come out. A queue that has something to send is listed under its
leader, so that a pump visits no other queue; a queue that pauses is listed as sleeping.

There are three kinds of errors. *Moving* (the leader changed or is dead): pauses of 20 to 100 ms while the caller
refreshes metadata, so that failing over takes little longer than detecting the failure. *Busy* (the leader cannot
accept the batch now): pauses of up to a second. *Final*: the batch fails. A topic that a broker does not know may be
new to it, for up to two seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic

from raftlog.errors import CODES, RaftlogError
from raftlog.ports import Random

from .batch import Batch, D
from .partition_queue import MAX_IN_FLIGHT_BATCHES, Delivered, Outcome, PartitionQueue

BACKOFF_MIN = 0.02
MOVING_BACKOFF_MAX = 0.1
BUSY_BACKOFF_MAX = 1.0

_BUSY = ("overloaded", "throttled", "disk_full", "not_enough_replicas", "not_enough_replicas_after_append")
_CHAIN_BROKEN = ("out_of_order_sequence", "unknown_producer_id")
_SETTLED_BY_DESCRIPTION = ("unknown_topic", "unknown_partition")
"""Error codes of a leader that may be stale.

Whether the topic is gone is decided by its description, which is requested each time.
"""

_CHOICES = 8
"""Partitions compared when a batch without a key is assigned to one."""
_NO_LEADER_LOAD = 1 << 20


class Sequencer(Generic[D]):
    """The queues of all partitions that a producer writes to."""

    def __init__(
        self,
        *,
        idempotent: bool,
        delivery_timeout: float,
        random: Random,
        busy: Callable[[int], bool] = lambda leader: False,
    ) -> None:
        """Configure the sequencer.

        `delivery_timeout`: seconds from the opening of a batch to its failure. `busy`: whether this broker has a
        request of this producer in flight, for which a batch that is not full should wait.
        """
        self._idempotent = idempotent
        self._delivery_timeout = delivery_timeout
        self._random = random
        self._busy = busy
        self._queues: dict[str, dict[int, PartitionQueue[D]]] = {}
        self._sendable: dict[int, dict[PartitionQueue[D], None]] = {}
        """Queues that may have something for a leader, by leader."""
        self._sleeping: dict[PartitionQueue[D], None] = {}
        """Queues that wait for their `not_before`."""
        self._identity = (-1, -1)
        self._last_chosen: dict[str, int] = {}
        self.identity_wanted = False
        """Whether a queue has batches and no producer id for them: call `grant_identity`."""
        self.stale_topics: dict[str, None] = {}
        """Topics whose leaders should be looked up; the caller removes them."""

    # --- News from the cluster ----------------------------------------------------------------------------------------

    def grant_identity(self, producer_id: int, producer_epoch: int) -> None:
        """Set an unused producer id for every queue that has none and for future ones."""
        self._identity = (producer_id, producer_epoch)
        self.identity_wanted = False
        for queue in self.queues():
            if queue.producer_id < 0:
                queue.producer_id, queue.producer_epoch = self._identity
                queue.next_sequence = 0
                self._mark(queue)

    def start_over(self, producer_id: int, producer_epoch: int) -> None:
        """Use this unused producer id for everything from now on, with sequence numbers from 0 in every partition.

        Nothing may be unfinished.
        """
        self._identity = (producer_id, producer_epoch)
        self.identity_wanted = False
        for queue in self.queues():
            assert not queue.backlog, str(queue)
            queue.producer_id, queue.producer_epoch = self._identity
            queue.next_sequence, queue.not_before = 0, 0.0
            self._sleeping.pop(queue, None)

    def set_leader(self, topic: str, partition: int, leader: int, leader_epoch: int) -> None:
        """Set the leader (-1: none) according to metadata. An epoch older than the known one is ignored.

        If a partition moves, batches in flight to the old leader, which may be dead or stopped, are resent to the new
        one at once, under the same names. Without names they have to wait.
        """
        queue = self._queue(topic, partition)
        if leader_epoch < queue.leader_epoch:
            return
        moved = leader != queue.leader
        if moved:
            self._sendable.get(queue.leader, {}).pop(queue, None)
        queue.leader, queue.leader_epoch = leader, leader_epoch
        if leader < 0:
            if queue.backlog:
                self.stale_topics[topic] = None
            return
        if moved:
            queue.not_before = 0.0
            self._sleeping.pop(queue, None)
            if queue.in_flight and self._idempotent:
                queue.take_back()
        self._mark(queue)

    def topic_recreated(self, topic: str) -> None:
        """Start over in a topic that was re-created: its log has none of this producer's records."""
        for queue in self._queues.get(topic, {}).values():
            self._unlist(queue)
            queue.begin_anew()
            self.identity_wanted = self.identity_wanted or self._idempotent

    def waiting_beyond(self, topic: str, partition_count: int) -> list[int]:
        """Return partitions with waiting batches that the topic does not have.

        It was re-created with fewer partitions than the topic that had its name.
        """
        queues = self._queues.get(topic, {})
        return [number for number, queue in queues.items() if number >= partition_count and queue.backlog]

    def set_missing(self, topic: str, partition: int, error: RaftlogError) -> None:
        """Record that metadata does not have this partition.

        Its batches wait, as for one without a leader: topics grow, and nodes may be stale.
        """
        self._queue(topic, partition).last_error = error
        self.stale_topics[topic] = None

    # --- Batches in and out -------------------------------------------------------------------------------------------

    def enqueue(self, batch: Batch[D]) -> None:
        """Queue a sealed batch behind those before it."""
        queue = self._queue(batch.topic, batch.partition)
        batch.expires_at = batch.opened_at + self._delivery_timeout
        queue.ready.append(batch)
        if queue.leader < 0:
            self.stale_topics[batch.topic] = None
        if self._idempotent and queue.producer_id < 0:
            self.identity_wanted = True
        self._mark(queue)

    def leaders(self) -> list[int]:
        """Return the brokers that something may be sent to."""
        return [leader for leader, queues in self._sendable.items() if queues]

    def take(self, leader: int, now: float, max_bytes: int) -> list[Batch[D]]:
        """Take batches to send to this broker now: up to `max_bytes`, though always the first one.

        They have names and are in flight. Each has the number of its `attempt`, which is passed back with its outcome.
        """
        queues = self._sendable.get(leader, {})
        taken: list[Batch[D]] = []
        total = 0
        for queue in list(queues):
            while queue.head_may_go(now):
                total += queue.ready[0].size_bytes
                if taken and total > max_bytes:
                    return taken
                taken.append(queue.launch())
            # Served or blocked: off the list until an answer, the end of a pause, or a producer id arrives.
            del queues[queue]
            if queue.ready and now < queue.not_before:
                self._sleeping[queue] = None
        return taken

    def sendable(self, topic: str, partition: int, patient: bool) -> bool:
        """Whether a batch sealed now would be sent at once, rather than wait behind others.

        If it is `patient`, its broker must also have no request in flight.
        """
        queues = self._queues.get(topic, {})
        if partition >= 0:
            return partition not in queues or self._is_free(queues[partition], patient)
        first = self._last_chosen.get(topic, -1) + 1
        compared = [queues.get((first + step) % len(queues)) for step in range(min(len(queues), _CHOICES))]
        led = [queue for queue in compared if queue is not None and queue.leader >= 0]
        return not led or any(self._is_free(queue, patient) for queue in led)

    def choose_partition(self, topic: str, partition_count: int) -> int:
        """Choose a partition for records without a key, round-robin: one with a leader and a small backlog."""
        queues = self._queues.get(topic, {})
        last = self._last_chosen.get(topic)
        first = self._random.randrange(0, partition_count) if last is None else last + 1
        best, least = first % partition_count, _NO_LEADER_LOAD
        for step in range(min(partition_count, _CHOICES)):
            partition = (first + step) % partition_count
            queue = queues.get(partition)
            load = 0 if queue is None else self._load(queue)
            if load < least:
                best, least = partition, load
        self._last_chosen[topic] = best
        return best

    # --- Outcomes -----------------------------------------------------------------------------------------------------

    def acknowledged(
        self, batch: Batch[D], attempt: int, base_offset: int, log_append_time_ms: int
    ) -> list[Outcome[D]]:
        """Handle the leader's acknowledgement."""
        queue = self._queue(batch.topic, batch.partition)
        if not queue.awaits(batch, attempt):
            return []
        queue.in_flight.remove(batch)
        queue.failures, queue.last_error = 0, None
        self._mark(queue)
        return [Delivered(batch, base_offset, log_append_time_ms)]

    def refused(self, batch: Batch[D], attempt: int, error: RaftlogError, now: float) -> list[Outcome[D]]:
        """Handle the leader's error."""
        queue = self._queue(batch.topic, batch.partition)
        if not queue.awaits(batch, attempt):
            return []
        queue.last_error = error
        outcomes: list[Outcome[D]] = []
        if error.code in _CHAIN_BROKEN and self._idempotent:
            outcomes = queue.chain_broken(batch, error)
        elif error.code not in _SETTLED_BY_DESCRIPTION and not CODES[error.code].retriable:
            outcomes = queue.refuse(batch, error)
            self.stale_topics[queue.topic] = None  # its limits may have changed
        else:
            queue.take_back_refused(batch, error)
        if not outcomes:
            self._back_off(queue, now, BUSY_BACKOFF_MAX if error.code in _BUSY else MOVING_BACKOFF_MAX)
        self._settle(queue)
        return outcomes

    def lost(self, batch: Batch[D], attempt: int, error: RaftlogError, now: float) -> None:
        """Handle a lost answer: the connection broke, or the deadline passed."""
        queue = self._queue(batch.topic, batch.partition)
        if queue.awaits(batch, attempt):
            queue.last_error = error
            queue.take_back_lost(batch)
            self._back_off(queue, now, MOVING_BACKOFF_MAX)

    def expire(self, now: float) -> list[Outcome[D]]:
        """Fail the batches whose delivery timeout has passed."""
        outcomes: list[Outcome[D]] = []
        for queue in self.queues():
            expired = queue.expire(now)
            if expired:
                outcomes += expired
                self._settle(queue)
        return outcomes

    def fail_topic(self, topic: str, error: RaftlogError) -> list[Outcome[D]]:
        """Fail all batches of a topic that cannot be sent to."""
        outcomes: list[Outcome[D]] = []
        for queue in self._queues.pop(topic, {}).values():
            outcomes += queue.abandon(error)
            self._unlist(queue)
        # If the topic is created again, its new queues count from 0: never again under a producer id used before.
        self._identity = (-1, -1)
        self.stale_topics.pop(topic, None)
        return outcomes

    def abandon(self, error: RaftlogError) -> list[Outcome[D]]:
        """Fail all batches: nothing is sent or awaited any more."""
        outcomes: list[Outcome[D]] = []
        for queue in self.queues():
            outcomes += queue.abandon(error)
            self._unlist(queue)
        return outcomes

    def blame(self, error: RaftlogError) -> None:
        """Record why batches are waiting, for the error if they expire."""
        for queue in self.queues():
            if queue.ready and (queue.last_error is None or queue.leader < 0):
                queue.last_error = error

    # --- Time ---------------------------------------------------------------------------------------------------------

    def wake(self, now: float) -> None:
        """List the queues again whose pause has ended."""
        for queue in [queue for queue in self._sleeping if queue.not_before <= now]:
            del self._sleeping[queue]
            self._mark(queue)

    def next_wake(self) -> float | None:
        """Return the time of the next `wake` call."""
        return min((queue.not_before for queue in self._sleeping), default=None)

    def queues(self) -> Iterator[PartitionQueue[D]]:
        for of_topic in self._queues.values():
            yield from of_topic.values()

    def unfinished(self) -> Iterator[Batch[D]]:
        """Iterate over all batches."""
        for queue in self.queues():
            yield from queue.in_flight
            yield from queue.ready

    def topics_unfinished(self) -> set[str]:
        """Return the topics of all batches."""
        return {batch.topic for batch in self.unfinished()}

    def check_invariants(self) -> None:
        """Check the invariants, for tests: those of the queues, and that no queue that may send is unlisted."""
        for queue in self.queues():
            queue.check_invariants()
            if queue.leader >= 0 and queue.head_may_go(queue.not_before):
                listed = queue in self._sendable.get(queue.leader, {})
                assert listed or queue in self._sleeping, f"forgotten: {queue}"
            if queue.ready and queue.producer_id < 0 and self._idempotent and queue.ready[-1].base_sequence < 0:
                assert self.identity_wanted, str(queue)

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _is_free(self, queue: PartitionQueue[D], patient: bool) -> bool:
        return queue.is_idle and not (patient and self._busy(queue.leader))

    def _load(self, queue: PartitionQueue[D]) -> int:
        """Return the load by which partitions are compared."""
        if queue.leader < 0:
            return _NO_LEADER_LOAD
        return queue.backlog + (MAX_IN_FLIGHT_BATCHES if self._busy(queue.leader) else 0)

    def _queue(self, topic: str, partition: int) -> PartitionQueue[D]:
        of_topic = self._queues.setdefault(topic, {})
        queue = of_topic.get(partition)
        if queue is None:
            queue = of_topic[partition] = PartitionQueue(topic, partition, self._idempotent)
            queue.producer_id, queue.producer_epoch = self._identity
        return queue

    def _mark(self, queue: PartitionQueue[D]) -> None:
        if queue.ready and queue.leader >= 0 and queue not in self._sleeping:
            self._sendable.setdefault(queue.leader, {})[queue] = None

    def _settle(self, queue: PartitionQueue[D]) -> None:
        """Update the lists after a queue's order has changed."""
        if self._idempotent and queue.ready and queue.producer_id < 0 and queue.ready[-1].base_sequence < 0:
            self.identity_wanted = True
        self._mark(queue)

    def _back_off(self, queue: PartitionQueue[D], now: float, longest: float) -> None:
        pause = min(BACKOFF_MIN * 2 ** min(queue.failures, 10), longest)
        queue.failures += 1
        queue.not_before = now + pause * self._random.uniform(0.75, 1.0)
        self._sleeping[queue] = None
        self._sendable.get(queue.leader, {}).pop(queue, None)
        self.stale_topics[queue.topic] = None

    def _unlist(self, queue: PartitionQueue[D]) -> None:
        self._sleeping.pop(queue, None)
        self._sendable.get(queue.leader, {}).pop(queue, None)
