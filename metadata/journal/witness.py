"""The journal's witness: a second file that says how much of the journal was fsynced.

A journal can vouch for all of itself but its end. If the end is missing (the file was truncated by a file system
repair, an older copy was restored, blocks read as empty), the rest is a complete and valid journal, of a voter that
forgot what it acknowledged and for whom it voted. After each fsync of the journal its length is therefore written
here as well, and a journal that is shorter than its witness says is refused (S9).

`quorum/witness` has two sectors, written alternately, so that a torn write destroys only one of them:

    8 bytes magic RLOGWITN | u64 generation | u64 bytes | u32 CRC-32C of the rest

It adds no fsync to the path of a proposal: after each fsync of the journal a word is written into the page cache,
which survives the process. It is fsynced when the node is idle. After a power loss it may therefore claim less than
was promised in the last moments, and never more.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from metadata.voters.identity import FOLDER
from raftlog.errors import DiskDamaged
from raftlog.ports import Disk, File

PATH = f"{FOLDER}/witness"
MAGIC = b"RLOGWITN"
SECTOR_BYTES = 512
"""Bytes that a disk writes atomically."""
SECTORS = 2

_WORD = struct.Struct(">8sQQ")
_CRC = struct.Struct(">I")


class Word(NamedTuple):
    """The number of fsynced bytes of a generation of the journal. The later word is the greater one."""

    generation: int
    synced: int


def prepare_witness(disk: Disk) -> None:
    """Write a witness that claims nothing yet, durably. Raises `DiskFailed`, `DiskFull`."""
    disk.replace(PATH, _sector(Word(0, 0)) * SECTORS)


class Witness:
    """The witness of one node's journal. After a failed call the journal must not be used any more."""

    def __init__(self, disk: Disk) -> None:
        """Open the file. Raises `DiskDamaged` if none of its words is intact, `FileNotFoundError` if it does not
        exist."""
        content = disk.read(PATH)
        words = [_word(content, sector) for sector in range(SECTORS)]
        known = [word for word in words if word is not None]
        if not known:
            raise DiskDamaged(f"{PATH} is damaged: it does not say how much of the journal was fsynced")
        self.word = max(known)
        """The word written last."""
        self._next_sector = (words.index(self.word) + 1) % SECTORS
        self._file: File = disk.open(PATH)

    def say(self, word: Word) -> None:
        """Record that this much is durable. Raises `DiskFailed`, `DiskFull`."""
        if word != self.word:
            self._file.pwritev([_sector(word)], self._next_sector * SECTOR_BYTES)
            self._next_sector = (self._next_sector + 1) % SECTORS
            self.word = word

    def sync(self) -> None:
        """Make the last word survive a power loss."""
        self._file.fsync()

    def close(self) -> None:
        self._file.close()


def _sector(word: Word) -> bytes:
    said = _WORD.pack(MAGIC, *word)
    return (said + _CRC.pack(crc32c(said))).ljust(SECTOR_BYTES, b"\0")


def _word(content: bytes, sector: int) -> Word | None:
    """Return the word of a sector, or None if the sector is torn or corrupt."""
    held = content[sector * SECTOR_BYTES : (sector + 1) * SECTOR_BYTES]
    if len(held) < SECTOR_BYTES:
        return None
    _, generation, synced = _WORD.unpack_from(held)
    word = Word(generation, synced)
    return word if held == _sector(word) else None
