"""The other checks of a run: that it was one, clients' recovery, replicas' disks, nodes' logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from jepsen_like.checkers import node_logs, replicas, stats
from jepsen_like.checkers.replicas import CommittedEnd, StoredBatch, StoredLog
from jepsen_like.checkers.verdict import Verdict
from jepsen_like.clusters.replica_logs import read_log, stored_logs
from jepsen_like.histories.history import Kind, Operation, write
from jepsen_like.run_records import RunFolder, RunPlan
from jepsen_like.runs import judging
from raftlog.records.batch import encode, stamp

SECOND = 1_000_000_000
TOPIC = "0a" * 16
PLACE = (TOPIC, 0)


def line(
    kind: Kind, f: str, value: Any = None, *, process: int | str = 0, s: float = 0, error: Any = None
) -> Operation:
    return Operation(0, process, kind, f, value, int(s * SECOND), error=error)


# --- The run itself ---------------------------------------------------------------------------------------------------


def test_a_run_in_which_some_operation_never_succeeded_does_not_pass() -> None:
    sent = [line("invoke", "send"), line("ok", "send")]
    assert stats.check(sent).valid and stats.check(sent).measured == {"send": {"ok": 1, "fail": 0, "info": 0}}
    assert stats.check(sent, wanted=("poll",)).anomalies == {"never-ok": [{"f": "poll", "invoked": 0}]}
    assert stats.check([*sent, line("invoke", "poll"), line("fail", "poll")]).valid is False
    assert stats.check([*sent, line("invoke", "crash"), line("info", "crash")]).valid
    assert stats.check([], wanted=("send",)).valid is False


@pytest.mark.parametrize(("key", "name"), [("exception", "client-exception"), ("client", "client-stuck")])
def test_clients_that_hang_or_fail_unexpectedly_are_a_finding(key: str, name: str) -> None:
    sent = [line("invoke", "send"), line("ok", "send")]
    bad = [line("invoke", "send"), line("info", "send", error={key: "why"})]
    assert stats.check([*sent, *bad]).anomalies[name][0]["error"] == "why"
    assert stats.check([*sent, line("invoke", "send"), line("info", "send", error="timed out")]).valid


def parts(operation: Operation) -> list[str]:
    return [operation.value]


def recovery(*history: Operation) -> Verdict:
    return stats.recovery(history, parts=parts, writes=("write",))


def test_recovery_lasts_from_the_last_heal_until_every_key_was_written_to_s10() -> None:
    healed = line("info", "healed", process="suite", s=10)
    before = [line("ok", "write", "a", s=1), line("ok", "write", "b", s=2)]
    after = [line("ok", "write", "a", s=11), line("ok", "write", "b", s=13.5), line("ok", "write", "a", s=20)]
    verdict = recovery(*before, healed, *after)
    assert verdict.valid and verdict.measured == {"recovery_s": 3.5}
    stuck = recovery(*before, healed, after[0])
    assert stuck.valid is False and stuck.anomalies == {"not-recovered": [{"part": "b", "proof": [0]}]}
    assert recovery(*before).valid is None


# --- Replicas ---------------------------------------------------------------------------------------------------------


def log(*batches: tuple[int, int, int], start: int = 0) -> StoredLog:
    """Base offset, end offset, and content."""
    return StoredLog(start, [StoredBatch(base, end, 1, content) for base, end, content in batches])


def compared(end: int, *, in_sync: bool = True, **logs: StoredLog) -> Verdict:
    return replicas.check({PLACE: logs}, {PLACE: CommittedEnd(end, in_sync)})


ABC = ((0, 2, 7), (2, 3, 8), (3, 6, 9))


def test_replicas_that_agree_below_the_committed_end_are_correct_s4() -> None:
    verdict = compared(6, n1=log(*ABC), n2=log(*ABC), n3=log(*ABC))
    assert verdict.valid
    assert verdict.measured == {"partitions": 1, "compared": 1, "batches": 9, "damaged": 0, "numbered": 0}
    assert compared(3, n1=log(*ABC), n2=log(*ABC[:2], (3, 4, 1))).valid, "above it each goes on as it likes"
    assert compared(6, n1=log(*ABC), n2=log(*ABC[1:], start=2)).valid, "retention has come further on one of them"
    assert compared(6, in_sync=False, n1=log(*ABC), n2=log(*ABC[:2])).valid, "one that is behind lacks nothing yet"


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("diverged", log(*ABC[:1], (2, 3, 5), ABC[2])),
        ("diverged", log((0, 1, 7), (1, 2, 7), *ABC[1:])),
        ("lost-on-node", log(*ABC[:2])),
        ("gap", log(ABC[0], ABC[2])),
    ],
)
def test_a_replica_that_differs_lacks_or_skips_records_is_found_s4(name: str, other: StoredLog) -> None:
    verdict = compared(6, n1=log(*ABC), n2=log(*ABC), n3=other)
    assert verdict.valid is False and name in verdict.anomalies
    assert "n3" in str(verdict.anomalies[name])


def test_damage_is_counted_and_hides_nothing_else() -> None:
    rotten = StoredLog(0, [StoredBatch(0, 2, 1, 7, sound=False), StoredBatch(2, 3, 1, 8)])
    verdict = compared(3, n1=log(*ABC), n2=rotten)
    assert verdict.valid and verdict.measured["damaged"] == 1
    assert compared(3, n1=log(ABC[0], (2, 3, 1)), n2=rotten).valid is False


def test_nothing_to_compare_is_no_pass() -> None:
    assert replicas.check({}, {}).valid is None
    assert compared(6, n1=log(*ABC)).valid is None
    assert replicas.check({PLACE: {"n1": log(*ABC), "n2": log(*ABC[:1], (2, 3, 5))}}, {}).valid is False


def stored(*values: bytes, base: int, epoch: int = 1) -> bytes:
    return b"".join(map(bytes, stamp(encode(list(values), base_timestamp_ms=1), base, epoch)))


def replica(folder: Path, *segments: tuple[int, bytes]) -> Path:
    """Of partition 0 below a node's data folder."""
    place = folder / "partitions" / f"{TOPIC}-0"
    place.mkdir(parents=True)
    for base, content in segments:
        (place / f"{base:020d}.log").write_bytes(content)
    (place / f"{0:020d}.index").write_bytes(b"anything")
    (place / f"{2:020d}.log.5.quarantined").write_bytes(b"anything")
    return place


