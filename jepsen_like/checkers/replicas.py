"""Divergence of replicas, batch by batch: below the committed end all replicas hold the same (S4).

| name | what |
|---|---|
| `diverged` | two replicas hold different batches at an offset below the committed end that both have |
| `gap` | the batches of a replica are not consecutive there |
| `lost-on-node` | a replica of a partition that was back in sync ends below the committed end |
| `log-start-moved` | a replica of a partition that was back in sync begins above all that may have been deleted |
| `sequence-gap` | below the committed end, a producer's sequence numbers have a gap, or do not begin at 0 |
| `duplicate-sequence` | a producer's sequence number occurs twice |
| `epoch-went-back` | a producer's batch comes after one of a later epoch of the same producer |

A batch is identified by its offsets, its leader epoch and its CRC, which covers its content. Replicas begin where their
retention has arrived: the caller says how far that may be. Above the committed end each replica may continue in its own
way. A batch with a wrong CRC is measured and not judged: disks do damage data, and the product has to find it
(`partitions/upkeep/scrubber.py`); but damage must not hide that another batch is there.

A producer numbers its records from 0, for each partition and epoch. A marker ends a transaction's epoch: batches of it
that arrive later are aborted by another marker, and not judged. Neither is the first batch of a producer if the log
before it is unknown, because it does not begin at 0 or has damage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .verdict import Verdict

TOLD_MAX = 20
"""Limit for each anomaly."""
SEQUENCES = 2**31
"""Sequence numbers restart at 0 after this many."""


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch of a replica."""

    base_offset: int
    end_offset: int
    """Exclusive."""
    leader_epoch: int
    crc: int
    sound: bool = True
    """Whether its CRC is right."""
    producer_id: int = -1
    """-1: a producer without sequence numbers."""
    producer_epoch: int = -1
    base_sequence: int = -1
    ended: tuple[tuple[int, int], ...] = ()
    """For a marker: the producer ids and epochs whose transactions it ends."""


@dataclass(frozen=True, slots=True)
class StoredLog:
    """One replica's log: its batches in the order of its segments."""

    log_start_offset: int
    batches: Sequence[StoredBatch]

    @property
    def end(self) -> int:
        return self.batches[-1].end_offset if self.batches else self.log_start_offset


@dataclass(frozen=True, slots=True)
class CommittedEnd:
    """The committed end of a partition at the last look."""

    end: int
    in_sync: bool
    """Whether all replicas were in the ISR then."""
    start_max: int | None = None
    """Upper bound of the log start: nothing from here on may have been deleted when replicas are read. None:
    unknown.
    """


