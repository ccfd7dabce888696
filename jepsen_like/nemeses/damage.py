"""Which file of a data folder is damaged, and where. Pure: it knows names and sizes, and opens nothing.

Kinds of files are those of `docs/log-format.md` and of the quorum (`metadata/journal/journal.py`,
`metadata/journal/snapshot_file.py`, `metadata/voters/directories.py`). The hard state (term and vote) has no file of
its own: it is in the head of the journal.
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
"""The journal's first record: its head, whose it is, and the hard state of when the file was begun."""


def chosen(what: str, files: Mapping[str, int], rng: Random, *, growing: bool = False) -> str | None:
    """One of this kind that is not empty, of paths below the data folder with their sizes; None where there is none. Of
    a journal the newest generation counts, and with `growing` of each partition the last segment: others do not change
    any more."""
    found = fitting(what, files, growing=growing)
    if not found:
        return None
    return found[-1] if what in {"journal", "hard-state"} else choice(rng, found)


def first_there(kinds: Iterable[str], files: Mapping[str, int]) -> str | None:
    """The first of these kinds of which there is one; None where there is none of any."""
    return next((what for what in kinds if fitting(what, files)), None)


def fitting(what: str, files: Mapping[str, int], *, growing: bool = False) -> list[str]:
    """All of those, sorted."""
    found = sorted(path for path, size in files.items() if size and FILES[what].fullmatch(path))
    return sorted({path.rpartition("/")[0]: path for path in found}.values()) if growing else found


def bits(what: str, size: int, count: int, rng: Random) -> tuple[tuple[int, int], ...]:
    """Which bits to flip, as (byte, bit of it), each once."""
    within = min(size, HARD_STATE_BYTES) if what == "hard-state" else size
    found: dict[tuple[int, int], None] = {}
    while len(found) < min(count, 8 * within):
        found[rng.randrange(0, within), rng.randrange(0, 8)] = None
    return tuple(sorted(found))


def flipped(content: bytes, at: tuple[tuple[int, int], ...]) -> bytes:
    """The content with these bits the other way round."""
    changed = bytearray(content)
    for byte, bit in at:
        changed[byte] ^= 1 << bit
    return bytes(changed)
