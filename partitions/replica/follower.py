"""The follower of one partition in one leader epoch: it matches its log with the leader's, then appends what is pushed.

    detached ──link──► asking ──matched──► streaming
        ▲                │  ▲                  │
        │   diverged or  │  │ truncated        │ link lost, refused, corrupt
        │   start at     ▼  │                  │
        └─ link lost ─ truncating              ▼
                                            waiting ──time──► asking

A follower truncates only by what the leader of this very epoch said about (epoch, end), and before it appends anything;
never to the high watermark, which it may know too low (S6). It reports its log's stable end: fetching and appending
promise nothing. Its own high watermark is the leader's, as far as its log reaches; it exposes nothing to consumers.
"""

from __future__ import annotations

import enum

from raftlog.errors import Contradiction, InvariantViolation, RemoteProtocolError
from raftlog.model import BrokerId, LeaderEpoch, Offset, PartitionRecord

from .effects import (
    AdvanceHighWatermark,
    AdvanceLogStart,
    Answer,
    AppendFetched,
    Diverged,
    Effect,
    FetchedBatch,
    Matched,
    ReportStable,
    StartAt,
    StartLogAt,
    Subscribe,
    TruncateTo,
    Unsubscribe,
)
from .log_view import LogView, truncation_for

RETRY_SECONDS = 0.5
"""Seconds to wait after a refusal; the leader may not have learned yet what this broker's view shows."""

DISK_FULL_RETRY_SECONDS = 1.0

CORRUPT_RETRY_SECONDS_MAX = 30.0
"""The longest backoff, in seconds, for a leader whose copy is damaged, so that other partitions keep the link."""


class State(enum.Enum):
    """The follower's progress with its leader."""

    DETACHED = "detached"
    ASKING = "asking"
    TRUNCATING = "truncating"
    STREAMING = "streaming"
    WAITING = "waiting"


