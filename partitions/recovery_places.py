"""Where a segment that is found on disk lies against the ones before it, and against where the log starts.

Names tell most of it: a segment ends where its successor begins. Compaction puts segments together, though, and removes
the files of those that the first one holds now only after that; until then what their names say of the first one's end
is not true of it any more. So wherever the answer would take a file away, the file itself is asked how far it goes.

What is *not* here: what follows from a place (`recovery_table.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from raftlog.model import Offset

from .recovery_table import Place


@dataclass(frozen=True, slots=True)
class Neighbours:
    """What is known when a segment's turn comes, in the order of base offsets."""

    log_start: Offset
    successor: Offset | None
    """Base of the next segment that was found."""
    expected: Offset
    """Where the segments before it end; the log's start where there are none."""
    is_first: bool
    """None before it was kept."""
    behind_damage: bool


def place_of(base: Offset, around: Neighbours, good_end: Callable[[], Offset]) -> Place:
    """`good_end` reads the segment: up to where it is as it should be."""
    if around.successor is not None and around.successor <= around.log_start and good_end() <= around.log_start:
        return Place.BELOW_START
    if around.behind_damage:
        return Place.BEHIND_DAMAGE
    if base == around.expected or (around.is_first and base < around.log_start):
        return Place.NEXT
    if base > around.expected:
        return Place.GAP
    return Place.WITHIN if base < good_end() <= around.expected else Place.OVERLAP