def check(
    logs: Mapping[tuple[str, int], Mapping[str, StoredLog]], ends: Mapping[tuple[str, int], CommittedEnd]
) -> Verdict:
    """Compare replicas; unknown if no partition has two.

    `logs`: (topic id, partition) → node → log. `ends`: the known committed ends; other partitions are compared up to
    the end of the shortest replica.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    compared = batches = damaged = numbered = 0
    for place, replicas in sorted(logs.items()):
        where = {"topic_id": place[0], "partition": place[1]}
        known = ends.get(place)
        limit = known.end if known is not None else min((log.end for log in replicas.values()), default=0)
        damaged += sum(not batch.sound for log in replicas.values() for batch in log.batches)
        batches += sum(len(log.batches) for log in replicas.values())
        numbered += sum(batch.producer_id >= 0 for log in replicas.values() for batch in log.batches)
        compared += len(replicas) > 1
        for name, told in _judged(replicas, limit, known):
            found.setdefault(name, []).append({**where, **told})
    anomalies = {name: listed[:TOLD_MAX] for name, listed in found.items()}
    measured = {
        "partitions": len(logs), "compared": compared, "batches": batches, "damaged": damaged, "numbered": numbered,
    }  # fmt: skip
    return Verdict(not anomalies if compared else None, anomalies, measured)


def _judged(
    replicas: Mapping[str, StoredLog], limit: int, known: CommittedEnd | None
) -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []
    for node, log in sorted(replicas.items()):
        found += [("gap", {"node": node, **told}) for told in _gaps(log, limit)]
        if known is not None and known.in_sync and log.end < limit:
            found.append(("lost-on-node", {"node": node, "end": log.end, "committed": limit}))
        found += [("log-start-moved", {"node": node, **told}) for told in _start_moved(log, known)]
        found += [(name, {"node": node, **told}) for name, told in _out_of_sequence(log, limit)]
    names = sorted(replicas, key=lambda node: (-replicas[node].end, node))
    for other in names[1:]:
        told = _first_difference(replicas[names[0]], replicas[other], limit)
        if told is not None:
            found.append(("diverged", {"nodes": [names[0], other], **told}))
    return found


def _start_moved(log: StoredLog, known: CommittedEnd | None) -> list[dict[str, Any]]:
    if known is None or known.start_max is None or not known.in_sync or log.log_start_offset <= known.start_max:
        return []
    return [{"start": log.log_start_offset, "at_most": known.start_max}]


def _gaps(log: StoredLog, limit: int) -> list[dict[str, Any]]:
    found = []
    expected = log.log_start_offset
    for batch in log.batches:
        if batch.base_offset != expected and expected < limit:
            found.append({"expected": expected, "found": batch.base_offset})
        expected = batch.end_offset
    return found


def _out_of_sequence(log: StoredLog, limit: int) -> Iterator[tuple[str, dict[str, Any]]]:
    producers: dict[int, tuple[int, int]] = {}
    """Producer id → epoch, and the next sequence number."""
    over: dict[int, int] = {}
    """Producer id → the last epoch that a marker ended."""
    expected, whole = 0, True
    for batch in log.batches:
        if batch.end_offset > limit:
            return
        if not batch.sound or batch.base_offset != expected:
            producers.clear()
            whole = False
        expected = batch.end_offset
        if not batch.sound:
            continue
        for ended, epoch in batch.ended:
            producers.pop(ended, None)
            over[ended] = max(epoch, over.get(ended, -1))
        if batch.producer_id < 0 or batch.producer_epoch <= over.get(batch.producer_id, -1):
            continue
        name = _misplaced(batch, producers.get(batch.producer_id), whole=whole)
        if name:
            yield name, {"offset": batch.base_offset, **_sequences(batch, producers.get(batch.producer_id))}
        if name != "epoch-went-back":
            after = (batch.base_sequence + batch.end_offset - batch.base_offset) % SEQUENCES
            producers[batch.producer_id] = batch.producer_epoch, after


def _misplaced(batch: StoredBatch, before: tuple[int, int] | None, *, whole: bool) -> str:
    """Return the anomaly's name; empty if the batch is in its place. `whole`: no part of the log is missing so far."""
    if before is not None and batch.producer_epoch < before[0]:
        return "epoch-went-back"
    if before is None or batch.producer_epoch > before[0]:
        return "sequence-gap" if batch.base_sequence and (whole or before is not None) else ""
    ahead = (batch.base_sequence - before[1]) % SEQUENCES
    return "" if not ahead else "sequence-gap" if ahead < SEQUENCES // 2 else "duplicate-sequence"


def _sequences(batch: StoredBatch, before: tuple[int, int] | None) -> dict[str, Any]:
    expected = before[1] if before is not None and before[0] == batch.producer_epoch else 0
    return {
        "producer": [batch.producer_id, batch.producer_epoch],
        "expected": expected,
        "found": batch.base_sequence,
    }


def _first_difference(one: StoredLog, other: StoredLog, limit: int) -> dict[str, Any] | None:
    """Return the first difference in the range that both logs have, or None."""
    start = max(one.batches[0].base_offset, other.batches[0].base_offset) if one.batches and other.batches else limit
    end = min(one.end, other.end, limit)
    mine, others = (_between(log, start, end) for log in (one, other))
    for offset in sorted(mine.keys() | others.keys()):
        a, b = mine.get(offset), others.get(offset)
        if a is None or b is None or _differ(a, b):
            return {"offset": offset, "batches": [_shown(a), _shown(b)]}
    return None


def _between(log: StoredLog, start: int, end: int) -> dict[int, StoredBatch]:
    return {batch.base_offset: batch for batch in log.batches if start <= batch.base_offset and batch.end_offset <= end}


def _differ(one: StoredBatch, other: StoredBatch) -> bool:
    places = (one.base_offset, one.end_offset) != (other.base_offset, other.end_offset)
    contents = (one.leader_epoch, one.crc) != (other.leader_epoch, other.crc)
    # If one of them is damaged, its header may be wrong.
    return one.sound and other.sound and (places or contents)


def _shown(batch: StoredBatch | None) -> dict[str, Any] | None:
    if batch is None:
        return None
    return {"offsets": [batch.base_offset, batch.end_offset], "leader_epoch": batch.leader_epoch, "crc": batch.crc}
