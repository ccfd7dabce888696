"""The newest lines of the audit log in memory, for administrators who look at this node.

At most `MAX_LINES` lines and `MAX_BYTES` bytes, whichever is less. The lines of an earlier process are read from the
end of the audit log's file, if there is one.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from raftlog.api.audit import MAX_LINES, AuditLine
from raftlog.ports import Worker

from .log import Written, lines_before

MAX_BYTES = 1024 * 1024
TAIL_BYTES = 256 * 1024
"""Bytes at the end of the file that are read at the start of the node."""

_decoder = msgspec.json.Decoder(AuditLine)


class RecentAudit:
    """An `AuditSink` that only remembers, and the `http_api.service.audit.AuditService`. All calls are made on the
    broker's loop."""

    name = "memory"

    def __init__(self, level: str) -> None:
        """`level`: the level of the trail; empty: no audit log is written, and nothing is remembered."""
        self.level = level
        self._lines: deque[bytes] = deque()
        self._bytes = 0

    def write(self, lines: Sequence[bytes], written: Written) -> None:
        """Remember lines that are newer than all others."""
        for line in lines:
            self._lines.append(line)
            self._bytes += len(line)
        while len(self._lines) > MAX_LINES or self._bytes > MAX_BYTES:
            self._bytes -= len(self._lines.popleft())
        written(None)

    def recent(self, most: int) -> Sequence[bytes]:
        return [line for line, _ in zip(reversed(self._lines), range(most), strict=False)]

    def read_earlier(self, path: str, worker: Worker) -> None:
        """Remember the last lines that a file has now, on a worker. A file that cannot be read is as good as none."""
        try:
            end = os.stat(path).st_size
        except OSError:
            return  # The first line creates it; a lasting error is reported by whatever writes the log.
        worker.submit(lambda: list(_checked(lines_before(path, end, TAIL_BYTES))), self._prepend)

    def _prepend(self, lines: Sequence[bytes] | None, error: BaseException | None) -> None:
        for line in reversed(lines or ()):
            if len(self._lines) >= MAX_LINES or self._bytes + len(line) > MAX_BYTES:
                return
            self._lines.appendleft(line)
            self._bytes += len(line)


NO_AUDIT = RecentAudit("")
"""The audit log of a node that writes none."""


def _checked(lines: Iterable[bytes]) -> Iterable[bytes]:
    """Yield what is a line of an audit log: others may have written to the file."""
    for line in lines:
        try:
            _decoder.decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            continue
        yield line + b"\n"
