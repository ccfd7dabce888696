"""The leader's end of replication: links that followers dialed, their subscriptions, and the welcome.

A hello is answered once this broker's view shows the follower in exactly that incarnation: a newer one waits for the
view, an older one is dropped. Likewise a subscription in a leader epoch that is newer than the view waits for it. So
neither end has to poll after a failover.

A breach of the protocol drops the link, and nothing else; the follower dials and subscribes again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Protocol

from partitions.driver.driver import PartitionDriver
from partitions.replica.effects import FollowerPosition, Refused
from raftlog.errors import RemoteProtocolError
from raftlog.model import (
    NO_BROKER,
    BrokerId,
    BrokerRecord,
    Incarnation,
    LeaderEpoch,
    Offset,
    ReplicationThrottle,
    TopicId,
    TopicPartition,
)
from raftlog.ports import Clock, Link, Scheduler, Worker
from raftlog.slices import stepwise

from .message_queue import MessageQueue, PeerFault
from .protocol import (
    AckEntry,
    AckFrame,
    Hello,
    SubscribeFrame,
    Subscription,
    Welcome,
    check_start,
    decode_from_follower,
    encode,
)
from .pushes import FollowerSlot, Pusher
from .throttle import MoveThrottle

HELLO_SECONDS = 10.0
"""Seconds until a link without a welcome is dropped; its dialer tries again."""


SLOTS_MAX = 250_000
"""Bound on the subscriptions of one follower, answered or waiting."""


class Drivers(Protocol):
    """The replicas that the server can find."""

    def driver(self, topic_partition: TopicPartition) -> PartitionDriver | None: ...

    def refusal(self, topic_partition: TopicPartition) -> str:
        """Return the error code for a missing driver; empty if there may be one soon (a log is opening)."""
        ...


class FollowerLink:
    """One link from a follower. `incarnation` is that of the hello; -1 before it."""

    def __init__(self, link: Link, pusher: Pusher) -> None:
        self.link = link
        self.pusher = pusher
        self.turns: MessageQueue
        self.broker_id = BrokerId(-1)
        self.incarnation = Incarnation(-1)
        self.welcomed = False
        self.slots: dict[int, FollowerSlot] = {}
        self.last_slot = -1
        self.waiting: dict[int, Subscription] = {}
        """Subscriptions in an epoch, or of a partition, that is newer than this broker's view."""
        self.waiting_for: dict[TopicPartition, list[int]] = {}
        """Partition → its waiting slots: many partitions may arrive one by one."""

    def wait(self, subscription: Subscription) -> None:
        """Keep a subscription that cannot be answered yet."""
        self.waiting[subscription.slot] = subscription
        self.waiting_for.setdefault(_wanted(subscription), []).append(subscription.slot)

    def end_wait(self, slot: int) -> Subscription | None:
        """Remove a waiting subscription, which is answered or ends."""
        subscription = self.waiting.pop(slot, None)
        if subscription is not None:
            slots = self.waiting_for[_wanted(subscription)]
            slots.remove(slot)
            if not slots:
                del self.waiting_for[_wanted(subscription)]
        return subscription

    def __str__(self) -> str:
        return f"from {self.broker_id}@{self.incarnation} slots={len(self.slots)} waiting={len(self.waiting)}"


