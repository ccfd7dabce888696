"""Bugs of full disks: whatever makes room, or must go on without any, has none of its own."""

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
        "on a disk without a free block no segment is removed, for its checkpoint cannot be written",
        "BallastedDisk gives up ballast for the checkpoint, and LogJob removes indexes ahead of it",
        (
            Patch(BallastedDisk, "open", _without_ballast_below(PARTITIONS)),
            Patch(LogJob, "_remove", _keep_indexes),
        ),
        found_by=CLUSTER,
    ),
    Planted(
        "the_quorum_has_no_room",
        "a full disk stops the node at the next entry of the quorum's log",
        "BallastedDisk gives up ballast for the journal and the snapshot",
        (
            Patch(BallastedDisk, "open", _without_ballast_below(QUORUM)),
            Patch(BallastedDisk, "replace", _replaces_without_ballast(QUORUM)),
        ),
        found_by=CLUSTER,
    ),
    Planted(
        "a_start_has_no_room",
        "a node whose disk is full does not start",
        "BallastedDisk gives up ballast for the count of starts",
        (Patch(BallastedDisk, "replace", _replaces_without_ballast(STARTS_FILE)),),
        found_by=CLUSTER,
    ),
    Planted(
        "the_ballast_is_filled_once",
        "after a full disk nothing is written for ever, or the next one finds no ballast",
        "BallastedDisk.space fills the ballast where there is room",
        (Patch(BallastedDisk, "space", _space_as_it_is),),
        found_by=CLUSTER,
    ),
    Planted(
        "a_disk_that_was_short_stays_short",
        "a leader refuses batches although there is room again",
        "DiskRoom.looked judges anew",
        (Patch(DiskRoom, "looked", _short_for_ever),),
        found_by=CLUSTER,
    ),
    Planted(
        "a_full_disk_keeps_its_leaderships",
        "a leader without room refuses batches, for as long as its disk is full, which members with room would take",
        "OfflineLeaders has a member with room elected",
        (Patch(OfflineLeaders, "_is_short", lambda leaders, broker_id: False),),
        found_by=CLUSTER,
    ),
)
