"""One leading broker as its followers here see it: who of them follows, the link while there is one, and a push on its
way into their logs.

Subscriptions are named by slots, numbers that count up for as long as a link lives and are never used twice. A push
speaks of many slots: all of it is checked (headers, CRCs), then all appended, then it counts as received.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from partitions.driver.ports import FollowingReplica
from partitions.producers.control_batches import control_of
from partitions.replica.effects import FetchedBatch, Matched, ReportStable
from raftlog.errors import CorruptBatch, RemoteProtocolError
from raftlog.model import NO_INCARNATION, BrokerId, Incarnation, LeaderEpoch, Offset
from raftlog.ports import Link
from raftlog.records.batch import check_crc, split_batches
from raftlog.slices import fits_a_turn, stepwise

from .message_queue import MessageTurns
from .protocol import PushEntry, PushFrame, PushLedger, Subscription


@dataclass(slots=True)
class LeaderSlot:
    """One subscription of ours."""

    driver: FollowingReplica
    leader_epoch: LeaderEpoch


class LeaderLink:
    """What is known of one leading broker: who follows it, and the link while there is one.

    Invariant: a driver has at most one slot.
    """

    def __init__(self, peer: BrokerId) -> None:
        self.peer = peer
        self.link: Link | None = None
        self.incarnation = NO_INCARNATION
        """Of the welcome; -1 before."""
        self.wanted: dict[FollowingReplica, Incarnation] = {}
        """Who follows, and the leader's incarnation that its record names."""
        self.slots: dict[int, LeaderSlot] = {}
        self.slot_of: dict[FollowingReplica, int] = {}
        self.last_slot = 0
        self.ledger = PushLedger()
        self.subscriptions: dict[int, Subscription] = {}
        self.over: list[int] = []
        self.reports: dict[int, ReportStable] = {}
        self.flush_due = False
        self.turns: MessageTurns | None = None

    def reset(self, link: Link | None) -> None:
        """Another link, or none: nothing of the old one counts."""
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
        """The subscription is over, by whomever."""
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

    def take(self) -> Iterator[None] | None:
        """All of it: now, or in the steps that this gives. Raises `RemoteProtocolError`, and so do they."""
        if not fits_a_turn(self._entries):
            return self._steps()
        for item in self._entries:
            self._check(item)
        for piece in self._pieces:
            self._append(piece)
        self._received()
        return None

    def _steps(self) -> Iterator[None]:
        yield from stepwise(self._entries, self._check)
        yield from stepwise(self._pieces, self._append)
        self._received()

    def _check(self, item: PushEntry) -> None:
        """The batches of one partition. Raises `RemoteProtocolError` where one is damaged."""
        start, self._position = self._position, self._position + item.length
        slot = self._entry.slots.get(item.slot)
        if slot is not None:
            marks = Matched(Offset(item.high_watermark), Offset(item.log_start_offset))
            batches = _checked(slot, self._body[start : self._position]) if item.length else []
            self._pieces.append((item.slot, slot, batches, marks))

    def _append(self, piece: tuple[int, LeaderSlot, list[FetchedBatch], Matched]) -> None:
        """Unless its subscription ended meanwhile."""
        number, slot, batches, marks = piece
        if self._entry.slots.get(number) is slot:
            slot.driver.on_pushed(slot.leader_epoch, batches, marks)
            if batches:
                self._appended.append((number, slot, slot.driver.log.log_end_offset))

    def _received(self) -> None:
        """The leader is told when all of it is stable. Only now: some may be stable by now, and what was is not told
        again. Raises `RemoteProtocolError` where the push is out of turn."""
        slots = self._entry.slots
        alive = [(number, slot, end) for number, slot, end in self._appended if slots.get(number) is slot]
        ends = {number: end for number, slot, end in alive if slot.driver.log.stable_end_offset < end}
        self._entry.ledger.on_push(self._sequence, ends)
        self._done()


def _checked(slot: LeaderSlot, piece: memoryview) -> list[FetchedBatch]:
    """The batches of one partition. Raises `RemoteProtocolError` where one is damaged."""
    batches = []
    try:
        for batch in split_batches(piece):
            header = check_crc(batch)
            batches.append(FetchedBatch(header, batch, control_of(header, batch)))
    except CorruptBatch as error:
        slot.driver.on_corrupt_push()
        raise RemoteProtocolError(f"{slot.driver.name}: {error.detail}") from None
    return batches
