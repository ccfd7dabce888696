"""The newest lines of the audit log are kept within bounds, and those of an earlier process are found again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raftlog.api.audit import MAX_LINES
from raftlog.broker.security.audit import recent as module
from raftlog.broker.security.audit.audit import AuditLevel, AuditTrail, of_failed_login
from raftlog.broker.security.audit.recent import NO_AUDIT, RecentAudit
from tests.support.partitions.manual import ManualScheduler, ManualWorker


def lines(count: int, first: int = 0) -> list[bytes]:
    """Lines as a trail makes them, by different callers."""
    trail = AuditTrail(AuditLevel.ALL, 0)
    for number in range(first, first + count):
        trail.note(of_failed_login("10.0.0.9", f"user{number}", "password", "unknown user"), number)
    return [line.text for line in trail.take(0)]


def users(recent: RecentAudit, most: int = MAX_LINES) -> list[str]:
    return [json.loads(line)["principal"] for line in recent.recent(most)]


def remember(recent: RecentAudit, found: list[bytes]) -> None:
    reported: list[BaseException | None] = []
    recent.write(found, lambda error, written=0: reported.append(error))
    assert reported == [None]


def test_the_newest_come_first_and_the_oldest_are_forgotten() -> None:
    recent = RecentAudit("all")
    remember(recent, lines(MAX_LINES + 5))
    assert users(recent, 2) == [f"user{MAX_LINES + 4}", f"user{MAX_LINES + 3}"]
    assert len(users(recent)) == MAX_LINES and users(recent)[-1] == "user5"


def test_the_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    found = lines(10)
    monkeypatch.setattr(module, "MAX_BYTES", len(found[-1]) * 3)
    recent = RecentAudit("all")
    remember(recent, found)
    assert users(recent) == ["user9", "user8", "user7"]


@pytest.fixture
def worker() -> ManualWorker:
    return ManualWorker(ManualScheduler())


def test_lines_of_an_earlier_process_come_before_those_of_this_one(tmp_path: Path, worker: ManualWorker) -> None:
    path = tmp_path / "audit.log"
    torn = b'{"kind": "authoriz'
    path.write_bytes(b"".join(lines(3)) + b"not JSON\n\xff\n[1]\n" + torn)
    recent = RecentAudit("all")
    recent.read_earlier(str(path), worker)
    path.write_bytes(path.read_bytes() + b"".join(lines(1, first=9)))  # this process' own, by another sink
    remember(recent, lines(1, first=9))
    worker.run_all()
    assert users(recent) == ["user9", "user2", "user1", "user0"]


def test_of_a_long_file_the_last_whole_lines_are_read(
    tmp_path: Path, worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.log"
    found = lines(20)
    path.write_bytes(b"".join(found))
    monkeypatch.setattr(module, "TAIL_BYTES", len(found[-1]) * 2 + 10)
    recent = RecentAudit("all")
    recent.read_earlier(str(path), worker)
    worker.run_all()
    assert users(recent) == ["user19", "user18"]


def test_without_a_file_there_is_nothing_to_read(tmp_path: Path, worker: ManualWorker) -> None:
    recent = RecentAudit("all")
    recent.read_earlier(str(tmp_path / "audit.log"), worker)
    worker.run_all()
    assert users(recent) == users(NO_AUDIT) == []
