"""Log compaction's decisions: what may be compacted, whether it is worth it, and which records of a batch stay.

    log start       first dirty offset          end of what may be compacted      last stable offset      log end
        |  compacted before  |  dirty: keys are read here  |  too young, too new  |  ...   the active segment

One pass reads the keys of the dirty part into an `OffsetMap` (key → last offset), as many as fit, and then goes over
all segments from the log's first to where the map ends. A record stays unless the map has a later one of its key.
What the map had no room for is left to the next pass.

A record without a value (a tombstone) stays until its batch's *delete horizon* has passed: the first pass that meets
it writes down that moment, `delete.retention.ms` ahead, so a reader who began before it has that long to see it
(KIP-534). Records without key, which a compacted topic refuses, may be there from before it was one: they go.

Records of aborted transactions go whatever their keys are, and a later record of one does not count as later (S13). A
marker stays as long as a batch that it speaks of is there: it goes in a pass that finds none left, so after them.

Nothing at or above the last stable offset is touched, nor the active segment, nor any batch's offsets or producer
fields: the state of idempotent producers, leader epochs and truncation know nothing of compaction. Each replica
compacts by itself; what they hold differs, what a reader finds at an offset does not, except that it may be gone (S2,
S4).

Sources: Kafka's LogCleaner and SkimpyOffsetMap (128-bit hashes of keys), KIP-58 (lag), KIP-354 (largest lag), KIP-534.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import compress, repeat
from operator import and_, is_not, le, ne

from raftlog.config import TopicConfig
from raftlog.model import Offset

OFFSET_MAP_ENTRIES = 250_000
"""Keys of one pass: some 40 MB while it runs. More keys take more passes."""

_HASH_BYTES = 16
_NOWHERE = Offset(-1)


def key_of_map(key: bytes) -> bytes:
    """A short key is its own name in the map, a longer one has a hash of 128 bits: no two keys were ever seen to share
    one, and a named key is never as long as a hash."""
    return key if len(key) < _HASH_BYTES else blake2b(key, digest_size=_HASH_BYTES).digest()


def or_else_empty(key: bytes | None) -> bytes:
    """A key, or an empty one in place of none."""
    return key or b""


class OffsetMap:
    """Key → the last offset at which it is written.

    Invariant: at most `entries_max` keys, or those of one single batch.
    """

    def __init__(self, entries_max: int = OFFSET_MAP_ENTRIES) -> None:
        self._entries_max = entries_max
        self._offsets: dict[bytes, int] = {}

    def has_room(self, record_count: int) -> bool:
        """Whether a batch of so many records fits; one always does."""
        return not self._offsets or len(self._offsets) + record_count <= self._entries_max

    def put(self, keys: Sequence[bytes | None], offsets: Sequence[int]) -> None:
        """Records of one batch, in order: later ones win. Those without key are not entered."""
        there = list(map(is_not, keys, repeat(None)))
        named: Iterable[bytes] = compress(keys, there)  # type: ignore[arg-type]
        self._offsets.update(zip(map(key_of_map, named), compress(offsets, there), strict=True))

    def latest(self, keys: Iterable[bytes]) -> list[int]:
        """For each key its last offset; -1 for one that is not in the map."""
        return list(map(self._offsets.get, map(key_of_map, keys), repeat(_NOWHERE)))

    def __len__(self) -> int:
        return len(self._offsets)


@dataclass(frozen=True, slots=True)
class Choice:
    """What becomes of one batch."""

    keep: list[bool]
    delete_horizon_ms: int
    """To be written down; -1: none."""


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
    """Which records of a batch stay.

    `delete_horizon_ms` is the batch's own (-1: it has none), `new_horizon_ms` what it gets if a tombstone stays in it
    (-1: none; the pass has not read all keys up to the batch's end).
    """
    there = list(map(is_not, keys, repeat(None)))
    named: Iterable[bytes] = keys if all(there) else map(or_else_empty, keys)  # type: ignore[assignment]
    keep = list(map(and_, there, map(le, latest.latest(named), offsets)))
    dead = list(map(and_, keep, tombstones))
    if not any(dead):
        return Choice(keep, -1)
    horizon = delete_horizon_ms if delete_horizon_ms >= 0 else new_horizon_ms
    if 0 <= delete_horizon_ms <= now_ms and new_horizon_ms >= 0:
        keep = list(map(ne, keep, dead))  # Whatever is dead was kept.
        horizon = -1
    return Choice(keep, horizon)


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """A sealed segment, as far as the decision needs it."""

    base_offset: Offset
    end_offset: Offset
    size: int
    max_timestamp: int
    first_timestamp: int
    """Of its first batch; -1: none."""


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """A pass that is worth it: keys are read from `first_dirty` to `end`, segments below `end` are written anew."""

    first_dirty: Offset
    end: Offset
    dirty_ratio: float


def plan_compaction(
    config: TopicConfig, sealed: Sequence[SegmentFacts], first_dirty: Offset, settled_end: Offset, now_ms: int
) -> CompactionPlan | None:
    """`sealed` are all segments but the active one, in order; nothing at or above `settled_end` may go. None where
    there is nothing to do, or too little."""
    if not config.compacts or not sealed:
        return None
    first_dirty = max(first_dirty, sealed[0].base_offset)
    clean = dirty = 0
    end = first_dirty
    overdue = False
    for segment in sealed:
        # Without a least lag the clocks of producers, which may be ahead, hold up nothing.
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
