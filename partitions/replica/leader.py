"""The leader of one partition in one leader epoch: appending, acknowledging, the ISR, and what consumers may read.

Events and the time go in, effects come out. A `Leader` object lives for one epoch; the next epoch gets a new one.

* **High watermark**: the smallest stable end over the *maximal* ISR, this replica included, while the accepted ISR has
  `min.insync.replicas` members (`isr.py`). It never falls within an epoch.
* **Exposure**: consumers see nothing before the high watermark has reached `epoch_start_offset`, the log end at the
  start of this leadership: below it this leader may know less than its predecessor has exposed. A leader with nothing
  to append gets there as well: it suffices that every member of the maximal ISR has all of the old log on disk.
* **Fencing**: requests of a follower are accepted only in the incarnation that this broker's view shows, and only in
  this leader epoch.
* **ISR**: the leader proposes to remove a lagging member after `replica_lag_max_ms`, and a fenced broker at once. It
  proposes to add a replica that has `max(high watermark, epoch start)` stable, in this epoch and its present
  incarnation, and whose log start is not below any that was promised.

Sources: KIP-101/279/320 (epochs), KIP-497 (ISR), KIP-966 (floor), Raft §5.4.2 (why a new leader waits).
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from partitions.producers.entries import AppendedBatch
from partitions.producers.state import Ahead, Duplicate, NoRoom, ProducerStates, RefusedSequence
from raftlog.errors import InvalidRequest, InvariantViolation, LogEndMoved, NotLeader, RaftlogError, RetriableError
from raftlog.model import Acks, BrokerId, BrokerRecord, Incarnation, LeaderEpoch, Offset, PartitionRecord, ProducerId
from raftlog.transactions import TransactionVerdicts

from .deletions import Deletions
from .effects import (
    AbandonWrites,
    Acknowledge,
    AdvanceHighWatermark,
    AnswerFollower,
    Append,
    DropFollowers,
    Effect,
    Fate,
    FollowerPosition,
    IncomingBatch,
    IsrProposal,
    Matched,
    ProposeIsr,
    Refused,
    Reject,
    ReportStable,
    StartAt,
    WhenStable,
)
from .followers import FollowerProgress, Followers
from .isr import IsrState, Members, members, replicated_end_offset
from .log_view import LogView, compare_follower
from .produces import OutOfOrderBatches, UnreplicatedProduces
from .transactions import LeaderTransactions

ISR_RETRY_SECONDS = 0.2
"""Seconds between a proposal that was refused or lost and the next one."""


class Leader:
    """The leader of one partition in one leader epoch.

    Invariant: `log_start_offset <= high_watermark <= stable_end_offset <= log_end_offset`.
    Invariant: this broker is a member of the accepted ISR.
    """

    def __init__(
        self,
        node_id: BrokerId,
        record: PartitionRecord,
        log: LogView,
        producers: ProducerStates,
        brokers: Mapping[BrokerId, BrokerRecord],
        *,
        high_watermark: Offset,
        now: float,
        lag_max: float,
        verdicts: TransactionVerdicts,
    ) -> None:
        """`high_watermark` is what this replica knew as a follower, `lag_max` in seconds, `now` in monotonic ones.

        `brokers` belongs to the view. Its owner keeps it up to date, and calls `on_broker` after each change.
        """
        self._node_id = node_id
        self.record = record
        self._log = log
        self._producers = producers
        self._brokers = brokers
        self._lag_max = lag_max
        self.epoch_start_offset = log.log_end_offset
        self.high_watermark = max(min(high_watermark, log.stable_end_offset), log.log_start_offset)
        self._isr = IsrState.of(record)
        self._produces = UnreplicatedProduces()
        self._parking = OutOfOrderBatches()
        self._followers = Followers(node_id, log, brokers)
        self.deletions = Deletions(log, self._isr, self._followers.start_of)
        self.transactions = LeaderTransactions(
            record,
            log,
            isr=self._isr,
            produces=self._produces,
            followers=self._followers,
            state=producers.transactions,
            verdicts=verdicts,
        )
        self._followers.know(self.record, now)

    @property
    def leader_epoch(self) -> LeaderEpoch:
        return self.record.leader_epoch

    @property
    def exposed_high_watermark(self) -> Offset | None:
        """The end of what consumers may read (S3); None while this leader must not expose anything."""
        return self.high_watermark if self.high_watermark >= self.epoch_start_offset else None

    @property
    def maximal_isr(self) -> Members:
        return self._isr.maximal

    @property
    def followers(self) -> list[FollowerProgress]:
        """The progress of each follower, for people."""
        return list(self._followers)

    def begin(self, now: float) -> list[Effect]:
        """Begin the leadership: do everything that needs no report of a follower."""
        effects = [*self._advance_high_watermark(), *self._revise_isr(now)]
        return effects + self.transactions.begin(self.exposed_high_watermark)

    # --- Produces ---

    def produce(self, batch: IncomingBatch, now: float) -> list[Effect]:
        """Append a checked batch, refuse it, or park it until its turn.

        A batch of a transaction, resent or not, is acknowledged only below the high watermark (S13).
        """
        if batch.restored:
            return self._restore(batch, now)
        if batch.header.is_transactional and (not_taken := self.transactions.refusal(batch)) is not None:
            return [Reject(batch.request, not_taken)]
        verdict = self._producers.check(batch.header, resent=batch.resent)
        if isinstance(verdict, Duplicate):
            return self._resent(batch, verdict.batch)
        if isinstance(verdict, RefusedSequence):
            return [Reject(batch.request, InvalidRequest(verdict.code, verdict.detail))]
        refusal = self._refusal(batch)
        if refusal is not None:
            return [Reject(batch.request, refusal)]
        if isinstance(verdict, NoRoom):
            return [Reject(batch.request, RetriableError("overloaded", verdict.detail))]
        if isinstance(verdict, Ahead):
            if self._parking.park(batch, verdict, now):
                return []
            return [Reject(batch.request, InvalidRequest(verdict.code, verdict.detail))]
        end = self._log.log_end_offset
        if batch.expected_end_offset not in (-1, end):
            # Decided here and nowhere before: every batch that came earlier is in the log.
            moved = f"the log ends at {end}, not at {batch.expected_end_offset}: nothing was appended"
            return [Reject(batch.request, LogEndMoved(moved, end))]
        return self._append(batch, now)

    def on_appended(self, leader_epoch: LeaderEpoch, producer_id: ProducerId, now: float) -> list[Effect]:
        """Retry parked batches of the same producer: an `Append` was performed, so one may be next."""
        if leader_epoch != self.leader_epoch:
            return []
        effects: list[Effect] = []
        for parked in list(self._parking.of(producer_id)):
            if not isinstance(self._producers.check(parked.batch.header, resent=parked.batch.resent), Ahead):
                self._parking.leave(parked)
                released = self.produce(parked.batch, now)
                effects += released
                if any(isinstance(effect, Append) for effect in released):
                    break  # The append of this batch releases the next one.
        return effects

    def on_stable(self) -> list[Effect]:
        """Advance the high watermark: the log's stable end moved."""
        return self._advance_high_watermark()

    # --- Followers ---

    def on_subscribe(
        self, follower: BrokerId, incarnation: Incarnation, position: FollowerPosition, now: float
    ) -> list[Effect]:
        """Compare (epoch, end) of a follower's log with this log: match the follower, or answer where it must truncate.

        Raises `RemoteProtocolError` if its numbers contradict one another or its earlier reports.
        """
        code = self._followers.fence(follower, incarnation, position.leader_epoch, self.leader_epoch)
        if code:
            return [AnswerFollower(follower, Refused(code))]
        counts = follower in self.maximal_isr or follower in self.record.commit_set
        counted = counts and follower not in self.record.not_eligible
        answer = compare_follower(
            self._log, self.high_watermark, position.last_epoch, position.fetch_offset, counted=counted
        )
        if isinstance(answer, StartAt):
            answer = replace(answer, greatest_producer_id=self._producers.greatest_id)
        effects: list[Effect] = [AnswerFollower(follower, answer)]
        if isinstance(answer, Matched):
            progress = self._followers[follower]
            progress.on_report(position.fetch_offset, position.stable_end_offset, self._log.log_end_offset, now)
            effects += self._advance_high_watermark()
            effects += self._revise_isr(now)
        return effects

    def on_report(self, follower: BrokerId, incarnation: Incarnation, report: ReportStable, now: float) -> list[Effect]:
        """Apply a follower's acknowledgement; ignore it unless the follower is matched in this epoch and incarnation.

        Raises `RemoteProtocolError` for impossible numbers.
        """
        if self._followers.fence(follower, incarnation, report.leader_epoch, self.leader_epoch):
            return []
        progress = self._followers[follower]
        if not progress.matched:
            return []
        progress.on_report(report.fetch_offset, report.stable_end_offset, self._log.log_end_offset, now)
        effects = self._advance_high_watermark()
        # A report of an ISR member never adds to the ISR. Lagging members are removed by the timer (`on_tick`), not
        # here.
        return effects if follower in self._isr.accepted else [*effects, *self._revise_isr(now)]

    def on_follower_start(
        self, follower: BrokerId, incarnation: Incarnation, leader_epoch: LeaderEpoch, start_offset: Offset
    ) -> list[Effect]:
        """Record where a follower's log begins on its disk; fenced like `on_report`, but needs no match."""
        if self._followers.fence(follower, incarnation, leader_epoch, self.leader_epoch):
            return []
        self._followers[follower].stable_start_offset = start_offset
        return self.deletions.advance()

    def look(self, now: float, wall_ms: int, *, may_write: bool = True) -> list[Effect]:
        """Check the open transactions (`LeaderTransactions.look`)."""
        return self.transactions.look(now, wall_ms, self.exposed_high_watermark, may_write=may_write)

    # --- Metadata ---

    def on_record(self, record: PartitionRecord, now: float) -> list[Effect]:
        """Apply a newer record of the same leader epoch: the ISR or the replicas changed."""
        if record.leader_epoch != self.leader_epoch:
            raise InvariantViolation(f"leader of epoch {self.leader_epoch} got a record of epoch {record.leader_epoch}")
        joined = [broker for broker in record.isr if broker not in self._isr.accepted]
        self.record = record
        self._isr.on_record(record)
        self._followers.know(self.record, now)
        for broker in joined:
            if broker in self._followers:
                self._followers[broker].grant_time(now)
        effects = self._advance_high_watermark()
        if self._isr.below_minimum:
            effects += self._reject_waiting("not_enough_replicas_after_append", self._too_few())
        return [*effects, *self._revise_isr(now)]

    def on_broker(self, broker: BrokerId, now: float) -> list[Effect]:
        """Apply a change of a broker in the view: a new incarnation, or a change of its fencing."""
        self._followers.know(self.record, now)
        return self._revise_isr(now) if broker in self._followers else []

    def on_isr_answer(self, leader_epoch: LeaderEpoch, attempt: int, fate: Fate, now: float) -> list[Effect]:
        """Apply the fate of a proposal.

        If it was accepted, its record will count; if it was refused, the replicas that it would have added no longer
        count.
        """
        if leader_epoch != self.leader_epoch:
            return []
        self._isr.on_answer(attempt, fate, now + ISR_RETRY_SECONDS)
        return self._advance_high_watermark()

    def on_tick(self, now: float) -> list[Effect]:
        """Refuse expired parked batches, and propose to remove lagging members of the ISR."""
        effects: list[Effect] = [
            Reject(parked.batch.request, InvalidRequest(parked.ahead.code, parked.ahead.detail))
            for parked in self._parking.expire(now)
        ]
        return effects + self._revise_isr(now)

    def resign(self) -> list[Effect]:
        """End this leadership.

        Appended batches may survive or not; a parked batch was never appended.
        """
        text = f"leader epoch {self.leader_epoch} of {self.record.topic_partition} ended here"
        effects: list[Effect] = [DropFollowers("not_leader"), AbandonWrites("leadership_lost", text)]
        effects += self._reject_waiting("leadership_lost", text)
        effects += self.deletions.abandon(RetriableError("leadership_lost", text))
        return effects + [Reject(parked.batch.request, NotLeader(text)) for parked in self._parking.clear()]

    @property
    def quiet(self) -> bool:
        """Whether this leader waits for no timer."""
        log_end = self._log.log_end_offset
        return (
            not len(self._parking)
            and self.transactions.quiet
            and not self._isr.unsettled
            and not any(p.is_behind(log_end) for b, p in self._followers.items() if b in self._isr.accepted)
            and self._wanted_isr(0.0) == self._isr.accepted
        )

    # --- Inside: produces ---

    def _restore(self, batch: IncomingBatch, now: float) -> list[Effect]:
        """Append a batch of a backup at its own offset, whatever is known of its producer and transaction: the backup's
        log is the truth, and this one becomes equal to it (S1, S2)."""
        refusal = self._refusal(batch)
        base, end = batch.header.base_offset, self._log.log_end_offset
        if refusal is None and base != end:
            told = f"the log ends at {end}, and the restored batch begins at {base}"
            refusal = InvalidRequest("offset_out_of_range", told)
        return self._append(batch, now) if refusal is None else [Reject(batch.request, refusal)]

    def _refusal(self, batch: IncomingBatch) -> RaftlogError | None:
        """Return the error if no batch can be appended now; nothing has been appended then."""
        if batch.acks is Acks.ALL and self._isr.below_minimum:
            return RetriableError("not_enough_replicas", self._too_few())
        if not self._produces.has_room(batch.header.total_bytes):
            return RetriableError("overloaded", f"the in-sync replicas lag too far behind: {self._produces}")
        return None

    def _append(self, batch: IncomingBatch, now: float) -> list[Effect]:
        base_offset = self._log.log_end_offset
        end_offset = Offset(base_offset + batch.header.last_offset_delta + 1)
        acknowledge = Acknowledge(batch.request, base_offset, batch.log_append_time_ms)
        self._produces.appended(end_offset, batch.header.total_bytes)
        for progress in self._followers:
            progress.on_append(base_offset, now)
        if batch.acks is Acks.ALL:
            self._produces.wait(end_offset, acknowledge)
            return [Append(self.leader_epoch, base_offset, batch)]
        if batch.acks is Acks.LEADER:
            return [Append(self.leader_epoch, base_offset, batch, after=(acknowledge,))]
        return [Append(self.leader_epoch, base_offset, batch), acknowledge]

    def _resent(self, batch: IncomingBatch, first: AppendedBatch) -> list[Effect]:
        """Acknowledge a batch that is in the log already: with its first offset, and no weaker a promise than then."""
        append_time = first.max_timestamp if batch.log_append_time_ms >= 0 else -1
        acknowledge = Acknowledge(batch.request, first.base_offset, append_time)
        if batch.acks is Acks.NONE or first.end_offset <= self.high_watermark:
            return [acknowledge]
        if batch.acks is Acks.LEADER:
            return [WhenStable(first.end_offset, (acknowledge,))]
        if self._isr.below_minimum:
            return [Reject(batch.request, RetriableError("not_enough_replicas_after_append", self._too_few()))]
        if not self._produces.may_wait:
            return [
                Reject(
                    batch.request, RetriableError("outcome_unknown", f"too many requests are waiting: {self._produces}")
                )
            ]
        self._produces.wait(first.end_offset, acknowledge)
        return []

    def _reject_waiting(self, code: str, detail: str) -> list[Effect]:
        return [Reject(waiting.request, RetriableError(code, detail)) for waiting in self._produces.abandon()]

    def _too_few(self) -> str:
        isr = self._isr
        return f"{len(isr.accepted)} in-sync replicas, min.insync.replicas is {isr.min_insync_replicas}"

    # --- Inside: followers and the high watermark ---

    def _advance_high_watermark(self) -> list[Effect]:
        if self._isr.below_minimum:
            return []
        end = replicated_end_offset(self._isr.maximal, self._followers.stable_end_of)
        if end is None or end <= self.high_watermark:
            return []
        self.high_watermark = end
        exposed = self.exposed_high_watermark is not None
        acknowledged = self._produces.advance(end)
        looked_at = self.transactions.on_high_watermark(end, exposed=exposed)
        return [AdvanceHighWatermark(end, exposed), *acknowledged, *looked_at]

    # --- Inside: the ISR ---

    def _belongs(self, broker: BrokerId, now: float) -> bool:
        """Whether a replica should be in the ISR, as far as this leader can judge."""
        if broker == self._node_id:
            return True
        record = self._brokers.get(broker)
        if record is None or record.fenced:
            return False
        progress = self._followers[broker]
        if broker in self._isr.accepted:
            return not progress.lags(self._log.log_end_offset, now, self._lag_max)
        counted = progress.counted_end_offset
        caught_up = counted is not None and counted >= max(self.high_watermark, self.epoch_start_offset)
        return caught_up and self.deletions.admits(progress.stable_start_offset)

    def _wanted_isr(self, now: float) -> Members:
        return members(broker for broker in self.record.replicas if self._belongs(broker, now))

    def _revise_isr(self, now: float) -> list[Effect]:
        """Propose the right ISR if it differs from the accepted one, or if a proposal's fate is unknown."""
        if not self._isr.may_propose(now):
            return []
        wanted = self._wanted_isr(now)
        if wanted == self._isr.accepted and not self._isr.unsettled:
            return []
        attempt = self._isr.propose(wanted)
        record, own = self.record, self.record.leader_incarnation
        isr = tuple((b, own if b == self._node_id else self._followers.incarnation_of(b)) for b in wanted)
        proposal = IsrProposal(
            record.topic_partition, self._node_id, own, record.leader_epoch, record.partition_epoch, isr
        )
        return [ProposeIsr(proposal, attempt)]

    # --- For people and for tests ---

    def check_invariants(self) -> None:
        """Raise `InvariantViolation` if an invariant does not hold."""
        log = self._log
        if not log.log_start_offset <= self.high_watermark <= log.stable_end_offset <= log.log_end_offset:
            raise InvariantViolation(
                f"start {log.log_start_offset} <= high watermark {self.high_watermark} <= stable "
                f"{log.stable_end_offset} <= end {log.log_end_offset} does not hold at a leader"
            )
        if self._node_id not in self._isr.accepted:
            raise InvariantViolation(f"leader {self._node_id} is not in its own ISR: {self._isr}")
        if log.epochs.latest_epoch > self.leader_epoch:
            raise InvariantViolation(f"log has epoch {log.epochs.latest_epoch}, its leader {self.leader_epoch}")
        if self.epoch_start_offset > log.log_end_offset:
            raise InvariantViolation(f"a leader's log fell to {log.log_end_offset}, below {self.epoch_start_offset}")

    def __str__(self) -> str:
        log = self._log
        exposed = "" if self.exposed_high_watermark is not None else "(hidden)"
        text = f"leader epoch={self.leader_epoch} leo={log.log_end_offset} stable={log.stable_end_offset} "
        text += f"hw={self.high_watermark}{exposed} {self._isr}"
        lag = [
            f"{b}:{log.log_end_offset - p.stable_end_offset if p.matched else '?'}" for b, p in self._followers.items()
        ]
        return text + (" lag " + " ".join(lag) if lag else "")
