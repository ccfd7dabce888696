"""The changes of leaders and in-sync replicas that one node saw the quorum decide, and why. A pure core.

The quorum keeps the present record of a partition and no earlier one. Each node therefore remembers the last changes
that its view applied, by comparing each record with the one before. The reason follows from both and from what the same
log entry did to a broker: a fence takes leaderships and ISR memberships, a registration ends those of the earlier
incarnation, an ISR change without either was proposed by the leader.

The memory is bounded: the oldest changes are forgotten. Changes of brokers and of the quorum's leader have a bound of
their own, so that a fence of a broker with many replicas does not push them out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import chain

import msgspec

from metadata.view import (
    BrokerChanged,
    BrokerRemoved,
    ClusterView,
    MetadataEvent,
    PartitionChanged,
    TopicChanged,
)
from raftlog.model import NO_BROKER, BrokerId, BrokerRecord, Offset, PartitionRecord, TopicId, TopicPartition

MAX_CHANGES = 20_000
"""The most changes of partitions, some hundred bytes each."""
MAX_BROKER_CHANGES = 2_000
_NO_TOPIC = b""


class Change(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One change of a partition, of a broker, or of the quorum's leader."""

    index: int
    """Index in the metadata log; for what a node observed without the log, the last one that it had applied."""
    time_ms: int
    """Cluster time at which the node applied it."""
    topic_id: bytes
    """Empty: the change is not about a partition."""
    partition: int
    kind: str
    """`leader`, `isr`, `replicas`, `broker` or `quorum`."""
    reason: str
    """One of `REASONS`, or empty if it is unknown."""
    about: int = -1
    """The broker that caused the change, or the one that it is about."""
    leader: int = -1
    leader_epoch: int = -1
    former_leader: int = -1
    isr: tuple[int, ...] = ()
    former_isr: tuple[int, ...] = ()
    log_end: int = -1
    """Where the log of a replica that cannot vouch for its records ended, as `about` reported it; -1: unknown."""

    @property
    def key(self) -> tuple[int, bytes, int, str, int, int]:
        """The same on every node that saw the change."""
        return self.index, self.topic_id, self.partition, self.kind, self.about, self.leader_epoch


REASONS = {
    "created": "the partition was created",
    "fenced": "node {about} sent no heartbeat in time, or announced its stop",
    "restarted": "node {about} registered again after a restart",
    "unclean_restart": "node {about} restarted after an unclean stop or damage, and cannot vouch for all records of "
    "its replica",
    "other_folder": "node {about} came back with another data folder, without the replica that it had",
    "elected": "an in-sync replica was elected",
    "commit_set": "no in-sync replica was live, so a member of the last sufficient ISR was elected",
    "recovery": "recovery election: of the returned members, the one with the longest log leads",
    "unclean": "an operator ordered an unclean election: acknowledged records may be lost",
    "preferred": "leadership returned to the preferred replica",
    "no_room": "node {about} is short of room on its disk and gave up its leadership",
    "handed_over": "node {about} handed its leadership over: it stops, drains, or its replica is out of service",
    "renewed": "the leader began a new epoch",
    "lost_data": "node {about} reported that its replica lost or damaged records",
    "lagged": "the leader removed node {about}: it had not caught up for replica.lag.time.max.ms",
    "caught_up": "node {about} caught up, and the leader added it",
    "moved": "a reassignment changed the replicas",
    "unfenced": "its heartbeats reach the quorum",
    "registered": "a new process of the node registered",
    "registered_elsewhere": "a new process of the node registered, with another data folder",
    "short_of_room": "its disk is short of room",
    "room_again": "its disk has room again",
    "removed": "an operator unregistered it",
    "quorum_leader": "the voters elected it",
    "quorum_lost": "this node heard of no leader of the quorum",
}
"""Reason → its explanation."""


