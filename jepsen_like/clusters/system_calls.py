"""System calls of a running process that fail or take long, by strace.

    strace -f -p PID -e trace=fdatasync,fsync,syncfs,pwritev2 -e inject=fdatasync,fsync,syncfs,pwritev2:error=EIO

tells in its trace each call that it touched, which is the proof. Touched is whatever makes data durable: fsyncs, of one
file or of all, and the writes that are fsyncs as well (RWF_DSYNC), which strace cannot tell from those that are not. A
process is traced from `begin` to `end`, and all of its system calls are slower meanwhile: a fault of its own.

Source: strace(1), "Syscall injection".
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from .commands import CommandFailed, missing_program

CALLS = "fdatasync,fsync,syncfs,pwritev2"
ATTACH_SECONDS = 20.0
END_SECONDS = 10.0
POLL_SECONDS = 0.01
MARKS = ("(INJECTED)", "(DELAYED)")


class Injection:
    """What happens to a process's fsyncs. `trace`: where strace tells of it."""

    def __init__(self, pid: int, trace: Path, what: str) -> None:
        """`what`: as `-e inject=` has it after the calls, such as `error=EIO` or `delay_enter=300000` (µs)."""
        self._pid = pid
        self._trace = trace
        self._what = what
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Returns when the process is traced. Raises `CommandFailed`. Blocks."""
        self._trace.write_bytes(b"")
        command = ["strace", "-f", "-q", "-p", str(self._pid), "-o", str(self._trace)]
        command += ["-e", f"trace={CALLS}", "-e", f"inject={CALLS}:{self._what}"]
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        except FileNotFoundError:
            raise CommandFailed(missing_program("strace")) from None
        deadline = time.monotonic() + ATTACH_SECONDS
        while not self._is_attached():
            if self._process.poll() is not None or time.monotonic() > deadline:
                why = self.end()
                raise CommandFailed(f"strace did not attach to process {self._pid}: {why}")
            time.sleep(POLL_SECONDS)

    def end(self) -> str:
        """The process is let go. What strace had to say. Safe to call again. Blocks."""
        process, self._process = self._process, None
        if process is None:
            return ""
        process.terminate()
        try:
            _, told = process.communicate(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()  # The kernel lets the traced process go.
            _, told = process.communicate()
        return told.decode(errors="replace").strip()

    def count(self) -> int:
        """Of the calls that were touched. Raises `CommandFailed` where strace failed; a process that ended meanwhile,
        as one does whose disk fails, takes its strace along, which has told all by then. Blocks for a moment."""
        if self._process is not None and self._process.poll():
            code = self._process.returncode
            raise CommandFailed(f"strace ended with {code}: {self.end()}")
        try:
            text = self._trace.read_text(errors="replace")
        except FileNotFoundError:
            return 0
        return sum(text.count(mark) for mark in MARKS)

    def _is_attached(self) -> bool:
        """To every thread that the process has now."""
        threads = list(Path(f"/proc/{self._pid}/task").glob("*/status"))
        try:
            return bool(threads) and all("TracerPid:\t0\n" not in thread.read_text() for thread in threads)
        except (FileNotFoundError, ProcessLookupError):
            return False
