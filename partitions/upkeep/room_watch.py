"""Looks at the room on the disk every second, and tells when it has become short or is so no longer."""

from __future__ import annotations

from collections.abc import Callable

from partitions.files.disk_room import DiskRoom
from raftlog.ports import Disk, Logger, Scheduler, Space, Worker

LOOK_SECONDS = 1.0


class RoomWatch:
    """One node's. Lives on its loop.

    Invariant: the disk is asked by one piece of work at a time: one that does not answer is not asked again.
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
        """`on_change`: `room.short` is another than it was. It is told so of each change, not before the next look."""
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
        """The first look, before anything is served. Blocks. Raises `DiskFailed`."""
        self._room.begin_look()
        self._room.looked(self._disk.space())

    def start(self) -> None:
        """And look again and again, until `close`."""
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
                # What was known of the room stands; the disk's writes tell what is wrong with it.
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
