"""A node's own snapshots: begun when the log is long enough, made and written a step at each tick.

What is *not* here: their bytes (`snapshot.py`), the file (`journal_snapshot.py`), one that a leader sends
(`quorum_snapshot.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raftlog.errors import ResourceShortage

from .engine import Engine
from .quorum_limits import QuorumLimits
from .quorum_machine import StateMachine

RESTED_ENTRIES = 64
"""After a shortage of descriptors or memory the next snapshot waits for so many more entries."""


class Snapshots:
    """One at a time."""

    def __init__(self, machine: StateMachine, engine: Engine, limits: QuorumLimits) -> None:
        self._machine = machine
        self._engine = engine
        self._limits = limits
        self._writing: Iterator[None] | None = None
        """The rest of a snapshot's way to the disk."""
        self._entries_wanted = 1
        """Before that many there is no other one."""
        self.hindrance = ""
        """Why the last one could not be written; empty where it was."""

    @property
    def under_way(self) -> bool:
        """There is more to do to one."""
        return self._writing is not None or self._machine.makes_snapshot

    def go_on(self, *, due: bool = False) -> bool:
        """The next step, if there is one. `due`: begin one now, where none is under way. Whether one came to its end.
        Raises `DiskFailed` or `DiskFull`: the node must stop. Where descriptors are short (`ResourceShortage`) the
        snapshot is given up, since the log still has all that it covers, and another is made later."""
        if self._writing is None:
            entries = self._machine.entries_since_snapshot
            due = due or entries >= self._limits.snapshot_entries
            due = due or self._engine.journal_bytes >= self._limits.snapshot_bytes
            taken = self._machine.snapshot_step(begin=due and entries >= self._entries_wanted)
            if taken is None:
                return False
            self._writing = self._engine.compact(*taken)
        try:
            if next(self._writing, "done") != "done":
                return False
        except ResourceShortage as error:
            self._writing, self._entries_wanted, self.hindrance = None, RESTED_ENTRIES, error.detail
            return False
        self._writing, self._entries_wanted, self.hindrance = None, 1, ""
        return True
