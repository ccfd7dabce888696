"""Records that several streams share."""

from __future__ import annotations

import json

from http_api.records.page import PageOptions, native_rows
from http_api.streams.pages import MAX_KEPT, MAX_KEPT_BYTES, EncodedRecords, PageStream, SharedPages
from http_api.web.limits import SLICE_RECORDS
from raftlog.json_values import FORMATS
from raftlog.model import LeaderEpoch, Offset
from raftlog.records.batch import encode, encode_control, stamp


def options(most: int = 100_000) -> PageOptions:
    return PageOptions(most, 1 << 30, native_rows(FORMATS["auto"], FORMATS["auto"]), lines=False)


def stored(first: int, *batches: bytes) -> bytes:
    found = b""
    for batch in batches:
        found += b"".join(stamp(batch, Offset(first), LeaderEpoch(1)))
        first += 1
    return found


def test_pieces_are_whole_arrays_with_the_offset_behind_each() -> None:
    count = 2 * SLICE_RECORDS + 5
    batch = b"".join(stamp(encode([b"v"] * count, base_timestamp_ms=1), Offset(10), LeaderEpoch(1)))
    pages = PageStream(batch, 12, options(), [])
    pieces = []
    while not pages.is_over():
        pieces.append(pages.next())
        pages.forget()
    offsets = [one["offset"] for piece in pieces for one in json.loads(piece.records)]
    assert offsets == list(range(12, 10 + count))
    assert [piece.next_offset for piece in pieces] == [
        12 + SLICE_RECORDS, 12 + 2 * SLICE_RECORDS, 10 + count
    ]  # fmt: skip
    assert sum(piece.count for piece in pieces) == count - 2


def test_small_batches_come_together() -> None:
    batches = stored(0, *(encode([b"%d" % number], base_timestamp_ms=1) for number in range(5)))
    pages = PageStream(batches, 1, options(), [])
    piece = pages.next()
    assert [one["value"] for one in json.loads(piece.records)] == ["1", "2", "3", "4"]
    assert (piece.count, piece.next_offset, pages.is_over()) == (4, 5, True)
    limited = PageStream(batches, 0, options(3), [])
    piece = limited.next()
    assert (piece.count, piece.next_offset, limited.is_over()) == (3, 3, True)


def test_the_last_piece_leads_behind_what_holds_no_records() -> None:
    batches = stored(0, encode([b"v"], base_timestamp_ms=1), encode_control(1, [(1, 0, 2)], base_timestamp_ms=5))
    pages = PageStream(batches, 0, options(), [])
    assert pages.next() == EncodedRecords(b'[{"offset":0,"timestamp":1,"key":null,"value":"v","headers":[]}]', 1, 2)
    assert pages.is_over() and pages.next_offset == 2
    only_markers = PageStream(batches, 1, options(), [])
    assert only_markers.is_over() and only_markers.next_offset == 2


def test_pages_are_found_by_their_content_and_bounded() -> None:
    shared, page = SharedPages(), EncodedRecords(b"[]", 0, 1)
    shared.keep(("auto", 0, b"batch"), 5, page)
    assert shared.find(("auto", 0, b"batch")) is page
    assert shared.find(("text", 0, b"batch")) is None and shared.find(("auto", 1, b"batch")) is None
    shared.keep("large", MAX_KEPT_BYTES + 1, page)
    assert shared.find("large") is None
    for number in range(MAX_KEPT):
        shared.keep(number, 5, page)
    assert shared.find(("auto", 0, b"batch")) is None, "the one used longest ago was dropped"
    assert shared.find(0) is page and shared.hits == 2
