"""The choice of the file in a data folder to damage, and of the place in it. Pure: it knows names and sizes, and opens
nothing.

The kinds of files are those of `docs/log-format.md` and of the quorum (`metadata/journal/journal.py`,
`metadata/journal/snapshot_file.py`, `metadata/voters/directories.py`). The hard state (term and vote) has no file of
its own: it is in the journal's head.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from raftlog.ports import Random

from .targets import choice

_PARTITION = r"partitions/[0-9a-f]{32}-\d+/"
PARTITION_FILES: Mapping[str, re.Pattern[str]] = {
    "segment": re.compile(_PARTITION + r"\d{20}\.log"),
    "index": re.compile(_PARTITION + r"\d{20}\.index"),
    "time-index": re.compile(_PARTITION + r"\d{20}\.timeindex"),
    "epoch-history": re.compile(_PARTITION + "leader-epochs"),
    "checkpoint": re.compile(_PARTITION + "checkpoint"),
    "producers": re.compile(_PARTITION + r"\d{20}\.producers"),
}
QUORUM_FILES: Mapping[str, re.Pattern[str]] = {
    "journal": re.compile(r"quorum/journal-\d{10}\.log"),
    "hard-state": re.compile(r"quorum/journal-\d{10}\.log"),
    "snapshot": re.compile("quorum/snapshot"),
    "voters": re.compile("quorum/voters"),
}
FILES: Mapping[str, re.Pattern[str]] = {**PARTITION_FILES, **QUORUM_FILES}

HARD_STATE_BYTES = 160
"""The journal's first record: its head, its owner, and the hard state at the time when the file was created."""


def chosen(what: str, files: Mapping[str, int], rng: Random, *, growing: bool = False) -> str | None:
    """Return a non-empty file of this kind, or None; `files` has the sizes by path below the data folder.

    Of journals the newest generation is chosen. With `growing`, only the last segment of each partition is a candidate:
    others no longer change.
    """
    found = fitting(what, files, growing=growing)
    if not found:
        return None
    return found[-1] if what in {"journal", "hard-state"} else choice(rng, found)


def first_there(kinds: Iterable[str], files: Mapping[str, int]) -> str | None:
    """Return the first of these kinds that has a file, or None."""
    return next((what for what in kinds if fitting(what, files)), None)


def fitting(what: str, files: Mapping[str, int], *, growing: bool = False) -> list[str]:
    """Return all non-empty files of this kind, sorted."""
    found = sorted(path for path, size in files.items() if size and FILES[what].fullmatch(path))
    return sorted({path.rpartition("/")[0]: path for path in found}.values()) if growing else found


def bits(what: str, size: int, count: int, rng: Random) -> tuple[tuple[int, int], ...]:
    """Return distinct bits to flip, as (byte, bit in it)."""
    within = min(size, HARD_STATE_BYTES) if what == "hard-state" else size
    found: dict[tuple[int, int], None] = {}
    while len(found) < min(count, 8 * within):
        found[rng.randrange(0, within), rng.randrange(0, 8)] = None
    return tuple(sorted(found))


def flipped(content: bytes, at: tuple[tuple[int, int], ...]) -> bytes:
    """Return the content with these bits flipped."""
    changed = bytearray(content)
    for byte, bit in at:
        changed[byte] ^= 1 << bit
    return bytes(changed)
