"""The audit log never delays a request, and reports a sink that fails."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from raftlog.broker.security.audit.audit import MERGE_SECONDS, AuditLevel, AuditTrail, of_failed_login
from raftlog.broker.security.audit.log import FLUSH_SECONDS, AuditLog, FileSink, StandardOutputSink, Written
from raftlog.broker.security.audit.logs import AuditLogs
from raftlog.broker.security.audit.topic import TopicSink
from raftlog.errors import RaftlogError
from raftlog.records.batch import RecordBatch
from raftlog.security.acls import Operation
from raftlog.wire import ProducedPartition, ProduceRequest, ProduceResponse
from tests.support.metadata.cluster import Cluster
from tests.support.partitions.manual import ManualScheduler, ManualWorker


class HeldSink:
    """A sink whose writes end when the test says so."""

    name = "held"

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.waiting: list[Written] = []

    def write(self, lines: Sequence[bytes], written: Written) -> None:
        self.lines += lines
        self.waiting.append(written)


def new_log(sink: HeldSink) -> tuple[AuditLog, ManualScheduler]:
    scheduler = ManualScheduler()
    return AuditLog(AuditTrail(AuditLevel.ALL, 0), sink, scheduler.clock, scheduler), scheduler


def note(log: AuditLog, number: int) -> None:
    log.note(of_failed_login("10.0.0.9", f"user{number}", "password", "unknown user"))


def test_lines_are_written_together_and_one_write_at_a_time() -> None:
    sink = HeldSink()
    log, scheduler = new_log(sink)
    note(log, 1)
    note(log, 2)
    assert sink.lines == []
    scheduler.advance(FLUSH_SECONDS)
    assert len(sink.lines) == 2
    note(log, 3)
    scheduler.advance(10 * FLUSH_SECONDS)
    assert len(sink.waiting) == 1, "the sink is still busy"
    sink.waiting.pop()(None)
    scheduler.advance(FLUSH_SECONDS)
    assert len(sink.lines) == 3
    assert log.problems() == []


def test_lines_that_a_sink_lost_are_a_gap_and_a_problem_until_it_works_again() -> None:
    sink = HeldSink()
    log, scheduler = new_log(sink)
    for number in range(5):
        note(log, number)
    scheduler.advance(FLUSH_SECONDS)
    sink.waiting.pop()(OSError("no space left on device"))
    assert log.problems() == ["audit lines cannot be written to held: no space left on device"]
    scheduler.advance(FLUSH_SECONDS)
    gap = json.loads(sink.lines[-1])
    assert (gap["kind"], gap["count"]) == ("gap", 5)
    sink.waiting.pop()(None)
    assert log.problems() == []


def test_lines_that_were_written_before_a_failure_are_in_no_gap() -> None:
    sink = HeldSink()
    log, scheduler = new_log(sink)
    for number in range(5):
        note(log, number)
    scheduler.advance(FLUSH_SECONDS)
    sink.waiting.pop()(OSError("no space left on device"), 3)
    scheduler.advance(FLUSH_SECONDS)
    gap = json.loads(sink.lines[-1])
    assert (gap["kind"], gap["count"]) == ("gap", 2)


def test_a_lost_line_of_many_events_and_a_lost_gap_count_as_many_events() -> None:
    sink = HeldSink()
    log, scheduler = new_log(sink)
    for _ in range(58):
        note(log, 1)
    scheduler.advance(FLUSH_SECONDS)
    sink.waiting.pop()(None)
    scheduler.advance(2 * MERGE_SECONDS)
    assert json.loads(sink.lines[-1])["count"] == 57
    for _ in range(2):
        sink.waiting.pop()(OSError("no space left on device"))
        scheduler.advance(FLUSH_SECONDS)
        gap = json.loads(sink.lines[-1])
        assert (gap["kind"], gap["count"]) == ("gap", 57)


def test_closing_writes_what_is_due_first() -> None:
    sink = HeldSink()
    log, scheduler = new_log(sink)
    note(log, 1)
    scheduler.advance(FLUSH_SECONDS)
    note(log, 1)
    note(log, 2)
    closed: list[bool] = []
    log.close(lambda: closed.append(True))
    assert not closed
    sink.waiting.pop()(None)
    assert not closed
    sink.waiting.pop()(None)
    assert closed == [True]
    assert len(sink.lines) == 3
    assert json.loads(sink.lines[-1])["principal"] == "user1" or json.loads(sink.lines[-2])["principal"] == "user1"


def test_closing_with_a_sink_that_fails_ends_all_the_same() -> None:
    sink = HeldSink()
    log, _ = new_log(sink)
    note(log, 1)
    closed: list[bool] = []
    log.close(lambda: closed.append(True))
    sink.waiting.pop()(OSError("gone"))
    assert closed == [True]


def test_a_file_is_private_and_is_created_anew_after_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    scheduler = ManualScheduler()
    worker = ManualWorker(scheduler)
    sink = FileSink(str(path), worker)
    errors: list[BaseException | None] = []

    def ended(error: BaseException | None, written: int = 0) -> None:
        errors.append(error)

    sink.write([b"one\n", b"two\n"], ended)
    worker.run_all()
    assert path.read_bytes() == b"one\ntwo\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.rename(tmp_path / "audit.log.1")
    sink.write([b"three\n"], ended)
    worker.run_all()
    assert path.read_bytes() == b"three\n"
    assert errors == [None, None]


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    scheduler = ManualScheduler()
    worker = ManualWorker(scheduler)
    ends: list[tuple[BaseException | None, int]] = []
    sink = FileSink(str(tmp_path / "missing" / "audit.log"), worker)
    sink.write([b"one\n"], lambda error, written=0: ends.append((error, written)))
    worker.run_all()
    ((error, written),) = ends
    assert isinstance(error, FileNotFoundError) and written == 0


def test_a_file_without_room_says_which_lines_it_has_and_goes_on_with_a_line_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, room = tmp_path / "audit.log", 7
    write = os.write

    def write_while_there_is_room(descriptor: int, data: bytes | memoryview) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "no space left on device")
        taken = write(descriptor, data[: min(room, 5)])
        room -= taken
        return taken

    monkeypatch.setattr(os, "write", write_while_there_is_room)
    worker = ManualWorker(ManualScheduler())
    sink = FileSink(str(path), worker)
    ends: list[tuple[bool, int]] = []

    def append(*lines: bytes) -> None:
        sink.write(lines, lambda error, written=0: ends.append((error is None, written)))
        worker.run_all()

    append(b"one\n", b"two\n", b"three\n")
    append(b"four\n")
    room = 6
    append(b"five\n", b"six\n")
    room = 100
    append(b"seven\n")
    assert path.read_bytes() == b"one\ntwo\nfive\nseven\n"
    assert ends == [(False, 1), (False, 0), (False, 1), (True, 1)]


def test_stdout_gets_the_lines(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    scheduler = ManualScheduler()
    worker = ManualWorker(scheduler)
    StandardOutputSink(worker).write([b'{"kind":"gap"}\n'], lambda error, written=0: None)
    worker.run_all()
    assert capfdbinary.readouterr().out == b'{"kind":"gap"}\n'


class Leader:
    """The broker behind a topic's sink."""

    def __init__(self, error: str = "", *, good: int = 0) -> None:
        """`error` is the answer after the first `good` requests."""
        self.error, self.good = error, good
        self.values: list[bytes | None] = []
        self.taken: list[int] = []
        """Records by batch."""

    async def produce(self, request: ProduceRequest, batches: Sequence[memoryview]) -> ProduceResponse:
        for batch in batches:
            values = [record.value for record in RecordBatch(batch).records()]
            self.values += values
            self.taken.append(len(values))
        self.good -= 1
        error = self.error if self.good < 0 else ""
        return ProduceResponse(
            0, [ProducedPartition(p.topic_id, p.partition, error, "why") for p in request.partitions]
        )


