"""Reports of a shortage of disk space to the quorum, and transfer of leaderships to members with space (S10).

Otherwise the broker's partitions would refuse batches although other replicas could accept them. The quorum knows of
the shortage, so that leadership does not return, and every node reports it. While a report or a leadership is not as it
should be, both are checked every second: a proposal may get lost, a leadership may arrive, and the last member with
space may go or return.
"""

from __future__ import annotations

from collections.abc import Callable

from metadata.commands.cluster import ROOM_FEATURE_LEVEL, ReportRoom
from metadata.quorum.port import Outcome, Propose
from metadata.view import ClusterView
from partitions.files.disk_room import DiskRoom
from raftlog.model import NO_INCARNATION, BrokerId, Incarnation
from raftlog.ports import Scheduler

LOOK_AGAIN_SECONDS = 1.0


class RoomReports:
    """The space reports of one broker. All calls are made on its loop.

    Invariant: at most one command is in flight, and at most one check is scheduled.
    """

    def __init__(
        self,
        node_id: BrokerId,
        view: ClusterView,
        room: DiskRoom,
        scheduler: Scheduler,
        propose: Propose,
        incarnation: Callable[[], Incarnation],
        give_up_leaderships: Callable[[], None],
    ) -> None:
        """`give_up_leaderships` transfers this broker's leaderships to members with space, if there are any."""
        self._node_id = node_id
        self._view = view
        self._room = room
        self._scheduler = scheduler
        self._propose = propose
        self._incarnation = incarnation
        self._give_up_leaderships = give_up_leaderships
        self._proposing = False
        self._due = False

    def on_room(self) -> None:
        """Handle a disk that has become short of space, or no longer is."""
        if not self._due:
            self._due = True
            self._scheduler.call_soon(self._look)

    def _look(self) -> None:
        self._due = False
        again = True  # also if something raises
        try:
            again = self._report()
        finally:
            if again:
                self._due = True
                self._scheduler.call_later(LOOK_AGAIN_SECONDS, self._look)

    def _report(self) -> bool:
        """Report and transfer what is due. Return whether to check again later."""
        incarnation = self._incarnation()
        short = self._room.short
        record = self._view.broker(self._node_id)
        known = record is not None and record.incarnation == incarnation != NO_INCARNATION
        if record is not None and known and self._view.feature_level >= ROOM_FEATURE_LEVEL:
            if record.short_of_room != short and not self._proposing:
                self._proposing = True
                try:
                    self._propose(ReportRoom(self._node_id, incarnation, short), self._answered)
                except BaseException:
                    self._proposing = False
                    raise
            elif record.short_of_room and short:
                self._give_up_leaderships()
        return short or record is None or record.short_of_room

    def _answered(self, outcome: Outcome) -> None:
        self._proposing = False
