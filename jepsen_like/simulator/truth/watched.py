"""Drivers that say when something happens to them: whoever checks a world looks at those alone.

Whatever changes a replica, its role or its log comes through `_run`, or is followed by it in the same event.
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
    """See the module."""

    touched: ClassVar[list[WatchedDriver]] = []
    """All of a world, since somebody looked, each once."""
    _is_touched = False

    @property
    def node_id(self) -> BrokerId:
        """Whose it is."""
        return self._around.node_id

    def _run(self, event: Callable[[], list[effects.Effect]]) -> None:
        if not self._is_touched:
            self._is_touched = True
            self.touched.append(self)
        super()._run(event)

    @classmethod
    def take_touched(cls) -> list[WatchedDriver]:
        """Those that are to be looked at now, in the order in which something happened to them."""
        taken = cls.touched[:]
        cls.touched.clear()
        for driver in taken:
            driver._is_touched = False
        return taken


@contextmanager
def watched_drivers() -> Iterator[None]:
    """All drivers that are made meanwhile are watched. One world at a time."""
    WatchedDriver.touched.clear()
    with mock.patch.object(manager, "PartitionDriver", WatchedDriver):
        yield
    WatchedDriver.touched.clear()
