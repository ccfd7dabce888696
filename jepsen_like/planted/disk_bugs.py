"""Bugs of the quorum's files: missing fsyncs, unchecked checksums, rewriting in place."""

from __future__ import annotations

from typing import Any

import crc32c

from metadata.journal import format as journal_format
from metadata.journal import journal
from metadata.journal import recovery as journal_recovery
from metadata.journal import snapshot_file as journal_snapshot
from metadata.journal.format import HEAD_BYTES, MAX_PAYLOAD_BYTES, Kind, Record
from metadata.journal.journal import Journal, generation_path
from metadata.journal.recovery import Recovered
from metadata.journal.snapshot_file import Snapshot
from metadata.raft import pysyncobj_engine
from metadata.raft.forgotten import Forgotten
from metadata.voters.identity import FOLDER, QuorumIdentity
from raftlog.errors import DiskDamaged
from raftlog.ports import Disk, File

from .patches import Patch, Planted, original

_load_snapshot = original(journal_snapshot, "load_snapshot")
_save_snapshot = original(journal_snapshot, "save_snapshot")
_reconcile = original(journal_snapshot, "reconcile")
_generation = original(journal, "_generation")
_recover = original(journal, "recover")


class _NoFsync:
    """A disk that replaces files without an fsync of the file or the folder."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def replace(self, path: str, content: bytes) -> None:
        self._disk.remove(path + ".tmp")
        file = self._disk.open(path + ".tmp", create=True)
        file.pwritev([content], 0)
        file.close()
        self._disk.rename(path + ".tmp", path)


def _write_without_fsync(log: Any) -> None:
    log._check_usable()
    log._file.pwritev([b"".join(log._staged)], log._end)
    log._end += log._staged_bytes
    log._staged = []
    log._staged_bytes = 0


def _generation_without_directory_fsync(disk: Disk, generation: int, content: bytes) -> File:
    temporary = f"{FOLDER}/journal.tmp"
    disk.remove(temporary)
    file = disk.open(temporary, create=True, exclusive=True)
    file.pwritev([content], 0)
    file.fsync()
    disk.rename(temporary, generation_path(generation))
    return file


def _rewrite_in_place(log: Any, entries: list[tuple[bytes, int, int]], base: Any) -> None:
    configurations = log._configurations_of(entries, base)
    content, records = _generation(log._identity, entries, log.term, log.vote, base)
    log._file.truncate(0)
    for start in range(0, len(content), 512):
        log._file.pwritev([content[start : start + 512]], start)
    log._file.fsync()
    log.entries, log.configurations = entries, configurations
    log._end, log._records = len(content), records
    log._staged, log._staged_bytes = [], 0
    log._unwitnessed = False


def _decode_without_checksum(content: bytes, position: int) -> Record | None:
    start = position + HEAD_BYTES
    if start > len(content):
        return None
    magic, kind, length, sequence, synced, _ = journal_format._HEAD.unpack(
        content[position : position + journal_format._HEAD.size]
    )
    if magic != journal_format.MAGIC or length > MAX_PAYLOAD_BYTES or kind > max(Kind):
        return None
    if start + length > len(content):
        return None
    return Record(position, start + length, Kind(kind), sequence, synced, content[start : start + length])


def _cut_whatever_is_damaged(
    name: str, content: bytes, position: int, *, first_is_valid: bool, witnessed: int = 0
) -> None:
    if not first_is_valid:
        raise DiskDamaged(f"{name} has no beginning")


def _recover_without_witness(name: str, content: bytes, *, witnessed: int = 0) -> Recovered:
    return _recover(name, content)  # type: ignore[no-any-return]


def _forget_it(forgotten: Forgotten, index: int, last_index: int, leader: int, term: int) -> None:
    pass


def _save_without_fsync(disk: Disk, identity: QuorumIdentity, snapshot: Snapshot) -> None:
    _save_snapshot(_NoFsync(disk), identity, snapshot)


def _load_or_nothing(disk: Disk, identity: QuorumIdentity) -> Snapshot | None:
    try:
        return _load_snapshot(disk, identity)  # type: ignore[no-any-return]
    except DiskDamaged:
        return None


def _begin_without_snapshot(log: Journal, snapshot: Snapshot | None) -> None:
    if snapshot is not None:
        _reconcile(log, snapshot)


def _load_and_wipe(log: Journal, snapshot: Snapshot | None) -> None:
    _reconcile(log, snapshot)
    if snapshot is not None and snapshot.index != log.base_index:
        log.reset(snapshot.index, snapshot.term, snapshot.configuration)


def _load_without_checksum(disk: Disk, identity: QuorumIdentity) -> Snapshot | None:
    try:
        content = disk.read(journal_snapshot.PATH)
    except FileNotFoundError:
        return None
    body = content[journal_snapshot._HEAD_BYTES :]

    class Corrected:
        def remove(self, path: str) -> None:
            disk.remove(path)

        def read(self, path: str) -> bytes:
            checksum = journal_snapshot._CRC.pack(crc32c.crc32c(body))
            return bytes(journal_snapshot.MAGIC + checksum + body)

    return _load_snapshot(Corrected(), identity)  # type: ignore[no-any-return]


DISK_BUGS = (
    Planted(
        "journal_without_fsync",
        "the journal is written but never synced (pysyncobj)",
        "Journal.sync",
        (Patch(Journal, "_write_staged", _write_without_fsync),),
    ),
    Planted(
        "journal_without_directory_fsync",
        "a new journal file may be gone after a power failure, and the old one is back",
        "journal._write_generation syncs the folder",
        (Patch(journal, "_write_generation", _generation_without_directory_fsync),),
    ),
    Planted(
        "journal_rewritten_in_place",
        "a stop while the log's beginning is dropped loses the rest (pysyncobj's deleteEntriesTo)",
        "Journal._rewrite writes another file and renames it",
        (Patch(Journal, "_rewrite", _rewrite_in_place),),
    ),
    Planted(
        "journal_without_checksum",
        "a flipped bit in the journal is not detected (pysyncobj)",
        "journal_format.decode compares both checksums",
        (Patch(journal_format, "decode", _decode_without_checksum),),
    ),
    Planted(
        "damage_is_cut_like_a_torn_tail",
        "a voter starts without entries that it had acknowledged, because they are damaged",
        "journal_recovery.cut_or_refuse distinguishes a torn tail from damage, and recover checks the witness",
        (
            Patch(journal_recovery, "cut_or_refuse", _cut_whatever_is_damaged),
            Patch(journal, "recover", _recover_without_witness),
        ),
    ),
    Planted(
        "lost_end_is_not_noticed",
        "a voter starts on a journal whose end is missing, and may vote twice",
        "journal_recovery.recover compares the length with the witness of the last fsync",
        (Patch(journal, "recover", _recover_without_witness),),
    ),
    Planted(
        "forgetful_voter_is_taken_for_late",
        "a voter that lost acknowledged entries never catches up, and may vote (S9, S10)",
        "_SyncObj._on_append records the loss and reports it",
        (Patch(Forgotten, "note", _forget_it),),
    ),
    Planted(
        "snapshot_without_fsync",
        "the log is dropped for a snapshot that is not on disk (pysyncobj)",
        "save_snapshot replaces the file durably",
        (Patch(pysyncobj_engine, "save_snapshot", _save_without_fsync),),
    ),
    Planted(
        "snapshot_without_checksum",
        "a flipped bit in the snapshot is not detected (pysyncobj)",
        "load_snapshot compares the checksum",
        (Patch(pysyncobj_engine, "load_snapshot", _load_without_checksum),),
    ),
    Planted(
        "unreadable_snapshot_is_an_empty_state",
        "a voter with an unreadable snapshot continues with an empty state (pysyncobj)",
        "load_snapshot and reconcile refuse to start",
        (
            Patch(pysyncobj_engine, "load_snapshot", _load_or_nothing),
            Patch(pysyncobj_engine, "reconcile", _begin_without_snapshot),
        ),
    ),
    Planted(
        "snapshot_wipes_the_log",
        "entries after the snapshot are dropped when it is loaded (pysyncobj)",
        "reconcile keeps them",
        (Patch(pysyncobj_engine, "reconcile", _load_and_wipe),),
    ),
)
