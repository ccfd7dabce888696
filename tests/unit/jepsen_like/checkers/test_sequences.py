"""Producers' sequences on disks: once and in order, with markers and epochs, and unknown before the
start of the log.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from jepsen_like.checkers import replicas
from jepsen_like.checkers.replicas import CommittedEnd, StoredBatch, StoredLog
from jepsen_like.clusters.replica_logs import read_log
from raftlog.records.batch import ControlKind, encode, encode_control, stamp

PLACE = ("0a" * 16, 0)
LAST = 2**31 - 1


def data(producer: int, epoch: int, sequence: int, count: int = 1) -> StoredBatch:
    """The position is determined by `log`."""
    return StoredBatch(0, count, 1, 7, True, producer, epoch, sequence)


def marker(*ended: tuple[int, int]) -> StoredBatch:
    return StoredBatch(0, 1, 1, 8, True, ended=ended)


def log(*batches: StoredBatch, start: int = 0) -> StoredLog:
    placed, base = [], start
    for one in batches:
        end = base + one.end_offset - one.base_offset
        placed.append(
            StoredBatch(
                base, end, 1, one.crc, one.sound, one.producer_id, one.producer_epoch, one.base_sequence, one.ended
            )
        )
        base = end
    return StoredLog(start, placed)


def names(one: StoredLog, end: int | None = None) -> list[str]:
    committed = one.end if end is None else end
    verdict = replicas.check({PLACE: {"n1": one, "n2": one}}, {PLACE: CommittedEnd(committed, in_sync=True)})
    assert (verdict.valid is False) == bool(verdict.anomalies)
    return sorted(verdict.anomalies)


@pytest.mark.parametrize(
    ("name", "batches"),
    [
        ("", (data(1, 0, 0, 2), data(2, 5, 0), data(1, 0, 2), data(-1, -1, -1), data(1, 0, 3))),
        ("", (data(1, 0, 0), data(1, 1, 0), data(1, 1, 1))),
        ("", (data(1, 0, 0), marker((1, 0)), data(1, 1, 0), marker((1, 1)))),
        ("", (data(1, 0, 0), marker((1, 0)), data(1, 0, 0), marker((1, 0)))),
        ("sequence-gap", (data(1, 0, 0), data(1, 0, 2))),
        ("sequence-gap", (data(1, 0, 3),)),
        ("sequence-gap", (data(1, 0, 0), data(1, 1, 1))),
        ("sequence-gap", (data(1, 0, 0), marker((1, 0)), data(1, 1, 1))),
        ("duplicate-sequence", (data(1, 0, 0), data(1, 0, 0))),
        ("duplicate-sequence", (data(1, 0, 0, 3), data(2, 0, 0), data(1, 0, 1))),
        ("epoch-went-back", (data(1, 1, 0), data(1, 0, 0), data(1, 1, 1))),
    ],
)
def test_sequences_are_there_once_and_in_order(name: str, batches: tuple[StoredBatch, ...]) -> None:
    assert names(log(*batches)) == ([name] if name else [])


def test_sequences_begin_again_behind_the_highest() -> None:
    one = log(data(1, 0, LAST - 1, 2), data(1, 0, 0), data(1, 0, 1), start=5)
    assert names(one) == []
    assert names(log(data(1, 0, LAST, 1), data(1, 0, 1), start=5)) == ["sequence-gap"]


def test_earlier_batches_are_unknown_if_the_log_begins_later_or_is_damaged() -> None:
    assert names(log(data(1, 0, 7), data(1, 0, 8), start=5)) == []
    assert names(log(data(1, 0, 7), data(1, 0, 9), start=5)) == ["sequence-gap"]
    rotten = StoredBatch(0, 1, 1, 7, False, 99, 99, 99)
    assert names(log(data(1, 0, 0), rotten, data(1, 0, 2))) == []


def test_nothing_is_checked_above_the_committed_end() -> None:
    twice = log(data(1, 0, 0), data(1, 0, 0))
    assert names(twice, end=1) == [] and names(twice, end=2) == ["duplicate-sequence"]


def test_an_anomaly_names_its_place_and_the_expected_value() -> None:
    one = log(data(1, 3, 0), data(1, 3, 2))
    verdict = replicas.check({PLACE: {"n1": one}}, {})
    (found,) = verdict.anomalies["sequence-gap"]
    assert (found["node"], found["offset"], found["producer"], found["expected"], found["found"]) == (
        "n1",
        1,
        [1, 3],
        1,
        2,
    )


def test_producers_and_markers_are_read_from_segments(tmp_path: Path) -> None:
    batch = encode([b"a", b"b"], base_timestamp_ms=1, producer_id=4, producer_epoch=2, base_sequence=9)
    end = encode_control(ControlKind.ABORT, [(4, 2, -1), (5, 0, -1)], base_timestamp_ms=1)
    pieces = [b"".join(map(bytes, stamp(one, base, 1))) for one, base in ((batch, 0), (end, 2))]
    (tmp_path / f"{0:020d}.log").write_bytes(b"".join(pieces))
    one, other = read_log(tmp_path).batches
    assert (one.producer_id, one.producer_epoch, one.base_sequence, one.ended) == (4, 2, 9, ())
    assert (other.producer_id, other.ended) == (-1, ((4, 2), (5, 0)))
