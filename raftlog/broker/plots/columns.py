"""The columns of the ring: which series they hold, and since when. A pure core.

The node's own series have fixed columns. Topics and groups take a place when they are first sampled, as long as there
is one. If all are taken, a series with traffic takes that of the one whose last traffic is longest ago, at least
`IDLE_SLOTS`. The former content of a column does not count: rows older than `since` are no values of its series.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from crc32c import crc32c

FORMAT = 1
NODE_SERIES = (
    "records_per_second", "disk_used_bytes", "disk_free_bytes", "leaders", "under_replicated", "lag_records",
    "fsync_median_ms", "loop_longest_ms",
)  # fmt: skip
"""The node's own series, by column. Another one is added at the end."""
NODE_COLUMNS = 32
TOPIC_SERIES = ("records_per_second", "size_bytes")
GROUP_SERIES = ("lag_records",)
MOST_TOPICS = 128
MOST_GROUPS = 96
COLUMNS = NODE_COLUMNS + MOST_TOPICS * len(TOPIC_SERIES) + MOST_GROUPS * len(GROUP_SERIES)
IDLE_SLOTS = 360
"""Slots without traffic after which a series may lose its place: an hour."""


class Place(msgspec.Struct, array_like=True):
    """One series, or the several of a topic, with its place."""

    key: str
    """Topic id in hexadecimal digits, or name of a group."""
    since: int
    """The slot from which the place belongs to it."""
    busy: int
    """The last slot in which it had traffic, as far as this process knows."""


class _Saved(msgspec.Struct, array_like=True):
    format: int
    topics: list[Place | None]
    groups: list[Place | None]


class Table:
    """A fixed number of places."""

    def __init__(self, places: list[Place | None]) -> None:
        self.places = places
        self._at = {place.key: number for number, place in enumerate(places) if place is not None}

    def find(self, key: str) -> tuple[int, int] | None:
        """Return the place of a series and its first slot, or None if it has no place."""
        number = self._at.get(key)
        if number is None:
            return None
        place = self.places[number]
        assert place is not None
        return number, place.since

    def take(self, key: str, slot: int, *, busy: bool) -> bool:
        """Give a series its place, if there is one; return whether the table has changed."""
        number = self._at.get(key)
        if number is not None:
            place = self.places[number]
            assert place is not None
            place.busy = max(place.busy, slot) if busy else place.busy
            return False
        number = self._free(slot) if busy or None in self.places else None
        if number is None:
            return False
        former = self.places[number]
        if former is not None:
            del self._at[former.key]
        self.places[number] = Place(key, slot, slot if busy else 0)
        self._at[key] = number
        return True

    def leave(self, exists: Callable[[str], bool]) -> bool:
        """Take the places of series that no longer exist; return whether the table has changed."""
        gone = [key for key in self._at if not exists(key)]
        for key in gone:
            self.places[self._at.pop(key)] = None
        return bool(gone)

    def _free(self, slot: int) -> int | None:
        best: tuple[int, int] | None = None
        for number, place in enumerate(self.places):
            if place is None:
                return number
            if best is None or place.busy < best[0]:
                best = place.busy, number
        return best[1] if best is not None and best[0] <= slot - IDLE_SLOTS else None


class Columns:
    """The columns of one ring."""

    def __init__(self) -> None:
        self.topics = Table([None] * MOST_TOPICS)
        self.groups = Table([None] * MOST_GROUPS)

    def of_topic(self, key: str) -> tuple[range, int] | None:
        """Return the columns of `TOPIC_SERIES` and their first slot; None: the topic has none."""
        return _columns(self.topics.find(key), NODE_COLUMNS, len(TOPIC_SERIES))

    def of_group(self, key: str) -> tuple[range, int] | None:
        """Return the columns of `GROUP_SERIES` and their first slot; None: the group has none."""
        first = NODE_COLUMNS + MOST_TOPICS * len(TOPIC_SERIES)
        return _columns(self.groups.find(key), first, len(GROUP_SERIES))

    @staticmethod
    def of_node() -> tuple[range, int]:
        """Return the columns of `NODE_SERIES`."""
        return range(len(NODE_SERIES)), 0

    def encode(self) -> bytes:
        """Return the table for the disk."""
        packed = msgspec.msgpack.encode(_Saved(FORMAT, self.topics.places, self.groups.places))
        return crc32c(packed).to_bytes(4, "big") + packed

    @classmethod
    def decode(cls, content: bytes) -> Columns:
        """Return a table from the disk; an empty one if it is damaged or of another format, which forgets the past of
        topics and groups."""
        found = cls()
        if crc32c(content[4:]).to_bytes(4, "big") != content[:4]:
            return found
        try:
            saved = msgspec.msgpack.decode(content[4:], type=_Saved)
        except (msgspec.MsgspecError, ValueError):
            return found
        if saved.format == FORMAT and len(saved.topics) == MOST_TOPICS and len(saved.groups) == MOST_GROUPS:
            found.topics, found.groups = Table(saved.topics), Table(saved.groups)
        return found


def _columns(found: tuple[int, int] | None, first: int, width: int) -> tuple[range, int] | None:
    if found is None:
        return None
    number, since = found
    start = first + number * width
    return range(start, start + width), since
