"""Commands that move records, as real processes: Ctrl-C, SIGTERM, closed pipes, slow input."""

from __future__ import annotations

import itertools
import os
import pty
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from raftlog.records.batch import encode
from tests.support.cli_runner import PATIENCE_S, Background, start
from tests.support.client.fake_cluster import FakeCluster, FakeTopic, Fate

pytestmark = pytest.mark.integration

numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[FakeCluster]:
    with Background(FakeCluster(nodes=1)) as background:
        yield background.cluster


@pytest.fixture
def topic(cluster: FakeCluster) -> Iterator[FakeTopic]:
    yield cluster.create_topic(f"t{next(numbers)}")
    cluster.nodes[1].on_produce = lambda _: Fate()


@pytest.fixture
def child(cluster: FakeCluster) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts commands; none outlives its test."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*arguments: str, **options: object) -> subprocess.Popen[bytes]:
        started.append(start(*arguments, bootstrap=cluster.bootstrap, **options))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def end(process: subprocess.Popen[bytes]) -> tuple[int, bytes, str]:
    """The exit code and the remaining output."""
    stdout, stderr = process.communicate(timeout=PATIENCE_S)
    return process.returncode, stdout, stderr.decode()


def put(topic: FakeTopic, *values: bytes) -> None:
    topic.partitions[0].append(encode(list(values), base_timestamp_ms=1))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_consume_ends_in_order_when_it_is_interrupted(
    child: Callable[..., subprocess.Popen[bytes]], topic: FakeTopic, number: signal.Signals
) -> None:
    put(topic, b"a", b"b")
    process = child("consume", topic.name, "--from", "earliest", "--format", "json")
    assert process.stdout is not None
    # Available records are shown at once, not when a buffer is full.
    first = process.stdout.readline() + process.stdout.readline()
    process.send_signal(number)
    code, rest, stderr = end(process)
    assert code == 130
    assert (first + rest).startswith(b'[\n{"partition":0,"offset":0') and rest.endswith(b"\n]\n")
    assert stderr.startswith("2 records read") and "Traceback" not in stderr


def test_consume_ends_when_its_output_is_closed(
    child: Callable[..., subprocess.Popen[bytes]], topic: FakeTopic
) -> None:
    for _ in range(20):
        put(topic, *[b"x" * 100] * 5000)
    process = child("consume", topic.name, "--from", "earliest")
    assert process.stdout is not None
    assert process.stdout.readline() == b"x" * 100 + b"\n"
    process.stdout.close()
    process.stdout = None
    code, _, stderr = end(process)
    assert (code, stderr) == (0, "")


def test_consume_can_be_interrupted_while_its_output_is_blocked(
    child: Callable[..., subprocess.Popen[bytes]], topic: FakeTopic
) -> None:
    for _ in range(20):
        put(topic, *[b"x" * 100] * 5000)
    process = child("consume", topic.name, "--from", "earliest")
    assert process.stdout is not None
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 130


def test_produce_sends_the_lines_typed_so_far(child: Callable[..., subprocess.Popen[bytes]], topic: FakeTopic) -> None:
    process = child("produce", topic.name)
    assert process.stdin is not None
    process.stdin.write(b"one\ntwo\nhalf a li")
    process.stdin.flush()
    until(lambda: topic.partitions[0].values() == [b"one", b"two"])
    process.stdin.write(b"ne\n")
    process.stdin.flush()
    until(lambda: topic.partitions[0].values() == [b"one", b"two", b"half a line"])
    process.send_signal(signal.SIGINT)
    code, _, stderr = end(process)
    assert code == 130
    assert stderr.startswith("3 records sent") and "Traceback" not in stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_produce_reports_unanswered_records_when_it_is_interrupted_twice(
    child: Callable[..., subprocess.Popen[bytes]], cluster: FakeCluster, topic: FakeTopic, number: signal.Signals
) -> None:
    cluster.nodes[1].on_produce = lambda _: Fate(silent=True)
    process = child("produce", topic.name)
    assert process.stdin is not None
    process.stdin.write(b"one\ntwo\n")
    process.stdin.flush()
    until(lambda: topic.partitions[0].values() == [b"one", b"two"])
    process.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)  # it waits for the answer
    process.send_signal(number)
    code, _, stderr = end(process)
    assert code == 130
    assert "Traceback" not in stderr


def test_produce_on_a_terminal_shows_no_bar_over_typed_lines(
    child: Callable[..., subprocess.Popen[bytes]], topic: FakeTopic
) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "r+b", buffering=0) as terminal:
        process = child("produce", topic.name, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        terminal.write(b"typed\n")
        until(lambda: topic.partitions[0].values() == [b"typed"])
        terminal.write(b"\x04")
        assert process.wait(PATIENCE_S) == 0
        shown = terminal.read(4096)
    assert b"1 record sent" in shown
    assert b"sending" not in shown and b"\x1b" not in shown


def test_a_file_on_a_terminal_has_a_bar(
    child: Callable[..., subprocess.Popen[bytes]], topic: FakeTopic, tmp_path: object
) -> None:
    path = os.path.join(str(tmp_path), "lines")
    with open(path, "wb") as file:
        file.write(b"line\n" * 1000)
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        process = child("produce", topic.name, path, stderr=theirs, env=os.environ | {"TERM": "xterm"})
        os.close(theirs)
        shown = b""
        while b"records sent" not in shown:
            shown += terminal.read(4096)
        assert process.wait(PATIENCE_S) == 0
    assert b"sending" in shown and b"1000 records sent" in shown
