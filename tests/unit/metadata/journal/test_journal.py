"""The quorum's journal: its content, the decisions of recovery, and that no crash in any disk call breaks a promise."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable

import msgspec
import pytest

from jepsen_like.simulator.world.disk import SimDisk, SimulatedCrash
from metadata.journal import format as fmt
from metadata.journal.journal import Journal, generation_path, prepare_journal
from metadata.journal.recovery import DECISIONS, Verdict, cut_or_refuse, recover
from metadata.journal.snapshot_file import PATH, Snapshot, load_snapshot, reconcile, save_snapshot
from metadata.voters.configuration import Configuration
from metadata.voters.identity import QuorumIdentity
from raftlog.errors import DiskDamaged, DiskFailed, DiskFull, InvalidRequest, InvariantViolation
from raftlog.model import BrokerId, DirectoryId
from tests.support.quorum.crashes import die_before_fsync

IDENTITY = QuorumIdentity("cluster", BrokerId(1), DirectoryId(b"d" * 16), (BrokerId(1), BrokerId(2), BrokerId(3)))
FIRST = generation_path(0)


def prepared() -> SimDisk:
    disk = SimDisk()
    prepare_journal(disk, IDENTITY)
    return disk


def filled(disk: SimDisk, entries: int = 10, term: int = 3) -> Journal:
    journal = Journal(disk, IDENTITY)
    journal.set_hard_state(term, 2)
    for index in range(2, 2 + entries):
        journal.append(b"entry %d" % index, index, term)
    journal.sync()
    return journal


def contents(journal: Journal) -> tuple[int, int, list[tuple[bytes, int, int]]]:
    return journal.term, journal.vote, list(journal.entries)


# --- Content ---------------------------------------------------------------------------------------------------------


def test_entries_term_and_vote_survive_a_power_loss_once_synced() -> None:
    disk = prepared()
    before = contents(filled(disk))
    disk.power_loss(random.Random(1))
    assert contents(Journal(disk, IDENTITY)) == before


def test_staged_records_are_not_on_disk() -> None:
    disk = prepared()
    journal = filled(disk)
    before = contents(journal)
    journal.set_hard_state(4, 1)
    journal.append(b"staged", 12, 4)
    assert journal.dirty
    assert contents(Journal(disk, IDENTITY)) == before


def test_a_conflict_is_truncated_and_the_new_entries_are_kept() -> None:
    disk = prepared()
    journal = filled(disk)
    journal.set_hard_state(5, fmt.NO_VOTE)
    journal.truncate_from(6)
    journal.append(b"other", 6, 5)
    journal.sync()
    again = Journal(disk, IDENTITY)
    assert [(index, term) for _, index, term in again.entries] == [(1, 0), (2, 3), (3, 3), (4, 3), (5, 3), (6, 5)]
    assert again.entries[-1] == (b"other", 6, 5)


def test_one_group_is_one_fsync_and_nothing_staged_is_none() -> None:
    disk = prepared()
    journal = Journal(disk, IDENTITY)
    journal.set_hard_state(1, 1)
    for index in range(2, 502):
        journal.append(b"x", index, 1)
    fsyncs = disk.fsyncs
    journal.sync()
    assert disk.fsyncs == fsyncs + 1
    journal.sync()
    assert disk.fsyncs == fsyncs + 1


def test_a_vote_is_given_once_per_term_and_terms_only_rise() -> None:
    journal = filled(prepared())
    with pytest.raises(InvariantViolation):
        journal.set_hard_state(3, 1)
    with pytest.raises(InvariantViolation):
        journal.set_hard_state(2, 2)
    journal.set_hard_state(3, 2)
    assert not journal.dirty


@pytest.mark.parametrize(("index", "term"), [(13, 3), (11, 3), (12, 2), (12, 4)])
def test_an_entry_must_follow_the_last_one(index: int, term: int) -> None:
    with pytest.raises(InvariantViolation):
        filled(prepared()).append(b"x", index, term)


@pytest.mark.parametrize("index", [1, 12, 0])
def test_truncation_keeps_the_base_and_removes_something(index: int) -> None:
    with pytest.raises(InvariantViolation):
        filled(prepared()).truncate_from(index)


def test_dropping_the_prefix_keeps_the_rest_and_shrinks_the_file() -> None:
    disk = prepared()
    journal = filled(disk, entries=200)
    before = journal.size_bytes
    journal.append(b"staged", 202, 3)
    journal.drop_before(190)
    assert journal.base_index == 190 and journal.last_index == 202
    assert journal.size_bytes < before / 5
    assert disk.list("quorum") == ["journal-0000000001.log", "witness"]
    disk.power_loss(random.Random(1))
    again = Journal(disk, IDENTITY)
    assert contents(again) == contents(journal)
    again.append(b"on", 203, 3)
    again.sync()
    assert Journal(disk, IDENTITY).last_index == 203


def test_the_bytes_are_those_of_format_3() -> None:
    """A change of these bytes is a new format version, and this one must still be read."""
    disk = prepared()
    journal = Journal(disk, IDENTITY)
    journal.set_hard_state(3, 2)
    journal.append(b"command", 2, 3)
    journal.truncate_from(2)
    journal.mark()
    content = disk.read(FIRST)
    assert len(content) == 287
    assert hashlib.sha256(content).hexdigest()[:16] == "22709b38b638619c"
    record = fmt.decode(content, 0)
    assert record is not None
    assert content[:16].hex() == "8a524c4a" + "00" + "000000" + f"{len(record.payload):08x}" + "00000000"
    entry = b"".join(bytes(part) for part in fmt.encode(fmt.Kind.ENTRY, b"xyz", sequence=5, synced=300))
    assert entry.hex() == "8a524c4a01000000000000030000000000000005000000000000012c2523688524b8123878797a"


def with_header(version: int) -> SimDisk:
    """A disk with a journal that has only its header, as that format version wrote it."""
    header = msgspec.msgpack.encode(
        [version, IDENTITY.cluster_id, IDENTITY.node_id, IDENTITY.directory_id, sorted(IDENTITY.voters), 1, 0, 3, -1]
    )
    disk = SimDisk()
    disk.make_directory("quorum")
    disk.replace(FIRST, b"".join(bytes(part) for part in fmt.encode(fmt.Kind.HEADER, header, sequence=0, synced=0)))
    return disk


def test_a_journal_of_format_1_is_read_and_has_the_initial_voters() -> None:
    journal = Journal(with_header(1), IDENTITY)
    assert journal.term == 3
    assert journal.configurations == [(1, Configuration.initial(IDENTITY.voters))]


@pytest.mark.parametrize("version", [0, fmt.FORMAT_VERSION + 1])
def test_a_journal_of_an_unknown_format_is_refused_and_left_unchanged(version: int) -> None:
    """As after a downgrade: its records may have another meaning, so nothing is truncated, voted or appended (S9)."""
    disk = with_header(version)
    before = disk.read(FIRST)
    with pytest.raises(InvariantViolation, match=f"has format {version}, this raftlog knows {fmt.FORMAT_VERSION}"):
        Journal(disk, IDENTITY)
    assert disk.list("quorum") == [FIRST.removeprefix("quorum/")] and disk.read(FIRST) == before


# --- Ownership -------------------------------------------------------------------------------------------------------


def test_a_missing_journal_is_never_a_first_start() -> None:
    with pytest.raises(InvalidRequest, match="missing"):
        Journal(SimDisk(), IDENTITY)
    disk = prepared()
    disk.remove(FIRST)
    with pytest.raises(InvalidRequest, match="missing"):
        Journal(disk, IDENTITY)


def test_preparing_twice_is_refused() -> None:
    disk = prepared()
    with pytest.raises(InvalidRequest, match="exists already"):
        prepare_journal(disk, IDENTITY)


@pytest.mark.parametrize(
    "other",
    [
        QuorumIdentity("another", IDENTITY.node_id, IDENTITY.directory_id, IDENTITY.voters),
        QuorumIdentity("cluster", BrokerId(2), IDENTITY.directory_id, IDENTITY.voters),
        QuorumIdentity("cluster", IDENTITY.node_id, DirectoryId(b"e" * 16), IDENTITY.voters),
        QuorumIdentity("cluster", IDENTITY.node_id, IDENTITY.directory_id, (BrokerId(1),)),
    ],
)
def test_another_nodes_journal_is_refused(other: QuorumIdentity) -> None:
    disk = prepared()
    with pytest.raises(InvalidRequest, match="belongs to"):
        Journal(disk, other)


# --- Recovery's decision table ---------------------------------------------------------------------------------------


def test_the_table_has_one_row_for_every_case() -> None:
    assert set(DECISIONS) == set(itertools.product((False, True), repeat=3))
    assert [case for case, verdict in DECISIONS.items() if verdict is Verdict.CUT] == [(True, False, True)]


def content_of(disk: SimDisk) -> bytes:
    return disk.read(FIRST)


def torn(content: bytes) -> bytes:
    """The last group was cut short."""
    return content[:-5]


def zeros(content: bytes) -> bytes:
    """The last group's end never arrived, but the file has its length."""
    return content[:-30] + bytes(30)