class ReplicationServer:
    """All links of followers; a `LinkHandler`."""

    def __init__(
        self,
        *,
        node_id: BrokerId,
        cluster_id: str,
        brokers: Mapping[BrokerId, BrokerRecord],
        drivers: Drivers,
        own_incarnation: Callable[[], Incarnation | None],
        clock: Clock,
        scheduler: Scheduler,
        worker: Worker,
        on_fault: PeerFault,
    ) -> None:
        """`own_incarnation` is None until this broker's view has its registration: no follower is welcome before.

        `on_fault` is called with each follower that broke the protocol.
        """
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._brokers = brokers
        self._drivers = drivers
        self._own_incarnation = own_incarnation
        self._clock = clock
        self._scheduler = scheduler
        self._worker = worker
        self._throttle = MoveThrottle()
        self._on_fault = on_fault
        self._links: dict[Link, FollowerLink] = {}

    # --- LinkHandler ---

    def on_opened(self, link: Link) -> None:
        pusher = Pusher(link, self._scheduler, self._worker, clock=self._clock, throttle=self._throttle)
        follower = self._links[link] = FollowerLink(link, pusher)
        follower.turns = MessageQueue(
            self._scheduler,
            lambda message: self._handle(follower, message),
            lambda error: self._drop(follower, error),
        )

        def give_up() -> None:
            if not follower.welcomed and self._links.get(link) is follower:
                link.close()

        self._scheduler.call_later(HELLO_SECONDS, give_up)

    def on_message(self, link: Link, message: memoryview) -> None:
        follower = self._links.get(link)
        if follower is not None:
            follower.turns.on_message(message)

    def _handle(self, follower: FollowerLink, message: memoryview) -> Iterator[None]:
        frame = decode_from_follower(message)
        if isinstance(frame, Hello):
            self._on_hello(follower, frame)
            return iter(())
        if not follower.welcomed:
            raise RemoteProtocolError(f"{type(frame).__name__} before the welcome")
        if isinstance(frame, AckFrame):
            follower.pusher.on_ack(frame.sequence)
            return stepwise(frame.entries, partial(self._on_ack, follower))
        if isinstance(frame, SubscribeFrame):
            return stepwise(frame.subscriptions, partial(self._on_subscription, follower))
        return stepwise(frame.slots, partial(self._forget_slot, follower))

    def on_closed(self, link: Link) -> None:
        follower = self._links.pop(link, None)
        if follower is not None:
            follower.turns.close()
            for slot in list(follower.slots):
                self._forget_slot(follower, slot)
            follower.pusher.close()

    # --- The view ---

    def on_view(self, touched: Iterable[TopicPartition]) -> None:
        """Apply a change of the view: welcome or drop followers, and answer those that wait for the touched partitions.

        No other subscriptions are checked, because many may wait.
        """
        touched = list(touched)
        for follower in list(self._links.values()):
            if follower.incarnation < 0:
                continue
            try:
                self._welcome(follower)
            except RemoteProtocolError as error:
                self._drop(follower, error)
            else:
                found = (follower.waiting_for.get(tp, ()) for tp in touched) if follower.waiting_for else ()
                self._answer_waiting(follower, sorted(slot for slots in found for slot in slots))

    def on_moves(self, throttle: ReplicationThrottle, leaders_of: Mapping[BrokerId, int]) -> None:
        """Set the rates of moves and, for each receiving broker, the number of brokers that send to it."""
        self._throttle.update(throttle, leaders_of, self._clock.monotonic())

    def on_replica(self, topic_partition: TopicPartition) -> None:
        """Answer the followers that wait for this replica: it was opened, or failed to open, or got its record late."""
        for follower in list(self._links.values()):
            slots = follower.waiting_for.get(topic_partition)
            if slots:
                self._answer_waiting(follower, list(slots))

    def _answer_waiting(self, follower: FollowerLink, slots: list[int]) -> None:
        try:
            for slot in slots:
                subscription = follower.end_wait(slot)
                if subscription is not None:
                    self._subscribe(follower, subscription)
        except RemoteProtocolError as error:
            self._drop(follower, error)

    def close(self) -> None:
        for follower in list(self._links.values()):
            follower.link.close()

    # --- Frames ---

    def _on_hello(self, follower: FollowerLink, hello: Hello) -> None:
        if follower.incarnation >= 0:
            raise RemoteProtocolError("a second hello")
        if hello.cluster_id != self._cluster_id:
            raise RemoteProtocolError(f"a follower of cluster {hello.cluster_id!r}, this is {self._cluster_id!r}")
        if follower.link.peer not in (NO_BROKER, hello.broker_id):
            raise RemoteProtocolError(
                f"broker {follower.link.peer}, by its certificate, says that it is broker {hello.broker_id}"
            )
        if hello.broker_id == self._node_id:
            raise RemoteProtocolError("a broker does not follow itself")
        follower.broker_id = BrokerId(hello.broker_id)
        follower.incarnation = Incarnation(hello.incarnation)
        self._welcome(follower)

    def _welcome(self, follower: FollowerLink) -> None:
        """Welcome the follower, or keep it waiting. Raises `RemoteProtocolError` for an older incarnation."""
        record = self._brokers.get(follower.broker_id)
        if record is not None and record.incarnation > follower.incarnation:
            raise RemoteProtocolError(f"incarnation {follower.incarnation} is over, the view has {record.incarnation}")
        own = self._own_incarnation()
        if follower.welcomed or own is None or record is None or record.incarnation < follower.incarnation:
            return
        for other in list(self._links.values()):
            if other is not follower and other.welcomed and other.broker_id == follower.broker_id:
                self._drop(other, RemoteProtocolError("the follower dialed again"))
        follower.welcomed = True
        follower.link.send(encode(Welcome(self._cluster_id, self._node_id, own)))

    def _on_subscription(self, follower: FollowerLink, subscription: Subscription) -> None:
        if subscription.slot <= follower.last_slot:
            raise RemoteProtocolError(f"slot {subscription.slot} after {follower.last_slot}")
        if len(follower.slots) + len(follower.waiting) >= SLOTS_MAX:
            raise RemoteProtocolError(f"more than {SLOTS_MAX} subscriptions")
        check_start(subscription)
        follower.last_slot = subscription.slot
        self._subscribe(follower, subscription)

    def _subscribe(self, follower: FollowerLink, subscription: Subscription) -> None:
        tp = _wanted(subscription)
        driver = self._drivers.driver(tp)
        if driver is None:
            code = self._drivers.refusal(tp)
            if code:
                follower.pusher.answer(subscription.slot, Refused(code))
            else:
                follower.wait(subscription)
            return
        if driver.leader_epoch < subscription.leader_epoch:
            follower.wait(subscription)
            return
        slot = FollowerSlot(follower.pusher, subscription, driver, follower.broker_id)
        slot.on_over = lambda: follower.slots.pop(subscription.slot, None)
        follower.slots[subscription.slot] = slot
        driver.on_follower_start(
            follower.broker_id,
            follower.incarnation,
            LeaderEpoch(subscription.leader_epoch),
            Offset(subscription.stable_start_offset),
        )
        driver.on_subscribe(
            follower.broker_id,
            follower.incarnation,
            FollowerPosition(
                leader_epoch=LeaderEpoch(subscription.leader_epoch),
                last_epoch=LeaderEpoch(subscription.last_epoch),
                fetch_offset=Offset(subscription.fetch_offset),
                stable_end_offset=Offset(subscription.stable_end_offset),
            ),
            slot,
        )

    def _forget_slot(self, follower: FollowerLink, number: int) -> None:
        follower.end_wait(number)
        slot = follower.slots.pop(number, None)
        if slot is not None:
            slot.close()

    def _on_ack(self, follower: FollowerLink, entry: AckEntry) -> None:
        slot = follower.slots.get(entry.slot)
        if slot is not None:
            slot.on_ack(entry, follower.incarnation)

    def _drop(self, follower: FollowerLink, error: RemoteProtocolError) -> None:
        self._on_fault(follower.broker_id, error)
        self.on_closed(follower.link)
        follower.link.close()

    def status(self) -> list[str]:
        """Return one line for each link."""
        return sorted(f"{follower} {follower.pusher}" for follower in self._links.values())


def _wanted(subscription: Subscription) -> TopicPartition:
    return TopicPartition(TopicId(subscription.topic_id), subscription.partition)
