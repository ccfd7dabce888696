"""The leader's part in transactions: which batches it takes, and the markers that it writes for what is decided.

    quorum decides ──view──► verdict(key)? ──for what is open here──► marker ──replicated──► markers_written
                                                 ▲
                                a new leader finds it open, and does the same

A leader is told nothing of a transaction: it *asks* its own copy of the decisions about whatever is open in its log,
when there is news, when it takes over, and now and then. So it needs no memory: a marker that did not survive a change
of leaders leaves its transaction open in the next one's log, which asks again; one that did has ended it, and nobody
asks. What is open is judged at the log's end, so there are never two markers in flight for one transaction.

* **A marker** is one control batch for all that are committed, one for all that are aborted, of one look. A commit's
  carries the offset that the quorum named for this partition; what lies behind it is aborted with it (R4).
* **Markers written** is said of a commit when it is not open here and no marker of this leader for it is above the
  high watermark, which must be exposed: then all that the predecessors wrote is below. That also holds where there was
  nothing to be marked any more. A new leader says it again, of all that the quorum still waits for.
* **Overdue** is what has been open here for longer than it may, by this leader's clock: only the quorum aborts.

One look takes a bounded number of transactions; `more` says that it was not the last.

Sources: KIP-98 and KIP-890, but for who sends: here outcomes are asked for (S13).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from partitions.producers.aborted_ranges import MAX_ABORTED_RANGES
from partitions.producers.control_batches import control_of
from partitions.producers.transactions import TransactionState, key_of
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError, error_from_code
from raftlog.model import Acks, Offset, PartitionRecord, TopicPartition
from raftlog.records.batch import ControlKind, encode_control, parse_header
from raftlog.transactions import NO_OFFSET, Outcome, TransactionKey, TransactionVerdicts, Verdict

from .effects import (
    NO_REQUEST,
    Append,
    Effect,
    IncomingBatch,
    LookAtTransactions,
    MarkersWritten,
    TransactionsOverdue,
)
from .followers import Followers
from .isr import IsrState
from .log_view import LogView
from .produces import UnreplicatedProduces

MAX_OPEN_TRANSACTIONS = 12_000
"""Of one partition; the next one is told `overloaded`. One commit may have ten thousand, and some attempts failed."""

LOOK_KEYS = 500
"""Transactions of one look: a millisecond, and a marker of at most 20 KB."""

SWEEP_SECONDS = 0.5
"""All that is open is looked at so often, news or not."""

OVERDUE_AGAIN_SECONDS = 10.0
"""What was reported as overdue and is still open is reported again."""

_MARKER_BYTES_MAX = 64 * 1024
_Entry = tuple[TransactionKey, Offset]


class NoTransactions:
    """`TransactionVerdicts` of a broker without any: none is known, none is taken."""

    def verdict(self, key: TransactionKey, topic_partition: TopicPartition) -> Verdict:
        return Verdict(Outcome.UNDECIDED)

    def unmarked(self, topic_partition: TopicPartition) -> Iterable[TransactionKey]:
        return ()

    def refusal(self, key: TransactionKey) -> str:
        return "unknown_transaction"

    def timeout_ms(self, key: TransactionKey) -> int | None:
        return None


@dataclass(frozen=True, slots=True)
class LeftOpen:
    """A transaction that is open in a partition that is led here."""

    key: TransactionKey
    topic_partition: TopicPartition
    first_offset: Offset
    since: float | None
    """Monotonic seconds, half a second more or less; None: since before this leadership."""


@dataclass(slots=True)
class _Found:
    """What one look found of what is open."""

    aborted: list[_Entry] = field(default_factory=list)
    committed: list[_Entry] = field(default_factory=list)
    overdue: list[TransactionKey] = field(default_factory=list)


@dataclass(slots=True)
class _Seen:
    """How long this leader has known an open transaction, in its own monotonic seconds."""

    since: float
    reported: float | None = None


class LeaderTransactions:
    """Of one leadership. See the module.

    Invariant: a transaction of `_writing` is not open, or was opened again behind its marker.
    """

    def __init__(
        self,
        record: PartitionRecord,
        log: LogView,
        isr: IsrState,
        produces: UnreplicatedProduces,
        followers: Followers,
        state: TransactionState,
        verdicts: TransactionVerdicts | None,
    ) -> None:
        """`verdicts` None: there are no transactions here."""
        self._topic_partition = record.topic_partition
        self._leader_epoch = record.leader_epoch
        self._log = log
        self._start = log.log_end_offset
        self._isr = isr
        self._produces = produces
        self._followers = followers
        self._state = state
        self._verdicts: TransactionVerdicts = verdicts or NoTransactions()
        self._news = False
        self._next_sweep = 0.0
        self._sweep: deque[TransactionKey] = deque()
        self._seen: dict[TransactionKey, _Seen] = {}
        self._markers: deque[tuple[Offset, list[TransactionKey]]] = deque()
        """(end offset, whom it names) of this leadership's markers that are not below the high watermark."""
        self._writing: dict[TransactionKey, Offset] = {}
        """→ the end of its last marker among those."""
        self._reported: set[TransactionKey] = set()
        self._ask_unmarked = True
        self._look_asked = False
        self.looked_at = 0
        """Transactions of the last look."""

    def begin(self, exposed: Offset | None) -> list[Effect]:
        """The leadership begins."""
        return self._ask_for_a_look() if self._state.open_count or exposed is not None else []

    # --- Batches ---

    def refusal(self, batch: IncomingBatch) -> RaftlogError | None:
        """Why this batch of a transaction, which is not in the log yet or is there already, is not taken."""
        if batch.acks is not Acks.ALL:
            return InvalidRequest("invalid_request", "batches of a transaction are written with acks=all")
        key = key_of(batch.header)
        code = self._verdicts.refusal(key)
        if code:
            return error_from_code(code, f"no more is taken of the transaction of {_who(key)}")
        if self._state.is_open(key):
            return None
        if self._verdicts.timeout_ms(key) is None:
            # Nobody could ever end it if it is not known to the quorum, so it is not begun before that is sure.
            return RetriableError("replica_not_available", f"the transaction of {_who(key)} is not known here yet")
        if self._state.open_count >= MAX_OPEN_TRANSACTIONS:
            return RetriableError("overloaded", f"{MAX_OPEN_TRANSACTIONS} transactions are open in this partition")
        if len(self._state.aborted) >= MAX_ABORTED_RANGES:
            return RetriableError("overloaded", f"{MAX_ABORTED_RANGES} aborted ranges are kept in this partition")
        return None

    def left_open(self, limit: int) -> list[LeftOpen]:
        """What is open here, oldest first, at most so many."""
        found = []
        for key, first in islice(self._state.open_items(), limit):
            seen = self._seen.get(key) if first >= self._start else None
            found.append(LeftOpen(key, self._topic_partition, first, None if seen is None else seen.since))
        return found

    # --- Looks ---

    def news(self) -> None:
        """Something was decided, or may have been."""
        self._news = self._ask_unmarked = True

    @property
    def more(self) -> bool:
        """Another look is due at once."""
        return bool(self._sweep) or self._news

    @property
    def quiet(self) -> bool:
        """There is nothing to look at, now or later, unless a batch, news or another high watermark come."""
        return not (self._state.open_count or self._markers)

    def is_due(self, now: float) -> bool:
        """Whether it is time to look, though nothing happened."""
        return self.more or (not self.quiet and now >= self._next_sweep)

    def look(self, now: float, wall_ms: int, exposed: Offset | None, *, may_write: bool = True) -> list[Effect]:
        """Ask about the next of what is open, write what is decided. `exposed` is the high watermark that consumers may
        see, None while there is none; `wall_ms` is for the markers' timestamps; `may_write`: the disk has room."""
        effects: list[Effect] = []
        self._look_asked = False
        self.looked_at = 0
        if may_write and not self._isr.below_minimum and self._produces.has_room(2 * _MARKER_BYTES_MAX):
            found = self._ask_next(now)
            effects += self._write_markers(found, now, wall_ms)
            if found.overdue:
                effects.append(TransactionsOverdue(tuple(found.overdue)))
        else:
            # Time passes before there is anything else to be done, so nobody is to look again at once.
            self._sweep.clear()
            self._news = False
            self._next_sweep = now + SWEEP_SECONDS
        return [*effects, *self._marked(exposed)]

    def on_high_watermark(self, high_watermark: Offset, *, exposed: bool) -> list[Effect]:
        """It moved up to here."""
        while self._markers and self._markers[0][0] <= high_watermark:
            end, keys = self._markers.popleft()
            for key in keys:
                if self._writing.get(key) == end:
                    del self._writing[key]
            self._ask_unmarked = True
        return self._ask_for_a_look() if exposed and self._ask_unmarked else []

    # --- Inside ---

    def _ask_for_a_look(self) -> list[Effect]:
        """Once: it comes."""
        asked, self._look_asked = self._look_asked, True
        return [] if asked else [LookAtTransactions()]

    def _ask_next(self, now: float) -> _Found:
        """What became of the next open transactions."""
        if not self._sweep and (self._news or now >= self._next_sweep):
            self._news = False
            self._next_sweep = now + SWEEP_SECONDS
            self._sweep.extend(self._state.open_keys())
            self._seen = {key: self._seen.get(key) or _Seen(now) for key in self._sweep}
        found = _Found()
        self.looked_at = min(len(self._sweep), LOOK_KEYS)
        for _ in range(self.looked_at):
            key = self._sweep.popleft()
            if not self._state.is_open(key):
                continue
            verdict = self._verdicts.verdict(key, self._topic_partition)
            if verdict.outcome is Outcome.ABORTED:
                found.aborted.append((key, NO_OFFSET))
            elif verdict.outcome is Outcome.COMMITTED:
                found.committed.append((key, verdict.end_offset))
            elif self._is_overdue(key, now):
                found.overdue.append(key)
        return found

    def _is_overdue(self, key: TransactionKey, now: float) -> bool:
        """Whether it is to be reported now."""
        timeout_ms, seen = self._verdicts.timeout_ms(key), self._seen[key]
        if timeout_ms is None or now - seen.since < timeout_ms / 1000:
            return False
        if seen.reported is not None and now - seen.reported < OVERDUE_AGAIN_SECONDS:
            return False
        seen.reported = now
        return True

    def _write_markers(self, found: _Found, now: float, wall_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        offset = self._log.log_end_offset
        for kind, entries in ((ControlKind.ABORT, found.aborted), (ControlKind.COMMIT, found.committed)):
            if entries:
                effects.append(self._marker(kind, entries, offset, now, wall_ms))
                offset = Offset(offset + 1)
        return effects

    def _marker(self, kind: ControlKind, entries: Sequence[_Entry], offset: Offset, now: float, wall_ms: int) -> Append:
        data = encode_control(kind, [(*key, named) for key, named in entries], base_timestamp_ms=wall_ms)
        header = parse_header(data)
        end = Offset(offset + 1)
        self._produces.appended(end, header.total_bytes)
        for progress in self._followers:
            progress.on_append(offset, now)
        keys = [key for key, _ in entries]
        self._markers.append((end, keys))
        self._writing.update(dict.fromkeys(keys, end))
        batch = IncomingBatch(NO_REQUEST, header, data, Acks.ALL, control=control_of(header, data))
        return Append(self._leader_epoch, offset, batch)

    def _marked(self, exposed: Offset | None) -> list[Effect]:
        """Of the commits that the quorum waits for, those that are settled here."""
        if exposed is None or not self._ask_unmarked:
            return []
        self._ask_unmarked = False
        waited_for = dict.fromkeys(self._verdicts.unmarked(self._topic_partition))
        self._reported &= waited_for.keys()
        settled = [
            key
            for key in waited_for
            if key not in self._reported and key not in self._writing and not self._state.is_open(key)
        ]
        self._reported.update(settled)
        return [MarkersWritten(tuple(settled))] if settled else []


def _who(key: TransactionKey) -> str:
    return f"producer {key.producer_id} epoch {key.producer_epoch}"