def rotten(content: bytes) -> bytes:
    """One flipped bit of the last record."""
    return content[:-1] + bytes([content[-1] ^ 4])


CASES: list[tuple[str, bool, Callable[[bytes], bytes], bool]] = [
    # (event, the last group is witnessed, the damage, the journal opens)
    ("torn last group", False, torn, True),
    ("zeros in the last group", False, zeros, True),
    ("rotten bit in the last group", False, rotten, False),
]


@pytest.mark.parametrize(("what", "witnessed", "damage", "opens"), CASES, ids=[case[0] for case in CASES])
def test_the_end_of_the_file(what: str, witnessed: bool, damage: Callable[[bytes], bytes], opens: bool) -> None:
    disk = prepared()
    journal = filled(disk)
    synced = contents(journal)
    journal.append(b"the last entry, which nobody was told of" * 3, 12, 3)
    journal.sync()
    content = damage(content_of(disk))
    if opens:
        recovered = recover("test", content)
        assert recovered.entries == synced[2]
        assert recovered.cut_bytes > 0
    else:
        with pytest.raises(DiskDamaged, match="damaged at byte"):
            recover("test", content)


def test_a_last_sector_that_never_arrived_is_cut_however_little_of_it_was_used() -> None:
    """The file has its length, but the bytes behind the last sector's boundary are zeros."""
    for used in (1, 5, 15, 16, 40):
        disk = prepared()
        journal = filled(disk)
        synced = contents(journal)
        overhead = fmt.HEAD_BYTES + len(fmt.encode_entry(12, 3, b""))
        room = -(journal.size_bytes + overhead) % 512
        journal.append(b"x" * (room + used), 12, 3)
        journal.sync()
        content = content_of(disk)
        assert len(content) % 512 == used
        assert recover("test", content[:-used] + bytes(used)).entries == synced[2]


