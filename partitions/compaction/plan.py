"""The decisions of log compaction: what may be compacted, whether it is worth it, and which records of a batch stay.

    log start       first dirty offset          end of what may be compacted      last stable offset      log end
        |  compacted before  |  dirty: keys are read here  |  too young, too new  |  ...   the active segment

One pass reads the keys of the dirty part into an `OffsetMap` (key → last offset), as many as fit, and then goes over
all segments from the log's first to where the map ends. A record stays unless the map has a later one of its key. The
next pass continues where the map was full.

A record without a value (a tombstone) stays until its batch's *delete horizon* has passed: the first pass that meets it
records that moment, `delete.retention.ms` ahead, so a reader who began before it has that long to see it (KIP-534).
Records without keys, which a compacted topic refuses, may date from before it was compacted: they are removed.

Records of aborted transactions are removed whatever their keys are, and do not count as later records of their keys
(S13). A marker stays as long as a batch that it refers to exists: a pass that finds none left removes it, so always
after them.

Compaction never touches anything at or above the last stable offset, nor the active segment, nor any batch's offsets or
producer fields: the state of idempotent producers, leader epochs and truncation are independent of it. Each replica
compacts by itself. Their contents differ, but an offset reads the same everywhere, except that its record may be gone
(S2, S4).

Sources: Kafka's LogCleaner and SkimpyOffsetMap (128-bit hashes of keys), KIP-58 (lag), KIP-354 (largest lag), KIP-534.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import compress, repeat
from operator import and_, is_not, le, ne

import msgspec

from raftlog.config import TopicConfig
from raftlog.model import Offset

OFFSET_MAP_ENTRIES = 250_000
"""Bound on the keys of one pass: some 40 MB while it runs. More keys take more passes."""

_HASH_BYTES = 16
_NOWHERE = Offset(-1)


def key_of_map(key: bytes) -> bytes:
    """Return the key's name in the map: a short key itself, a longer one's hash of 128 bits.

    No two keys are known to share a hash, and a short key is never as long as a hash.
    """
    return key if len(key) < _HASH_BYTES else blake2b(key, digest_size=_HASH_BYTES).digest()


def or_else_empty(key: bytes | None) -> bytes:
    """Return the key, or an empty one in place of None."""
    return key or b""


class OffsetMap:
    """Key → the last offset at which it is written.

    Invariant: at most `entries_max` keys, or those of one single batch.
    """

    def __init__(self, entries_max: int = OFFSET_MAP_ENTRIES) -> None:
        self._entries_max = entries_max
        self._offsets: dict[bytes, int] = {}

    def has_room(self, record_count: int) -> bool:
        """Whether a batch of `record_count` records fits; the first batch always does."""
        return not self._offsets or len(self._offsets) + record_count <= self._entries_max

    def put(self, keys: Sequence[bytes | None], offsets: Sequence[int]) -> None:
        """Enter the records of one batch, in order: later ones win. Records without keys are skipped."""
        there = list(map(is_not, keys, repeat(None)))
        named: Iterable[bytes] = compress(keys, there)  # type: ignore[arg-type]
        self._offsets.update(zip(map(key_of_map, named), compress(offsets, there), strict=True))

    def latest(self, keys: Iterable[bytes]) -> list[int]:
        """Return each key's last offset; -1 for a key that is not in the map."""
        return list(map(self._offsets.get, map(key_of_map, keys), repeat(_NOWHERE)))

    def __len__(self) -> int:
        return len(self._offsets)


class Choice(msgspec.Struct, frozen=True):
    """The fate of one batch's records."""

    keep: list[bool]
    delete_horizon_ms: int
    """The delete horizon to record in the batch; -1: none."""


def choose(
    keys: Sequence[bytes | None],
    offsets: Sequence[int],
    tombstones: Sequence[bool],
    latest: OffsetMap,
    *,
    delete_horizon_ms: int,
    new_horizon_ms: int,
    now_ms: int,
) -> Choice:
    """Choose the records of a batch that stay.

    `delete_horizon_ms` is the batch's own (-1: none); `new_horizon_ms` is set if a tombstone stays in it (-1: none,
    because the pass has not read all keys up to the batch's end).
    """
    there = list(map(is_not, keys, repeat(None)))
    named: Iterable[bytes] = keys if all(there) else map(or_else_empty, keys)  # type: ignore[assignment]
    keep = list(map(and_, there, map(le, latest.latest(named), offsets)))
    dead = list(map(and_, keep, tombstones))
    if not any(dead):
        return Choice(keep, -1)
    horizon = delete_horizon_ms if delete_horizon_ms >= 0 else new_horizon_ms
    if 0 <= delete_horizon_ms <= now_ms and new_horizon_ms >= 0:
        keep = list(map(ne, keep, dead))  # Dead records are a subset of the kept ones.
        horizon = -1
    return Choice(keep, horizon)


class SegmentFacts(msgspec.Struct, frozen=True):
    """The facts about a sealed segment that the decision needs."""

    base_offset: Offset
    end_offset: Offset
    size: int
    max_timestamp: int
    first_timestamp: int
    """The timestamp of its first batch; -1: none."""


class CompactionPlan(msgspec.Struct, frozen=True):
    """A pass that is worth it: it reads keys from `first_dirty` to `end`, and rewrites the segments below `end`."""

    first_dirty: Offset
    end: Offset
    dirty_ratio: float


def plan_compaction(
    config: TopicConfig, sealed: Sequence[SegmentFacts], first_dirty: Offset, settled_end: Offset, now_ms: int
) -> CompactionPlan | None:
    """Return the plan of the next pass; None if there is nothing to do, or too little.

    `sealed` are all segments but the active one, in order; nothing at or above `settled_end` may be removed.
    """
    if not config.compacts or not sealed:
        return None
    first_dirty = max(first_dirty, sealed[0].base_offset)
    clean = dirty = 0
    end = first_dirty
    overdue = False
    for segment in sealed:
        # Without a minimum lag, producers' clocks, which may be ahead, delay nothing.
        too_young = config.min_compaction_lag_ms > 0 and segment.max_timestamp > now_ms - config.min_compaction_lag_ms
        if segment.end_offset > settled_end or too_young:
            break
        if segment.end_offset <= first_dirty:
            clean += segment.size
            continue
        dirty += segment.size
        end = segment.end_offset
        overdue |= 0 <= segment.first_timestamp < now_ms - config.max_compaction_lag_ms
    ratio = dirty / (clean + dirty) if dirty else 0.0
    if not dirty or (ratio < config.min_cleanable_dirty_ratio and not overdue):
        return None
    return CompactionPlan(first_dirty, end, ratio)
