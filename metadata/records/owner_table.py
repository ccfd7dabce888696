"""The table of owners as of some index, built from the image's events."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Iterator

from raftlog.model import ProducerId

from .events import (
    BlockRemoved,
    GroupRemoved,
    MetadataEvent,
    OwnerChanged,
    PositionRemoved,
    ProducerIdsOwned,
    ProducerRemoved,
)
from .owners import NO_OWNER, Owned, OwnedIds, OwnedName

EVENTS_OF_OWNERS: frozenset[type[MetadataEvent]] = frozenset(
    (OwnerChanged, ProducerIdsOwned, GroupRemoved, ProducerRemoved, BlockRemoved, PositionRemoved)
)
"""The events that may change the table; the others need not be passed to it."""


class Owners:
    """Every owner as of some index. Only the feeder calls `on_event`."""

    def __init__(self) -> None:
        self._owners: dict[Owned, dict[OwnedName, str]] = {kind: {} for kind in Owned}
        self._counts: Counter[tuple[Owned, str]] = Counter()
        self._ids: dict[ProducerId, OwnedIds] = {}
        """The first id of each range → the range; they do not overlap."""
        self._firsts: list[ProducerId] = []
        """The first ids, sorted."""
        self._ids_of: dict[str, list[ProducerId]] = {}
        """Owner → the first ids of its ranges, sorted."""

    # --- Reading -----------------------------------------------------------------------------------------------------

    def owner(self, kind: Owned, name: OwnedName) -> str:
        """Return the owner of a record, or `NO_OWNER`."""
        return self._owners[kind].get(name, NO_OWNER)

    def count(self, kind: Owned, owner: str) -> int:
        """Return the number of records of this kind that belong to an owner."""
        return self._counts[kind, owner]

    def owner_of_id(self, producer_id: ProducerId) -> str:
        """Return the owner to which a producer id was granted by itself, not in a block, or `NO_OWNER`."""
        place = bisect_right(self._firsts, producer_id) - 1
        if place < 0:
            return NO_OWNER
        found = self._ids[self._firsts[place]]
        return found.owner if producer_id < found.end else NO_OWNER

    def ids(self) -> list[OwnedIds]:
        """Return all ranges of producer ids, sorted."""
        return [self._ids[first] for first in self._firsts]

    def ids_from(self, first: ProducerId) -> OwnedIds | None:
        """Return the range that begins with this id."""
        return self._ids.get(first)

    def ids_of(self, owner: str) -> list[OwnedIds]:
        """Return the ranges of an owner, sorted."""
        return [self._ids[first] for first in self._ids_of.get(owner, ())]

    @property
    def id_range_count(self) -> int:
        return len(self._ids)

    @property
    def oldest_ids(self) -> OwnedIds:
        """The range that was granted first. There must be one."""
        return self._ids[self._firsts[0]]

    def items(self) -> Iterator[tuple[Owned, dict[OwnedName, str]]]:
        """Yield each kind with a copy of its owners by name."""
        return ((kind, owners.copy()) for kind, owners in self._owners.items())

    # --- Following ---------------------------------------------------------------------------------------------------

    def on_event(self, event: MetadataEvent) -> None:
        match event:
            case OwnerChanged(kind, name, owner):
                self._put(kind, name, owner)
            case ProducerIdsOwned(ids):
                self._put_ids(ids)
            case GroupRemoved(group_id):
                self._put(Owned.GROUP, group_id, NO_OWNER)
            case ProducerRemoved(transactional_id):
                self._put(Owned.TRANSACTIONAL_ID, transactional_id, NO_OWNER)
            case BlockRemoved(first):
                self._put(Owned.BLOCK, first, NO_OWNER)
            case PositionRemoved(position):
                self._put(Owned.POSITION, position, NO_OWNER)

    def _put(self, kind: Owned, name: OwnedName, owner: str) -> None:
        before = self._owners[kind].pop(name, NO_OWNER)
        if before != NO_OWNER:
            self._count(kind, before, -1)
        if owner != NO_OWNER:
            self._owners[kind][name] = owner
            self._count(kind, owner, 1)

    def _count(self, kind: Owned, owner: str, change: int) -> None:
        self._counts[kind, owner] += change
        if not self._counts[kind, owner]:
            del self._counts[kind, owner]

    def _put_ids(self, ids: OwnedIds) -> None:
        before = self._ids.pop(ids.first, None)
        if before is not None:
            del self._firsts[bisect_right(self._firsts, ids.first) - 1]
            of_owner = self._ids_of[before.owner]
            del of_owner[bisect_right(of_owner, ids.first) - 1]
            if not of_owner:
                del self._ids_of[before.owner]
        if ids.owner != NO_OWNER:
            self._ids[ids.first] = ids
            insort(self._firsts, ids.first)
            insort(self._ids_of.setdefault(ids.owner, []), ids.first)
