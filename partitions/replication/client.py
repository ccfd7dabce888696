"""The follower's end of replication: one link to each broker that leads a partition followed here.

Partitions that follow the same broker share its link. When the leader's broker has welcomed this one, in the
incarnation that a partition's record names, the partition subscribes (`partitions/replica/follower.py`); answers and
pushes come back by slot. After each fsync round one `ack` is sent for all partitions of the link: how far each is
stable, and which pushes are done.

A pushed batch is checked (header, CRC) before anything of its message is appended; a damaged one drops the link.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Protocol

from partitions.driver.ports import FollowingReplica
from partitions.replica.effects import Answer, Diverged, Matched, Refused, ReportStable, StartAt, Subscribe
from raftlog.errors import RemoteProtocolError
from raftlog.model import BrokerId, Incarnation, LeaderEpoch, Offset, ProducerId
from raftlog.ports import Link, Scheduler
from raftlog.slices import stepwise

from .leader_link import LeaderLink, LeaderSlot, ReceivedPush
from .message_queue import MessageQueue, PeerFault
from .protocol import (
    AckEntry,
    AckFrame,
    DivergedSlot,
    Hello,
    MatchedSlot,
    PushFrame,
    SlotAnswer,
    StartAtSlot,
    SubscribeFrame,
    Subscription,
    UnsubscribeFrame,
    Welcome,
    decode_from_leader,
    encode,
)

ENTRIES_PER_FRAME = 1_000
"""Bound on the entries of a frame; one frame of each kind is sent per turn of the loop."""


class Dialer(Protocol):
    """Keeps links to other brokers' data listeners open."""

    def connect(self, peer: BrokerId) -> None:
        """Dial this broker, and again with jitter after every loss, until `disconnect`. Idempotent.

        The handler of dialed links is notified.
        """
        ...

    def disconnect(self, peer: BrokerId) -> None:
        """Close the link to this broker and stop dialing."""
        ...


