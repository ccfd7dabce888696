"""What is kept of the reports of members that may not lead, for recovery elections."""

from __future__ import annotations

import msgspec

from raftlog.model import BrokerId, DirectoryId, Incarnation, LeaderEpoch, Offset


class RecoveryTicket(msgspec.Struct, frozen=True, gc=False):
    """What a marked member said of its replica when it last registered."""

    broker_id: BrokerId
    incarnation: Incarnation
    directory_id: DirectoryId
    """The one that it was in sync with."""
    has_directory: bool
    """False: it came with another directory, so it can vouch for nothing."""
    last_epoch: LeaderEpoch
    stable_end_offset: Offset