class Follower:
    """The follower of one partition in one leader epoch.

    Invariant: `high_watermark <= log_end_offset`.
    Invariant: while streaming, the log is a prefix of the leader's.
    """

    def __init__(self, node_id: BrokerId, record: PartitionRecord, log: LogView, *, high_watermark: Offset) -> None:
        self._node_id = node_id
        self.record = record
        self._log = log
        self.high_watermark = Offset(min(high_watermark, log.log_end_offset))
        self.state = State.DETACHED
        self._linked = False
        self._reported = Offset(-1)
        self._reported_start = Offset(0)
        self._retry_at = 0.0
        self._corruptions = 0

    @property
    def leader_epoch(self) -> LeaderEpoch:
        return self.record.leader_epoch

    # --- The link ---

    def on_link_opened(self, now: float) -> list[Effect]:
        """Subscribe: the link to the leader, in the incarnation that the record names, is open."""
        self._linked = True
        if self.state is State.WAITING and now < self._retry_at:
            return []
        return self._ask()

    def on_link_lost(self) -> list[Effect]:
        self._linked = False
        if self.state is not State.WAITING:
            self.state = State.DETACHED
        return []

    def on_answer(self, leader_epoch: LeaderEpoch, answer: Answer, now: float) -> list[Effect]:
        """Apply the leader's answer to the last `Subscribe`, or a later refusal that revokes it.

        Raises `RemoteProtocolError` for an impossible answer, and `Contradiction` if this replica would have to remove
        committed records (S6): it keeps them, and asks again later.
        """
        if leader_epoch != self.leader_epoch or self.state not in {State.ASKING, State.STREAMING}:
            return []
        if isinstance(answer, Matched):
            if self.state is State.STREAMING:
                raise RemoteProtocolError("matched twice")
            self.state = State.STREAMING
            return [*self._follow_marks(self._log.log_end_offset, answer), *self.on_stable()]
        try:
            if isinstance(answer, Diverged):
                if self.state is State.STREAMING:
                    raise RemoteProtocolError("matched, and then diverged in the same epoch")
                return self._shorten(truncation_for(self._log, answer))
            if isinstance(answer, StartAt):
                return self._begin_anew(answer)
        except Contradiction:
            self._back_off(now)
            raise
        return self._wait(now, RETRY_SECONDS)

    def on_truncated(self, leader_epoch: LeaderEpoch) -> list[Effect]:
        """Subscribe again from the new end: the truncation was performed."""
        if leader_epoch != self.leader_epoch or self.state is not State.TRUNCATING:
            return []
        return self._ask()

    # --- Data ---

    def on_pushed(self, leader_epoch: LeaderEpoch, batches: list[FetchedBatch], marks: Matched) -> list[Effect]:
        """Append batches that follow the log's end, all or none, and apply the leader's marks; `batches` may be empty.

        Raises `RemoteProtocolError` if they do not continue the log (S4).
        """
        if leader_epoch != self.leader_epoch or self.state is not State.STREAMING:
            return []
        end_offset, epoch = self._log.log_end_offset, self._log.epochs.latest_epoch
        for batch in batches:
            header = batch.header
            if header.base_offset != end_offset or not epoch <= header.leader_epoch <= leader_epoch:
                raise RemoteProtocolError(
                    f"pushed batch begins at {header.base_offset} in epoch {header.leader_epoch}, the log ends at "
                    f"{end_offset} in epoch {epoch}, the leader's is {leader_epoch}"
                )
            end_offset, epoch = Offset(header.end_offset), LeaderEpoch(header.leader_epoch)
        if batches:
            self._corruptions = 0
        effects: list[Effect] = [AppendFetched(leader_epoch, batches)] if batches else []
        return effects + self._follow_marks(end_offset, marks)

    def on_corrupt_push(self, now: float) -> list[Effect]:
        """Back off: the leader's bytes were damaged. Nothing was appended, and the caller drops the link."""
        return self._back_off(now)

    def _back_off(self, now: float) -> list[Effect]:
        """Wait longer after each fault of the leader: the other partitions keep the link meanwhile."""
        self._corruptions += 1
        return self._wait(now, min(CORRUPT_RETRY_SECONDS_MAX, RETRY_SECONDS * 2.0 ** min(self._corruptions, 10)))

    def on_disk_full(self, now: float) -> list[Effect]:
        """Unsubscribe and retry later from the log's end then: the disk has no room for the leader's batches.

        A push must not wait this long, because it would hold the credit of all partitions of the link.
        """
        if self.state is not State.STREAMING:
            return []
        return [Unsubscribe(self.record.leader, self.leader_epoch), *self._wait(now, DISK_FULL_RETRY_SECONDS)]

    def on_stable(self) -> list[Effect]:
        """Report to the leader if the log's stable end or start moved."""
        stable, start = self._log.stable_end_offset, self._stable_start
        if self.state is not State.STREAMING or (stable <= self._reported and start <= self._reported_start):
            return []
        self._reported, self._reported_start = stable, start
        return [ReportStable(self.leader_epoch, self._log.log_end_offset, stable, start)]

    # --- Time and metadata ---

    def on_tick(self, now: float) -> list[Effect]:
        if self.state is State.WAITING and self._linked and now >= self._retry_at:
            return self._ask()
        return []

    def on_record(self, record: PartitionRecord) -> list[Effect]:
        """Apply a newer record of the same leader epoch."""
        if record.leader_epoch != self.leader_epoch:
            raise InvariantViolation(
                f"follower in epoch {self.leader_epoch} got a record of epoch {record.leader_epoch}"
            )
        self.record = record
        return []

    def stop(self) -> list[Effect]:
        """End the subscription."""
        linked, self._linked, self.state = self._linked, False, State.DETACHED
        return [Unsubscribe(self.record.leader, self.leader_epoch)] if linked else []

    @property
    def quiet(self) -> bool:
        """Whether this follower waits for no timer."""
        return self.state is not State.WAITING

    # --- Inside ---

    def _ask(self) -> list[Effect]:
        if not self._linked:
            self.state = State.DETACHED
            return []
        log = self._log
        self.state = State.ASKING
        self._reported, self._reported_start = log.stable_end_offset, self._stable_start
        record = self.record
        last_epoch = log.epochs.latest_epoch
        return [
            Subscribe(
                record.leader,
                record.leader_incarnation,
                record.leader_epoch,
                last_epoch,
                log.log_end_offset,
                self._reported,
                self._reported_start,
            )
        ]

    @property
    def _stable_start(self) -> Offset:
        """The log start on disk, or the log's end while the disk still has a start beyond it: the leader made this
        replica start again below its former log, and that is not written yet."""
        return min(self._log.stable_start_offset, self._log.log_end_offset)

    def _wait(self, now: float, seconds: float) -> list[Effect]:
        self.state = State.WAITING
        self._retry_at = now + seconds
        return []

    def _begin_anew(self, answer: StartAt) -> list[Effect]:
        """Start over with an empty log: nothing of this log can be compared."""
        self._refuse_to_lose(answer.first_batch_offset)
        self.state = State.TRUNCATING
        self.high_watermark = answer.first_batch_offset
        return [StartLogAt(self.leader_epoch, answer.first_batch_offset, answer.greatest_producer_id)]

    def _shorten(self, end_offset: Offset) -> list[Effect]:
        """Drop what the leader does not have, unless that is committed."""
        self._refuse_to_lose(end_offset)
        self.state = State.TRUNCATING
        if end_offset < self._log.log_start_offset:
            self.high_watermark = end_offset
            return [StartLogAt(self.leader_epoch, end_offset)]
        self.high_watermark = min(self.high_watermark, end_offset)
        return [TruncateTo(self.leader_epoch, end_offset)]

    def _refuse_to_lose(self, end_offset: Offset) -> None:
        if end_offset < self.high_watermark and self._vouches():
            raise Contradiction(
                f"of its log of {self.record.topic_partition} this one could keep what is below {end_offset}, but as a "
                f"member of the ISR or the commit set it has committed records up to {self.high_watermark} (S6): "
                f"{self.record}"
            )

    def _vouches(self) -> bool:
        """Whether committed records may rest on this replica."""
        record = self.record
        counted = self._node_id in record.isr or self._node_id in record.commit_set
        return counted and self._node_id not in record.not_eligible

    def _follow_marks(self, log_end_offset: Offset, marks: Matched) -> list[Effect]:
        effects: list[Effect] = []
        high_watermark = min(marks.high_watermark, log_end_offset)
        if high_watermark > self.high_watermark:
            self.high_watermark = high_watermark
            effects.append(AdvanceHighWatermark(high_watermark, exposed=False))
        log_start = min(marks.log_start_offset, self.high_watermark)
        if log_start > self._log.log_start_offset:
            effects.append(AdvanceLogStart(log_start))
        return effects

    def check_invariants(self) -> None:
        """Raise `InvariantViolation` if an invariant does not hold."""
        log = self._log
        if not log.stable_end_offset <= log.log_end_offset:
            raise InvariantViolation(f"stable end {log.stable_end_offset} beyond the log's {log.log_end_offset}")
        if self.high_watermark > log.log_end_offset:
            raise InvariantViolation(f"high watermark {self.high_watermark} beyond the log's {log.log_end_offset}")
        if self.state is State.STREAMING and log.epochs.latest_epoch > self.leader_epoch:
            raise InvariantViolation(f"log has epoch {log.epochs.latest_epoch}, its leader {self.leader_epoch}")

    def __str__(self) -> str:
        log = self._log
        return (
            f"follower of {self.record.leader} epoch={self.leader_epoch} leo={log.log_end_offset} "
            f"stable={log.stable_end_offset} hw={self.high_watermark} {self.state.value}"
        )
