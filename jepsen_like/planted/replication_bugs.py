"""Bugs of the leader and its followers: each leaves out one rule of replication."""

from __future__ import annotations

from typing import Any

from msgspec import structs
from msgspec.structs import replace

from partitions.driver.reads import ReplicaReads
from partitions.log import job as log_job
from partitions.log import log
from partitions.producers.state import IN_SEQUENCE, Duplicate, ProducerStates
from partitions.replica import leader
from partitions.replica.deletions import Deletions
from partitions.replica.effects import (
    Acknowledge,
    AnswerFollower,
    Append,
    AppendFetched,
    Diverged,
    Fate,
    Matched,
    Refused,
    TruncateTo,
)
from partitions.replica.follower import Follower, State
from partitions.replica.followers import FollowerProgress, Followers
from partitions.replica.isr import IsrState
from partitions.replica.leader import Leader
from partitions.replica.log_view import LogView
from partitions.replication.leader_link import LeaderLink, ReceivedPush
from raftlog.model import Acks, LeaderEpoch, Offset

from .patches import CLUSTER, Patch, Planted, original

_advance = original(Deletions, "advance")
_ask = original(Follower, "_ask")
_append = original(Leader, "_append")
_check_pushed = original(ReceivedPush, "_check")
_end_slot = original(LeaderLink, "end_slot")
_on_isr_answer = original(IsrState, "on_answer")
_check = original(ProducerStates, "check")
_compare_follower = original(leader, "compare_follower")
_know = original(Followers, "know")


def _ask_from_the_high_watermark(follower: Any) -> Any:
    """Truncate to the high watermark before the logs are compared."""
    kept = max(follower.high_watermark, follower._log.log_start_offset)
    if follower._linked and follower.state is not State.TRUNCATING and follower._log.log_end_offset > kept:
        follower.state = State.TRUNCATING
        return [TruncateTo(follower.leader_epoch, kept)]
    return _ask(follower)


def _compare_offsets(
    log: LogView, high_watermark: Offset, last_epoch: LeaderEpoch, end_offset: Offset, *, counted: bool
) -> Any:
    """Take logs for equal if the follower's end is not beyond the end of the epoch found, in any epoch."""
    answer = _compare_follower(log, high_watermark, last_epoch, end_offset, counted=counted)
    if isinstance(answer, Diverged) and end_offset <= answer.end_offset:
        return Matched(high_watermark, log.log_start_offset)
    return answer


def _hear_every_epoch(followers: Any, follower: Any, incarnation: Any, epoch: Any, leader_epoch: Any) -> str:
    if follower not in followers._progress:
        return "unknown_partition"
    return "" if followers._progress[follower].incarnation == incarnation else "stale_incarnation"


def _hear_every_incarnation(followers: Any, follower: Any, incarnation: Any, epoch: Any, leader_epoch: Any) -> str:
    if epoch != leader_epoch:
        return "fenced_leader_epoch" if epoch < leader_epoch else "unknown_leader_epoch"
    return "" if follower in followers._progress else "unknown_partition"


def _know_whatever_incarnation(followers: Any, record: Any, now: float) -> None:
    """Keep the progress of a broker that registers again: the old acknowledgements still count."""
    known = dict(followers._progress)
    _know(followers, record, now)
    for broker in followers._progress:
        if broker in known:
            followers._progress[broker] = replace(known[broker], incarnation=followers._progress[broker].incarnation)


def _subscribe_unmatched(self: Any, follower: Any, incarnation: Any, position: Any, now: float) -> Any:
    """Count the follower's stable end before its log is compared."""
    code = self._followers.fence(follower, incarnation, position.leader_epoch, self.leader_epoch)
    if code:
        return [AnswerFollower(follower, Refused(code))]
    answer = _compare_follower(self._log, self.high_watermark, position.last_epoch, position.fetch_offset, counted=True)
    end, progress = self._log.log_end_offset, self._followers[follower]
    stable = max(min(position.stable_end_offset, end), progress.stable_end_offset)
    progress.on_report(max(stable, min(position.fetch_offset, end)), stable, end, now)
    return [AnswerFollower(follower, answer), *self._advance_high_watermark(), *self._revise_isr(now)]


