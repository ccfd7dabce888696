"""The leader's part in transactions: the batches that it accepts, and the markers that it writes for what is decided.

    quorum decides ──view──► verdict(key)? ──for each open transaction──► marker ──replicated──► markers_written
                                                 ▲
                               a new leader finds it open, and does the same

No one sends a leader the outcome of a transaction. The leader *asks* its own copy of the decisions about the
transactions that its log leaves open: when there is news, when it takes over, and periodically. So it needs no memory:
if a marker is lost in a change of leaders, the transaction is open in the next leader's log, and that leader asks. If
the marker survives, the transaction has ended and no leader asks. Openness is judged at the log's end, so there are
never two markers in flight for one transaction.

* **A marker** is one control batch for all transactions that one check found committed, and one for all aborted ones.
  A commit's entry carries the offset that the quorum named for this partition; batches behind it are aborted with it
  (R4).
* **Markers written** is reported for a commit when it is not open here and no marker of this leader for it is above the
  high watermark, which must be exposed: then everything that the predecessors wrote is below it. It also holds if there
  was nothing left to mark. A new leader reports it again, for all commits that the quorum still waits for.
* **Overdue** is a transaction that has been open here for longer than its timeout, by this leader's clock: only the
  quorum aborts.

One check handles a bounded number of transactions; `more` says that another is due.

Sources: KIP-98 and KIP-890, except for the sender: here leaders ask for outcomes (S13).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

import msgspec

from partitions.producers.aborted_ranges import MAX_ABORTED_RANGES
from partitions.producers.control_batches import control_of
from partitions.producers.transactions import TransactionState, key_of
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError, error_from_code
from raftlog.model import Acks, Offset, PartitionRecord, TopicPartition
from raftlog.records.batch import ControlKind, encode_control, parse_header
from raftlog.transactions import NO_OFFSET, Outcome, TransactionKey, TransactionVerdicts

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
"""Bound for one partition; above it the leader answers `overloaded`. One commit may have ten thousand, plus retries."""

LOOK_KEYS = 500
"""Transactions of one check: a millisecond, and a marker of at most 20 KB."""

SWEEP_SECONDS = 0.5
"""The interval at which all open transactions are checked, with news or without."""

OVERDUE_AGAIN_SECONDS = 10.0
"""The interval at which an overdue transaction that is still open is reported again."""

_MARKER_BYTES_MAX = 64 * 1024
_Entry = tuple[TransactionKey, Offset]


class LeftOpen(msgspec.Struct, frozen=True):
    """A transaction that is open in a partition that this broker leads."""

    key: TransactionKey
    topic_partition: TopicPartition
    first_offset: Offset
    since: float | None
    """Monotonic seconds, to within half a second; None: since before this leadership."""
    seen_since: float | None = None
    """Monotonic seconds at which this leader first saw it, even if it began before; None: it has not looked yet."""


class _Found(msgspec.Struct):
    """The open transactions of one check that need an action."""

    aborted: list[_Entry] = []
    committed: list[_Entry] = []
    overdue: list[TransactionKey] = []


class _Seen(msgspec.Struct):
    """How long this leader has known an open transaction, in its monotonic seconds."""

    since: float
    reported: float | None = None


class LeaderTransactions:
    """The transactions of one leadership.

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
        verdicts: TransactionVerdicts,
    ) -> None:
        self._topic_partition = record.topic_partition
        self._leader_epoch = record.leader_epoch
        self._log = log
        self._start = log.log_end_offset
        self._isr = isr
        self._produces = produces
        self._followers = followers
        self._state = state
        self._verdicts = verdicts
        self._news = False
        self._next_sweep = 0.0
        self._sweep: deque[TransactionKey] = deque()
        self._seen: dict[TransactionKey, _Seen] = {}
        self._markers: deque[tuple[Offset, list[TransactionKey]]] = deque()
        """(end offset, transactions) of each marker of this leadership that is not below the high watermark."""
        self._writing: dict[TransactionKey, Offset] = {}
        """Transaction → the end of its last marker among those."""
        self._reported: set[TransactionKey] = set()
        self._ask_unmarked = True
        self._look_asked = False
        self.looked_at = 0
        """The number of transactions that the last check looked at."""

    def begin(self, exposed: Offset | None) -> list[Effect]:
        """Begin the leadership."""
        return self._ask_for_a_look() if self._state.open_count or exposed is not None else []

    # --- Batches ---

    def refusal(self, batch: IncomingBatch) -> RaftlogError | None:
        """Return the error if a batch of a transaction, new or already in the log, is not accepted."""
        if batch.acks is not Acks.ALL:
            return InvalidRequest("invalid_request", "batches of a transaction must be written with acks=all")
        key = key_of(batch.header)
        code = self._verdicts.refusal(key)
        if code:
            return error_from_code(code, f"no more batches are accepted for the transaction of {_who(key)}")
        if self._state.is_open(key):
            return None
        if self._verdicts.timeout_ms(key) is None:
            # If the quorum does not know the transaction, it could never end it; so it is not begun before that is
            # certain.
            return RetriableError(
                "replica_not_available", f"the transaction of {_who(key)} is not known to this leader yet: retry"
            )
        if self._state.open_count >= MAX_OPEN_TRANSACTIONS:
            return RetriableError("overloaded", f"{MAX_OPEN_TRANSACTIONS} transactions are open in this partition")
        if len(self._state.aborted) >= MAX_ABORTED_RANGES:
            return RetriableError("overloaded", f"{MAX_ABORTED_RANGES} aborted ranges are kept in this partition")
        return None

    def left_open(self, limit: int) -> list[LeftOpen]:
        """Return at most `limit` transactions that are open here, oldest first."""
        found = []
        for key, first in islice(self._state.open_items(), limit):
            seen = self._seen.get(key)
            since = None if seen is None else seen.since
            began = since if first >= self._start else None
            found.append(LeftOpen(key, self._topic_partition, first, began, since))
        return found

    # --- Checks ---

    def news(self) -> None:
        """Record that transactions were decided, or may have been."""
        self._news = self._ask_unmarked = True

    @property
    def more(self) -> bool:
        """Whether another check is due at once."""
        return bool(self._sweep) or self._news

    @property
    def quiet(self) -> bool:
        """Whether there is nothing to check until a batch, news or another high watermark arrives."""
        return not (self._state.open_count or self._markers)

    def is_due(self, now: float) -> bool:
        """Whether a check is due, with or without an event."""
        return self.more or (not self.quiet and now >= self._next_sweep)

    def look(self, now: float, wall_ms: int, exposed: Offset | None, *, may_write: bool = True) -> list[Effect]:
        """Check the next open transactions, and write the markers of those that are decided.

        `exposed` is the high watermark that consumers may see, None while there is none; `wall_ms` is for the markers'
        timestamps; `may_write` says that the disk has room.
        """
        effects: list[Effect] = []
        self._look_asked = False
        self.looked_at = 0
        if may_write and not self._isr.below_minimum and self._produces.has_room(2 * _MARKER_BYTES_MAX):
            found = self._ask_next(now)
            effects += self._write_markers(found, now, wall_ms)
            if found.overdue:
                effects.append(TransactionsOverdue(tuple(found.overdue)))
        else:
            # Nothing can be done before some time has passed, so no check is due at once.
            self._sweep.clear()
            self._news = False
            self._next_sweep = now + SWEEP_SECONDS
        return [*effects, *self._marked(exposed)]

    def on_high_watermark(self, high_watermark: Offset, *, exposed: bool) -> list[Effect]:
        """Drop the markers that are replicated now: the high watermark advanced."""
        while self._markers and self._markers[0][0] <= high_watermark:
            end, keys = self._markers.popleft()
            for key in keys:
                if self._writing.get(key) == end:
                    del self._writing[key]
            self._ask_unmarked = True
        return self._ask_for_a_look() if exposed and self._ask_unmarked else []

    # --- Inside ---

    def _ask_for_a_look(self) -> list[Effect]:
        """Request one check, unless one is requested already."""
        asked, self._look_asked = self._look_asked, True
        return [] if asked else [LookAtTransactions()]

    def _ask_next(self, now: float) -> _Found:
        """Sort the next open transactions by their outcome."""
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
        """Whether the transaction is to be reported as overdue now."""
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
        """Report the commits that the quorum waits for and that are settled here."""
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