class ReplicationClient:
    """All links to leaders; a `LinkHandler` for dialed links, and the `LeaderLinks` of the drivers."""

    def __init__(
        self,
        *,
        node_id: BrokerId,
        cluster_id: str,
        own_incarnation: Callable[[], Incarnation | None],
        dialer: Dialer,
        scheduler: Scheduler,
        on_fault: PeerFault,
    ) -> None:
        """`on_fault` is called with each leader that broke the protocol."""
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._own_incarnation = own_incarnation
        self._dialer = dialer
        self._scheduler = scheduler
        self._on_fault = on_fault
        self._leaders: dict[BrokerId, LeaderLink] = {}
        self._leader_of: dict[FollowingReplica, LeaderLink] = {}

    # --- LeaderLinks: calls of the drivers ---

    def follow(self, replica: FollowingReplica, leader: BrokerId, incarnation: Incarnation) -> None:
        self._detach(replica, keep=leader)
        entry = self._leaders.get(leader)
        if entry is None:
            entry = self._leaders[leader] = LeaderLink(leader)
            self._dialer.connect(leader)
        entry.wanted[replica] = incarnation
        self._leader_of[replica] = entry
        if entry.incarnation == incarnation:
            replica.on_link_opened()

    def unfollow(self, replica: FollowingReplica) -> None:
        self._detach(replica, keep=None)

    def subscribe(self, replica: FollowingReplica, subscribe: Subscribe) -> None:
        entry = self._leader_of.get(replica)
        if entry is None or entry.incarnation != subscribe.leader_incarnation:
            return
        self._end(entry, replica)
        entry.last_slot += 1
        number, tp = entry.last_slot, replica.topic_partition
        entry.slots[number] = LeaderSlot(replica, subscribe.leader_epoch)
        entry.slot_of[replica] = number
        entry.subscriptions[number] = Subscription(
            number,
            tp.topic_id,
            tp.partition,
            subscribe.leader_epoch,
            subscribe.last_epoch,
            subscribe.fetch_offset,
            subscribe.stable_end_offset,
            subscribe.stable_start_offset,
        )
        self._flush_soon(entry)

    def unsubscribe(self, replica: FollowingReplica) -> None:
        entry = self._leader_of.get(replica)
        if entry is not None:
            self._end(entry, replica)

    def report(self, replica: FollowingReplica, report: ReportStable) -> None:
        entry = self._leader_of.get(replica)
        number = entry.slot_of.get(replica) if entry else None
        if entry is not None and number is not None:
            entry.reports[number] = report
            entry.ledger.on_stable(number, report.stable_end_offset)
            self._flush_soon(entry)

    # --- LinkHandler ---

    def on_opened(self, link: Link) -> None:
        entry = self._leaders.get(BrokerId(link.peer))
        own = self._own_incarnation()
        if entry is None or own is None:
            link.close()
            return
        if entry.link is not None:
            self.on_closed(entry.link)
        entry.reset(link)
        entry.turns = MessageQueue(
            self._scheduler,
            lambda message: self._handle(entry, message),
            lambda error: self._drop(entry, link, error),
        )
        link.send(encode(Hello(self._cluster_id, self._node_id, own)))

    def on_message(self, link: Link, message: memoryview) -> None:
        entry = self._leaders.get(BrokerId(link.peer))
        if entry is not None and entry.link is link and entry.turns is not None:
            entry.turns.on_message(message)

    def _handle(self, entry: LeaderLink, message: memoryview) -> Iterator[None]:
        frame, body = decode_from_leader(message)
        if isinstance(frame, Welcome):
            return self._on_welcome(entry, frame)
        if entry.incarnation < 0:
            raise RemoteProtocolError(f"{type(frame).__name__} before the welcome")
        if isinstance(frame, PushFrame):
            return self._on_push(entry, frame, body)
        return stepwise(frame.answers, partial(self._on_answer, entry))

    def _drop(self, entry: LeaderLink, link: Link, error: RemoteProtocolError) -> None:
        self._on_fault(entry.peer, error)
        self.on_closed(link)
        link.close()

    def on_closed(self, link: Link) -> None:
        entry = self._leaders.get(BrokerId(link.peer))
        if entry is None or entry.link is not link:
            return
        entry.reset(None)
        for driver in list(entry.wanted):
            driver.on_link_lost()

    def close(self) -> None:
        for peer in sorted(self._leaders):
            self._dialer.disconnect(peer)

    # --- Frames ---

    def _on_welcome(self, entry: LeaderLink, welcome: Welcome) -> Iterator[None]:
        if entry.incarnation >= 0:
            raise RemoteProtocolError("a second welcome")
        if welcome.cluster_id != self._cluster_id or welcome.broker_id != entry.peer:
            raise RemoteProtocolError(f"dialed broker {entry.peer} of {self._cluster_id!r}, reached {welcome}")
        entry.incarnation = Incarnation(welcome.incarnation)

        def tell(driver: FollowingReplica) -> None:
            # A driver that was added meanwhile was notified at once, and may have subscribed already.
            if entry.wanted.get(driver) == entry.incarnation and driver not in entry.slot_of:
                driver.on_link_opened()

        return stepwise(list(entry.wanted), tell)

    def _on_answer(self, entry: LeaderLink, answer: SlotAnswer) -> None:
        slot = entry.slots.get(answer.slot)
        if slot is None:
            return  # The slot ended here before the leader knew.
        if not isinstance(answer, MatchedSlot):
            entry.end_slot(answer.slot)
        slot.driver.on_answer(slot.leader_epoch, _answer(answer))
        self._flush_soon(entry)

    def _on_push(self, entry: LeaderLink, push: PushFrame, body: memoryview) -> Iterator[None]:
        return ReceivedPush(entry, push, body, lambda: self._flush_if_owed(entry)).steps()

    def _flush_if_owed(self, entry: LeaderLink) -> None:
        """Schedule an acknowledgement if one is owed; pushes that are not stable yet are acknowledged later."""
        if entry.ledger.owes_ack:
            self._flush_soon(entry)

    # --- Inside ---

    def _detach(self, driver: FollowingReplica, *, keep: BrokerId | None) -> None:
        """Stop following. If that was the broker's last follower here, hang up, unless the broker is `keep`."""
        entry = self._leader_of.pop(driver, None)
        if entry is None:
            return
        self._end(entry, driver)
        del entry.wanted[driver]
        if not entry.wanted and entry.peer != keep:
            del self._leaders[entry.peer]
            self._dialer.disconnect(entry.peer)

    def _end(self, entry: LeaderLink, driver: FollowingReplica) -> None:
        number = entry.slot_of.get(driver)
        if number is None:
            return
        entry.end_slot(number)
        if entry.subscriptions.pop(number, None) is None:
            entry.over.append(number)
        self._flush_soon(entry)

    def _flush_soon(self, entry: LeaderLink) -> None:
        if not entry.flush_due and entry.link is not None:
            entry.flush_due = True
            self._scheduler.call_soon(lambda: self._flush(entry))

    def _flush(self, entry: LeaderLink) -> None:
        """Send what this turn of the loop has collected, in at most three frames; the excess goes in the next turn."""
        entry.flush_due = False
        link = entry.link
        if link is None:
            return
        if entry.over:
            over, entry.over = entry.over[:ENTRIES_PER_FRAME], entry.over[ENTRIES_PER_FRAME:]
            link.send(encode(UnsubscribeFrame(over)))
        if entry.subscriptions:
            subscriptions = [entry.subscriptions.pop(number) for number in _first(entry.subscriptions)]
            link.send(encode(SubscribeFrame(subscriptions)))
        if entry.reports or entry.ledger.owes_ack:
            reports = ((number, entry.reports.pop(number)) for number in _first(entry.reports))
            entries = [
                AckEntry(number, report.fetch_offset, report.stable_end_offset, report.stable_start_offset)
                for number, report in reports
            ]
            link.send(encode(AckFrame(entry.ledger.take_ack(), entries)))
        if entry.over or entry.subscriptions or entry.reports or entry.ledger.owes_ack:
            self._flush_soon(entry)

    def status(self) -> list[str]:
        """Return one line for each link."""
        return [str(self._leaders[peer]) for peer in sorted(self._leaders)]


def _first(by_slot: Mapping[int, object]) -> list[int]:
    return list(islice(by_slot, ENTRIES_PER_FRAME))


def _answer(answer: SlotAnswer) -> Answer:
    if isinstance(answer, MatchedSlot):
        return Matched(Offset(answer.high_watermark), Offset(answer.log_start_offset))
    if isinstance(answer, DivergedSlot):
        return Diverged(LeaderEpoch(answer.epoch), Offset(answer.end_offset))
    if isinstance(answer, StartAtSlot):
        return StartAt(Offset(answer.first_batch_offset), ProducerId(answer.greatest_producer_id))
    return Refused(answer.code)
