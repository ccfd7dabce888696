"""The beginning of a log: for its last readers, on disks, and if retention may have removed records."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jepsen_like.checkers import replicas
from jepsen_like.checkers.kafka import check
from jepsen_like.checkers.replicas import CommittedEnd, StoredBatch, StoredLog
from jepsen_like.checkers.verdict import Verdict
from jepsen_like.clusters.replica_logs import read_log
from jepsen_like.histories.history import Kind, Operation
from jepsen_like.nemeses.plans import BUMP_SECONDS_MAX
from jepsen_like.run_records import RunPlan
from jepsen_like.runs import judging
from jepsen_like.scoreboard.cells import CELLS
from jepsen_like.workloads import workload_of
from jepsen_like.workloads.log import keeps_seconds
from raftlog.config import parse_topic_config
from raftlog.records.batch import encode, stamp

KEY = "t/0"
SECOND = 1_000_000_000
TOPIC = "0a" * 16


def line(kind: Kind, f: str, value: Any, *, process: int | str = 0, s: float = 0) -> Operation:
    return Operation(0, process, kind, f, value, int(s * SECOND))


def sent(offset: int, *, s: float = 1, process: int = 0) -> list[Operation]:
    """The value is the offset."""
    return [
        line("invoke", "send", [["send", KEY, offset]], process=process, s=s),
        line("ok", "send", [["send", KEY, [offset, offset]]], process=process, s=s + 0.1),
    ]


def polled(*offsets: int, process: int, s: float = 1) -> list[Operation]:
    return [
        line("invoke", "poll", [["poll"]], process=process, s=s),
        line("ok", "poll", [["poll", {KEY: [[one, one] for one in offsets]}]], process=process, s=s),
    ]


def assigned(*keys: str, process: int, s: float = 10) -> list[Operation]:
    return [line(kind, "assign", list(keys), process=process, s=s) for kind in ("invoke", "ok")]


HEALED = [line("info", "healed", None, process="suite", s=10)]
BEFORE = [*sent(0), *sent(1), *polled(0, 1, process=1), *sent(2), *sent(3, s=9)]


def last_reader(*offsets: int, process: int = 1, s: float = 11) -> list[Operation]:
    return [*assigned(process=process), *assigned(KEY, process=process), *polled(*offsets, process=process, s=s)]


def judged(*parts: list[Operation], keeps_s: float | None = math.inf, transactional: bool = False) -> Verdict:
    history = [one for part in parts for one in part]
    return check(history, keeps_s=keeps_s, transactional=transactional)


# --- Readers ----------------------------------------------------------------------------------------------------------


def test_a_record_that_was_read_once_must_be_there_for_the_last_readers_s1() -> None:
    assert judged(BEFORE, HEALED, last_reader(0, 1, 2, 3), last_reader(0, 1, 2, 3, process=2)).valid
    verdict = judged(BEFORE, HEALED, last_reader(0, 1, 2, 3), last_reader(2, 3, process=2))
    assert verdict.valid is False and list(verdict.anomalies) == ["lost-beginning"]
    (found,) = verdict.anomalies["lost-beginning"]
    assert (found["key"], found["offset"], found["expected"], found["reader"]["process"]) == (KEY, 2, 0, 2)


def test_histories_of_other_systems_are_not_checked_for_it() -> None:
    assert judged(BEFORE, HEALED, last_reader(2, 3), keeps_s=None).valid


@pytest.mark.parametrize(
    "parts",
    [
        (BEFORE, assigned(KEY, process=2, s=2), polled(2, 3, process=2), HEALED, last_reader(0, 1, 2, 3)),
        (BEFORE, HEALED, assigned(KEY, process=2), polled(2, 3, process=2)),
        (BEFORE, HEALED, last_reader(0, 1, 2), polled(3, process=1)),
    ],
    ids=["before all was healed", "without letting go before", "a second poll"],
)
def test_a_reader_that_does_not_start_at_the_beginning_misses_nothing(parts: tuple[list[Operation], ...]) -> None:
    assert "lost-beginning" not in judged(*parts).anomalies


def test_an_offset_that_was_never_seen_is_missed_too_except_where_transactions_have_markers() -> None:
    parts = [sent(1), sent(2), HEALED, last_reader(1, 2)]
    assert "lost-beginning" in judged(*parts).anomalies
    assert judged(*parts, transactional=True).valid
    lost = [sent(1), sent(2), polled(1, 2, process=1), HEALED, last_reader(2)]
    assert "lost-beginning" in judged(*lost, transactional=True).anomalies


def test_with_retention_only_young_records_are_missed() -> None:
    assert judged(BEFORE, HEALED, last_reader(2, 3, s=12), keeps_s=10).valid, "sent 11 s before"
    assert "lost-beginning" in judged(BEFORE, HEALED, last_reader(2, 3, s=12), keeps_s=12).anomalies
    assert "lost-beginning" not in judged(BEFORE, HEALED, last_reader(3, s=12), keeps_s=10).anomalies


# --- Replicas ---------------------------------------------------------------------------------------------------------


def compared(start_max: int | None, start: int, *, in_sync: bool = True) -> Verdict:
    batches = [StoredBatch(base, base + 1, 1, base) for base in range(10)]
    logs = {"n1": StoredLog(0, batches), "n2": StoredLog(start, batches[start:])}
    return replicas.check({(TOPIC, 0): logs}, {(TOPIC, 0): CommittedEnd(10, in_sync, start_max)})


def test_a_replica_that_lacks_its_beginning_is_found_s1() -> None:
    verdict = compared(0, 5)
    assert verdict.valid is False
    (found,) = verdict.anomalies["log-start-moved"]
    assert (found["node"], found["start"], found["at_most"]) == ("n2", 5, 0)
    assert compared(0, 0).valid and compared(5, 5).valid and compared(None, 5).valid
    assert compared(0, 5, in_sync=False).valid, "it may be about to fetch it"


def segment(folder: Path, base: int, *values: bytes) -> Path:
    batches = [b"".join(map(bytes, stamp(encode([v], base_timestamp_ms=1), base + n, 1))) for n, v in enumerate(values)]
    folder.mkdir(exist_ok=True)
    path = folder / f"{base:020d}.log"
    path.write_bytes(b"".join(batches))
    return path


def test_a_log_begins_at_its_first_batch_or_if_unreadable_at_its_first_segment(tmp_path: Path) -> None:
    first = segment(tmp_path / "replica", 0, b"a", b"b")
    segment(tmp_path / "replica", 2, b"c")
    assert read_log(tmp_path / "replica").log_start_offset == 0
    first.write_bytes(b"\xff" * first.stat().st_size)
    rotten = read_log(tmp_path / "replica")
    assert rotten.log_start_offset == 0 and rotten.batches[0].base_offset == 2
    first.unlink()
    assert read_log(tmp_path / "replica").log_start_offset == 2


def ends(history: list[Operation], keeps_s: float | None) -> int | None:
    note = line("info", "ends", {TOPIC: {"topic": "t", "ends": [4], "in_sync": True}}, process="suite", s=20)
    return judging.committed_ends([*history, note], keeps_s)[TOPIC, 0].start_max


def test_the_permitted_start_of_a_replica_follows_from_the_young_records() -> None:
    assert ends(BEFORE, math.inf) == 0
    assert ends(BEFORE, None) is None
    until_stopped = judging.STOPPED_SECONDS + 20
    assert ends(BEFORE, until_stopped - 2) == 3, "sent at second 9"
    assert ends(BEFORE, until_stopped) == 0
    assert ends(BEFORE, until_stopped - 10) is None


# --- The cell ---------------------------------------------------------------------------------------------------------


def plan(**options: Any) -> RunPlan:
    return RunPlan(cell="", workload="log", nemesis="", nodes=3, seconds=100, rate=1, seed=1, options=options)


def retention_ms(one: RunPlan) -> int:
    (topic, *_) = workload_of(one).topics(one)
    return parse_topic_config(topic.configs).retention_ms


def test_topics_keep_everything_or_for_longer_than_the_run() -> None:
    assert retention_ms(plan()) == -1 and keeps_seconds(plan()) == math.inf
    kept = plan(retention_past_s=120)
    assert retention_ms(kept) == 220_000 and keeps_seconds(kept) == 160
    assert workload_of(kept).keeps_s is keeps_seconds


def test_the_largest_leap_in_the_clock_cell_exceeds_the_retention_beyond_the_run() -> None:
    for seconds in (60, 120, 600):
        one = CELLS["R8"].plan(seed=1, seconds=seconds)
        past_s = retention_ms(one) / 1000 - seconds
        assert 60 < past_s < BUMP_SECONDS_MAX - 60
    assert CELLS["R8"].options["at_once"] == 1, "no node is started while its clock is wrong"
    assert msgspec.json.decode(msgspec.json.encode(CELLS["R8"].options)) == CELLS["R8"].options