def test_a_replica_is_read_from_its_segments(tmp_path: Path) -> None:
    one, two = stored(b"a", b"b", base=0), stored(b"c", base=2)
    three = stored(b"d", base=3, epoch=2)
    place = replica(tmp_path, (0, one + two), (3, three), (4, b""))
    (tmp_path / "partitions" / "stray").mkdir()
    found = dict(stored_logs(tmp_path))
    assert list(found) == [PLACE]
    spans = [(batch.base_offset, batch.end_offset, batch.leader_epoch, batch.sound) for batch in found[PLACE].batches]
    assert spans == [(0, 2, 1, True), (2, 3, 1, True), (3, 4, 2, True)]
    assert found[PLACE].end == 4
    (place / f"{3:020d}.log").write_bytes(three[:-1])
    assert read_log(place).end == 3, "a torn tail is where it ends"
    (place / f"{0:020d}.log").write_bytes(one[:-1] + b"?" + two)
    assert [batch.sound for batch in read_log(place).batches] == [False, True]
    assert dict(stored_logs(tmp_path / "nothing")) == {}


def test_replicas_on_disks_are_compared_if_the_end_is_known(tmp_path: Path) -> None:
    same, another = stored(b"a", base=0), stored(b"b", base=0)
    replica(tmp_path / "n1", (0, same))
    replica(tmp_path / "n2", (0, same))
    replica(tmp_path / "n3", (0, another))
    folders = {name: tmp_path / name for name in ("n1", "n2")}
    ends = {PLACE: CommittedEnd(1, in_sync=True)}
    assert judging.judge_replicas(folders, ends).valid is True
    assert judging.judge_replicas(folders, {}).valid is None
    assert judging.judge_replicas({**folders, "n3": tmp_path / "n3"}, ends).valid is False


