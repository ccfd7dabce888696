"""Processor time by kind of thread, from Linux's `/proc`; on other systems there is none."""

from __future__ import annotations

import re
import threading
from collections import Counter

_NUMBER = re.compile(r"[-_]\d+(_\d+)?$")
_OURS = {"MainThread": "loop"}


class ThreadTimes:
    """The time that the process's threads have used, by name without number.

    Invariant: the times only rise; a thread that has ended keeps the time that was last seen.
    """

    def __init__(self, own: str = "/proc/self/task") -> None:
        """`own`: the folder with one subfolder for each thread."""
        self._own = own
        self._seen: dict[int, int] = {}
        """Native id → nanoseconds when it was last read."""
        self._total: Counter[str] = Counter()

    def read(self) -> dict[str, float]:
        """Return seconds by kind of thread, without those that Python does not know. Blocks shortly."""
        alive = set()
        for thread in threading.enumerate():
            native = thread.native_id
            used = None if native is None else self._used(native)
            if native is None or used is None:
                continue
            alive.add(native)
            kind = _OURS.get(thread.name, _NUMBER.sub("", thread.name).removeprefix("raftlog-"))
            self._total[kind] += max(0, used - self._seen.get(native, 0))
            self._seen[native] = used
        for native in self._seen.keys() - alive:
            del self._seen[native]
        return {kind: nanoseconds / 1e9 for kind, nanoseconds in self._total.items()}

    def _used(self, native: int) -> int | None:
        """Return a thread's processor time in nanoseconds (proc(5), `schedstat`); None if it is not known."""
        try:
            with open(f"{self._own}/{native}/schedstat", encoding="ascii") as file:
                return int(file.read().split()[0])
        except (OSError, ValueError, IndexError):
            return None