def _acknowledge_when_stable_here(self: Any, batch: Any, now: float) -> Any:
    if batch.acks is not Acks.ALL:
        return _append(self, batch, now)
    base_offset = self._log.log_end_offset
    acknowledge = Acknowledge(batch.request, base_offset, batch.log_append_time_ms)
    self._produces.appended(Offset(base_offset + batch.header.last_offset_delta + 1), batch.header.total_bytes)
    return [Append(self.leader_epoch, base_offset, batch, after=(acknowledge,))]


def _belongs_without_epoch_start(self: Any, broker: Any, now: float) -> bool:
    if broker == self._node_id:
        return True
    record = self._brokers.get(broker)
    if record is None or record.fenced:
        return False
    progress = self._followers[broker]
    if broker in self._isr.accepted:
        return not progress.lags(self._log.log_end_offset, now, self._lag_max)
    counted = progress.counted_end_offset
    return counted is not None and counted >= self.high_watermark


def _unknown_is_refused(isr: Any, attempt: int, fate: Fate, retry_at: float) -> None:
    _on_isr_answer(isr, attempt, Fate.REFUSED if fate is Fate.UNKNOWN else fate, retry_at)


def _readable_to_the_end(reads: Any, current_leader_epoch: int = -1) -> Offset:
    if reads._replica.leader is None:
        raise reads._replica.not_leading()
    end: Offset = reads._log.log_end_offset
    return end


def _append_resends(states: Any, header: Any, *, resent: bool = False) -> Any:
    verdict = _check(states, header, resent=resent)
    return IN_SEQUENCE if isinstance(verdict, Duplicate) else verdict


def _deleted_here(deletions: Any) -> Any:
    """Answer when this leader's own disk has the new start."""
    everywhere, deletions._start_of = deletions._start_of, lambda broker: deletions._log.stable_start_offset
    try:
        return _advance(deletions)
    finally:
        deletions._start_of = everywhere


def _remember_the_slot(entry: Any, number: int) -> Any:
    slot = _end_slot(entry, number)
    if slot is not None:
        entry.__dict__.setdefault("former_slots", {})[number] = slot.driver
    return slot


def _check_for_the_partition(push: Any, item: Any) -> None:
    """Take pushes of an earlier subscription for the current one."""
    entry = push._entry
    driver = entry.__dict__.get("former_slots", {}).get(item.slot)
    if item.slot not in entry.slots and driver in entry.slot_of:
        item = structs.replace(item, slot=entry.slot_of[driver])
    _check_pushed(push, item)


def _append_whatever_comes(follower: Any, leader_epoch: Any, batches: Any, marks: Any) -> Any:
    """Append at any log end and in any epoch."""
    end_offset = batches[-1].header.end_offset if batches else follower._log.log_end_offset
    effects = [AppendFetched(leader_epoch, batches)] if batches else []
    return effects + follower._follow_marks(end_offset, marks)


def _fits_anywhere(header: Any, offset: Any, epoch: Any) -> None:
    """Skip the check of a batch's offset, in the log and in the job that writes it."""


def _fetched(progress: Any) -> Any:
    return progress.fetch_offset if progress.matched else None


