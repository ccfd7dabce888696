"""The shares of principals in what every node keeps: no principal alone can use up a bound of the cluster (S11).

A share is counted where the records are, so it is exact, and the same on every node. It is the principal's quota if it
has one (`User:alice`, or the default `User:*`), otherwise a part of the bound. Records without an owner, which were
made without security, count for no principal. Only what adds a record is refused: those that exist stay usable,
whatever the quota becomes.
"""

from __future__ import annotations

from metadata.commands.results import Refused
from metadata.records.events import OwnerChanged, ProducerIdsOwned
from metadata.records.owners import NO_OWNER, Owned, OwnedIds, OwnedName
from metadata.records.security import EVERY_USER
from raftlog.model import ProducerId
from raftlog.security.principals import USER

from .image import ClusterImage

SHARES = 4
"""A principal without a quota may have a quarter of each bound."""
MAX_ID_RANGES_OF_OWNER = 100
"""The most ranges of producer ids of one principal: for each further one its oldest is no longer remembered. Ranges
that follow one another count as one.
"""
MAX_ID_RANGES = 100_000
"""The most of all principals: for each further one the oldest is no longer remembered."""

_LIMITS = {
    Owned.GROUP: ("groups", "groups"),
    Owned.TRANSACTIONAL_ID: ("transactional_ids", "transactional ids"),
    Owned.BLOCK: ("producer_id_blocks", "blocks of producer ids"),
    Owned.POSITION: ("positions", "positions"),
}
"""The kind of record → the field of the limits, and its name in messages."""


def refuse_records(state: ClusterImage, owner: str, kind: Owned, added: int, bound: int) -> Refused | None:
    """Return why the owner may not have `added` more records of a kind, or None. `bound`: the cluster's."""
    if owner == NO_OWNER or not added:
        return None
    field, what = _LIMITS[kind]
    return _refuse(state, owner, field, what, state.owners.count(kind, owner), added, bound)


def refuse_offsets(state: ClusterImage, owner: str, added: int, bound: int) -> Refused | None:
    """Return why the groups of this owner may not have `added` more committed offsets, or None."""
    if owner == NO_OWNER or not added:
        return None
    held = state.groups.offset_count_of(owner)
    return _refuse(state, owner, "committed_offsets", "committed offsets in its groups", held, added, bound)


def _refuse(
    state: ClusterImage, owner: str, field: str, what: str, held: int, added: int, bound: int
) -> Refused | None:
    most = _quota(state, owner, field)
    if most is None:
        most = bound // SHARES
    if held + added <= most:
        return None
    return Refused(
        "quota_exceeded",
        f"{USER}:{owner} has {held} {what}, and may have {most}: delete those that are unused, or ask an administrator "
        f"for a greater quota ({field})",
    )


def _quota(state: ClusterImage, owner: str, field: str) -> int | None:
    for entity in (f"{USER}:{owner}", EVERY_USER):
        limits = state.security.quota(entity)
        value: int | None = None if limits is None else getattr(limits, field)
        if value is not None:
            return value
    return None


def own(state: ClusterImage, owner: str, kind: Owned, name: OwnedName) -> None:
    """Record the owner of a record that is about to be made, if it has one."""
    if owner != NO_OWNER:
        state.note(OwnerChanged(kind, name, owner))


def own_ids(state: ClusterImage, owner: str, first: ProducerId, count: int) -> None:
    """Record the owner of producer ids that are about to be granted."""
    owners = state.owners
    own_ranges = owners.ids_of(owner)
    begins = own_ranges[-1].first if own_ranges and own_ranges[-1].end == first else first
    state.note(ProducerIdsOwned(OwnedIds(begins, ProducerId(first + count), owner)))
    if begins == first and len(own_ranges) >= MAX_ID_RANGES_OF_OWNER:
        _forget(state, own_ranges[0])
    elif owners.id_range_count > MAX_ID_RANGES:
        _forget(state, owners.oldest_ids)


def _forget(state: ClusterImage, ids: OwnedIds) -> None:
    state.note(ProducerIdsOwned(OwnedIds(ids.first, ids.first, NO_OWNER)))
