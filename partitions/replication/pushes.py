"""Pushing to one follower: its slots with something to send, merged into few large messages within the credit.

Whatever happens during one turn of the loop (appends to many partitions, acknowledgements, a moved high watermark) is
sent once, after it. Answers go first, then data while there is credit, in turn over the slots; each message is filled
with batches of as many partitions as fit. Marks (high watermark, log start) ride on data; without data they go alone
after `MARKS_SECONDS`, all slots in one message.

Batches that are not in memory are loaded by a worker, `LOADS_MAX` at a time, so that a follower that is far behind
never blocks the loop on the disk, and other slots continue meanwhile.

A replica that a move is adding, and that is not in sync, may be throttled (`throttle.py`). If there is no room, its
slot alone is put aside for `THROTTLE_SECONDS`; its permitted data goes with the rest. From the moment that it may be in
the ISR it is a follower like any other, so no acknowledgement ever waits for the throttle.
"""

from __future__ import annotations

from collections.abc import Callable

from partitions.driver.driver import PartitionDriver
from partitions.log.slice import LogSlice, ReadBy
from partitions.replica.effects import Answer, Diverged, Matched, Refused, ReportStable, StartAt
from raftlog.config import PUSH_MESSAGE_BYTES
from raftlog.errors import DiskError, InvalidRequest, RaftlogError, RemoteProtocolError
from raftlog.model import BrokerId, Incarnation, LeaderEpoch, Offset
from raftlog.ports import Clock, Link, Part, Scheduler, Worker

from .protocol import (
    MAX_ENTRIES,
    AckEntry,
    AnswersFrame,
    DivergedSlot,
    MatchedSlot,
    PushCredit,
    PushEntry,
    PushFrame,
    RefusedSlot,
    SlotAnswer,
    StartAtSlot,
    Subscription,
    check_start,
    encode,
)
from .throttle import MoveThrottle

MARKS_SECONDS = 0.05
"""How long a high watermark waits for data to ride on; a follower has no urgent need for it."""

LOADS_MAX = 2
"""Bound on the cold reads of one link; each holds up to one push in memory."""

CHECKED_BYTES = 2 * PUSH_MESSAGE_BYTES
"""The bytes of each subscription that are checked before they are pushed, if they come from files.

A follower may have refused a message for a batch at its end.
"""
THROTTLE_SECONDS = 0.05
"""The interval at which a throttled slot is retried: short enough to use a small rate evenly."""

ENTRIES_PER_PUSH = 512
"""Bound on the partitions of one message with data, and of one turn of the loop: some twenty microseconds each."""

MARKS_PER_PUSH = 2_000

ROOM_LEFT_BYTES = 4096
"""A message with less room than this is full."""


class FollowerSlot:
    """One subscription. A `Subscriber` of its driver.

    Invariant: the pushed batches are `[fetch_offset at the start, next_offset)`, each once and in order.
    """

    def __init__(self, pusher: Pusher, subscription: Subscription, driver: PartitionDriver, follower: BrokerId) -> None:
        self.number = subscription.slot
        self.driver = driver
        self.leader_epoch = LeaderEpoch(subscription.leader_epoch)
        self.next_offset = Offset(subscription.fetch_offset)
        self.pushed_bytes = 0
        self.matched = False
        self.loading = False
        self.loaded: LogSlice | None = None
        self.sent_marks = (Offset(-1), Offset(-1))
        self.on_over: Callable[[], object] = lambda: None
        self._pusher = pusher
        self._stable_start_offset = subscription.stable_start_offset
        """The follower's last reported log start; at first that of the subscription."""
        self.follower = follower

    @property
    def marks(self) -> tuple[Offset, Offset]:
        """The high watermark and log start that the follower should know."""
        return self.driver.replica.high_watermark, self.driver.log.log_start_offset

    @property
    def reader(self) -> ReadBy:
        """The reader type: the first bytes of a subscription are checked here.

        A follower that refused damaged bytes subscribes again near them, and would get them repeatedly until other
        checks find the damage.
        """
        return ReadBy.FOLLOWER_AGAIN if self.pushed_bytes < CHECKED_BYTES else ReadBy.FOLLOWER

    @property
    def throttled(self) -> bool:
        """Whether a move is adding this follower, and it certainly is not in the ISR."""
        leader = self.driver.replica.leader
        if leader is None or self.follower not in leader.record.adding_replicas:
            return False
        return self.follower not in leader.maximal_isr

    # --- Subscriber ---

    def on_answer(self, answer: Answer) -> None:
        if isinstance(answer, Matched):
            self.matched = True
            self.sent_marks = (answer.high_watermark, answer.log_start_offset)
        else:
            self.matched = False
            self.on_over()
        self._pusher.answer(self.number, answer)
        if self.matched and self.next_offset < self.driver.log.log_end_offset:
            self._pusher.add_data(self)

    def on_grown(self) -> None:
        if self.matched:
            self._pusher.add_data(self)

    def on_marks(self) -> None:
        if self.matched:
            self._pusher.add_marks(self)

    # --- From the link ---

    def on_ack(self, entry: AckEntry, incarnation: Incarnation) -> None:
        """Apply an acknowledgement. Raises `RemoteProtocolError`."""
        if not self.matched:
            return
        if entry.fetch_offset > self.next_offset:
            raise RemoteProtocolError(f"slot {self.number} has {entry.fetch_offset}, pushed was {self.next_offset}")
        check_start(entry)
        if entry.stable_start_offset != self._stable_start_offset:
            self._stable_start_offset = entry.stable_start_offset
            self.driver.on_follower_start(
                self.follower, incarnation, self.leader_epoch, Offset(entry.stable_start_offset)
            )
        report = ReportStable(self.leader_epoch, Offset(entry.fetch_offset), Offset(entry.stable_end_offset))
        self.driver.on_report(self.follower, incarnation, report)
        self._pusher.look_again(self)

    def close(self) -> None:
        """End the subscription from the follower's side."""
        self.matched = False
        self.driver.on_unsubscribe(self.follower, self)


