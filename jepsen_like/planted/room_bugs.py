"""Bugs of full disks: a part that frees space, or must work without any, has no reserve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from metadata.voters.identity import FOLDER as QUORUM
from partitions.files.disk_room import DiskRoom
from partitions.files.segment import INDEX_SUFFIXES, SEGMENT_SUFFIXES
from partitions.log.job import LogJob
from partitions.opening.folders import FOLDER as PARTITIONS
from raftlog.broker.changes.offline_leaders import OfflineLeaders
from raftlog.broker.identity import STARTS_FILE
from raftlog.model import Offset
from raftlog.ports import File, Space
from raftlog.system.ballasted_disk import BallastedDisk

from .patches import CLUSTER, Patch, Planted, original

_open = original(BallastedDisk, "open")
_replace = original(BallastedDisk, "replace")
_remove = original(LogJob, "_remove")
_looked = original(DiskRoom, "looked")


def _without_ballast_below(folder: str) -> Callable[..., File]:
    def opens(product: Any, path: str, **how: bool) -> File:
        opened: File = product._disk.open(path, **how) if path.startswith(folder) else _open(product, path, **how)
        return opened

    return opens


def _replaces_without_ballast(folder: str) -> Callable[..., None]:
    def replaces(product: Any, path: str, content: bytes) -> None:
        if path.startswith(folder):
            product._disk.replace(path, content)
        else:
            _replace(product, path, content)

    return replaces


def _keep_indexes(job: Any, base_offsets: Sequence[Offset], suffixes: Sequence[str] = SEGMENT_SUFFIXES) -> None:
    if suffixes is not INDEX_SUFFIXES:
        _remove(job, base_offsets, suffixes)


def _space_as_it_is(product: Any) -> Space:
    return product._disk.space()._replace(reserve_whole=product._ballast.whole)  # type: ignore[no-any-return]


def _short_for_ever(room: Any, space: Space) -> None:
    short, very_short = room.short, room.very_short
    _looked(room, space)
    room.short, room.very_short = room.short or short, room.very_short or very_short


ROOM_BUGS = (
    Planted(
        "retention_has_no_room",
        "on a disk without a free block no segment is deleted, because its checkpoint cannot be written",
        "BallastedDisk releases ballast for the checkpoint, and LogJob deletes indexes before it",
        (
            Patch(BallastedDisk, "open", _without_ballast_below(PARTITIONS)),
            Patch(LogJob, "_remove", _keep_indexes),
        ),
        found_by=CLUSTER,
    ),
    Planted(
        "the_quorum_has_no_room",
        "a full disk stops the node at the next entry of the quorum's log",
        "BallastedDisk releases ballast for the journal and the snapshot",
        (
            Patch(BallastedDisk, "open", _without_ballast_below(QUORUM)),
            Patch(BallastedDisk, "replace", _replaces_without_ballast(QUORUM)),
        ),
        found_by=CLUSTER,
    ),
    Planted(
        "a_start_has_no_room",
        "a node whose disk is full does not start",
        "BallastedDisk releases ballast for the count of starts",
        (Patch(BallastedDisk, "replace", _replaces_without_ballast(STARTS_FILE)),),
        found_by=CLUSTER,
    ),
    Planted(
        "the_ballast_is_filled_once",
        "after a full disk nothing can ever be written again, or the next time there is no ballast",
        "BallastedDisk.space refills the ballast if there is space",
        (Patch(BallastedDisk, "space", _space_as_it_is),),
        found_by=CLUSTER,
    ),
    Planted(
        "a_disk_that_was_short_stays_short",
        "a leader refuses batches although there is space again",
        "DiskRoom.looked decides again at each look",
        (Patch(DiskRoom, "looked", _short_for_ever),),
        found_by=CLUSTER,
    ),
    Planted(
        "a_full_disk_keeps_its_leaderships",
        "a leader with a full disk keeps refusing batches that members with space would accept",
        "OfflineLeaders has a member with space elected",
        (Patch(OfflineLeaders, "_is_short", lambda leaders, broker_id: False),),
        found_by=CLUSTER,
    ),
)