# --- Logs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (b'{"event": "INVARIANT S4: it is not so", "level": "critical"}', "invariant"),
        (b'{"event": "it failed", "exception": "Traceback ..."}', "exception"),
        (b"Traceback (most recent call last):", "exception"),
        (b"Fatal Python error: Segmentation fault", "exception"),
        (b'{"event": "INVARI', ""),
        (b'{"event": "all is well"}', ""),
        (b"", ""),
    ],
)
def test_a_nodes_own_errors_are_found(text: bytes, name: str) -> None:
    fine = b'{"event": "started"}'
    verdict = node_logs.check({"n1": [fine], "n2": [fine, text + b"\n", fine]})
    assert verdict.valid is (not name) and list(verdict.anomalies) == ([name] if name else [])
    if name:
        assert verdict.anomalies[name][0]["node"] == "n2" and verdict.anomalies[name][0]["line"] == 2


def test_a_cluster_without_logs_is_not_known_to_be_healthy(tmp_path: Path) -> None:
    assert judging.judge_logs({"n1": tmp_path / "none"}).valid is None
    (tmp_path / "log").write_bytes(b'{"event": "x"}\n')
    assert judging.judge_logs({"n1": tmp_path / "log"}).valid is True


# --- All of it --------------------------------------------------------------------------------------------------------


def plan(workload: str = "log", **options: Any) -> RunPlan:
    return RunPlan(
        cell="", workload=workload, nemesis="", nodes=3, seconds=1, rate=1, seed=1, processes=2, options=options
    )


def test_a_checker_that_crashes_is_unknown_and_the_others_continue() -> None:
    history = [line("invoke", "send", 7), line("ok", "send", [["send", "k", [0, 1]]])]
    verdicts = judging.judge_history(plan(), history)
    assert verdicts["kafka"].valid is None and "reason" in verdicts["kafka"].measured
    assert verdicts["stats"].valid is False
    assert judging.valid(verdicts) is False
    assert judging.valid({"one": Verdict(True), "other": Verdict(None)}) is None
    assert judging.valid({"one": Verdict(True)}) is True
    assert judging.valid({}) is None


def test_the_verdicts_of_a_run_are_in_its_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    ends = {TOPIC: {"topic": "t", "ends": [1, None], "in_sync": True}}
    history = [
        line("invoke", "assign", ["t/0"]),
        line("ok", "assign", ["t/0"]),
        line("invoke", "send", [["send", "t/0", 1]]), line("ok", "send", [["send", "t/0", [0, 1]]]),
        line("info", "healed", process="suite", s=1),
        line("invoke", "send", [["send", "t/0", 2]], s=2), line("ok", "send", [["send", "t/0", [1, 2]]], s=3),
        line("invoke", "poll", [["poll"]], s=4), line("ok", "poll", [["poll", {"t/0": [[0, 1], [1, 2]]}]], s=4),
        line("info", "ends", ends, process="suite", s=5),
    ]  # fmt: skip
    with folder.history.open("wb") as file:
        write(file, history)
    for node in ("n1", "n2"):
        replica(tmp_path / node, (0, stored(b"a", base=0)))
    data = {node: tmp_path / node for node in ("n1", "n2")}
    verdicts = judging.judge_run(plan(), folder, data_folders=data, log_files={})
    assert {name: verdict.valid for name, verdict in verdicts.items()} == {
        "kafka": True, "stats": True, "recovery": True, "replicas": True,
    }  # fmt: skip
    written = msgspec.json.decode(folder.verdict.read_bytes())
    assert written["valid"] is True and written["checkers"]["recovery"]["measured"] == {"recovery_s": 2.0}
    assert set(judging.committed_ends(history)) == {PLACE}
