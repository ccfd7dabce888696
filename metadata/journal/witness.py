"""The journal's witness: a second file that says how much of the journal was once fsynced.

A journal can vouch for all of itself but its end. Where the end is gone (a file cut off by a repair of the file system,
an older copy put back, blocks that read as nothing), what is left is a whole and valid journal, of a voter that forgot
what it acknowledged and whom it voted for. So after each fsync of the journal its length is written here as well, and a
journal that is shorter than its witness says is not believed (S9).

`quorum/witness` has two sectors, written in turns, so that a torn write takes one of them and not the other:

    8 bytes magic RLOGWITN | u64 generation | u64 bytes | u32 CRC-32C of the rest

It costs no fsync of its own: a word is written behind each fsync of the journal, into the page cache, which outlives
the process; and synced when things are quiet, in place of any other word of the journal's. After a power loss it may
therefore say less than was promised in the last moments, and never more.
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
"""What a disk writes whole or not at all."""
SECTORS = 2

_WORD = struct.Struct(">8sQQ")
_CRC = struct.Struct(">I")


class Word(NamedTuple):
    """So many bytes of this generation of the journal were fsynced. The later word is the greater one."""

    generation: int
    synced: int


def prepare_witness(disk: Disk) -> None:
    """Write the witness of a journal of which nothing is known yet, durably. Raises `DiskFailed`, `DiskFull`."""
    disk.replace(PATH, _sector(Word(0, 0)) * SECTORS)


class Witness:
    """One node's. After a failed call the journal must be used no more."""

    def __init__(self, disk: Disk) -> None:
        """Raises `DiskDamaged` where no word of it is whole, `FileNotFoundError` where there is none."""
        content = disk.read(PATH)
        words = [_word(content, sector) for sector in range(SECTORS)]
        known = [word for word in words if word is not None]
        if not known:
            raise DiskDamaged(f"{PATH} is damaged: it does not say how much of the journal was fsynced")
        self.word = max(known)
        """The last one that was said."""
        self._next_sector = (words.index(self.word) + 1) % SECTORS
        self._file: File = disk.open(PATH)

    def say(self, word: Word) -> None:
        """So much is durable, from now on. Raises `DiskFailed`, `DiskFull`."""
        if word != self.word:
            self._file.pwritev([_sector(word)], self._next_sector * SECTOR_BYTES)
            self._next_sector = (self._next_sector + 1) % SECTORS
            self.word = word

    def sync(self) -> None:
        """What was said outlives a power loss."""
        self._file.fsync()

    def close(self) -> None:
        self._file.close()


def _sector(word: Word) -> bytes:
    said = _WORD.pack(MAGIC, *word)
    return (said + _CRC.pack(crc32c(said))).ljust(SECTOR_BYTES, b"\0")


def _word(content: bytes, sector: int) -> Word | None:
    """None where the sector is torn or rotten."""
    held = content[sector * SECTOR_BYTES : (sector + 1) * SECTOR_BYTES]
    if len(held) < SECTOR_BYTES:
        return None
    _, generation, synced = _WORD.unpack_from(held)
    word = Word(generation, synced)
    return word if held == _sector(word) else None