REPLICATION_BUGS = (
    Planted(
        "truncates_to_the_high_watermark",
        "a restarting follower truncates acknowledged records above its high watermark (before KIP-101)",
        "Follower truncates by (epoch, end) only",
        (Patch(Follower, "_ask", _ask_from_the_high_watermark),),
        found_by=CLUSTER,
    ),
    Planted(
        "ends_are_compared_without_epochs",
        "logs of different epochs with the same end are taken for equal (KIP-101 without KIP-279)",
        "compare_follower requires the same epoch",
        (Patch(leader, "compare_follower", _compare_offsets),),
        found_by=CLUSTER,
    ),
    Planted(
        "followers_of_any_epoch_are_heard",
        "an acknowledgement of an earlier epoch counts in this one (KIP-320's first version)",
        "Followers.fence requires exactly the leader's epoch",
        (Patch(Followers, "fence", _hear_every_epoch),),
        found_by=CLUSTER,
    ),
    Planted(
        "acknowledgements_outlive_their_life",
        "a follower's progress before a power failure counts afterwards",
        "progress belongs to (replica, incarnation)",
        (
            Patch(Followers, "fence", _hear_every_incarnation),
            Patch(Followers, "know", _know_whatever_incarnation),
        ),
        found_by=CLUSTER,
    ),
    Planted(
        "counted_before_it_is_compared",
        "a follower's stable end counts although its log differs",
        "Leader.on_subscribe counts only after a match",
        (Patch(Leader, "on_subscribe", _subscribe_unmatched),),
        found_by=CLUSTER,
    ),
    Planted(
        "pushes_are_appended_unchecked",
        "pushes in flight when a subscription ended are appended, even if they do not fit the log's end",
        "a slot names one subscription; Follower.on_pushed and the log require the log's own end and epoch",
        (
            Patch(LeaderLink, "end_slot", _remember_the_slot),
            Patch(ReceivedPush, "_check", _check_for_the_partition),
            Patch(Follower, "on_pushed", _append_whatever_comes),
            Patch(log, "check_placement", _fits_anywhere),
            Patch(log_job, "check_placement", _fits_anywhere),
        ),
        found_by=CLUSTER,
    ),
    Planted(
        "fetched_counts_as_synced",
        "a fetch offset advances the high watermark before the records are on disk",
        "FollowerProgress.counted_end_offset is the stable end",
        (Patch(FollowerProgress, "counted_end_offset", property(_fetched)),),
        found_by=CLUSTER,
    ),
    Planted(
        "acknowledged_by_the_leader_alone",
        "acks=all is answered when only the leader has the records on disk",
        "Leader._append waits for the high watermark",
        (Patch(Leader, "_append", _acknowledge_when_stable_here),),
        found_by=CLUSTER,
    ),
    Planted(
        "the_isr_is_not_maximal",
        "a member proposed for removal from the ISR no longer counts, although the quorum may still elect it",
        "IsrState.maximal",
        (Patch(IsrState, "maximal", property(lambda isr: isr.accepted)),),
        found_by=CLUSTER,
    ),
    Planted(
        "no_floor_under_the_isr",
        "a leader commits alone when all others are fenced",
        "IsrState.below_minimum",
        (Patch(IsrState, "below_minimum", property(lambda isr: False)),),
        found_by=CLUSTER,
    ),
    Planted(
        "the_floor_counts_who_may_come",
        "a member that is only proposed counts toward the minimum ISR",
        "IsrState.below_minimum counts the accepted",
        (Patch(IsrState, "below_minimum", property(lambda isr: len(isr.maximal) < isr.min_insync_replicas)),),
        found_by=CLUSTER,
    ),
    Planted(
        "a_proposal_ends_with_its_timeout",
        "a proposed ISR without an answer is forgotten, and accepted later",
        "IsrState.on_answer keeps proposals with unknown outcome",
        (Patch(IsrState, "on_answer", _unknown_is_refused),),
        found_by=CLUSTER,
    ),
    Planted(
        "a_new_leader_exposes_at_once",
        "consumers see a lower high watermark than the previous leader's",
        "Leader.exposed_high_watermark waits for the epoch's start",
        (Patch(Leader, "exposed_high_watermark", property(lambda self: self.high_watermark)),),
        found_by=CLUSTER,
    ),
    Planted(
        "the_isr_grows_below_the_epoch_start",
        "a replica joins the ISR that lacks records which the previous leader committed",
        "Leader._belongs requires the epoch's start",
        (Patch(Leader, "_belongs", _belongs_without_epoch_start),),
        found_by=CLUSTER,
    ),
    Planted(
        "consumers_read_to_the_log_end",
        "a consumer reads uncommitted records",
        "ReplicaReads.readable_end is the exposed high watermark",
        (Patch(ReplicaReads, "readable_end", _readable_to_the_end),),
        found_by=CLUSTER,
    ),
    Planted(
        "resends_are_appended",
        "a resent batch is appended twice",
        "ProducerStates.check knows the last five batches",
        (Patch(ProducerStates, "check", _append_resends),),
        found_by=CLUSTER,
    ),
    Planted(
        "producers_are_not_replayed",
        "after a restart a broker does not know the producers of the batches in its log",
        "ProducerStates.replay",
        (Patch(ProducerStates, "replay", lambda states, header, control=None: None),),
        found_by=CLUSTER,
    ),
    Planted(
        "deleted_when_the_leader_knows",
        "delete-records is answered before the possible next leaders have the new log start",
        "Deletions.advance waits for every disk of the maximal ISR",
        (Patch(Deletions, "advance", _deleted_here),),
        found_by=CLUSTER,
    ),
    Planted(
        "the_isr_grows_with_old_starts",
        "a replica joins the ISR that still has deleted records",
        "Deletions.admits",
        (Patch(Deletions, "admits", lambda deletions, start_offset: True),),
        found_by=CLUSTER,
    ),
)