async def written_to(sink: TopicSink, lines: Sequence[bytes]) -> BaseException | None:
    return (await end_of_write(sink, lines))[0]


async def end_of_write(sink: TopicSink, lines: Sequence[bytes]) -> tuple[BaseException | None, int]:
    done: asyncio.Future[tuple[BaseException | None, int]] = asyncio.get_running_loop().create_future()
    sink.write(lines, lambda error, written=0: done.set_result((error, written)))
    return await asyncio.wait_for(done, 10)


async def test_a_topic_gets_one_record_a_line_in_batches_that_fit() -> None:
    cluster, leader = Cluster(3, partitions=2), Leader()
    name = cluster.view.topics()[0].name
    sink = TopicSink(name, cluster.view, ManualScheduler().clock, leader.produce)
    lines = [b'{"number":%d,"text":"%b"}\n' % (number, b"x" * 1000) for number in range(1_000)]
    assert await written_to(sink, lines) is None
    assert leader.values == [line.rstrip(b"\n") for line in lines]


async def test_lines_of_batches_before_the_one_that_fails_are_written() -> None:
    cluster, leader = Cluster(3, partitions=2), Leader("disk_full", good=1)
    sink = TopicSink(cluster.view.topics()[0].name, cluster.view, ManualScheduler().clock, leader.produce)
    error, written = await end_of_write(sink, [b"%d" % number + b"x" * 1000 + b"\n" for number in range(1_000)])
    assert isinstance(error, RaftlogError) and error.code == "disk_full"
    assert 0 < written < 1_000 and written == leader.taken[0]