@pytest.mark.parametrize("damage", [zeros, rotten])
def test_synced_bytes_that_a_later_record_vouches_for_must_be_intact(damage: Callable[[bytes], bytes]) -> None:
    disk = prepared()
    journal = filled(disk)
    end = len(content_of(disk))
    journal.append(b"a later record", 12, 3)
    journal.sync()
    content = content_of(disk)
    with pytest.raises(DiskDamaged, match="was fsynced"):
        recover("test", damage(content[:end]) + content[end:])


def test_a_damaged_first_record_is_never_cut() -> None:
    content = content_of(prepared())
    for damaged in (b"", content[:20], bytes(len(content)), b"\1" + content[1:]):
        with pytest.raises(DiskDamaged, match="first record"):
            cut_or_refuse("test", damaged, 0, first_is_valid=False)
        with pytest.raises(DiskDamaged):
            recover("test", damaged)


def test_a_missing_or_duplicate_record_is_damage() -> None:
    disk = prepared()
    filled(disk)
    content = content_of(disk)
    record = fmt.decode(content, 0)
    positions = [0]
    while record is not None and record.end < len(content):
        positions.append(record.end)
        record = fmt.decode(content, record.end)
    third, fourth = positions[3], positions[4]
    for damaged in (content[:third] + content[fourth:], content[:fourth] + content[third:]):
        with pytest.raises(DiskDamaged, match="record"):
            recover("test", damaged)


def test_bytes_cut_by_recovery_stay_cut_after_a_power_loss() -> None:
    disk = prepared()
    journal = filled(disk)
    end = len(content_of(disk))
    journal.append(b"lost" * 100, 12, 3)
    die_before_fsync(journal)
    file = disk.open(FIRST)
    file.truncate(end + 100)
    file.fsync()
    again = Journal(disk, IDENTITY)
    assert again.cut_bytes == 100 and again.last_index == 11
    disk.power_loss(random.Random(3))
    assert len(content_of(disk)) == end
    assert Journal(disk, IDENTITY).cut_bytes == 0


