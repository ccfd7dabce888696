"""The reports of members that may not lead, kept for recovery elections."""

from __future__ import annotations

import msgspec

from raftlog.model import BrokerId, DirectoryId, Incarnation, LeaderEpoch, Offset


class RecoveryTicket(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, gc=False):
    """The report of a marked member's latest registration about its replica, in snapshots as an array of its fields."""

    broker_id: BrokerId
    incarnation: Incarnation
    directory_id: DirectoryId
    """The directory in which the replica was in sync. Putting the old disk back makes the replica count again; on a new
    disk it has no vote, however often the broker restarts.
    """
    has_directory: bool
    """False: the broker registered with another directory, so it can vouch for nothing."""
    last_epoch: LeaderEpoch
    stable_end_offset: Offset
