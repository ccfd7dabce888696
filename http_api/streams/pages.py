"""Encoded records that several streams send: the readers at the end of a log all send the same.

Equal stored bytes, read from one offset in the same formats, make equal records, so a page is found by its content and
never stale. Pure.
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from http_api.records.page import PageEncoder, PageOptions, page
from http_api.web.limits import SLICE_BYTES, SLICE_RECORDS
from raftlog.wire import AbortedRange

MAX_KEPT = 256
MAX_KEPT_BYTES = 64 * 1024
"""The most stored bytes of a page that is kept, and of its JSON: all together they have at most 32 MiB."""


class EncodedRecords(msgspec.Struct, frozen=True):
    """Some records as a JSON array."""

    records: bytes
    count: int
    next_offset: int


class SharedPages:
    """The pages that were sent last. Belongs to one event loop."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, EncodedRecords] = {}
        self.hits = 0
        """Pages that were found."""

    def find(self, key: Hashable) -> EncodedRecords | None:
        """Return a page that was kept, or None."""
        found = self._kept.pop(key, None)
        if found is not None:
            self._kept[key] = found
            self.hits += 1
        return found

    def keep(self, key: Hashable, stored: int, found: EncodedRecords) -> None:
        """Keep a small page; the one that was used longest ago is dropped."""
        if max(stored, len(found.records)) > MAX_KEPT_BYTES:
            return
        self._kept[key] = found
        if len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]


class PageStream:
    """The records of some stored batches in pieces, each a JSON array."""

    def __init__(self, batches: bytes, offset: int, options: PageOptions, aborted: list[AbortedRange]) -> None:
        """Raises `RaftlogError` (`internal_error`) if the first batch is corrupt."""
        self._plan = page(batches, offset, options, aborted)
        self._encoder = PageEncoder(self._plan, options)

    @property
    def next_offset(self) -> int:
        """The offset behind everything, with what holds no records for a reader."""
        return self._plan.next_offset

    def is_over(self) -> bool:
        """Return whether all records were returned."""
        return not self._plan.runs or self._encoder.ended

    def next(self) -> EncodedRecords:
        """Return the next piece: the records of several small batches together."""
        encoded: list[bytes] = []
        count = size = following = 0
        while not self.is_over() and size < SLICE_BYTES and count < SLICE_RECORDS:
            encoded.append(self._encoder.next())
            part = self._encoder.last
            assert part is not None, "there are records"
            count += part.end - part.start
            size += len(encoded[-1])
            following = part.next_offset
        following = self.next_offset if self.is_over() else following
        return EncodedRecords(b"[" + b"".join(encoded).removeprefix(b",") + b"]", count, following)

    def forget(self) -> None:
        """Drop the decoded batch, because the reader does not read: it is decoded again for its next piece."""
        self._encoder.forget()
