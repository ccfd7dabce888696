"""Which batches go to which broker now, and when what failed is tried again. A pure core.

`partition_queue.py` keeps each partition's order; this one knows leaders, pauses and names for all of them: an event
and the time go in, the batches that are decided come out. A queue that has something to send is listed under its
leader, so that a pump asks nobody else; a queue that pauses is listed as sleeping.

Errors fall into three kinds. *Moving* (the leader is another, or dead): 20 to 100 ms pauses, while the caller asks for
the leaders again, so that failing over costs no more than noticing. *Busy* (a leader that cannot take it now): pauses
up to a second. *Final*: the batch fails. A topic that a broker does not know may be on its way there, for two seconds.
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

_BUSY = ("overloaded", "disk_full", "not_enough_replicas", "not_enough_replicas_after_append")
_CHAIN_BROKEN = ("out_of_order_sequence", "unknown_producer_id")
_SETTLED_BY_DESCRIPTION = ("unknown_topic", "unknown_partition")
"""A leader that says so may be behind. Whether the topic is gone its description says, which is asked for each time."""

_CHOICES = 8
"""Partitions that are compared when a batch without key looks for one."""
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
        """`delivery_timeout` in seconds, from the opening of a batch to its failure. `busy`: this broker has something
        of ours to answer, for which a batch that is not full is to wait."""
        self._idempotent = idempotent
        self._delivery_timeout = delivery_timeout
        self._random = random
        self._busy = busy
        self._queues: dict[str, dict[int, PartitionQueue[D]]] = {}
        self._sendable: dict[int, dict[PartitionQueue[D], None]] = {}
        """Leader → queues that may have something for it."""
        self._sleeping: dict[PartitionQueue[D], None] = {}
        """Queues that wait for their `not_before`."""
        self._identity = (-1, -1)
        self._last_chosen: dict[str, int] = {}
        self.identity_wanted = False
        """A queue has batches and no producer id to name them with: `grant_identity`."""
        self.stale_topics: dict[str, None] = {}
        """Topics whose leaders should be asked for again; the caller takes them off."""

    # --- What the world says ------------------------------------------------------------------------------------------

    def grant_identity(self, producer_id: int, producer_epoch: int) -> None:
        """A producer id that nobody used yet, for every queue that has none and for those to come."""
        self._identity = (producer_id, producer_epoch)
        self.identity_wanted = False
        for queue in self.queues():
            if queue.producer_id < 0:
                queue.producer_id, queue.producer_epoch = self._identity
                queue.next_sequence = 0
                self._mark(queue)

    def start_over(self, producer_id: int, producer_epoch: int) -> None:
        """This name, which nobody used yet, for everything from now on, counting from 0 in every partition. Nothing may
        be unfinished."""
        self._identity = (producer_id, producer_epoch)
        self.identity_wanted = False
        for queue in self.queues():
            assert not queue.backlog, str(queue)
            queue.producer_id, queue.producer_epoch = self._identity
            queue.next_sequence, queue.not_before = 0, 0.0
            self._sleeping.pop(queue, None)

    def set_leader(self, topic: str, partition: int, leader: int, leader_epoch: int) -> None:
        """This broker leads (-1: nobody), as metadata has it. An older epoch than known is ignored.

        A partition that moved leaves its answers behind: what is in flight to the old leader, which may be dead or
        stopped, is sent to the new one at once, under the same names. Without names it has to wait.
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
        """The name means another topic now, whose log has none of ours."""
        for queue in self._queues.get(topic, {}).values():
            self._unlist(queue)
            queue.begin_anew()
            self.identity_wanted = self.identity_wanted or self._idempotent

    def waiting_beyond(self, topic: str, partition_count: int) -> list[int]:
        """Partitions that batches wait for, and that a topic of so many does not have: it was created again with fewer
        than the topic that had its name."""
        queues = self._queues.get(topic, {})
        return [number for number, queue in queues.items() if number >= partition_count and queue.backlog]

    def set_missing(self, topic: str, partition: int, error: RaftlogError) -> None:
        """Metadata does not have this partition. Its batches wait, as for one that nobody leads: topics grow, and nodes
        may be behind."""
        self._queue(topic, partition).last_error = error
        self.stale_topics[topic] = None

    # --- Batches in and out -------------------------------------------------------------------------------------------

    def enqueue(self, batch: Batch[D]) -> None:
        """A sealed batch, to be sent after those before it."""
        queue = self._queue(batch.topic, batch.partition)
        batch.expires_at = batch.opened_at + self._delivery_timeout
        queue.ready.append(batch)
        if queue.leader < 0:
            self.stale_topics[batch.topic] = None
        if self._idempotent and queue.producer_id < 0:
            self.identity_wanted = True
        self._mark(queue)

    def leaders(self) -> list[int]:
        """Brokers that something may be sent to."""
        return [leader for leader, queues in self._sendable.items() if queues]

    def take(self, leader: int, now: float, max_bytes: int) -> list[Batch[D]]:
        """Batches to send to this broker now, named and in flight: up to `max_bytes` (the first one always fits).

        Each carries the number of its `attempt`, to be given back with its fate.
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
            # Served, or with nothing that may go: off the list until an answer, a pause's end or a name comes.
            del queues[queue]
            if queue.ready and now < queue.not_before:
                self._sleeping[queue] = None
        return taken

    def sendable(self, topic: str, partition: int, patient: bool) -> bool:
        """Whether a batch sealed now would be sent at once rather than wait behind others, or, where it is `patient`,
        should wait for an answer."""
        queues = self._queues.get(topic, {})
        if partition >= 0:
            return partition not in queues or self._is_free(queues[partition], patient)
        first = self._last_chosen.get(topic, -1) + 1
        compared = [queues.get((first + step) % len(queues)) for step in range(min(len(queues), _CHOICES))]
        led = [queue for queue in compared if queue is not None and queue.leader >= 0]
        return not led or any(self._is_free(queue, patient) for queue in led)

    def choose_partition(self, topic: str, partition_count: int) -> int:
        """The partition for records without a key: one with a leader and little to do, each in its turn."""
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

    # --- Fates --------------------------------------------------------------------------------------------------------

    def acknowledged(
        self, batch: Batch[D], attempt: int, base_offset: int, log_append_time_ms: int
    ) -> list[Outcome[D]]:
        """The leader has it, and answers for it."""
        queue = self._queue(batch.topic, batch.partition)
        if not queue.awaits(batch, attempt):
            return []
        queue.in_flight.remove(batch)
        queue.failures, queue.last_error = 0, None
        self._mark(queue)
        return [Delivered(batch, base_offset, log_append_time_ms)]

    def refused(self, batch: Batch[D], attempt: int, error: RaftlogError, now: float) -> list[Outcome[D]]:
        """The leader answered with an error."""
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
        """No answer will come: the connection broke, or the broker took too long."""
        queue = self._queue(batch.topic, batch.partition)
        if queue.awaits(batch, attempt):
            queue.last_error = error
            queue.take_back_lost(batch)
            self._back_off(queue, now, MOVING_BACKOFF_MAX)

    def expire(self, now: float) -> list[Outcome[D]]:
        """Fail what is past its delivery timeout."""
        outcomes: list[Outcome[D]] = []
        for queue in self.queues():
            expired = queue.expire(now)
            if expired:
                outcomes += expired
                self._settle(queue)
        return outcomes

    def fail_topic(self, topic: str, error: RaftlogError) -> list[Outcome[D]]:
        """Nothing can be sent to this topic, because of this error."""
        outcomes: list[Outcome[D]] = []
        for queue in self._queues.pop(topic, {}).values():
            outcomes += queue.abandon(error)
            self._unlist(queue)
        # Should the topic come back, its queues are new and count from 0: never again under a producer id used before.
        self._identity = (-1, -1)
        self.stale_topics.pop(topic, None)
        return outcomes

    def abandon(self, error: RaftlogError) -> list[Outcome[D]]:
        """The producer goes away: nothing is sent or awaited any more."""
        outcomes: list[Outcome[D]] = []
        for queue in self.queues():
            outcomes += queue.abandon(error)
            self._unlist(queue)
        return outcomes

    def blame(self, error: RaftlogError) -> None:
        """What keeps batches waiting, to be told when they expire."""
        for queue in self.queues():
            if queue.ready and (queue.last_error is None or queue.leader < 0):
                queue.last_error = error

    # --- Time ---------------------------------------------------------------------------------------------------------

    def wake(self, now: float) -> None:
        """Queues whose pause is over may be sent again."""
        for queue in [queue for queue in self._sleeping if queue.not_before <= now]:
            del self._sleeping[queue]
            self._mark(queue)

    def next_wake(self) -> float | None:
        """When `wake` should be called next."""
        return min((queue.not_before for queue in self._sleeping), default=None)

    def queues(self) -> Iterator[PartitionQueue[D]]:
        for of_topic in self._queues.values():
            yield from of_topic.values()

    def unfinished(self) -> Iterator[Batch[D]]:
        """All batches here."""
        for queue in self.queues():
            yield from queue.in_flight
            yield from queue.ready

    def topics_unfinished(self) -> set[str]:
        """Topics that batches here are of."""
        return {batch.topic for batch in self.unfinished()}

    def check_invariants(self) -> None:
        """For tests: besides the queues' own, no queue that may send is forgotten."""
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
        """To choose the least by."""
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
        """After the order in a queue has changed."""
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
