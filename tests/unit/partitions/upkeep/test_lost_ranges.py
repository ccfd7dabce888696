"""Damage in the last copy: the lost offsets are reported in the log and in the health, and all others can be read."""

from __future__ import annotations

from typing import Any

import pytest

from partitions.opening.folders import folder_of
from partitions.upkeep.lost_ranges import LossSearch, LostRange, describe
from partitions.upkeep.repair import LAST_COPY_SECONDS, LossAnswer
from partitions.upkeep.scrub_plan import plan_of_log
from raftlog.model import Offset
from raftlog.records.batch import HEADER_BYTES
from tests.support.partitions.replication_cluster import ReplicationCluster, tp

RECORDS = 30
PAYLOAD = HEADER_BYTES + 5
LENGTH_FIELD = 8


class Damaged(ReplicationCluster):
    """One broker alone has thirty batches of one record, about ten per segment; about every third is in an index."""

    def __init__(self) -> None:
        settings: Any = {"segment.bytes": "1800", "index.interval.bytes": "500"}
        super().__init__(brokers=1, minimum=1, repairs=True, cache_bytes=0, **settings)
        for _ in range(RECORDS):
            self.produce(0, size=100)
            self.settle()
        self.log = self.members[0].manager.drivers[tp(0)].log
        self.bases = [segment.base_offset for segment in self.log.segments.all]
        first = f"{folder_of(tp(0))}/{0:020d}.log"
        self.batch_bytes = len(self.members[0].disk.read(first)) // self.bases[1]
        assert len(self.bases) > 2 and self.bases[1] > 8

    def flip(self, offset: int, within: int) -> None:
        """A bit of this record's batch."""
        base = max(base for base in self.bases if base <= offset)
        path = f"{folder_of(tp(0))}/{base:020d}.log"
        self.members[0].disk.flip(path, (offset - base) * self.batch_bytes + within, 1)

    def search(self, *bases: int) -> list[tuple[int, int]]:
        damaged = [Offset(base) for base in bases] or self.bases
        search = LossSearch(plan_of_log(self.log), damaged, self.log.config.index_interval_bytes)
        while search.step():
            pass
        return [(one.first, one.end) for one in search.lost]

    def unreadable(self) -> list[int]:
        """Offsets that a consumer's read from the disk does not return."""
        self.members[0].disk.cold = True
        found = []
        for offset in range(RECORDS):
            fetch = self.fetch(0, offset, max_bytes=1)
            self.settle()
            if fetch.errors != [""]:
                found.append(offset)
        self.members[0].disk.cold = False
        return found


@pytest.fixture
def broker() -> Damaged:
    return Damaged()


def test_without_damage_nothing_is_lost(broker: Damaged) -> None:
    assert broker.search() == []


def test_a_flipped_bit_in_a_payload_costs_its_batch_and_no_other(broker: Damaged) -> None:
    broker.flip(2, PAYLOAD)
    broker.flip(3, PAYLOAD)
    broker.flip(7, PAYLOAD)
    assert broker.search() == [(2, 4), (7, 8)]
    assert broker.search(broker.bases[1]) == [], "another segment"


def test_behind_a_bad_header_reading_continues_at_the_next_index_entry(broker: Damaged) -> None:
    broker.flip(1, LENGTH_FIELD)
    ((first, end),) = broker.search()
    assert first == 1 and 2 < end < broker.bases[1], "the index knows some batch of the rest"


def test_at_the_end_of_a_segment_the_next_one_continues(broker: Damaged) -> None:
    last = broker.bases[1] - 1
    broker.flip(last, LENGTH_FIELD)
    assert broker.search() == [(last, last + 1)]


def test_without_its_index_the_rest_of_a_segment_behind_a_bad_header_is_lost(broker: Damaged) -> None:
    broker.flip(1, LENGTH_FIELD)
    broker.members[0].disk.remove(f"{folder_of(tp(0))}/{0:020d}.index")
    assert broker.search() == [(1, broker.bases[1])]


def test_a_missing_segment_is_lost_as_a_whole(broker: Damaged) -> None:
    broker.members[0].disk.remove(f"{folder_of(tp(0))}/{broker.bases[1]:020d}.log")
    broker.flip(broker.bases[1] - 1, PAYLOAD)
    assert broker.search() == [(broker.bases[1] - 1, broker.bases[2])], "neighbours are one range"


@pytest.mark.parametrize(
    "within", [PAYLOAD, LENGTH_FIELD, 0, 16, 57], ids=["payload", "length", "base", "magic", "count"]
)
def test_the_lost_ranges_are_exactly_the_unreadable_offsets(broker: Damaged, within: int) -> None:
    broker.flip(4, within)
    lost = [offset for first, end in broker.search() for offset in range(first, end)]
    assert 4 in lost and broker.unreadable() == lost


def test_the_last_copy_reports_its_losses_as_an_error_and_once(broker: Damaged) -> None:
    broker.flip(5, PAYLOAD)
    assert broker.unreadable() == [5]
    for _ in range(3):
        ((_, _, done),) = broker.members[0].losses
        broker.members[0].losses.clear()
        done(LossAnswer.LAST_COPY)
        broker.settle()
        broker.scheduler.advance(LAST_COPY_SECONDS)
    told = [line for line in broker.members[0].logger.lines if "records lost" in str(line)]
    assert len(told) == 1 and "orders/0" in str(told) and "offsets 5 (1 in all)" in str(told)
    ((_, _, done),) = broker.members[0].losses
    done(LossAnswer.LAST_COPY)
    (line,) = broker.members[0].manager.repairs.status()
    assert "no other replica has the data" in line and line.endswith(
        "lost are offsets 5 (1 in all), the rest can be read"
    )


def test_more_damage_is_determined_again_and_removed_segments_are_not_reported(broker: Damaged) -> None:
    def answered() -> str:
        ((_, _, done),) = broker.members[0].losses
        broker.members[0].losses.clear()
        done(LossAnswer.LAST_COPY)
        broker.settle()
        (line,) = broker.members[0].manager.repairs.status()
        broker.scheduler.advance(LAST_COPY_SECONDS)
        return line

    broker.flip(5, PAYLOAD)
    broker.unreadable()
    assert "offsets 5 (1 in all)" in answered()
    later = broker.bases[1] + 1
    broker.flip(later, PAYLOAD)
    broker.unreadable()
    assert f"offsets 5, {later} (2 in all)" in answered()


def test_many_ranges_are_counted_not_listed() -> None:
    many = [LostRange(Offset(10 * number), Offset(10 * number + 2)) for number in range(20)]
    text = describe(many)
    assert "0 to 1, 10 to 11" in text and "12 more ranges (40 in all)" in text and len(text) < 200
