"""Slicing of `{"records": [...]}` into JSON lists of about `SLICE_BYTES` that together are the whole list.

A call into C holds the GIL while it runs, so no call may get the whole of a large body. The list is cut at a `,` after
a `}`. Only a parser can tell whether that is between two records or inside one; but its result does not depend on
what follows, so a slice that is a valid list by itself was cut between two records. Otherwise the slice is doubled, up
to the maximum size of one record.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from http_api.web.limits import MAX_RECORD_JSON_BYTES, SLICE_BYTES
from raftlog.errors import InvalidRequest
from raftlog.json_values import JSON_ERRORS, json_refused

_HEAD = re.compile(rb'[ \t\r\n]{0,64}\{[ \t\r\n]{0,64}"records"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}\[')
_TAIL = re.compile(rb"\][ \t\r\n]{0,64}\}[ \t\r\n]{0,64}\Z")
_MOST_TAIL_BYTES = 130
_CUT = re.compile(rb"\}[ \t\r\n]{0,64},")


class RecordsDocument(msgspec.Struct, forbid_unknown_fields=True):
    """A document with a list of records."""

    records: msgspec.Raw


class NotSliced(Exception):
    """No list that starts at `text` ends within the bounds: a record is too long, or the body is not JSON."""

    def __init__(self, text: bytes) -> None:
        super().__init__(len(text))
        self.text = text
        """`[` and the text after it, up to the maximum size of a record."""


RECORDS_DOCUMENT = msgspec.json.Decoder(RecordsDocument)
_any = msgspec.json.Decoder(msgspec.Raw)


def list_slices(
    body: bytes, slice_bytes: int = SLICE_BYTES, document: msgspec.json.Decoder[Any] = RECORDS_DOCUMENT
) -> Iterator[bytes]:
    """Yield the list of a body in slices that are lists; the last may be empty, after a trailing comma. `document`: of
    the whole body, which may have more members. Raises `InvalidRequest`, and `NotSliced` after the slices before the
    fault."""
    body, start, end = _bounds(body, document)
    size = slice_bytes
    while True:
        found = _CUT.search(body, min(start + size, end), end)
        cut = end if found is None else found.end() - 1
        if cut - start > MAX_RECORD_JSON_BYTES + slice_bytes:
            raise NotSliced(b"[" + body[start : start + MAX_RECORD_JSON_BYTES])
        piece = b"[" + body[start:cut] + b"]"
        if _is_json(piece):
            yield piece
            if cut == end:
                return
            start, size = cut + 1, slice_bytes
        elif cut == end:
            if len(body) <= MAX_RECORD_JSON_BYTES:
                _records(body, document)  # The parser's error names the fault and its place in the body.
            raise NotSliced(piece)
        else:
            size *= 2


def _bounds(body: bytes, document: msgspec.json.Decoder[Any]) -> tuple[bytes, int, int]:
    """Return the text, and the bounds of the list's content in it."""
    head, tail = _HEAD.match(body), _TAIL.search(body, max(0, len(body) - _MOST_TAIL_BYTES))
    if head is not None and tail is not None and head.end() <= tail.start():
        return body, head.end(), tail.start()
    # The document is written in an unusual way, or is another one.
    records = _records(body, document)
    return records, 1, len(records) - 1


def _records(body: bytes, document: msgspec.json.Decoder[Any]) -> bytes:
    """Return the text of the list. Raises `InvalidRequest`."""
    try:
        records = bytes(document.decode(body).records)
    except JSON_ERRORS as error:
        raise json_refused(error) from None
    if not records.startswith(b"["):
        raise InvalidRequest("invalid_request", "Expected `array` - at `$.records`")
    return records


def _is_json(text: bytes) -> bool:
    try:
        _any.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    except RecursionError as error:
        raise json_refused(error) from None
    return True
