"""For any history of the journal, any torn tail, any flipped bit: it opens with a former state that contains every
synced entry, or it does not open.
"""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from jepsen_like.simulator.world.disk import SimDisk
from metadata.journal import format as fmt
from metadata.journal.journal import Journal, prepare_journal
from metadata.journal.recovery import SECTOR_BYTES, recover
from metadata.voters.identity import QuorumIdentity
from raftlog.errors import DiskDamaged
from raftlog.model import BrokerId, DirectoryId
from tests.support.quorum.crashes import die_before_fsync

IDENTITY = QuorumIdentity("cluster", BrokerId(1), DirectoryId(b"d" * 16), (BrokerId(1), BrokerId(2), BrokerId(3)))

Steps = list[tuple[str, int]]
KINDS = ["append", "append", "append", "term", "truncate", "sync", "mark", "drop"]
steps = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 999)), max_size=40)


def state(journal: Journal) -> tuple[int, int, tuple[tuple[bytes, int, int], ...]]:
    return journal.term, journal.vote, tuple(journal.entries)


def play(disk: SimDisk, script: Steps, payload: bytes = b"command ") -> tuple[Journal, list[object]]:
    """Run a script; returns the journal and every state since (and including) the last durable one."""
    journal = Journal(disk, IDENTITY)
    passed: list[object] = [state(journal)]
    for step, number in script:
        match step:
            case "append":
                if journal.term:
                    journal.append(payload * (number % 50 + 1), journal.last_index + 1, journal.term)
            case "term":
                journal.set_hard_state(journal.term + 1, (fmt.NO_VOTE, 1, 2)[number % 3])
            case "truncate":
                if journal.last_index > journal.base_index:
                    journal.truncate_from(journal.base_index + 1 + number % (journal.last_index - journal.base_index))
            case "sync":
                journal.sync()
            case "mark":
                journal.mark()
            case "drop":
                journal.drop_before(journal.base_index + number % (journal.last_index - journal.base_index + 1))
        passed.append(state(journal))
        if not journal.dirty:
            passed = passed[-1:]
    return journal, passed


@given(steps, st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_a_power_loss_leaves_a_state_between_the_last_sync_and_the_present(script: Steps, seed: int) -> None:
    disk = SimDisk()
    prepare_journal(disk, IDENTITY)
    journal, passed = play(disk, script)
    if journal.dirty and seed % 2:
        die_before_fsync(journal)
    disk.power_loss(random.Random(seed))
    again = Journal(disk, IDENTITY)
    assert state(again) in passed
    again.set_hard_state(again.term + 1, 1)
    again.append(b"on", again.last_index + 1, again.term)
    again.sync()
    assert state(Journal(disk, IDENTITY)) == state(again)


@given(steps, st.data())
@settings(max_examples=150, deadline=None)
def test_a_flipped_bit_in_the_vouched_part_is_never_accepted(script: Steps, data: st.DataObject) -> None:
    disk = SimDisk()
    prepare_journal(disk, IDENTITY)
    journal, _ = play(disk, script)
    journal.mark()
    (path,) = [f"quorum/{name}" for name in disk.list("quorum") if name.startswith("journal-")]
    content = disk.read(path)
    good = recover(path, content, witnessed=len(content))
    bit = data.draw(st.integers(0, len(content) * 8 - 1))
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << bit % 8
    try:
        recovered = recover(path, bytes(damaged), witnessed=len(content))
    except DiskDamaged:
        return
    # The mark after the beginning of a file has no meaning.
    assert (recovered.entries, recovered.term, recovered.vote) == (good.entries, good.term, good.vote)


@given(steps, st.data())
@settings(max_examples=150, deadline=None)
def test_a_file_cut_anywhere_behind_the_last_sync_opens_with_every_synced_entry(
    script: Steps, data: st.DataObject
) -> None:
    disk = SimDisk()
    prepare_journal(disk, IDENTITY)
    journal, passed = play(disk, script)
    (path,) = [f"quorum/{name}" for name in disk.list("quorum") if name.startswith("journal-")]
    content = disk.read(path)
    synced, staged = len(content), b""
    if journal.dirty:
        die_before_fsync(journal)
        staged = disk.read(path)[synced:]
    assert journal.size_bytes == synced + len(staged)
    kept = data.draw(st.integers(0, len(staged)))
    unwritten = data.draw(st.sampled_from([0, 0, 64, 700]))
    if unwritten:  # disks write whole sectors, so zeros begin at the start of one
        kept = max(0, (synced + kept) // SECTOR_BYTES * SECTOR_BYTES - synced)
    tail = staged[:kept] + bytes(unwritten)
    recovered = recover(path, content + tail)
    assert (recovered.term, recovered.vote, tuple(recovered.entries)) in passed


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_garbage_is_never_a_journal(content: bytes) -> None:
    try:
        recover("test", content)
    except DiskDamaged:
        return
    raise AssertionError("garbage was taken for a journal")