async def test_a_missing_topic_and_a_refusing_leader_are_errors() -> None:
    cluster = Cluster(3, partitions=2)
    clock = ManualScheduler().clock
    missing = await written_to(TopicSink("nothing", cluster.view, clock, Leader().produce), [b"{}\n"])
    assert isinstance(missing, RaftlogError) and missing.code == "unknown_topic"
    name = cluster.view.topics()[0].name
    refused = await written_to(TopicSink(name, cluster.view, clock, Leader("disk_full").produce), [b"{}\n"])
    assert isinstance(refused, RaftlogError) and refused.code == "disk_full"


@pytest.mark.parametrize(
    ("level", "wanted"),
    [
        (AuditLevel.REFUSED, {(Operation.READ, False), (Operation.ALTER, False)}),
        (AuditLevel.CHANGES, {(Operation.READ, False), (Operation.ALTER, False), (Operation.ALTER, True)}),
        (
            AuditLevel.ALL,
            {(Operation.READ, False), (Operation.ALTER, False), (Operation.ALTER, True), (Operation.READ, True)},
        ),
    ],
)
def test_the_level_decides_which_decisions_are_recorded(level: AuditLevel, wanted: set[tuple[Operation, bool]]) -> None:
    asked = [(operation, allowed) for operation in (Operation.READ, Operation.ALTER) for allowed in (True, False)]
    logs = AuditLogs(level, [new_log(HeldSink())[0]])
    assert {one for one in asked if logs.wants(one[0], allowed=one[1])} == wanted
    nowhere = AuditLogs(level, [])
    assert not any(nowhere.wants(operation, allowed=allowed) for operation, allowed in asked)


def test_each_destination_gets_every_line_and_a_held_one_delays_only_itself() -> None:
    held, free = HeldSink(), HeldSink()
    scheduler = ManualScheduler()
    each = [AuditLog(AuditTrail(AuditLevel.ALL, 0), sink, scheduler.clock, scheduler) for sink in (held, free)]
    logs = AuditLogs(AuditLevel.ALL, each)
    logs.note(of_failed_login("10.0.0.9", "mallory", "password", "unknown user"))
    scheduler.advance(FLUSH_SECONDS)
    free.waiting.pop()(None)
    logs.note(of_failed_login("10.0.0.9", "eve", "password", "unknown user"))
    scheduler.advance(FLUSH_SECONDS)
    assert (len(held.lines), len(free.lines)) == (1, 2)
    free.waiting.pop()(None)
    closed: list[bool] = []
    logs.close(lambda: closed.append(True))
    assert closed == [], "the held sink has lines left"
    held.waiting.pop()(None)
    while held.waiting:
        held.waiting.pop()(None)
    assert (closed, len(held.lines)) == ([True], 2)


def test_without_destinations_closing_ends_at_once() -> None:
    closed: list[bool] = []
    AuditLogs(AuditLevel.ALL, []).close(lambda: closed.append(True))
    assert closed == [True]
