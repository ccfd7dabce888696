"""One fetch session (`raftlog/wire.py`): the slots that a consumer waits for, and its long polls over all of them.

A slot is in one of these states:

* *named*: it was just added (or is to be dropped). A request names up to ten thousand; some are taken in per turn of
  the loop, in their order, whatever their request;
* *new*: it has to be checked for something to read; some hundreds are checked per turn;
* *waiting*: there is nothing to read. It costs nothing until its partition notifies that consumers may read more (a
  moved high watermark, without which no last stable offset moves), or that they may not read here any more (a
  leadership ended, a replica or a topic was deleted): then it is new again;
* *ready*: there are batches to read, or an error to report. If a poll wants more than there is, the ready slots wait as
  *partial*: the next change has all of them read again.

A poll is answered from the ready slots, in the order in which they became ready: nothing is read twice for one answer,
and no slot starves. An answered slot is over; so an answer that is lost with its connection loses nothing, and none is
given twice (S1). Marks (high watermark, last stable offset) that moved over a waiting slot ride on the next answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeAlias

import msgspec

from raftlog.errors import InvalidRequest, RetriableError
from raftlog.model import TopicId, TopicPartition
from raftlog.ports import Part, Scheduler, Timer
from raftlog.slices import in_turns
from raftlog.wire import MAX_PARTITIONS_PER_REQUEST, FetchedSlot, SessionFetchRequest, SlotToFetch

from .doubts import FetchDoubts
from .reads import READS_A_TURN, PartitionRead, Replicas, look, read_partition

MAX_POLLS = 16
"""Bound on the polls in flight in one session: each may hold an answer in memory."""
TAKEN_A_TURN = 1_000
"""Slots added or dropped in one turn: a microsecond or two each."""
MAX_NAMED = 4 * MAX_PARTITIONS_PER_REQUEST
"""Bound on the slots that wait to be taken in: a client that sends faster is refused."""
LOOKS_A_TURN = 256
"""Slots checked in one turn, some microseconds each."""
MARKS_PER_ANSWER = 1_000
SECOND_LOOK_SECONDS = 0.005
"""The least interval, in seconds, between two reads of ready slots for a poll that wants more than the first byte."""

SessionDone: TypeAlias = Callable[[list[FetchedSlot], list[Part]], None]


class Slot:
    """A partition that the client waits for. A `Waiter` of its driver."""

    __slots__ = ("_readable", "asked", "told")

    def __init__(self, asked: SlotToFetch, readable: Callable[[Slot], None]) -> None:
        self._readable = readable
        self.asked = asked
        self.told = (-1, -1)
        """High watermark and last stable offset, as the client knows them."""

    def on_readable(self) -> None:
        self._readable(self)

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(TopicId(self.asked.topic_id), self.asked.partition)


class Poll(msgspec.Struct, eq=False):
    """A request without an answer yet."""

    done: SessionDone
    min_bytes: int
    max_bytes: int
    timer: Timer | None = None
    over: bool = False
    """Whether the deadline has passed: the poll is answered with the available data."""


class FetchSession:
    """One fetch session.

    Invariant: every slot that was taken in is new or ready, or waits at its driver, the partial ones too.
    """

    def __init__(
        self,
        number: int,
        replicas: Replicas,
        scheduler: Scheduler,
        doubts: FetchDoubts,
        *,
        committed: bool,
        left: Callable[[int], None],
    ) -> None:
        """`left` is called with the number of slots that ended, whenever some did."""
        self.number = number
        self.used_at = 0.0
        """The last use, by the owner's clock."""
        self.closed = False
        self._replicas = replicas
        self._scheduler = scheduler
        self._doubts = doubts
        self._committed = committed
        self._left = left
        self._named: deque[SlotToFetch | int] = deque()
        """Slots to be added, or numbers of slots to be dropped."""
        self._slots: dict[int, Slot] = {}
        self._last_slot = -1
        self._new: dict[Slot, None] = {}
        self._ready: dict[Slot, None] = {}
        self._partial: dict[Slot, None] = {}
        self._moved: dict[Slot, PartitionRead] = {}
        """Waiting slots with marks that the client does not know."""
        self._polls: dict[Poll, None] = {}
        self._serve_due = False

    def __len__(self) -> int:
        return len(self._slots) + sum(not isinstance(one, int) for one in self._named)

    @property
    def idle(self) -> bool:
        """Whether no poll waits for an answer."""
        return not self._polls

    # --- Requests -----------------------------------------------------------------------------------------------------

    def check(self, request: SessionFetchRequest) -> None:
        """Raise the error that refuses the request, before any of it is done (S11)."""
        if len(self._polls) >= MAX_POLLS:
            raise RetriableError("overloaded", f"{MAX_POLLS} polls of this session are in flight: wait for an answer")
        if len(self._named) + len(request.added) + len(request.dropped) > MAX_NAMED:
            raise RetriableError(
                "overloaded", f"{len(self._named)} slots of this session are still being added: retry later"
            )
        last = self._last_slot
        for asked in request.added:
            if asked.slot <= last:
                raise InvalidRequest(
                    "invalid_request", f"slot {asked.slot} follows slot {last}: slot numbers must rise"
                )
            last = asked.slot

    def poll(self, request: SessionFetchRequest, done: SessionDone, wait_seconds: float, max_bytes: int) -> None:
        """Take in the changes, and begin a poll.

        `done` is called once, perhaps before this returns; its receiver sends or releases every region of the parts.
        """
        self._named.extend(request.dropped)
        self._named.extend(request.added)
        if request.added:
            self._last_slot = request.added[-1].slot
        poll = Poll(done, min(request.min_bytes, max_bytes), max_bytes)
        self._polls[poll] = None
        if wait_seconds > 0:
            poll.timer = self._scheduler.call_later(wait_seconds, lambda: self._on_deadline(poll))
        else:
            poll.over = True
        self._serve()

    def finish_polls(self) -> None:
        """Answer every poll with the available data."""
        for poll in self._polls:
            poll.over = True
        self._serve()

    def close(self) -> None:
        """Answer open polls with nothing, and end all slots. Idempotent."""
        if self.closed:
            return
        self.closed = True
        for poll in self._polls:
            if poll.timer is not None:
                poll.timer.cancel()
        waiting, polls = list(self._slots.values()), list(self._polls)
        self._left(len(self))
        self._named.clear()
        for slots in (self._slots, self._new, self._ready, self._partial, self._moved, self._polls):
            slots.clear()
        in_turns(self._scheduler, waiting, self._stop_waiting)
        for poll in polls:
            poll.done([], [])

    # --- Notifications from drivers -----------------------------------------------------------------------------------

    def _on_slot_readable(self, slot: Slot) -> None:
        """Schedule another check of the slot: its driver is in the middle of an event."""
        if slot.asked.slot in self._slots:
            self._new[slot] = None
            self._wake()

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._serve_due or self.closed:
            return
        self._serve_due = True
        if self._partial and not any(poll.over for poll in self._polls):
            self._scheduler.call_later(SECOND_LOOK_SECONDS, self._on_turn)
        else:
            self._scheduler.call_soon(self._on_turn)

    def _on_turn(self) -> None:
        self._serve_due = False
        self._serve()

    def _on_deadline(self, poll: Poll) -> None:
        poll.over = True
        self._serve()

    def _serve(self) -> None:
        """Do one turn of checks and answers.

        After an unforeseen exception a slot may be in no state, and would starve: the session closes, and its client
        names everything again.
        """
        if self.closed:
            return
        try:
            self._serve_turn()
        except Exception:
            self.close()
            raise

    def _serve_turn(self) -> None:
        for _ in range(min(len(self._named), TAKEN_A_TURN)):
            self._take_in(self._named.popleft())
        for slot in self._partial:
            self._stop_waiting(slot)
            self._new.pop(slot, None)
            self._ready[slot] = None
        self._partial.clear()
        for slot in list(islice(self._new, LOOKS_A_TURN)):
            del self._new[slot]
            self._look(slot)
        budget = READS_A_TURN
        for poll in sorted(self._polls, key=lambda poll: not poll.over):
            if budget <= 0 or not (self._ready or poll.over) or self._partial or self.closed:
                break
            budget -= self._answer(poll, budget)
        unread = budget <= 0 and self._polls and self._ready
        if self._named or self._new or unread or any(poll.over for poll in self._polls):
            self._wake()

    def _look(self, slot: Slot) -> None:
        read, end_offset = look(self._replicas, slot.asked, committed=self._committed)
        asked, driver = slot.asked, read.driver
        within = driver is not None and driver.log.log_start_offset <= asked.offset <= read.high_watermark
        if read.error is not None or not within or asked.offset < end_offset:
            self._moved.pop(slot, None)
            self._ready[slot] = None
        else:
            self._wait(slot, read)

    def _wait(self, slot: Slot, read: PartitionRead) -> None:
        assert read.driver is not None
        read.driver.wait_readable(slot)
        if (read.high_watermark, read.last_stable_offset) != slot.told:
            read.ranges = None  # Without batches, no ranges are sent.
            self._moved[slot] = read

    def _answer(self, poll: Poll, budget: int) -> int:
        """Answer the poll, unless it wants more than there is; return the work done, in the units of the budget."""
        reads: list[tuple[Slot, PartitionRead]] = []
        total, work = 0, 0
        enough = poll.over or poll.min_bytes <= 0
        for slot in list(islice(self._ready, budget)):
            room = poll.max_bytes - total
            if room <= 0 and reads:
                enough = True  # The answer is full, however much was wanted.
                break
            if work >= budget:
                break
            read = read_partition(self._replicas, slot.asked, room, first=not total, committed=self._committed)
            work += read.work
            if read.error is not None:
                enough = True
            elif read.cold:
                # Bytes are counted when they are loaded; at most this many come.
                total += min(slot.asked.max_bytes, room)
                enough = True
            elif read.piece is not None and read.piece.length:
                total += read.piece.length
                limit = read.last_stable_offset if self._committed else read.high_watermark
                enough = enough or read.piece.next_offset < limit  # Reading again would return no more.
            elif not total:
                # No whole batch ends below the visible end, though one begins there.
                del self._ready[slot]
                self._wait(slot, read)
                continue
            else:
                enough = True  # Its first batch does not fit any more.
                break
            reads.append((slot, read))
        if enough or (reads and (total >= poll.min_bytes or work >= READS_A_TURN)):
            self._take(poll, reads)  # A turn makes no larger answer, however much was wanted.
        elif work >= budget:
            _release(reads)  # Others had a part of this turn; the next one is this poll's alone.
        else:
            self._put_off(reads)
        return max(work, 1)

    def _put_off(self, reads: Sequence[tuple[Slot, PartitionRead]]) -> None:
        """Wait for more data in these slots, and for all others: a poll wants more than there is."""
        for slot, read in reads:
            read.release()
            assert read.driver is not None
            read.driver.wait_readable(slot)
            del self._ready[slot]
            self._partial[slot] = None

    def _take(self, poll: Poll, reads: Sequence[tuple[Slot, PartitionRead]]) -> None:
        """End these slots; settle doubtful answers, load what is cold, then answer."""
        del self._polls[poll]
        if poll.timer is not None:
            poll.timer.cancel()
        for slot, _ in reads:
            del self._ready[slot]
            del self._slots[slot.asked.slot]
        self._left(len(reads))
        found = [read for _, read in reads]
        self._doubts.complete(found, lambda: self._finish(poll, reads), committed=self._committed)

    def _finish(self, poll: Poll, reads: Sequence[tuple[Slot, PartitionRead]]) -> None:
        if self.closed:
            _release(reads)
            poll.done([], [])
            return
        for _, read in reads:
            if read.error is None and (read.piece is None or not read.piece.length):
                # The client would assume that a slot without batches and without an error still waits.
                read.error = RetriableError("offset_not_available", "nothing can be read there now: retry")
        answers = [read.slot_answer(slot.asked.slot) for slot, read in reads]
        parts = [part for _, read in reads if read.piece is not None for part in read.piece.parts]
        poll.done(answers + self._marks(), parts)

    def _marks(self) -> list[FetchedSlot]:
        """Return the new marks of waiting slots."""
        told = []
        for slot in list(islice(self._moved, MARKS_PER_ANSWER)):
            read = self._moved.pop(slot)
            slot.told = (read.high_watermark, read.last_stable_offset)
            told.append(read.slot_answer(slot.asked.slot))
        return told

    def _take_in(self, named: SlotToFetch | int) -> None:
        if isinstance(named, int):
            self._drop(named)
        else:
            slot = self._slots[named.slot] = Slot(named, self._on_slot_readable)
            self._new[slot] = None

    def _drop(self, number: int) -> None:
        slot = self._slots.pop(number, None)
        if slot is None:
            return
        self._left(1)
        if slot not in self._new and slot not in self._ready:
            self._stop_waiting(slot)
        for slots in (self._new, self._ready, self._partial, self._moved):
            slots.pop(slot, None)

    def _stop_waiting(self, slot: Slot) -> None:
        driver = self._replicas.driver(slot.topic_partition)
        if driver is not None:
            driver.stop_waiting(slot)

    def __str__(self) -> str:
        places = f"new={len(self._new)} ready={len(self._ready)} polls={len(self._polls)}"
        return f"session {self.number} slots={len(self._slots)} {places}"


def _release(reads: Sequence[tuple[Slot, PartitionRead]]) -> None:
    """Release what was read, unsent."""
    for _, read in reads:
        read.release()
