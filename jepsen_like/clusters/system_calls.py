"""System calls of a running process that fail or are slow, injected by strace.

    strace -f -p PID -e trace=fdatasync,fsync,syncfs,pwritev2 -e inject=fdatasync,fsync,syncfs,pwritev2:error=EIO

marks each affected call in its trace, which is the proof. Every call that makes data durable is affected: fsyncs, of
one file or of all, and the writes that are fsyncs as well (RWF_DSYNC), which strace cannot distinguish from those that
are not. A process is traced from `begin` to `end`, and all of its system calls are slower meanwhile: a fault in itself.

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
    """A fault in the fsyncs of a process. `trace`: the file for strace's output."""

    def __init__(self, pid: int, trace: Path, what: str) -> None:
        """`what`: the part of `-e inject=` after the calls, such as `error=EIO` or `delay_enter=300000` (µs)."""
        self._pid = pid
        self._trace = trace
        self._what = what
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Attach strace, and return when the process is traced. Raises `CommandFailed`. Blocks."""
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
        """Detach from the process and return what strace printed. Idempotent. Blocks."""
        process, self._process = self._process, None
        if process is None:
            return ""
        process.terminate()
        try:
            _, told = process.communicate(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()  # The kernel then detaches the traced process.
            _, told = process.communicate()
        return told.decode(errors="replace").strip()

    def count(self) -> int:
        """Return the number of affected calls.

        If the traced process ends, for example because its disk failed, strace ends with it and has written its whole
        trace. Raises `CommandFailed` if strace itself failed. Blocks briefly.
        """
        if self._process is not None and self._process.poll():
            code = self._process.returncode
            raise CommandFailed(f"strace ended with {code}: {self.end()}")
        try:
            text = self._trace.read_text(errors="replace")
        except FileNotFoundError:
            return 0
        return sum(text.count(mark) for mark in MARKS)

    def _is_attached(self) -> bool:
        """Return whether every current thread of the process is traced."""
        threads = list(Path(f"/proc/{self._pid}/task").glob("*/status"))
        try:
            return bool(threads) and all("TracerPid:\t0\n" not in thread.read_text() for thread in threads)
        except (FileNotFoundError, ProcessLookupError):
            return False
