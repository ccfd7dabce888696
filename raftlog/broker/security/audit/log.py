"""The audit log: the trail's lines on their way to a file, to stdout, or to a topic. Never on the data path's time.

A request only notes its event. A timer takes the lines that are due and gives them to a worker; while a sink is busy,
lines wait in the bounded trail. Lines that a sink could not write are counted as a gap, which the trail reports, and
the node's health names the reason until the sink works again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from raftlog.errors import RaftlogError
from raftlog.ports import Clock, Scheduler, Timer, Worker

from .audit import AuditEvent, AuditTrail, WaitingLine

FLUSH_SECONDS = 0.25


class Written(Protocol):
    """The end of a write, called once on the scheduler's thread."""

    def __call__(self, error: BaseException | None, written: int = 0) -> None:
        """`error`: why the lines were not all written; None: they were. `written`: beside an error, the number of the
        first lines that were written all the same."""
        ...


class AuditSink(Protocol):
    """A destination of lines. It gets the next ones only when it has reported the end of those before."""

    @property
    def name(self) -> str: ...
    def write(self, lines: Sequence[bytes], written: Written) -> None: ...


class FileSink:
    """Appends lines to a file, which only its owner may read. A file that was renamed or removed is created again."""

    def __init__(self, path: str, worker: Worker) -> None:
        self._path = path
        self._worker = worker
        self._is_torn = False
        """Whether the file ends in the middle of a line, because it had no room for the rest."""

    @property
    def name(self) -> str:
        return self._path

    def write(self, lines: Sequence[bytes], written: Written) -> None:
        def done(appended: tuple[int, OSError | None] | None, error: BaseException | None) -> None:
            count, failure = appended or (0, None)
            written(failure or error, count)

        self._worker.submit(partial(self._append, lines), done)

    def _append(self, lines: Sequence[bytes]) -> tuple[int, OSError | None]:
        """Append on a worker; return the number of whole lines that the file got, and the error that ended it. Opened
        each time, a few times a second, so that log rotation needs no signal."""
        failure: OSError | None = None
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        is_torn = self._is_torn and os.fstat(descriptor).st_size > 0  # Another file begins with a line.
        text = (b"\n" if is_torn else b"") + b"".join(lines)
        rest = memoryview(text)
        try:
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        except OSError as error:
            failure = error
        finally:
            os.close(descriptor)
        sent = text[: len(text) - len(rest)]
        whole = sent.count(b"\n") - (is_torn and bool(sent))
        if sent:
            self._is_torn = not sent.endswith(b"\n")
        return whole, failure


def lines_before(path: str, end: int, most_bytes: int) -> list[bytes]:
    """Return the whole lines among the last bytes of a file before `end`; none if it cannot be read. Blocks."""
    start = max(0, end - most_bytes)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            content = os.pread(descriptor, end - start, start)
        finally:
            os.close(descriptor)
    except OSError:
        return []
    lines = content.split(b"\n")
    return lines[1:] if start else lines


class StandardOutputSink:
    """Writes lines to stdout, for containers whose platform collects it."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    @property
    def name(self) -> str:
        return "stdout"

    def write(self, lines: Sequence[bytes], written: Written) -> None:
        self._worker.submit(partial(self._print, b"".join(lines)), lambda _, error: written(error))

    @staticmethod
    def _print(text: bytes) -> None:
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()


class AuditLog:
    """The trail of one node and its sink. All calls are made on the broker's loop.

    Invariant: at most one flush is scheduled, and the sink has at most one write in progress.
    """

    def __init__(self, trail: AuditTrail, sink: AuditSink, clock: Clock, scheduler: Scheduler) -> None:
        self._trail = trail
        self._sink = sink
        self._clock = clock
        self._scheduler = scheduler
        self._timer: Timer | None = None
        self._writing: list[WaitingLine] = []
        """The lines that the sink is writing."""
        self._problem = ""
        self._closed: Callable[[], None] | None = None

    def note(self, event: AuditEvent, request_id: str = "") -> None:
        """Record an event. Costs no I/O."""
        self._trail.note(event, self._clock.wall_ms(), request_id)
        self._schedule()

    def problems(self) -> list[str]:
        """Return the problems of the audit log for the node's health."""
        return [self._problem] if self._problem else []

    def close(self, closed: Callable[[], None]) -> None:
        """Write the lines that are due, then call `closed`."""
        self._closed = closed
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._writing:
            self._flush()

    def _schedule(self) -> None:
        if self._timer is None and not self._writing and self._closed is None and self._trail.has_work:
            self._timer = self._scheduler.call_later(FLUSH_SECONDS, self._flush)

    def _flush(self) -> None:
        self._timer = None
        lines = self._trail.take(self._clock.wall_ms(), last=self._closed is not None)
        if lines:
            self._writing = lines
            self._sink.write([line.text for line in lines], self._written)
        elif self._closed is not None:
            self._closed()
        else:
            self._schedule()

    def _written(self, error: BaseException | None, written: int = 0) -> None:
        lines, self._writing = self._writing, []
        if error is None:
            self._problem = ""
        else:
            why = error.detail if isinstance(error, RaftlogError) else str(error)
            self._problem = f"audit lines cannot be written to {self._sink.name}: {why}"
            self._trail.miss(sum(line.events for line in lines[written:]), self._clock.wall_ms())
        if self._closed is None:
            self._schedule()
        elif error is None and self._trail.has_work:
            self._flush()
        else:
            self._closed()
