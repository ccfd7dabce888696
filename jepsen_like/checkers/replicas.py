"""Replicas of a partition, batch by batch: below what is committed all of them hold the same (S4).

| name | what |
|---|---|
| `diverged` | two replicas hold different batches at an offset below the committed end that both reach |
| `gap` | a replica's batches do not follow one another there |
| `lost-on-node` | of a partition that was back in sync, a replica ends below what is committed |
| `log-start-moved` | of a partition that was back in sync, a replica begins above all that may have been deleted |
| `sequence-gap` | below what is committed a producer's sequences leave some out, or do not begin at 0 |
| `duplicate-sequence` | a sequence of a producer is there twice |
| `epoch-went-back` | a producer's batch lies behind one of a later epoch of the same producer |

A batch is told by its offsets, its leader epoch and its CRC, which covers the rest of it. Replicas begin where their
retention has come to: whoever knows says how far that may be. Each goes on above what is committed as it likes. A batch
whose CRC is wrong is measured and not judged: damage is what a disk does, and what is asked for is that it is found
(`partitions/upkeep/scrubber.py`); but it must not hide that another batch is there.

A producer numbers its records, of each partition and epoch from 0 on. A marker ends a transaction's epoch: what still
comes of it is aborted by another marker, and not judged. Nor is the first batch of a producer where the log before it
is not known: it does not begin at 0, or there is damage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .verdict import Verdict

TOLD_MAX = 20
"""Of an anomaly."""
SEQUENCES = 2**31
"""They begin again at 0 then."""


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """What a replica holds, at its place."""

    base_offset: int
    end_offset: int
    """Exclusive."""
    leader_epoch: int
    crc: int
    sound: bool = True
    """Its CRC is right."""
    producer_id: int = -1
    """-1: of nobody who counts."""
    producer_epoch: int = -1
    base_sequence: int = -1
    ended: tuple[tuple[int, int], ...] = ()
    """Of a marker: the producer ids and epochs whose transactions it ends."""


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
    """How far a partition was committed when somebody looked last."""

    end: int
    in_sync: bool
    """All replicas were in the ISR then."""
    start_max: int | None = None
    """Nothing from here on may have been deleted when replicas are read. None: nobody says."""


def check(
    logs: Mapping[tuple[str, int], Mapping[str, StoredLog]], ends: Mapping[tuple[str, int], CommittedEnd]
) -> Verdict:
    """`logs`: (topic id, partition) → node → log. `ends`: of those whose end is known; others are compared as far as
    the shortest replica goes. Unknown where no partition has two replicas to compare."""
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
    """Id → epoch, and the sequence that comes next."""
    over: dict[int, int] = {}
    """Id → the last epoch that a marker ended."""
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
    """The anomaly's name; empty where it is in its place. `whole`: nothing of the log is left out so far."""
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
    """Of what both reach; None where there is none."""
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
    # Where one of them is damaged its header may be what is wrong.
    return one.sound and other.sound and (places or contents)


def _shown(batch: StoredBatch | None) -> dict[str, Any] | None:
    if batch is None:
        return None
    return {"offsets": [batch.base_offset, batch.end_offset], "leader_epoch": batch.leader_epoch, "crc": batch.crc}
