"""Wall clocks that can be set while a node runs, and readings of a node's own clock.

libfaketime intercepts the C library's clock calls and reads an offset from a file, one file per node. Only the wall
clock is changed: elections and sessions depend on the monotonic clock, which `time_namespace.py` can shift.

The proof of the fault comes from the node itself: every response of its API carries a `Date`, in whole seconds. Offsets
below `PROVABLE_SECONDS` cannot be proved and are therefore not injected.
"""

from __future__ import annotations

import asyncio
import glob
import os
import ssl
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path

from raftlog.model import Endpoint

LIBRARY = "libfaketimeMT.so.1"
_PLACES = ("/usr/lib/*/faketime", "/usr/lib/faketime", "/usr/local/lib/faketime")
SHARED_MEMORY = Path("/dev/shm")
PROVABLE_SECONDS = 2.0
ANSWER_SECONDS = 5.0


class ClockUnreadable(Exception):
    """A node's API did not report a readable time."""


def library() -> str | None:
    """Return the path of libfaketime, or None if it is not installed."""
    for place in _PLACES:
        for found in sorted(glob.glob(os.path.join(place, LIBRARY))):
            return found
    return None


class Clocks:
    """The wall clocks of some nodes, each an offset from the machine's clock."""

    def __init__(self, folder: Path, nodes: list[str], preload: str) -> None:
        """`preload`: the path from `library`. The offset files are written below `folder`."""
        self._folder = folder
        self._preload = preload
        folder.mkdir(parents=True, exist_ok=True)
        for node in nodes:
            self.set(node, 0.0)

    def environment(self, node: str) -> Mapping[str, str]:
        """Return the environment for a process that uses this node's clock."""
        return {
            "LD_PRELOAD": self._preload,
            "FAKETIME_TIMESTAMP_FILE": str(self._file(node)),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # With the fix, every wait with a deadline returns at once, and threads that wait for the GIL spin.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
            "NO_FAKE_STAT": "1",
        }

    def set(self, node: str, seconds: float) -> None:
        """Set the clock this many seconds ahead of the machine's (negative: behind).

        The file is replaced atomically: a reader sees the old offset or the new one.
        """
        temporary = self._file(node).with_suffix(".tmp")
        temporary.write_text(f"{seconds:+.6f}\n")
        temporary.replace(self._file(node))

    def _file(self, node: str) -> Path:
        return self._folder / f"{node}.clock"


def forget(pid: int) -> None:
    """Remove libfaketime's shared memory of a process, which survives a kill. Idempotent."""
    for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
        SHARED_MEMORY.joinpath(name).unlink(missing_ok=True)


async def offset_of(api: Endpoint, tls: ssl.SSLContext | None = None) -> float:
    """Return by how many seconds the node's wall clock is ahead of the machine's, to about one second.

    `tls`: for an API that speaks it. Raises `ClockUnreadable`.
    """
    request = f"GET /v1/ready HTTP/1.1\r\nHost: {api}\r\nConnection: close\r\n\r\n".encode()
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection(api.host, api.port, ssl=tls)
            try:
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise ClockUnreadable(f"{api} did not answer: {error!r}") from None
    for line in head.decode("latin-1").split("\r\n"):
        name, _, value = line.partition(":")
        if name.lower() == "date":
            try:
                told = parsedate_to_datetime(value.strip()).timestamp()
            except ValueError as error:
                raise ClockUnreadable(f"{api} sent the unreadable Date {value.strip()!r}: {error}") from None
            return told + 0.5 - time.time()  # The header has whole seconds, rounded down.
    raise ClockUnreadable(f"{api} sent no Date header")
