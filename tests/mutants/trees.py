"""A copy of one commit's tree, in which a file may be mutated, and bounded runs of Python in it.

The checkout is never touched. Bytecode is kept between runs, so a rewritten file gets a modification time that none of
its versions had before: otherwise Python would use the old bytecode for a file of the same length and second.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

PLUGIN, PLUGIN_NAME = Path(__file__).with_name("contexts.py"), "raftlog_mutants_contexts"
MEMORY_BYTES = 8 << 30
"""The limit of a process's address space, so that a mutant that allocates without end does not exhaust the machine."""
STOPPED_S = 30.0
OUTPUT_BYTES = 4_000


@dataclass(frozen=True)
class Run:
    """The result of a run."""

    status: int | None
    """The exit code; None if the run was stopped because it took too long."""
    seconds: float
    output: str
    """The end of its output."""
    failed: list[str] = field(default_factory=list)
    """Tests that failed."""
    ran: int = 0
    times: Mapping[str, float] = field(default_factory=dict)
    """Test → seconds."""
    skipped: list[str] = field(default_factory=list)


class Tree:
    """A tree, used by one thread."""

    _times = itertools.count(1_000_000_000)

    def __init__(self, repository: Path, commit: str, folder: Path) -> None:
        """Create `folder`, with the commit's files in it. Raises `subprocess.CalledProcessError`."""
        self.folder = folder
        self.stopped = False
        """Whether running and future runs are cancelled."""
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True)
        packed = folder / "tree.tar"
        subprocess.run(["git", "-C", str(repository), "archive", "-o", str(packed), commit], check=True, timeout=120)
        with tarfile.open(packed) as archive:
            archive.extractall(folder, filter="data")
        packed.unlink()
        shutil.copy(PLUGIN, folder / f"{PLUGIN_NAME}.py")  # the commit may be older than it

    def stop(self) -> None:
        """End the current run. May be called from any thread."""
        self.stopped = True
        process = self._process
        if process is not None:
            _kill_group(process)

    @contextmanager
    def holding(self, file: str, text: str) -> Iterator[None]:
        """Put this text into the file for the duration of the block."""
        path = self.folder / file
        before = path.read_text()
        self._write(path, text)
        try:
            yield
        finally:
            self._write(path, before)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text)
        moment = next(self._times)
        os.utime(path, (moment, moment))

    def pytest(
        self,
        tests: Sequence[str],
        limit_s: float,
        *,
        coverage: Path | None = None,
        stop: bool = True,
        test_s: float = 0,
    ) -> Run:
        """Run these tests, by their ids or files; with `stop`, up to the first failure. `coverage`: the file for its
        data. `test_s`: the limit for a test; 0 disables it."""
        (self.folder / "tests-to-run").write_text("".join(f"{test}\n" for test in tests))
        measured = ["-m", "coverage", "run", f"--data-file={coverage}", "--source=" + ",".join(SOURCES)]
        runner = measured if coverage else []
        options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", PLUGIN_NAME, "--tb=line"]
        report = self.folder / "tests-report.json"
        report.unlink(missing_ok=True)
        command = [*runner, "-m", "pytest", *options, *(["-x"] if stop else []), "@tests-to-run"]
        run = self.python(command, limit_s, {"MUTANTS_REPORT": str(report), "MUTANTS_TEST_SECONDS": str(test_s)})
        if not report.exists():
            return run
        lines = [json.loads(line) for line in report.read_text().splitlines() if line.endswith("}")]
        times = {line["test"]: line["seconds"] for line in lines}
        failed, skipped = (
            [line["test"] for line in lines if line["outcome"] == what] for what in ("failed", "skipped")
        )
        return Run(run.status, run.seconds, run.output, failed, len(times), times, skipped)

    def python(self, arguments: Sequence[str], limit_s: float, environment: Mapping[str, str] | None = None) -> Run:
        """Run Python with this tree's modules before all others. All processes that it started end with it."""
        began = time.monotonic()
        output = self.folder / "output.txt"
        with output.open("wb") as into:
            process = subprocess.Popen(
                [sys.executable, "-P", *arguments],
                cwd=self.folder,
                env={**os.environ, **(environment or {}), "PYTHONPATH": str(self.folder)},
                stdin=subprocess.DEVNULL,
                stdout=into,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_bound_memory,
            )
            self._process = process
            try:
                status: int | None = process.wait(0 if self.stopped else limit_s)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                self._process = None
                _kill_group(process)
                process.wait(STOPPED_S)
        told = output.read_bytes()[-OUTPUT_BYTES:].decode(errors="replace")
        return Run(status, time.monotonic() - began, told)


SOURCES = ("partitions", "metadata", "raftlog", "http_api", "spark_source")


def _bound_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
