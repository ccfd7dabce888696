"""Bugs of the leader and its followers: each is one rule of replication that is left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from msgspec import structs

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
    """Before anything is compared, what lies above the high watermark goes."""
    kept = max(follower.high_watermark, follower._log.log_start_offset)
    if follower._linked and follower.state is not State.TRUNCATING and follower._log.log_end_offset > kept:
        follower.state = State.TRUNCATING
        return [TruncateTo(follower.leader_epoch, kept)]
    return _ask(follower)


def _compare_offsets(
    log: LogView, high_watermark: Offset, last_epoch: LeaderEpoch, end_offset: Offset, *, counted: bool
) -> Any:
    """An end that is not beyond the end of the epoch that was found is taken for the same log, of whatever epoch."""
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
    """Who registers again is who it was: what it had acknowledged still counts."""
    known = dict(followers._progress)
    _know(followers, record, now)
    for broker in followers._progress:
        if broker in known:
            followers._progress[broker] = replace(known[broker], incarnation=followers._progress[broker].incarnation)


def _subscribe_unmatched(self: Any, follower: Any, incarnation: Any, position: Any, now: float) -> Any:
    """What a follower has on disk counts, compared or not."""
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
    """An answer when this leader's disk has it."""
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
    """What was pushed to an earlier subscription is taken for the one of now."""
    entry = push._entry
    driver = entry.__dict__.get("former_slots", {}).get(item.slot)
    if item.slot not in entry.slots and driver in entry.slot_of:
        item = structs.replace(item, slot=entry.slot_of[driver])
    _check_pushed(push, item)


def _append_whatever_comes(follower: Any, leader_epoch: Any, batches: Any, marks: Any) -> Any:
    """Wherever the log ends, of whatever epoch it is."""
    end_offset = batches[-1].header.end_offset if batches else follower._log.log_end_offset
    effects = [AppendFetched(leader_epoch, batches)] if batches else []
    return effects + follower._follow_marks(end_offset, marks)


def _fits_anywhere(header: Any, offset: Any, epoch: Any) -> None:
    """Neither the log nor the job that writes it looks where a batch says that it begins."""


def _fetched(progress: Any) -> Any:
    return progress.fetch_offset if progress.matched else None


REPLICATION_BUGS = (
    Planted(
        "truncates_to_the_high_watermark",
        "a follower that begins anew drops what it acknowledged and does not know to be committed (before KIP-101)",
        "Follower truncates by (epoch, end) only",
        (Patch(Follower, "_ask", _ask_from_the_high_watermark),),
        found_by=CLUSTER,
    ),
    Planted(
        "ends_are_compared_without_epochs",
        "logs of different epochs that end alike are taken for the same (KIP-101 without KIP-279)",
        "compare_follower wants the same epoch",
        (Patch(leader, "compare_follower", _compare_offsets),),
        found_by=CLUSTER,
    ),
    Planted(
        "followers_of_any_epoch_are_heard",
        "an acknowledgement of an earlier epoch counts in this one (KIP-320's first try)",
        "Followers.fence wants exactly the leader's epoch",
        (Patch(Followers, "fence", _hear_every_epoch),),
        found_by=CLUSTER,
    ),
    Planted(
        "acknowledgements_outlive_their_life",
        "what a follower had before it lost power counts for it afterwards",
        "progress belongs to (replica, incarnation)",
        (
            Patch(Followers, "fence", _hear_every_incarnation),
            Patch(Followers, "know", _know_whatever_incarnation),
        ),
        found_by=CLUSTER,
    ),
    Planted(
        "counted_before_it_is_compared",
        "a follower's stable end counts although its log is another",
        "Leader.on_subscribe counts a match only",
        (Patch(Leader, "on_subscribe", _subscribe_unmatched),),
        found_by=CLUSTER,
    ),
    Planted(
        "pushes_are_appended_unchecked",
        "what was on its way when a subscription ended is appended, whether or not it follows what is there",
        "a slot names one subscription; Follower.on_pushed, and the log once more, want the log's own end and epoch",
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
        "a fetch offset moves the high watermark, though nothing of it is on disk",
        "FollowerProgress.counted_end_offset is the stable end",
        (Patch(FollowerProgress, "counted_end_offset", property(_fetched)),),
        found_by=CLUSTER,
    ),
    Planted(
        "acknowledged_by_the_leader_alone",
        "acks=all is answered when the leader has it on disk",
        "Leader._append lets it wait for the high watermark",
        (Patch(Leader, "_append", _acknowledge_when_stable_here),),
        found_by=CLUSTER,
    ),
    Planted(
        "the_isr_is_not_maximal",
        "who is proposed out of the ISR counts no more, though the quorum may still elect it",
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
        "a member that is only proposed makes the ISR large enough to commit",
        "IsrState.below_minimum counts the accepted",
        (Patch(IsrState, "below_minimum", property(lambda isr: len(isr.maximal) < isr.min_insync_replicas)),),
        found_by=CLUSTER,
    ),
    Planted(
        "a_proposal_ends_with_its_timeout",
        "a proposed ISR that nobody answered for is forgotten, and accepted later",
        "IsrState.on_answer keeps what is unknown",
        (Patch(IsrState, "on_answer", _unknown_is_refused),),
        found_by=CLUSTER,
    ),
    Planted(
        "a_new_leader_exposes_at_once",
        "consumers are shown less than the leader before had shown",
        "Leader.exposed_high_watermark waits for the epoch's start",
        (Patch(Leader, "exposed_high_watermark", property(lambda self: self.high_watermark)),),
        found_by=CLUSTER,
    ),
    Planted(
        "the_isr_grows_below_the_epoch_start",
        "who has what the leader knows to be committed joins, and lacks what its predecessor committed",
        "Leader._belongs wants the epoch's start",
        (Patch(Leader, "_belongs", _belongs_without_epoch_start),),
        found_by=CLUSTER,
    ),
    Planted(
        "consumers_read_to_the_log_end",
        "a consumer sees what is not committed",
        "ReplicaReads.readable_end is the exposed high watermark",
        (Patch(ReplicaReads, "readable_end", _readable_to_the_end),),
        found_by=CLUSTER,
    ),
    Planted(
        "resends_are_appended",
        "a batch that is sent again is in the log twice",
        "ProducerStates.check knows the last five",
        (Patch(ProducerStates, "check", _append_resends),),
        found_by=CLUSTER,
    ),
    Planted(
        "producers_are_not_replayed",
        "after a restart a broker does not know whose batches are in its log",
        "ProducerStates.replay",
        (Patch(ProducerStates, "replay", lambda states, header, control=None: None),),
        found_by=CLUSTER,
    ),
    Planted(
        "deleted_when_the_leader_knows",
        "delete-records is answered before those who may lead next have the start",
        "Deletions.advance waits for every disk of the maximal ISR",
        (Patch(Deletions, "advance", _deleted_here),),
        found_by=CLUSTER,
    ),
    Planted(
        "the_isr_grows_with_old_starts",
        "who joins the ISR still has what was deleted",
        "Deletions.admits",
        (Patch(Deletions, "admits", lambda deletions, start_offset: True),),
        found_by=CLUSTER,
    ),
)
