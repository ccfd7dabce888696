"""Timelines: remembered changes in plain words, and the leader epochs of a partition's logs. Pure."""

from __future__ import annotations

from raftlog.api.explain import Severity, TimelineEntry
from raftlog.api.timeline import ClusterChange

from .case import PartitionCase
from .history import REASONS, Change

_SEVERITIES: dict[str, Severity] = {
    "unclean": "critical",
    "lost_data": "critical",
    "quorum_lost": "critical",
    "fenced": "warning",
    "restarted": "warning",
    "unclean_restart": "warning",
    "other_folder": "warning",
    "registered_elsewhere": "warning",
    "commit_set": "warning",
    "recovery": "warning",
    "no_room": "warning",
    "lagged": "warning",
    "short_of_room": "warning",
}
"""Reason → severity of the change; all others are `info`."""


def cluster_change(change: Change, topic: str | None) -> ClusterChange:
    """Return a change for the cluster's timeline; `topic` is the name of its topic, if it is about one."""
    entry = _entry(change)
    lost_leader = change.kind == "leader" and change.leader < 0
    return ClusterChange(
        kind=change.kind,  # type: ignore[arg-type]  # the kinds of `Change` are those of the API
        severity="critical" if lost_leader else _SEVERITIES.get(change.reason, "info"),
        text=entry.text,
        reason=change.reason,
        time_ms=change.time_ms,
        index=change.index,
        topic=topic,
        partition=change.partition if change.topic_id else None,
        node=change.about if change.about >= 0 else None,
    )


def timeline_of(case: PartitionCase) -> list[TimelineEntry]:
    """Return what happened to a partition, oldest first.

    Leader epochs that no answering node remembers are known by where they begin in a log, without a time.
    """
    changes = case.cluster.changes
    remembered = {one.leader_epoch for one in changes if one.kind == "leader"}
    first = min(remembered, default=case.record.leader_epoch)
    entries = []
    for epoch, start in _epochs(case):
        if epoch < first:
            entries.append(TimelineEntry(f"leader epoch {epoch} wrote from offset {start} on", "epoch"))
    return entries + [_entry(change) for change in changes]


def _epochs(case: PartitionCase) -> list[tuple[int, int]]:
    """Return the leader epochs of the log with the most of them."""
    replicas = [facts.replica for facts in case.cluster.answered() if facts.replica is not None]
    return max((replica.epochs for replica in replicas), key=len, default=[])


def _entry(change: Change) -> TimelineEntry:
    why = REASONS.get(change.reason, "").format(about=change.about)
    end = f" (its log ends at {change.log_end})" if change.log_end >= 0 else ""
    text = _text(change) + (f": {why}{end}" if why else "")
    return TimelineEntry(text, change.reason, change.time_ms, change.index or None)


def _text(change: Change) -> str:
    isr = ",".join(map(str, change.isr)) or "none"
    if change.kind == "broker":
        did = {
            "fenced": "was fenced",
            "unfenced": "was unfenced",
            "removed": "was unregistered",
            "registered": "registered",
            "registered_elsewhere": "registered",
        }
        return f"node {change.about} {did.get(change.reason, 'changed')}"
    if change.kind == "quorum":
        return f"node {change.about} leads the metadata quorum" if change.about >= 0 else "the quorum had no leader"
    if change.kind == "isr" and change.isr == change.former_isr:
        return f"the ISR stays {isr}"
    if change.kind == "isr":
        return f"the ISR changed from {','.join(map(str, change.former_isr))} to {isr}"
    if change.kind == "replicas":
        return f"the replicas changed; the ISR is {isr}"
    if change.leader < 0:
        return f"node {change.former_leader} lost the leadership; no leader in epoch {change.leader_epoch}"
    if change.leader == change.former_leader:
        return f"node {change.leader} leads on in epoch {change.leader_epoch}"
    return f"node {change.leader} became leader in epoch {change.leader_epoch}, ISR {isr}"
