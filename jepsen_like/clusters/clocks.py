"""Wall clocks that can be set while a node runs, and what a node's own clock says.

libfaketime stands between a node and the C library's clock calls and reads an offset from a file, one file a node. Only
the wall clock is changed: elections and sessions rest on the monotonic one, which `time_namespace.py` can shift.

The proof that it bites is the node's own: every answer of its API carries a `Date`, in whole seconds. So offsets below
`PROVABLE_SECONDS` cannot be proved and are not made.
"""

from __future__ import annotations

import asyncio
import glob
import os
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
    """A node did not say what time it is."""


def library() -> str | None:
    """Where libfaketime is; None: nowhere."""
    for place in _PLACES:
        for found in sorted(glob.glob(os.path.join(place, LIBRARY))):
            return found
    return None


class Clocks:
    """The wall clocks of some nodes, each an offset to the machine's."""

    def __init__(self, folder: Path, nodes: list[str], preload: str) -> None:
        """`preload`: as `library` found it. Files are written below `folder`."""
        self._folder = folder
        self._preload = preload
        folder.mkdir(parents=True, exist_ok=True)
        for node in nodes:
            self.set(node, 0.0)

    def environment(self, node: str) -> Mapping[str, str]:
        """What a process is started with whose clock is this one."""
        return {
            "LD_PRELOAD": self._preload,
            "FAKETIME_TIMESTAMP_FILE": str(self._file(node)),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # Without it every wait with a deadline returns at once: threads that want the interpreter spin for it.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
            "NO_FAKE_STAT": "1",
        }

    def set(self, node: str, seconds: float) -> None:
        """Ahead of the machine's clock by so much from now on, or behind. A reader sees the old file or the new one."""
        temporary = self._file(node).with_suffix(".tmp")
        temporary.write_text(f"{seconds:+.6f}\n")
        temporary.replace(self._file(node))

    def _file(self, node: str) -> Path:
        return self._folder / f"{node}.clock"


def forget(pid: int) -> None:
    """Remove what libfaketime keeps for a process in shared memory: it outlives a kill. Safe to call again."""
    for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
        SHARED_MEMORY.joinpath(name).unlink(missing_ok=True)


async def offset_of(api: Endpoint) -> float:
    """By how many seconds the wall clock of the node behind this API is ahead of the machine's, to about a second.
    Raises `ClockUnreadable`."""
    request = f"GET /v1/ready HTTP/1.1\r\nHost: {api}\r\nConnection: close\r\n\r\n".encode()
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection(api.host, api.port)
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
                raise ClockUnreadable(f"{api} says that it is {value.strip()!r}: {error}") from None
            return told + 0.5 - time.time()  # It tells whole seconds, cut off.
    raise ClockUnreadable(f"{api} answered without a date")
