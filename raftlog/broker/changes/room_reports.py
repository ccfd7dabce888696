"""A broker whose disk is short of room says so in the quorum, and gives what it leads to members that have room (S10).

Its partitions would take no batches although others could. The quorum knows of the shortage, so that leadership does
not come back, and everybody shows it. Both are looked at again every second while they are not as they should be: a
proposal may get lost, a leadership may come, and the last member with room may go or come back.
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
    """Those of one broker. Lives on its loop.

    Invariant: one command is under way at most, and one look is due at most.
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
        """`give_up_leaderships` has another leader elected for what this broker leads, where there is one with room."""
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
        """The disk has become short of room, or is so no longer."""
        if not self._due:
            self._due = True
            self._scheduler.call_soon(self._look)

    def _look(self) -> None:
        self._due = False
        again = True  # also where something raises
        try:
            again = self._report()
        finally:
            if again:
                self._due = True
                self._scheduler.call_later(LOOK_AGAIN_SECONDS, self._look)

    def _report(self) -> bool:
        """Whether to look again in a while."""
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