class Pusher:
    """Everything that is sent to one follower."""

    def __init__(
        self, link: Link, scheduler: Scheduler, worker: Worker, *, clock: Clock, throttle: MoveThrottle
    ) -> None:
        """`throttle` is the broker's, shared by all links."""
        self._link = link
        self._scheduler = scheduler
        self._worker = worker
        self._clock = clock
        self._throttle = throttle
        self._aside: dict[FollowerSlot, None] = {}
        """Throttled slots with something to push, until there is room."""
        self._aside_timer = False
        self._credit = PushCredit()
        self._answers: list[SlotAnswer] = []
        self._data: dict[FollowerSlot, None] = {}
        """Slots with something to push, in turn."""
        self._marks: dict[FollowerSlot, None] = {}
        self._marks_due = False
        self._marks_timer = False
        self._loads = 0
        self._flush_due = False
        self._closed = False

    def answer(self, slot: int, answer: Answer) -> None:
        """Send the answer to a subscription."""
        self._answers.append(_slot_answer(slot, answer))
        self._flush_soon()

    def add_data(self, slot: FollowerSlot) -> None:
        """Queue this slot, whose log has grown."""
        if self._aside:
            if slot in self._aside and slot.throttled:
                return
            self._aside.pop(slot, None)
        self._data[slot] = None
        self._flush_soon()

    def look_again(self, slot: FollowerSlot) -> None:
        """Requeue a throttled slot: its follower may be throttled no longer."""
        if slot in self._aside:
            self.add_data(slot)

    def add_marks(self, slot: FollowerSlot) -> None:
        """Queue this slot's marks, which moved."""
        self._marks[slot] = None
        self._start_marks_timer()

    def on_ack(self, sequence: int) -> None:
        """Apply an acknowledgement of pushes. Raises `RemoteProtocolError`."""
        self._credit.on_ack(sequence)
        if self._data or self._marks_due:
            self._flush_soon()

    def close(self) -> None:
        """Drop everything: the link is gone."""
        self._closed = True
        self._data.clear()
        self._aside.clear()
        self._marks.clear()

    # --- Inside ---

    def _flush_soon(self) -> None:
        if not self._flush_due and not self._closed:
            self._flush_due = True
            self._scheduler.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if self._closed:
            return
        while self._answers:
            answers, self._answers = self._answers[:MAX_ENTRIES], self._answers[MAX_ENTRIES:]
            self._link.send(encode(AnswersFrame(answers)))
        while self._data and self._credit.open:
            entries, parts = self._collect()
            if not entries:
                break
            self._link.send(encode(PushFrame(self._credit.take(), entries), parts))
            if len(entries) == ENTRIES_PER_PUSH:
                if self._data:
                    self._flush_soon()
                break
        if self._marks_due and self._credit.open:
            self._push_marks()

    def _collect(self) -> tuple[list[PushEntry], list[Part]]:
        """Collect one message: each slot in turn, until it is full.

        A slot that has more goes to the end of the queue, one whose next batch does not fit to the front: no slot
        starves.
        """
        entries: list[PushEntry] = []
        parts: list[Part] = []
        first_next_time: list[FollowerSlot] = []
        room = PUSH_MESSAGE_BYTES
        for slot in list(self._data):
            if room < ROOM_LEFT_BYTES or len(entries) == ENTRIES_PER_PUSH:
                break
            del self._data[slot]
            throttled = slot.matched and slot.throttled
            allowed = min(room, self._throttled_room(slot)) if throttled else room
            piece = self._read(slot, allowed, first=not entries) if slot.matched and allowed > 0 else None
            if piece is None:
                continue
            if not piece.length:
                if slot.next_offset < slot.driver.log.log_end_offset:
                    first_next_time.append(slot)
                continue
            slot.next_offset = piece.next_offset
            slot.pushed_bytes += piece.length
            entries.append(self._entry(slot, piece.length))
            parts += piece.parts
            room -= piece.length
            if throttled:
                self._throttle.sent(slot.follower, piece.length)
            if slot.next_offset < slot.driver.log.log_end_offset:
                self._data[slot] = None
        if first_next_time:
            self._data = dict.fromkeys([*first_next_time, *self._data])
        return entries, parts

    def _throttled_room(self, slot: FollowerSlot) -> int:
        """Return the bytes that the throttle permits now; if there are none, put the slot aside."""
        room = self._throttle.room(slot.follower, self._clock.monotonic())
        if room < 1:
            self._aside[slot] = None
            if not self._aside_timer:
                self._aside_timer = True
                self._scheduler.call_later(THROTTLE_SECONDS, self._on_aside_timer)
        return int(min(room, PUSH_MESSAGE_BYTES))

    def _on_aside_timer(self) -> None:
        self._aside_timer = False
        if self._aside and not self._closed:
            self._data.update(self._aside)
            self._aside.clear()
            self._flush_soon()

    def _read(self, slot: FollowerSlot, room: int, *, first: bool) -> LogSlice | None:
        """Return the slot's next batches; None if none can be pushed now (the slot is queued again later)."""
        if slot.loading:
            return None
        loaded, slot.loaded = slot.loaded, None
        if loaded is not None and loaded.length:
            if loaded.length > room and not first:
                slot.loaded = loaded
                return LogSlice(slot.next_offset, slot.next_offset)
            return self._from_where_it_is(slot, loaded)
        log = slot.driver.log
        try:
            piece = slot.driver.read(slot.next_offset, log.log_end_offset, room, min_one_batch=first, by=slot.reader)
        except InvalidRequest:
            # Retention overtook this follower: it has to start over at the log's present start.
            slot.driver.on_unsubscribe(slot.follower, slot)
            slot.on_answer(StartAt(log.first_batch_offset, slot.driver.greatest_producer_id))
            return None
        except RaftlogError:
            # The replica went offline and notified its followers; or this part of the log is damaged.
            self._refuse(slot)
            return None
        except Exception as error:  # noqa: BLE001  judged as one that a worker met; the other slots continue
            slot.driver.on_load_failed(error)
            self._refuse(slot)
            return None
        return self._load(slot, piece) if piece.load is not None else self._from_where_it_is(slot, piece)

    def _from_where_it_is(self, slot: FollowerSlot, piece: LogSlice) -> LogSlice | None:
        """Refuse a follower whose log ends within a batch: it cannot take the whole batch.

        Only a broken follower has such an end, and it must not keep this broker reading the same batch permanently.
        """
        if piece.length and piece.first_offset != slot.next_offset:
            self._refuse(slot)
            return None
        return piece

    def _load(self, slot: FollowerSlot, cold: LogSlice) -> LogSlice | None:
        """Let a worker load the batches; this slot alone waits."""
        if self._loads >= LOADS_MAX or cold.load is None:
            self._data[slot] = None  # The end of a load drains the queue again.
            return None
        self._loads += 1
        slot.loading = True

        def done(piece: LogSlice | None, error: BaseException | None) -> None:
            self._loads -= 1
            slot.loading = False
            if error is not None:
                slot.driver.on_load_failed(error)
            if isinstance(error, DiskError | MemoryError):
                self._refuse(slot)
                return
            slot.loaded = piece
            self.add_data(slot)

        self._worker.submit(cold.load, done)
        return None

    def _refuse(self, slot: FollowerSlot) -> None:
        """Refuse the slot; the follower retries after a delay."""
        if slot.matched:
            slot.driver.on_unsubscribe(slot.follower, slot)
            slot.on_answer(Refused("replica_not_available"))

    def _entry(self, slot: FollowerSlot, length: int) -> PushEntry:
        slot.sent_marks = slot.marks
        self._marks.pop(slot, None)
        return PushEntry(slot.number, slot.sent_marks[0], slot.sent_marks[1], length)

    def _start_marks_timer(self) -> None:
        if not self._marks_timer and not self._closed:
            self._marks_timer = True
            self._scheduler.call_later(MARKS_SECONDS, self._on_marks_timer)

    def _on_marks_timer(self) -> None:
        self._marks_timer = False
        self._marks_due = bool(self._marks)
        if self._marks_due:
            self._flush_soon()

    def _push_marks(self) -> None:
        slots = [slot for slot in self._marks if slot.matched and slot.marks != slot.sent_marks]
        entries = [self._entry(slot, 0) for slot in slots[:MARKS_PER_PUSH]]
        self._marks = dict.fromkeys(slots[MARKS_PER_PUSH:])
        self._marks_due = False
        if entries:
            self._link.send(encode(PushFrame(self._credit.take(), entries)))
        if self._marks:
            self._start_marks_timer()

    def __str__(self) -> str:
        aside = f" throttled={len(self._aside)}" if self._aside else ""
        return f"{self._credit} data={len(self._data)} marks={len(self._marks)}{aside}"


def _slot_answer(slot: int, answer: Answer) -> SlotAnswer:
    if isinstance(answer, Matched):
        return MatchedSlot(slot, answer.high_watermark, answer.log_start_offset)
    if isinstance(answer, Diverged):
        return DivergedSlot(slot, answer.epoch, answer.end_offset)
    if isinstance(answer, StartAt):
        return StartAtSlot(slot, answer.first_batch_offset, answer.greatest_producer_id)
    return RefusedSlot(slot, answer.code)
