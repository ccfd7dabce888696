"""The shell around accumulator and sequencer: it sends batches to the leaders and reports their outcomes.

Everything happens in `pump`, which runs when a batch is sealed, an answer arrives, a pause ends or the metadata
changes: it seals the batches that are due, hands them to the queues, and sends to every leader with fewer than
`max_in_flight` requests in flight. A request carries up to `REQUEST_BYTES` of batches for any number of partitions.

A leader that is stopped rather than dead neither answers nor refuses. So if an answer is late, metadata is refreshed,
and the batches of partitions that moved go to the new leader without waiting for the old one.

A *policy* decides about failures: a plain producer recovers, a transaction breaks
(`raftlog/client/transactions/sender.py`). The sender asks it and acts.
"""

from __future__ import annotations

import asyncio
import logging
import time
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from raftlog.api.topics import TopicDescription
from raftlog.client.cluster.any_node import blames_caller
from raftlog.client.cluster.api import HttpApi
from raftlog.client.cluster.connection_security import blames_credential
from raftlog.client.cluster.metadata import ClusterMetadata, check_partition, no_partition
from raftlog.client.cluster.outage import Outage
from raftlog.client.cluster.refresher import MetadataRefresher
from raftlog.client.cluster.transport import Transport
from raftlog.client.cluster.waiters import Waiters
from raftlog.client.settings import ProducerSettings
from raftlog.config import MAX_BATCH_BYTES, MIB
from raftlog.errors import ClientClosed, InvalidRequest, RaftlogError, RetriableError, error_from_code
from raftlog.model import Acks
from raftlog.partitioner import partition_for_key
from raftlog.system.loop_events import events_of
from raftlog.transactions import TransactionKey
from raftlog.wire import ProducedPartition

from .accumulator import Accumulator
from .batch import UNASSIGNED, Batch, ParkedRecord
from .counts import ProduceCounts
from .delivery import Delivery, DeliveryFuture
from .partition_queue import Delivered, Outcome, Undelivered
from .producer_ids import IdentitySource
from .requests import Attempt, ProduceRequests, sequencer_of
from .sequencer import Sequencer

logger = logging.getLogger("raftlog.client")

REQUEST_BYTES = 1 * MIB
"""Limit of a request's batches after the first, in bytes: larger requests gain nothing."""
WATCH_INTERVAL = 0.1
"""Seconds between checks of deadlines and late answers."""
UNKNOWN_TOPIC_GRACE = 2.0
"""Seconds for which every node must report a topic as unknown before it counts as unknown."""
LATE_ANSWER = 0.5
"""Seconds after which an answer is late, so metadata is refreshed."""
LATE_AGAIN = 0.2
"""Seconds between refreshes while an answer is late."""
METADATA_INTERVAL = 60.0
"""Seconds between a busy producer's checks for changed partitions and limits."""


class SendingPolicy:
    """Decides about failures; the sender acts.

    This one is the policy of a plain producer: each record succeeds or fails independently.
    """

    mends = True
    """Whether batches without a producer id get a new one from the cluster.

    If False, the lack of one breaks what is being sent.
    """

    @property
    def key(self) -> TransactionKey | None:
        """Producer id and epoch of everything that is sent, if it does not mend; None: nothing may be sent."""
        return None

    def check(self) -> None:
        """Raise the error that keeps records from being accepted."""

    def delivered(
        self, batch: Batch[DeliveryFuture], base_offset: int, topic_ids: Mapping[str, bytes]
    ) -> RaftlogError | None:
        """Record that this batch is in the log.

        Returns an error if it is useless there, which breaks what is being sent.
        """
        return None

    def has_written(self, topic: str) -> bool:
        """Whether records were delivered to the topic that what is being sent depends on."""
        return False

    def breaks(self, error: RaftlogError) -> bool:
        """Whether this error loses everything else that is unfinished.

        Asked for each error; true at most once per transaction.
        """
        return False

    def tell(self, error: RaftlogError) -> None:
        """Receive the error because of which everything unfinished was dropped."""


@dataclass(frozen=True, slots=True)
class SenderFacts:
    """The state of a sender's shell."""

    due_at: float | None
    """When the next batch is sealed, by the loop's clock; None if none waits for that."""
    requests: int
    """Requests in flight."""