class ChangeHistory:
    """The newest changes that one node applied, oldest first."""

    def __init__(self) -> None:
        self._partitions: deque[Change] = deque(maxlen=MAX_CHANGES)
        self._others: deque[Change] = deque(maxlen=MAX_BROKER_CHANGES)
        self._known_index = 0
        """The index up to which an earlier process remembered its changes."""
        self._noted_index = self._former_index = 0
        """The index of the entry that was noted last, and the one before it."""
        self._brokers: dict[BrokerId, str] = {}
        """Broker → how that entry changed it."""
        self._on_change: list[Callable[[Change], None]] = []

    def restore(self, changes: Iterable[Change]) -> None:
        """Add the changes that an earlier process remembered, before any other."""
        for change in sorted(changes, key=_order):
            self._add(change)
            self._known_index = max(self._known_index, change.index)

    def subscribe(self, listener: Callable[[Change], None]) -> None:
        """Call `listener` with each new change."""
        self._on_change.append(listener)

    def note(self, index: int, events: Sequence[MetadataEvent], view: ClusterView, time_ms: int) -> None:
        """Remember what these events change. To be called before the view applies them; an entry with many events may
        come in several calls.
        """
        if index <= self._known_index:
            return
        if index != self._noted_index:
            self._former_index, self._noted_index, self._brokers = self._noted_index, index, {}
        brokers = self._brokers
        records: dict[TopicPartition, PartitionRecord] = {}
        for event in events:
            if isinstance(event, BrokerChanged):
                former = view.broker(event.record.broker_id)
                reason = _broker_reason(former, event.record)
                if reason:
                    brokers[event.record.broker_id] = _RESTARTS.get(reason, reason)
                    self._tell(Change(index, time_ms, _NO_TOPIC, -1, "broker", reason, event.record.broker_id))
            elif isinstance(event, BrokerRemoved):
                self._tell(Change(index, time_ms, _NO_TOPIC, -1, "broker", "removed", event.broker_id))
        created = {
            e.record.topic_id
            for e in events
            if isinstance(e, TopicChanged) and e.record.created_index > self._former_index
        }
        for event in events:
            if isinstance(event, PartitionChanged):
                tp = event.topic_partition
                before = records.get(tp) or view.partition(tp)
                records[tp] = event.record
                if before is not None:
                    ends = {ticket.broker_id: ticket.stable_end_offset for ticket in event.tickets}
                    change = _partition_change(index, time_ms, before, event.record, brokers, view, ends)
                    if change is not None:
                        self._tell(change)
                elif tp.topic_id in created:
                    self._tell(_created(index, time_ms, event.record))

    def note_quorum_leader(self, leader: BrokerId, index: int, time_ms: int) -> None:
        """Remember that this node learned of another leader of the quorum, or of none."""
        reason = "quorum_lost" if leader == NO_BROKER else "quorum_leader"
        self._tell(Change(index, time_ms, _NO_TOPIC, -1, "quorum", reason, leader))

    def of(self, topic_id: TopicId, partition: int, brokers: Iterable[BrokerId], limit: int) -> list[Change]:
        """Return the newest changes of a partition, of these brokers and of the quorum's leader, oldest first."""
        wanted = set(brokers)
        found = [one for one in self._partitions if one.partition == partition and one.topic_id == topic_id]
        others = [one for one in self._others if one.kind == "quorum" or one.about in wanted]
        return sorted([*found[-limit:], *others[-limit:]], key=_order)[-limit:]

    def newest_first(self) -> Iterator[Change]:
        """Return everything that is remembered now, the newest first, and sort no more than is read."""
        return merge(reversed(tuple(self._partitions)), reversed(tuple(self._others)), key=_order, reverse=True)

    def all(self) -> list[Change]:
        """Return everything that is remembered, to be written again in less space."""
        return sorted(chain(self._partitions, self._others), key=_order)

    def _tell(self, change: Change) -> None:
        self._add(change)
        for listener in self._on_change:
            listener(change)

    def _add(self, change: Change) -> None:
        (self._partitions if change.topic_id else self._others).append(change)


