"""Rows survive restarts; torn and old ones are gaps; the file has a fixed size."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from raftlog.broker.plots.columns import COLUMNS, Columns
from raftlog.broker.plots.ring import RING, Ring
from raftlog.broker.plots.rows import (
    MOST_POINTS,
    RING_BYTES,
    ROW_BYTES,
    ROWS,
    SLOT_MS,
    Span,
    encode_row,
    place_of,
    summed,
)
from raftlog.system.disk import LocalDisk

COLUMN = range(40, 42)
NOW = 178_000_000


@pytest.fixture
def disk(tmp_path: Path) -> LocalDisk:
    return LocalDisk(str(tmp_path))


def of(slot: float) -> float:
    """A value that tells the slot, and that a 32-bit float holds exactly."""
    return slot - NOW


def fill(ring: Ring, slots: range) -> None:
    for slot in slots:
        ring.write(slot, encode_row(slot, {40: of(slot), 41: 1.0}), None)


def test_what_is_written_is_read_by_a_later_process(disk: LocalDisk) -> None:
    columns = Columns()
    columns.groups.take("billing", 3, busy=True)
    ring = Ring(disk)
    assert ring.load().encode() == Columns().encode()
    ring.write(NOW - 1, encode_row(NOW - 1, {40: 2.5}), columns.encode())
    again = Ring(disk)
    assert again.load().encode() == columns.encode()
    assert again.read(Span(NOW, 1, 3), COLUMN, 0) == [[None, None, 2.5], [None, None, None]]


def test_without_files_there_are_no_values(disk: LocalDisk) -> None:
    assert Ring(disk).read(Span(NOW, 1, 2), COLUMN, 0) == [[None, None], [None, None]]


def test_averages_over_a_step_and_values_of_the_series_before(disk: LocalDisk) -> None:
    ring = Ring(disk)
    fill(ring, range(NOW - 6, NOW))
    assert ring.read(Span(NOW, 3, 2), COLUMN, 0) == [[of(NOW - 5), of(NOW - 2)], [1.0, 1.0]]
    assert ring.read(Span(NOW, 3, 2), COLUMN, NOW - 2) == [[None, of(NOW - 1.5)], [None, 1.0]]


def test_the_newest_day_is_kept_in_a_file_of_fixed_size(disk: LocalDisk, tmp_path: Path) -> None:
    ring = Ring(disk)
    fill(ring, range(NOW - 3, NOW))
    fill(ring, range(NOW + ROWS - 2, NOW + ROWS))
    whole = Span.of(24 * 60, (NOW + ROWS + 1) * SLOT_MS)
    known = [value for value in ring.read(whole, COLUMN, 0)[1] if value is not None]
    assert known, "the rows of this lap are found across the end of the file"
    assert ring.read(Span(NOW + ROWS, 1, 2), COLUMN, 0)[1] == [1.0, 1.0]
    assert ring.read(Span(NOW, 1, 3), COLUMN, 0)[1] == [1.0, None, None], "two were overwritten a day later"
    assert (tmp_path / RING).stat().st_size <= RING_BYTES == ROWS * ROW_BYTES < 14_000_000


@pytest.mark.parametrize("cut", [1, 5, 13, 700, ROW_BYTES - 1])
def test_a_torn_row_is_a_gap_and_the_next_lap_mends_it(disk: LocalDisk, tmp_path: Path, cut: int) -> None:
    ring = Ring(disk)
    fill(ring, range(NOW - 3, NOW))
    torn = encode_row(NOW - 2, dict.fromkeys(range(COLUMNS), 9.0))
    with open(tmp_path / RING, "r+b") as file:
        file.seek(place_of(NOW - 2))
        file.write(torn[:cut])
    found = ring.read(Span(NOW, 1, 3), COLUMN, 0)[0]
    assert found[0] == of(NOW - 3) and found[2] == of(NOW - 1)
    assert found[1] in (None, of(NOW - 2)), "nothing of two rows at once"
    fill(ring, range(NOW - 2, NOW - 1))
    assert ring.read(Span(NOW, 1, 3), COLUMN, 0)[0][1] == of(NOW - 2)


def test_every_flipped_bit_is_noticed(disk: LocalDisk, tmp_path: Path) -> None:
    ring = Ring(disk)
    fill(ring, range(NOW - 1, NOW))
    path = tmp_path / RING
    start = place_of(NOW - 1)
    content = bytearray(path.read_bytes())
    for at in itertools.chain(range(12), range(12 + 160, 12 + 168), range(ROW_BYTES - 4, ROW_BYTES)):
        content[start + at] ^= 4
        path.write_bytes(content)
        assert ring.read(Span(NOW, 1, 1), COLUMN, 0) == [[None], [None]], at
        content[start + at] ^= 4


def test_a_span_has_at_most_so_many_points_at_the_same_places_on_every_node() -> None:
    for minutes in (1, 7, 60, 61, 600, 1_440):
        one, other = (Span.of(minutes, 1_780_000_003_000 + ms) for ms in (0, 4_000))
        assert one.points <= MOST_POINTS and one.end % one.step == 0
        assert one.step * one.points * SLOT_MS >= minutes * 60_000
        assert one == other or one.end + one.step == other.end
        assert one.is_within_bounds()
    for end, step, points in ((10, 1, 0), (10, 0, 5), (10, 1, 361), (5, 1, 6), (2**63, 1, 1), (10**6, 9_000, 1)):
        assert not Span(end, step, points).is_within_bounds()


def test_sums_over_nodes_leave_out_what_a_node_does_not_have() -> None:
    assert summed([[1.0, None, None], [2.0, 5.0, None]]) == [3.0, 5.0, None]
