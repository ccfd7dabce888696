"""The watch of the disk: measures the free room every second, and notifies when it becomes short or recovers."""

from __future__ import annotations

from collections.abc import Callable

from partitions.files.disk_room import DiskRoom
from raftlog.ports import Disk, Logger, Scheduler, Space, Worker

LOOK_SECONDS = 1.0


class RoomWatch:
    """The watch of one node, on its loop.

    Invariant: at most one query of the disk is in flight: a disk that does not answer is not asked again.
    """

    def __init__(
        self,
        room: DiskRoom,
        disk: Disk,
        scheduler: Scheduler,
        worker: Worker,
        logger: Logger,
        on_change: Callable[[], None],
    ) -> None:
        """`on_change` is called after each change of `room.short`, at the next measurement."""
        self._room = room
        self._disk = disk
        self._scheduler = scheduler
        self._worker = worker
        self._logger = logger
        self._on_change = on_change
        self._told = False
        self._failing = False
        self._closed = False

    def look_here(self) -> None:
        """Measure once, before anything is served. Blocks. Raises `DiskFailed`."""
        self._room.begin_look()
        self._room.looked(self._disk.space())

    def start(self) -> None:
        """Measure periodically from now on, until `close`."""
        if not self._closed:
            try:
                self._tell()
            finally:
                self._scheduler.call_later(LOOK_SECONDS, self._look)

    def close(self) -> None:
        self._closed = True

    def _look(self) -> None:
        if self._closed:
            return
        try:
            self._room.begin_look()
            self._worker.submit(self._disk.space, self._looked)
        except BaseException:
            self._scheduler.call_later(LOOK_SECONDS, self._look)
            raise

    def _looked(self, space: Space | None, error: BaseException | None) -> None:
        try:
            if space is not None:
                self._failing = False
                self._room.looked(space)
            elif not self._failing:
                # The last known values stay; the disk's writes will report its fault.
                self._failing = True
                self._logger.error("the room on the disk is not known", error=str(error))
        finally:
            self.start()

    def _tell(self) -> None:
        short = self._room.short
        if short == self._told:
            return
        self._told = short
        if short:
            self._logger.warning("short of room", free=self._room.free, reserved=self._room.reserved)
        else:
            self._logger.info("room again", free=self._room.free, reserved=self._room.reserved)
        self._on_change()