def test_a_crashed_processs_page_cache_is_synced_before_anything_is_appended() -> None:
    disk = prepared()
    journal = filled(disk)
    journal.append(b"written, not synced", 12, 3)
    die_before_fsync(journal)
    again = Journal(disk, IDENTITY)
    assert again.last_index == 12
    disk.power_loss(random.Random(5))
    assert Journal(disk, IDENTITY).last_index == 12


# --- Failing disks ---------------------------------------------------------------------------------------------------


def test_after_a_failed_fsync_nothing_is_promised() -> None:
    disk = prepared()
    journal = filled(disk)
    journal.append(b"x", 12, 3)
    disk.fail_fsync = 1
    with pytest.raises(DiskFailed):
        journal.sync()
    with pytest.raises(DiskFailed, match="failed before"):
        journal.sync()
    with pytest.raises(DiskFailed, match="failed before"):
        journal.append(b"y", 13, 3)
    journal.close()
    assert Journal(disk, IDENTITY).last_index == 11


def test_a_full_disk_stops_the_journal_and_keeps_what_was_promised() -> None:
    disk = prepared()
    journal = filled(disk)
    disk.full = True
    journal.append(b"x", 12, 3)
    with pytest.raises(DiskFull):
        journal.sync()
    with pytest.raises(DiskFailed):
        journal.sync()
    disk.full = False
    assert Journal(disk, IDENTITY).last_index == 11


def test_no_crash_in_a_compaction_loses_anything() -> None:
    """A crash at every single disk operation of snapshot and prefix drop, with every fate of unsynced data."""
    for operation, seed in itertools.product(range(1, 30), range(4)):
        disk = prepared()
        journal = filled(disk, entries=50)
        disk.crash_countdown = operation
        try:
            save_snapshot(disk, IDENTITY, Snapshot.of(40, 3, b"state"))
            journal.drop_before(30)
            done = True
        except SimulatedCrash:
            done = False
        disk.crash_countdown = 0
        disk.power_loss(random.Random(seed))
        again = Journal(disk, IDENTITY)
        snapshot = load_snapshot(disk, IDENTITY)
        reconcile(again, snapshot)
        assert again.last_index == 51 and again.last_term == 3 and again.vote == 2
        assert again.base_index == 30 if done else again.base_index in (1, 30)
        if again.base_index == 30:
            assert snapshot is not None and snapshot.index == 40
        again.append(b"on", 52, 3)
        again.sync()
        if done:
            break
    assert done


# --- The snapshot ----------------------------------------------------------------------------------------------------


def test_a_snapshot_is_kept_and_a_damaged_one_is_fatal() -> None:
    disk = prepared()
    assert load_snapshot(disk, IDENTITY) is None
    snapshot = Snapshot.of(7, 3, b"state" * 100)
    save_snapshot(disk, IDENTITY, snapshot)
    assert load_snapshot(disk, IDENTITY) == snapshot
    for position in range(0, len(disk.read(PATH)), 7):
        disk.flip(PATH, position, 1)
        with pytest.raises(DiskDamaged, match="quorum remove 1"):
            load_snapshot(disk, IDENTITY)
        disk.flip(PATH, position, 1)


def test_a_log_without_its_snapshot_or_with_another_one_is_refused() -> None:
    disk = prepared()
    journal = filled(disk)
    journal.drop_before(8)
    with pytest.raises(DiskDamaged, match="missing"):
        reconcile(journal, None)
    with pytest.raises(DiskDamaged, match="do not belong together"):
        reconcile(journal, Snapshot.of(7, 3, b""))
    with pytest.raises(DiskDamaged, match="do not belong together"):
        reconcile(journal, Snapshot.of(9, 4, b""))
    reconcile(journal, Snapshot.of(9, 3, b""))
    assert journal.base_index == 8


@pytest.mark.parametrize(("index", "term"), [(30, 3), (9, 2)])
def test_an_installed_snapshot_that_the_log_lacks_replaces_it(index: int, term: int) -> None:
    journal = filled(prepared())
    reconcile(journal, Snapshot.of(index, term, b""))
    assert journal.entries == [(b"", index, term)]
