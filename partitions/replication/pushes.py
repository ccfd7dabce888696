"""Pushing to one follower: its slots that have something to send, merged into few large messages within the credit.

Whatever happens during one turn of the loop (appends to many partitions, acknowledgements, a moved high watermark) is
sent once, after it: answers first, then data while there is credit, in turn over the slots, each message filled with
batches of as many partitions as it takes. Marks (high watermark, log start) ride on data; where there is none they go
alone after `MARKS_SECONDS`, all slots in one message.

Batches that are not in memory are loaded by a worker, `LOADS_MAX` at a time, so that a follower which is far behind
never makes the loop wait for the disk, and other slots go on meanwhile.

A replica that a move is adding, and that is not in sync, may be throttled (`throttle.py`). Where there is
no room its slot is put aside for `THROTTLE_SECONDS`, alone; what it may send goes with the rest. The moment that it may
be in the ISR it is a follower like any other, so no acknowledgement ever waits for the throttle.
"""

from __future__ import annotations

from collections.abc import Callable

from partitions.driver.driver import PartitionDriver
from partitions.log.slice import LogSlice, ReadBy
from partitions.replica.effects import Answer, Diverged, Matched, Refused, StartAt
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
    encode,
)
from .throttle import MoveThrottle

MARKS_SECONDS = 0.05
"""How long a high watermark waits for data to ride on. A follower needs it for nothing urgent."""

LOADS_MAX = 2
"""Cold reads of one link under way; each holds up to one push in memory."""

CHECKED_BYTES = 2 * PUSH_MESSAGE_BYTES
"""So much of each subscription is checked before it is pushed, where it comes from files: a message may have been
refused for a batch at its end."""
THROTTLE_SECONDS = 0.05
"""After which a throttled slot is looked at again: often enough to use a small rate evenly."""

ENTRIES_PER_PUSH = 512
"""Partitions in one message with data, and in one turn of the loop: some twenty microseconds each."""

MARKS_PER_PUSH = 2_000

ROOM_LEFT_BYTES = 4096
"""A message with less room than this is full."""


class FollowerSlot:
    """One subscription. A `Subscriber` of its driver.

    Invariant: what was pushed is `[fetch_offset at the start, next_offset)`, each batch once and in order.
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
        """As the leader was told last: by the subscription at first."""
        self.follower = follower

    @property
    def marks(self) -> tuple[Offset, Offset]:
        """High watermark and log start, as the follower should know them."""
        return self.driver.replica.high_watermark, self.driver.log.log_start_offset

    @property
    def reader(self) -> ReadBy:
        """What it gets first is checked here: one that refused damaged bytes asks again from about there, and would get
        them again and again, until somebody else finds the damage."""
        return ReadBy.FOLLOWER_AGAIN if self.pushed_bytes < CHECKED_BYTES else ReadBy.FOLLOWER

    @property
    def throttled(self) -> bool:
        """A move is adding this follower, and it certainly is not in the ISR."""
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
        """Raises `RemoteProtocolError`."""
        if not self.matched:
            return
        if entry.fetch_offset > self.next_offset:
            raise RemoteProtocolError(f"slot {self.number} has {entry.fetch_offset}, pushed was {self.next_offset}")
        if entry.stable_start_offset != self._stable_start_offset:
            self._stable_start_offset = entry.stable_start_offset
            self.driver.on_follower_start(
                self.follower, incarnation, self.leader_epoch, Offset(entry.stable_start_offset)
            )
        self.driver.on_report(
            self.follower,
            incarnation,
            self.leader_epoch,
            Offset(entry.fetch_offset),
            Offset(entry.stable_end_offset),
        )
        self._pusher.look_again(self)

    def close(self) -> None:
        """The follower is no longer interested, or gone."""
        self.matched = False
        self.driver.on_unsubscribe(self.follower, self)


class Pusher:
    """All that goes to one follower."""

    def __init__(
        self, link: Link, scheduler: Scheduler, worker: Worker, *, clock: Clock, throttle: MoveThrottle
    ) -> None:
        """`throttle` is the broker's, of all links together."""
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
        """Tell the follower what became of a subscription."""
        self._answers.append(_slot_answer(slot, answer))
        self._flush_soon()

    def add_data(self, slot: FollowerSlot) -> None:
        """This slot's log has grown."""
        if self._aside:
            if slot in self._aside and slot.throttled:
                return
            self._aside.pop(slot, None)
        self._data[slot] = None
        self._flush_soon()

    def look_again(self, slot: FollowerSlot) -> None:
        """Something became of this slot's follower: it may be throttled no longer."""
        if slot in self._aside:
            self.add_data(slot)

    def add_marks(self, slot: FollowerSlot) -> None:
        """This slot's marks moved."""
        self._marks[slot] = None
        self._start_marks_timer()

    def on_ack(self, sequence: int) -> None:
        """Raises `RemoteProtocolError`."""
        self._credit.on_ack(sequence)
        if self._data or self._marks_due:
            self._flush_soon()

    def close(self) -> None:
        """The link is gone."""
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
        """One message: each slot in turn, until it is full. A slot that has more goes to the end of the queue, one
        whose next batch does not fit any more to the front: nobody starves."""
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
        """Bytes that the throttle lets go now; where there are none the slot is put aside."""
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
        """The slot's next batches; None where there are none to push now (it comes back by itself)."""
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
            # Retention overtook this follower: it has to begin where the log begins now.
            slot.driver.on_unsubscribe(slot.follower, slot)
            slot.on_answer(StartAt(log.first_batch_offset, slot.driver.greatest_producer_id))
            return None
        except RaftlogError:
            # The replica went offline and told its followers; or this part of the log is damaged.
            self._refuse(slot)
            return None
        except Exception as error:  # noqa: BLE001  judged as one that a worker met; the other slots go on
            slot.driver.on_load_failed(error)
            self._refuse(slot)
            return None
        return self._load(slot, piece) if piece.load is not None else self._from_where_it_is(slot, piece)

    def _from_where_it_is(self, slot: FollowerSlot, piece: LogSlice) -> LogSlice | None:
        """Whole batches begin before a follower whose log ends within one: it cannot take them. None does that unless
        it is broken, and then it must not keep this broker reading the same batch for ever."""
        if piece.length and piece.first_offset != slot.next_offset:
            self._refuse(slot)
            return None
        return piece

    def _load(self, slot: FollowerSlot, cold: LogSlice) -> LogSlice | None:
        """Let a worker bring the batches into memory; the slot waits, alone."""
        if self._loads >= LOADS_MAX or cold.load is None:
            self._data[slot] = None  # The end of a load looks at the queue again.
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
        """The follower asks again, by itself and not at once."""
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
