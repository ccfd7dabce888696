"""Drivers that report their changes, so that a checker looks only at those.

Every change of a replica, its role or its log goes through `_run`, or is followed by it in the same event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar
from unittest import mock

from partitions import manager
from partitions.driver.driver import PartitionDriver
from partitions.replica import effects
from raftlog.model import BrokerId


class WatchedDriver(PartitionDriver):
    """A driver that reports its changes."""

    touched: ClassVar[list[WatchedDriver]] = []
    """All drivers of a world with changes since the last look, each once."""
    _is_touched = False

    @property
    def node_id(self) -> BrokerId:
        """The node of the driver."""
        return self._ports.node_id

    def _run(self, event: Callable[[], list[effects.Effect]]) -> None:
        if not self._is_touched:
            self._is_touched = True
            self.touched.append(self)
        super()._run(event)

    @classmethod
    def take_touched(cls) -> list[WatchedDriver]:
        """Return the changed drivers, in the order of their first changes, and reset the list."""
        taken = cls.touched[:]
        cls.touched.clear()
        for driver in taken:
            driver._is_touched = False
        return taken


@contextmanager
def watched_drivers() -> Iterator[None]:
    """Watch all drivers that are created meanwhile. One world at a time."""
    WatchedDriver.touched.clear()
    with mock.patch.object(manager, "PartitionDriver", WatchedDriver):
        yield
    WatchedDriver.touched.clear()
