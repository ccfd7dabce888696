"""A node's own snapshots: begun when the log is long enough, made and written a step at each tick.

What is *not* here: their bytes (`snapshot.py`), the file (`journal_snapshot.py`), one that a leader sends
(`quorum_snapshot.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from .engine import Engine
from .quorum_limits import QuorumLimits
from .quorum_machine import StateMachine


class Snapshots:
    """One at a time."""

    def __init__(self, machine: StateMachine, engine: Engine, limits: QuorumLimits) -> None:
        self._machine = machine
        self._engine = engine
        self._limits = limits
        self._writing: Iterator[None] | None = None
        """The rest of a snapshot's way to the disk."""

    @property
    def under_way(self) -> bool:
        """There is more to do to one."""
        return self._writing is not None or self._machine.makes_snapshot

    def go_on(self, *, due: bool = False) -> bool:
        """The next step, if there is one. `due`: begin one now, where none is under way. Whether one came to its end.
        Raises `DiskFailed` or `DiskFull`: the node must stop."""
        if self._writing is None:
            entries = self._machine.entries_since_snapshot
            due = due or entries >= self._limits.snapshot_entries
            due = due or self._engine.journal_bytes >= self._limits.snapshot_bytes
            taken = self._machine.snapshot_step(begin=due and entries > 0)
            if taken is None:
                return False
            self._writing = self._engine.compact(*taken)
        if next(self._writing, "done") != "done":
            return False
        self._writing = None
        return True
