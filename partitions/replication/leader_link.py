"""One leading broker as its followers here see it: the followers, the link while there is one, and incoming pushes.

Subscriptions are named by slots, numbers that rise for as long as a link lives and are never reused. A push concerns
many slots: all of it is checked (headers, CRCs), then all is appended, then it counts as received.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from partitions.driver.ports import FollowingReplica
from partitions.producers.control_batches import control_of
from partitions.replica.effects import FetchedBatch, Matched, ReportStable
from raftlog.errors import CorruptBatch, RemoteProtocolError
from raftlog.model import NO_INCARNATION, BrokerId, Incarnation, LeaderEpoch, Offset
from raftlog.ports import Link
from raftlog.records.batch import check_crc, split_batches
from raftlog.slices import stepwise

from .message_queue import MessageQueue
from .protocol import PushEntry, PushFrame, PushLedger, Subscription


class LeaderSlot(msgspec.Struct):
    """One subscription of a replica here."""

    driver: FollowingReplica
    leader_epoch: LeaderEpoch


class LeaderLink:
    """One leading broker: the replicas that follow it, and the link while there is one.

    Invariant: a driver has at most one slot.
    """

    def __init__(self, peer: BrokerId) -> None:
        self.peer = peer
        self.link: Link | None = None
        self.incarnation = NO_INCARNATION
        """The incarnation of the welcome; -1 before it."""
        self.wanted: dict[FollowingReplica, Incarnation] = {}
        """Follower → the leader's incarnation that its record names."""
        self.slots: dict[int, LeaderSlot] = {}
        self.slot_of: dict[FollowingReplica, int] = {}
        self.last_slot = 0
        self.ledger = PushLedger()
        self.subscriptions: dict[int, Subscription] = {}
        self.over: list[int] = []
        self.reports: dict[int, ReportStable] = {}
        self.flush_due = False
        self.turns: MessageQueue | None = None

    def reset(self, link: Link | None) -> None:
        """Replace the link (None: no link), and drop the state of the old one."""
        self.link = link
        if self.turns is not None:
            self.turns.close()
            self.turns = None
        self.incarnation = NO_INCARNATION
        self.slots.clear()
        self.slot_of.clear()
        self.last_slot = 0
        self.ledger = PushLedger()
        self.subscriptions.clear()
        self.over.clear()
        self.reports.clear()

    def end_slot(self, number: int) -> LeaderSlot | None:
        """End a subscription, whichever side ended it."""
        slot = self.slots.pop(number, None)
        if slot is not None:
            del self.slot_of[slot.driver]
            self.reports.pop(number, None)
            self.ledger.on_slot_over(number)
        return slot

    def __str__(self) -> str:
        state = "closed" if self.link is None else "asking" if self.incarnation < 0 else "open"
        held = f"follows={len(self.wanted)} slots={len(self.slots)} {self.ledger}"
        return f"to {self.peer}@{self.incarnation} {state} {held}"


class ReceivedPush:
    """A push on its way into the logs."""

    def __init__(self, entry: LeaderLink, push: PushFrame, body: memoryview, done: Callable[[], None]) -> None:
        """`done` is called when all of it is appended."""
        self._entries = push.entries
        self._pieces: list[tuple[int, LeaderSlot, list[FetchedBatch], Matched]] = []
        self._entry = entry
        self._sequence = push.sequence
        self._done = done
        self._body = body
        self._position = 0
        self._appended: list[tuple[int, LeaderSlot, int]] = []

    def steps(self) -> Iterator[None]:
        """Check all of it, then append it. Raises `RemoteProtocolError`."""
        yield from stepwise(self._entries, self._check)
        yield from stepwise(self._pieces, self._append)
        self._received()

    def _check(self, item: PushEntry) -> None:
        """Check the batches of one partition. Raises `RemoteProtocolError` if one is damaged."""
        start, self._position = self._position, self._position + item.length
        slot = self._entry.slots.get(item.slot)
        if slot is not None:
            marks = Matched(Offset(item.high_watermark), Offset(item.log_start_offset))
            batches = _checked(slot, self._body[start : self._position]) if item.length else []
            self._pieces.append((item.slot, slot, batches, marks))

    def _append(self, piece: tuple[int, LeaderSlot, list[FetchedBatch], Matched]) -> None:
        """Append the batches of one partition, unless its subscription ended meanwhile."""
        number, slot, batches, marks = piece
        if self._entry.slots.get(number) is slot:
            slot.driver.on_pushed(slot.leader_epoch, batches, marks)
            if batches:
                self._appended.append((number, slot, slot.driver.log.log_end_offset))

    def _received(self) -> None:
        """Count the push as received; it is acknowledged when all of it is stable.

        This must come last: parts that are stable already will not be reported again. Raises `RemoteProtocolError` if
        the push is out of turn.
        """
        slots = self._entry.slots
        alive = [(number, slot, end) for number, slot, end in self._appended if slots.get(number) is slot]
        ends = {number: end for number, slot, end in alive if slot.driver.log.stable_end_offset < end}
        self._entry.ledger.on_push(self._sequence, ends)
        self._done()


def _checked(slot: LeaderSlot, piece: memoryview) -> list[FetchedBatch]:
    """Return the checked batches of one partition. Raises `RemoteProtocolError` if one is damaged."""
    batches = []
    try:
        for batch in split_batches(piece):
            header = check_crc(batch)
            batches.append(FetchedBatch(header, batch, control_of(header, batch)))
    except CorruptBatch as error:
        slot.driver.on_corrupt_push()
        raise RemoteProtocolError(f"{slot.driver.name}: {error.detail}") from None
    return batches