class Sender:
    """Sends one producer's records.

    Belongs to one event loop; `close` it.
    """

    def __init__(self, api: HttpApi, settings: ProducerSettings, policy: SendingPolicy) -> None:
        self._api = api
        self._settings = settings
        self._policy = policy
        self._loop = asyncio.get_running_loop()
        self._events = events_of(self._loop)
        self.accumulator: Accumulator[DeliveryFuture] = Accumulator(
            batch_bytes=settings.batch_bytes,
            max_batch_bytes=MAX_BATCH_BYTES,
            buffer_bytes=settings.buffer_bytes,
            linger=settings.linger,
            new_delivery=DeliveryFuture,
        )
        self._lanes: dict[int, ProduceRequests] = {}
        self.sequencer: Sequencer[DeliveryFuture] = sequencer_of(self._lanes, settings)
        self.counts = ProduceCounts()
        """The counts of what is delivered; the owner may replace them by its own before anything is sent."""
        self.metadata = ClusterMetadata(api)
        self.failed: deque[DeliveryFuture] = deque(maxlen=1000)
        """The latest failed deliveries; `flush` raises the first error that was not read."""
        self._transport = Transport(self._connection_changed, api, self._world_failed)
        self._refresher = MetadataRefresher(api, self.metadata, self._refreshed, self._world_failed)
        self._identities = IdentitySource(api, self._identity_granted, self._world_failed)
        self._topic_ids: dict[str, bytes] = {}
        self._unknown_since: dict[str, float] = {}
        """Loop time at which a topic was first reported as unknown, by topic."""
        self._waiting_since: dict[str, float] = {}
        """Loop time since which records or callers wait for a topic, by topic."""
        self._last_error: RaftlogError | None = None
        self._outage = Outage("producer")
        self._room_waiters = Waiters()
        self._topic_waiters: dict[str, Waiters] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._asked_late_at = self._looked_at = self._loop.time()
        self._pumping = self._pump_due = self._closed = False
        self.reports_loss = True
        if settings.is_idempotent and policy.mends:
            self._identities.ask()

    # --- For the producer ---------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Do what is due now. Never blocks."""
        self._pump_due = False
        if self._pumping or self._closed:
            return
        self._pumping = True
        self._events.begin()  # all requests of a connection go out together at its end
        try:
            now = self._loop.time()
            self.accumulator.seal_due(now, self.sequencer.sendable)
            for batch in self.accumulator.take_sealed(self.sequencer.choose_partition):
                self.sequencer.enqueue(batch)
            self.sequencer.wake(now)
            for leader in self.sequencer.leaders():
                self._serve(leader, now)
            self._ask()
            self._arm(now)
        finally:
            self._pumping = False
            self._events.end()

    def arm(self, due: float) -> None:
        """Schedule `pump` for a batch that was opened and is to be sealed at `due`, in loop time."""
        if self._settings.linger <= 0:
            if not self._pump_due:  # cheaper than a timer
                self._pump_due = True
                self._loop.call_soon(self.pump)
        elif self._timer is None or self._timer.when() > due:
            self._set_timer(due)
        if self._watch is None:
            self._watch_on()
            self._ask()

    def now(self) -> float:
        """Return the loop's time."""
        return self._loop.time()

    def check_open(self) -> None:
        """Raise `ClientClosed` if closed, or the policy's error."""
        if self._closed:
            raise ClientClosed("the producer is closed: create a new one")
        self._policy.check()

    @property
    def has_room(self) -> bool:
        """Whether less than half of the buffer is in use."""
        return self.accumulator.buffered_bytes * 2 <= self._settings.buffer_bytes

    def __del__(self) -> None:
        """Report records that are lost because the loop ended before the producer was closed."""
        if getattr(self, "reports_loss", False) and not self._closed and self._loop.is_closed():
            lost = self.accumulator.buffered_bytes
            if lost:
                told = f"a producer was not closed, and {lost} bytes of records were not acknowledged"
                logger.warning("%s: use `async with`, or await `close()`", told)
                warnings.warn(told, ResourceWarning, stacklevel=2, source=self)

    async def room(self) -> None:
        """Wait until less than half of the buffer is in use."""
        while not self.has_room and not self._closed:
            self.accumulator.seal_all()
            self.pump()
            await self._room_waiters.wait()

    async def topic_known(self, topic: str) -> None:
        """Wait until the topic's partitions are known. Raises the error of looking it up."""
        while not self.accumulator.partition_count(topic):
            self.check_open()
            self._refresher.ask([topic])
            self._watch_on()
            await self._topic_waiters.setdefault(topic, Waiters()).wait()

    def unfinished(self) -> list[DeliveryFuture]:
        """Return every undecided delivery."""
        waiting = [*self.accumulator.waiting(), *self.sequencer.unfinished()]
        return [batch.delivery for batch in waiting] + [record.delivery for record in self.accumulator.parked()]

    async def settled(self) -> None:
        """Send everything now, and wait until every delivery of what was sent before is decided."""
        self.accumulator.seal_all()
        self.pump()
        for delivery in self.unfinished():
            await delivery.settled()

    def drop(self, error: RaftlogError) -> None:
        """Drop everything that was sent: it fails as `outcome_unknown`, or with this error if certainly not applied."""
        batches, parked = self.accumulator.drop_all()
        self._waiting_since.clear()
        self._decide([*(Undelivered(batch, error) for batch in batches), *self.sequencer.abandon(error)])
        for record in parked:
            self._fail(record.delivery, error)
        for topic in list(self._topic_waiters):
            self._topic_waiters.pop(topic).fail(error)
        self._room_waiters.wake()

    def stop(self, error: RaftlogError) -> None:
        """If this error breaks what is being sent, drop all of it and notify the policy."""
        if self._policy.breaks(error):
            self.drop(error)
            self._policy.tell(error)

    async def close(self) -> None:
        """Stop, and close the connections.

        Unacknowledged records fail as `shutting_down` or `outcome_unknown` before anything is waited for.
        """
        self._closed = True
        for timer in filter(None, (self._timer, self._watch)):
            timer.cancel()
        self.drop(RetriableError("shutting_down", "the producer was closed before this was sent"))
        async with AsyncExitStack() as stack:
            for part in (self._identities, self._refresher, self._transport):
                stack.push_async_callback(part.close)

    # --- Sending ------------------------------------------------------------------------------------------------------

    def _serve(self, leader: int, now: float) -> None:
        connection = self._transport.connection(leader)
        if connection is None:
            endpoint = self.metadata.data_endpoint(leader)
            if endpoint is None:
                self._refresher.ask(())
            else:
                self._transport.dial(leader, endpoint)
            return
        lane = self._lanes.get(leader)
        if lane is None:
            lane = self._lanes[leader] = ProduceRequests(
                self._topic_ids,
                self._settings,
                not self._policy.mends,
                answered=self._answered,
                lost=self._lost,
            )
        while lane.requests < self._settings.max_in_flight and not connection.throttled:
            if self._settings.level is Acks.NONE and connection.congested:
                return  # without answers, nothing else limits what is in flight
            batches = self.sequencer.take(leader, now, REQUEST_BYTES)
            if not batches:
                return
            lane.send(connection, batches)

    # --- Outcomes of attempts -----------------------------------------------------------------------------------------

    def _answered(self, answers: Sequence[tuple[Attempt, ProducedPartition]]) -> None:
        now = self._loop.time()
        if any(not answer.error for _, answer in answers) and (text := self._outage.succeeded(now)) is not None:
            logger.warning("%s", text)
        for (batch, attempt), answer in answers:
            if not answer.error:
                outcomes = self.sequencer.acknowledged(batch, attempt, answer.base_offset, answer.log_append_time_ms)
            else:
                error = error_from_code(answer.error, answer.detail, answer.leader)
                outcomes = self.sequencer.refused(batch, attempt, error, now)
                if not any(outcome.batch is batch for outcome in outcomes):
                    self.counts.retried(error.code)
            self._decide(outcomes)
        self.pump()

    def _lost(self, attempts: Sequence[Attempt], error: RaftlogError) -> None:
        now = self._loop.time()
        for batch, attempt in attempts:
            self.sequencer.lost(batch, attempt, error, now)
            self.counts.retried(error.code)
        self._loop.call_soon(self.pump)

    def _decide(self, outcomes: list[Outcome[DeliveryFuture]]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Delivered):
                useless = self._policy.delivered(outcome.batch, outcome.base_offset, self._topic_ids)
                if useless is not None:
                    self.stop(useless)
        now = self._loop.time()
        for outcome in outcomes:
            batch = outcome.batch
            self.accumulator.release(batch)
            if isinstance(outcome, Delivered):
                self.counts.acknowledged(batch.topic, batch.count, batch.size_bytes, now - batch.opened_at)
                stamped = outcome.log_append_time_ms >= 0
                timestamp_ms = outcome.log_append_time_ms if stamped else batch.timestamp_ms
                batch.delivery.deliver(
                    Delivery(batch.topic, batch.partition, outcome.base_offset, batch.count, timestamp_ms, stamped)
                )
            else:
                self.counts.failed(batch.topic, batch.count, outcome.error.code)
                self._fail(batch.delivery, outcome.error)
        if outcomes and self._room_waiters and self.has_room:
            self._room_waiters.wake()

    def _fail(self, delivery: DeliveryFuture, error: RaftlogError) -> None:
        self.failed.append(delivery)
        delivery.fail(error)
        self.stop(error)

    # --- Metadata -----------------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Request what the queues lack: leaders, topics, producer ids."""
        stale = self.sequencer.stale_topics
        unknown = self.accumulator.topics_wanted()
        if stale or unknown:
            self._refresher.ask([*stale, *unknown])
            stale.clear()
        if self.sequencer.identity_wanted:
            self._ask_identity()

    def _ask_identity(self) -> None:
        """Handle batches without a name, new ones or after their leader lost the state of their predecessors."""
        if self._policy.mends:
            self._identities.ask()
        else:
            self.stop(RetriableError("outcome_unknown", "a leader has lost the state of this transaction"))

    def _name_again(self) -> None:
        """Name the queues of a topic to which nothing was written yet, under a transaction's one producer id."""
        key = self._policy.key
        if key is None:
            return
        if any(batch.attempt > 0 and batch.base_sequence < 0 for batch in self.sequencer.unfinished()):
            self._ask_identity()  # under the same name it would be taken for an earlier batch
        else:
            self.sequencer.grant_identity(key.producer_id, key.producer_epoch)

    def _identity_granted(self, producer_id: int, producer_epoch: int) -> None:
        self.sequencer.grant_identity(producer_id, producer_epoch)
        self.pump()

    def _refreshed(self, answers: Mapping[str, TopicDescription | RaftlogError]) -> None:
        for topic, answer in answers.items():
            if isinstance(answer, TopicDescription):
                self._unknown_since.pop(topic, None)
                self._topic_described(topic, answer)
            elif self._is_final(topic, answer):
                self._fail_topic(topic, answer)
            else:
                self._last_error = answer
                self._refresher.ask([topic])
        self.pump()

    def _topic_described(self, topic: str, description: TopicDescription) -> None:
        known_id = self._topic_ids.get(topic)
        recreated = known_id is not None and known_id != description.id_bytes
        if recreated:
            again = f"topic {topic} was deleted and created again while the transaction was open"
            self._stop_if_used(topic, InvalidRequest("unknown_topic", again))
        self._topic_ids[topic] = description.id_bytes
        if recreated:
            logger.warning("topic %s was deleted and created again; unacknowledged records go to the new one", topic)
            self.sequencer.topic_recreated(topic)
        count = description.partition_count
        parked = self.accumulator.topic_known(topic, count, description.max_message_bytes)
        for record in parked:
            self._unpark(topic, count, record)
        if parked:
            self.accumulator.seal_all()  # they have waited, and a flush may be waiting
        for info in description.partitions:
            leader = -1 if info.leader is None else info.leader
            self.sequencer.set_leader(topic, info.partition, leader, info.leader_epoch)
        for partition in self.sequencer.waiting_beyond(topic, count):
            self.sequencer.set_missing(topic, partition, no_partition(topic, partition, count))
        self._waiting_since.pop(topic, None)
        self._topic_waiters.pop(topic, Waiters()).wake()
        self._name_again()

    def _stop_if_used(self, topic: str, error: RaftlogError) -> None:
        """Break a transaction whose records were sent to this topic or wait for it."""
        if self._policy.mends:
            return
        waiting = self.accumulator.topics()
        if self._policy.has_written(topic) or topic in waiting or topic in self.sequencer.topics_unfinished():
            self.stop(error)

    def _unpark(self, topic: str, count: int, record: ParkedRecord[DeliveryFuture]) -> None:
        partition = record.partition
        if partition == UNASSIGNED:
            assert record.key is not None
            partition = partition_for_key(record.key, count)
        delivery = record.delivery
        now = self._loop.time()
        wall_ms = time.time_ns() // 1_000_000
        try:
            check_partition(topic, partition, count)
            batch = self.accumulator.append(
                topic,
                record.value,
                record.key,
                partition,
                record.timestamp_ms,
                record.headers,
                now,
                wall_ms,
                force=True,
            )
        except RaftlogError as error:
            self._fail(delivery, error)
        else:
            batch.delivery.add_done_callback(partial(delivery.follow, batch.count - 1))

    def _is_final(self, topic: str, error: RaftlogError) -> bool:
        if not blames_caller(error):
            return False
        since = self._unknown_since.setdefault(topic, self._loop.time())
        return error.code != "unknown_topic" or self._loop.time() - since >= UNKNOWN_TOPIC_GRACE

    def _fail_topic(self, topic: str, error: RaftlogError) -> None:
        self._stop_if_used(topic, error)
        for known in (self._topic_ids, self._unknown_since, self._waiting_since):
            known.pop(topic, None)
        batches, parked = self.accumulator.topic_gone(topic)
        self._decide([Undelivered(batch, error) for batch in batches])
        for record in parked:
            self._fail(record.delivery, error)
        self._topic_waiters.pop(topic, Waiters()).fail(error)
        self._decide(self.sequencer.fail_topic(topic, error))
        self._name_again()

    def _world_failed(self, error: RaftlogError) -> None:
        """Handle that the cluster could not be reached; the request is retried until deliveries time out.

        Without a valid credential, no retry helps: everything unfinished fails at once.
        """
        self._blame(error)
        if blames_credential(error):
            self.stop(error)
            self.drop(error)

    def _blame(self, error: RaftlogError) -> None:
        """Record the last error, for error texts."""
        self._last_error = error
        self.sequencer.blame(error)
        if self.accumulator.buffered_bytes and not self._closed:
            text = self._outage.failed(error, self._loop.time())
            if text is not None:
                logger.warning("%s", text)

    def _connection_changed(self, node_id: int) -> None:
        if self._transport.connection(node_id) is None:
            led = [queue.topic for queue in self.sequencer.queues() if queue.leader == node_id and queue.backlog]
            if led:
                self._refresher.ask(led)
        self.pump()

    # --- Time ---------------------------------------------------------------------------------------------------------

    def _arm(self, now: float) -> None:
        dues = [due for due in (self.accumulator.next_due(now), self.sequencer.next_wake()) if due is not None]
        if dues:
            self._set_timer(min(dues))
        elif self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.accumulator.buffered_bytes:
            self._watch_on()

    def facts(self) -> SenderFacts:
        """Return the state of the sender's shell, for status and tests."""
        due = self._timer.when() if self._timer is not None else None
        return SenderFacts(due, sum(lane.requests for lane in self._lanes.values()))

    def _set_timer(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self.pump)

    def _watch_on(self) -> None:
        if self._watch is None and not self._closed:
            self._watch = self._loop.call_later(WATCH_INTERVAL, self._on_watch)

    def _on_watch(self) -> None:
        """Check deadlines and late answers; runs as long as anything is unfinished."""
        self._watch = None
        try:
            self._look_at_deadlines(self._loop.time())
            self.pump()
        finally:  # after any error: without the watch, deliveries would never end
            if self._topic_waiters or self.accumulator.buffered_bytes:
                self._watch_on()

    def _look_at_deadlines(self, now: float) -> None:
        if self._api.last_error is not None:
            self._blame(self._api.last_error)  # perhaps of one topic alone
        self._decide(self.sequencer.expire(now))
        for topic in [*self.accumulator.topics_wanted(), *self._topic_waiters]:
            if now - self._waiting_since.setdefault(topic, now) >= self._settings.delivery_timeout:
                why = "" if self._last_error is None else f"; the last error was {self._last_error}"
                self._fail_topic(topic, RetriableError("leader_not_available", f"topic {topic} was not found{why}"))
        if now - self._asked_late_at >= LATE_AGAIN:
            self._ask_for_late_answers(now)
        if now - self._looked_at >= METADATA_INTERVAL:
            self._looked_at = now
            self._refresher.ask(self._topic_ids)

    def _ask_for_late_answers(self, now: float) -> None:
        late = self._transport.late(now - LATE_ANSWER)
        if late:
            self._asked_late_at = now
            self._refresher.ask(
                queue.topic for queue in self.sequencer.queues() if queue.leader in late and queue.in_flight
            )
