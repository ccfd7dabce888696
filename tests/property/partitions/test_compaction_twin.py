"""Compaction compared with a dictionary, and with a crash at every operation of the disk.

Whatever is appended, sealed, compacted with maps of any size, reopened and lost: a reader of the log from its start
ends with the dictionary of the appends, every remaining record is at its original offset, and batches are dense (S2). A
key's last record is removed only if it is an expired tombstone.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jepsen_like.simulator.world.disk import SimDisk, SimulatedCrash
from partitions.log.log import PartitionLog
from raftlog.model import Offset
from raftlog.records.batch import Codec
from tests.support.partitions.compaction import COMPACTED, Entry, append_records, compact, records, reopen, seal, table
from tests.support.partitions.storage import PATH, open_log, recover_log, settle

KEYS = st.sampled_from([b"", b"a", b"b", b"c", b"a key that is longer than its hash", b"another one of those keys"])
ENTRIES = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=60)), min_size=1, max_size=6)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), ENTRIES, st.sampled_from([Codec.NONE, Codec.LZ4])),
        st.tuples(st.just("compact"), st.integers(1, 12), st.integers(0, 5_000)),
        st.tuples(st.just("reopen"), st.booleans()),
        st.tuples(st.just("seal")),
    ),
    min_size=5,
    max_size=40,
)


def begin() -> tuple[SimDisk, PartitionLog]:
    disk = SimDisk()
    disk.make_directory("partitions")
    disk.fsync_directory("")
    return disk, open_log(disk, COMPACTED)


class Twin:
    """Everything that was ever appended."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    @property
    def table(self) -> dict[bytes | None, bytes]:
        state: dict[bytes | None, bytes] = {}
        for key, value in self.entries:
            if value is None:
                state.pop(key, None)
            else:
                state[key] = value
        return state

    def check(self, log: PartitionLog) -> None:
        found = records(log)
        assert all(self.entries[offset] == (key, value) for offset, key, value in found), "each at its own offset"
        assert table(log) == self.table
        assert log.log_end_offset == len(self.entries)
        log.check_invariants()


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
def test_a_log_is_equivalent_to_its_dictionary(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    disk, log = begin()
    twin, now = Twin(), 10_000
    for step in steps:
        if step[0] == "append":
            append_records(log, step[1], codec=step[2])
            twin.entries += step[1]
        elif step[0] == "compact":
            settle(log)
            now += step[2] * 20_000
            compact(log, entries_max=step[1], now_ms=now)
        elif step[0] == "seal":
            seal(log)
        else:
            settle(log)
            log.close(clean=step[1])
            log = reopen(disk)
        twin.check(log)
    seal(log)
    for _ in range(len(twin.entries) + 1):
        if not compact(log, now_ms=now):
            break
    twin.check(log)
    live = [key for _, key, value in records(log) if value is not None]
    assert len(live) == len(set(live)), "of each key one record is left"


def prepared() -> tuple[SimDisk, PartitionLog, Twin]:
    disk, log = begin()
    twin = Twin()
    for number in range(24):
        entries: list[Entry] = [
            (b"k%d" % (number % 3), b"v%d" % number * 6),
            (b"t%d" % (number % 2), None if number % 5 == 4 else b"x"),
        ]
        append_records(log, entries)
        twin.entries += entries
    seal(log)
    return disk, log, twin


@pytest.mark.parametrize("power", [False, True], ids=["process", "power"])
def test_a_crash_at_every_operation_loses_nothing(power: bool) -> None:
    """S1, S2: each segment is the old one or the compacted one, and vouched for; another pass completes the
    compaction."""
    step = 0
    while True:
        step += 1
        disk, log, twin = prepared()
        disk.crash_countdown = step
        try:
            compact(log)
            finished = True
        except SimulatedCrash:
            finished = False
        disk.crash_countdown = 0
        if finished:
            break
        if power:
            disk.power_loss(random.Random(step))
        again, recovery = recover_log(disk, PATH, COMPACTED, clean_shutdown=False)
        assert not recovery.cut_or_quarantined, (step, recovery.notes)
        twin.check(again)
        assert not [name for name in disk.list(PATH) if name.endswith((".cleaned", ".tmp"))], step
        compact(again)
        twin.check(again)
        assert len(records(again)) < len(twin.entries)
    assert step > 20, "there is much to interrupt"


def test_a_full_disk_ends_the_pass_and_harms_nothing() -> None:
    disk, log, twin = prepared()
    plan = log.compaction_plan(log.stable_end_offset, 10_000)
    assert plan is not None
    run = log.compaction_run(plan, 10_000)
    disk.full = True
    with pytest.raises(Exception, match="disk_full"):
        while True:
            run.next_piece()
    run.clear_away()
    disk.full = False
    twin.check(log)
    assert not [name for name in disk.list(PATH) if name.endswith(".cleaned")]
    assert compact(log)
    twin.check(log)


def test_deleted_records_do_not_come_back() -> None:
    disk, log, _ = prepared()
    log.advance_log_start(Offset(17))
    settle(log)
    before = records(log)
    compact(log)
    assert records(log) and set(records(log)) <= set(before)
    log.close(clean=False)
    assert reopen(disk).log_start_offset == 17