def merged(histories: Iterable[Iterable[Change]]) -> list[Change]:
    """Return the changes that several nodes remember, each once, in the order of the log.

    A change of the quorum's leader is what one node observed, so those of one leader within ten seconds are one.
    """
    found: dict[object, Change] = {}
    for change in chain.from_iterable(histories):
        key: object = change.key if change.kind != "quorum" else (change.about, change.time_ms // 10_000)
        known = found.get(key)
        if known is None or change.time_ms < known.time_ms:
            found[key] = change
    return sorted(found.values(), key=_order)


_RESTARTS = {"registered": "restarted", "registered_elsewhere": "other_folder"}
"""Reason of a broker's registration → reason of what this registration takes from it."""


def _order(change: Change) -> tuple[int, bool, int]:
    """Return the key of the log's order; in one entry, a broker's change precedes what it brings about."""
    return change.index, bool(change.topic_id), change.time_ms


def _broker_reason(former: BrokerRecord | None, now: BrokerRecord) -> str:
    if former is None or former.incarnation != now.incarnation:
        moved = former is not None and former.directory_id != now.directory_id
        return "registered_elsewhere" if moved else "registered"
    if former.fenced != now.fenced:
        return "fenced" if now.fenced else "unfenced"
    if former.short_of_room != now.short_of_room:
        return "short_of_room" if now.short_of_room else "room_again"
    return ""


def _partition_change(
    index: int,
    time_ms: int,
    before: PartitionRecord,
    now: PartitionRecord,
    brokers: dict[BrokerId, str],
    view: ClusterView,
    ends: Mapping[BrokerId, Offset],
) -> Change | None:
    """`ends`: marked replica → the end of its log, as its node reported it."""
    led_before, leads_now = (before.leader, before.leader_epoch), (now.leader, now.leader_epoch)
    unclean = _unclean(before, now, brokers)
    if led_before != leads_now:
        kind = "leader"
        reason, about = unclean or _leader_reason(before, now, brokers, view, ends)
    elif unclean is not None:
        kind, (reason, about) = "isr", unclean
    elif before.isr != now.isr:
        kind = "isr"
        reason, about = _isr_reason(before, now, brokers)
    elif before.replicas != now.replicas or before.target_replicas != now.target_replicas:
        kind, reason, about = "replicas", "moved", NO_BROKER
    else:
        return None
    tp = now.topic_partition
    return Change(
        index, time_ms, tp.topic_id, tp.partition, kind, reason, about,
        now.leader, now.leader_epoch, before.leader, now.isr, before.isr, ends.get(about, -1),
    )  # fmt: skip


def _unclean(
    before: PartitionRecord, now: PartitionRecord, brokers: dict[BrokerId, str]
) -> tuple[str, BrokerId] | None:
    """Return the broker that this entry registered although its replica cannot vouch for its records, if there is one.

    A registration leaves a replica that can vouch in the ISR, and marks one that cannot (S9).
    """
    for broker, why in brokers.items():
        left = broker in before.isr and broker not in now.isr
        if why in _RESTARTS.values() and (left or broker in now.not_eligible):
            return ("unclean_restart" if why == "restarted" else why), broker
    return None


def _created(index: int, time_ms: int, now: PartitionRecord) -> Change:
    tp = now.topic_partition
    return Change(
        index, time_ms, tp.topic_id, tp.partition, "leader", "created", now.leader, now.leader, now.leader_epoch,
        isr=now.isr,
    )  # fmt: skip


def _leader_reason(
    before: PartitionRecord,
    now: PartitionRecord,
    brokers: dict[BrokerId, str],
    view: ClusterView,
    marked: Container[BrokerId],
) -> tuple[str, BrokerId]:
    if now.leader_epoch in now.unclean_leader_epochs:
        return "unclean", now.leader
    if before.leader != NO_BROKER and now.leader != before.leader:
        why = brokers.get(before.leader, "")
        if why == "fenced" or why in _RESTARTS.values():
            return why, before.leader
        if now.leader == NO_BROKER:
            return "", before.leader
        former = view.broker(before.leader)
        if former is not None and former.short_of_room:
            return "no_room", before.leader
        return ("preferred", now.leader) if now.leader == now.replicas[0] else ("handed_over", before.leader)
    if before.leader == now.leader:
        lost = [broker for broker in before.isr if broker not in now.isr and broker in marked]
        return ("lost_data", lost[0]) if lost else ("renewed", now.leader)
    if now.leader in before.not_eligible:
        return "recovery", now.leader
    return ("elected" if now.leader in before.isr else "commit_set"), now.leader


def _isr_reason(before: PartitionRecord, now: PartitionRecord, brokers: dict[BrokerId, str]) -> tuple[str, BrokerId]:
    left = [broker for broker in before.isr if broker not in now.isr]
    joined = [broker for broker in now.isr if broker not in before.isr]
    for broker in left:
        if brokers.get(broker) == "fenced":
            return "fenced", broker
    if left and before.replicas != now.replicas:
        return "moved", left[0]
    if left:
        return "lagged", left[0]
    return ("caught_up", joined[0]) if joined else ("", NO_BROKER)
