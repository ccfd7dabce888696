"""Failing fsyncs of a process, and their proof: strace's report, also of a process that the failure ended."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jepsen_like.clusters.capabilities import STRACE
from jepsen_like.clusters.commands import CommandFailed
from jepsen_like.clusters.system_calls import Injection
from tests.support.clusters.nemeses import need

PATIENCE_S = 30.0
SYNCS_AT_A_LINE = "import os, sys\nfor line in sys.stdin:\n    os.fsync(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT))\n"


@contextlib.contextmanager
def failing(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Injection]]:
    """A process whose fsyncs fail: it ends at the first, which it makes when it gets a line."""
    need(STRACE)
    command = [sys.executable, "-c", SYNCS_AT_A_LINE, str(folder / "file")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        calls = Injection(process.pid, folder / "trace", "error=EIO")
        try:
            calls.begin()
            yield process, calls
        finally:
            process.kill()
            calls.end()


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_process_that_ended_by_its_failed_fsync_is_proof(tmp_path: Path) -> None:
    with failing(tmp_path) as (process, calls):
        assert calls.count() == 0
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.wait(PATIENCE_S) == 1
        assert calls.count() == 1
        # And after strace has ended as well.
        assert calls.end() == ""
        assert calls.count() == 1


def test_a_strace_that_failed_is_no_proof(tmp_path: Path) -> None:
    with failing(tmp_path) as (process, calls):
        status = Path(f"/proc/{process.pid}/status")
        tracer = re.search(r"TracerPid:\t(\d+)", status.read_text())
        assert tracer is not None
        os.kill(int(tracer[1]), signal.SIGKILL)
        until(lambda: "TracerPid:\t0\n" in status.read_text())
        with pytest.raises(CommandFailed, match="strace ended with -9"):
            until(lambda: calls.count() > 0)
