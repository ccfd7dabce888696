"""The command by which a broker says that its disk has become short of room, or is so no longer.

What is *not* here: what it does (`image_brokers.py`), and when it is proposed (`raftlog/broker/room_reports.py`).
"""

from __future__ import annotations

from .command_parts import BrokerIdField, IncarnationField, Part

ROOM_FEATURE_LEVEL = 5
"""From which this is proposed at all."""


class ReportRoom(Part, frozen=True, tag="report_room.1"):
    """This life of the broker takes no batches from clients (`short`), or takes them again. Answered by `Done`, also
    where it was known."""

    broker_id: BrokerIdField
    incarnation: IncarnationField
    short: bool
