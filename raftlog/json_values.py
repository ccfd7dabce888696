"""The representation of records in JSON: their form, and their keys and values in both directions.

Input: a string is stored as its UTF-8 text, `{"base64": "..."}` as the bytes that it encodes, null as no value (a
tombstone), and any other JSON value as its JSON text, byte for byte as it was sent (so no number loses a digit).

Output has four formats (`FORMATS`). In each of them a tombstone is null, and bytes that the format cannot show appear
as `{"base64": ...}`. No other value appears in that form: a stored JSON object that looks like it is itself shown in
base64. Therefore no bytes are lost, and output can be written back unchanged (embedded JSON on one line, without
blanks).

    text     a string                               if the bytes are UTF-8
    json     the JSON itself                        if the bytes are JSON, except null and deep nesting
    base64   `{"base64": ...}`                      always
    auto     JSON objects and arrays, otherwise a string if the bytes are UTF-8

This module is pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from raftlog.errors import InvalidRequest

MAX_SHOWN_DEPTH = 64
"""Maximum depth of embedded JSON. Some parsers give up at 128 and would lose the whole page."""

NULL = msgspec.Raw(b"null")

JSON_ERRORS = (msgspec.DecodeError, UnicodeError, RecursionError)
"""The exceptions that msgspec raises for text that it cannot decode."""


class Binary(msgspec.Struct, gc=False):
    """Bytes in JSON."""

    base64: bytes


class HeaderIn(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A header of a record in JSON."""

    key: str
    value: msgspec.Raw = NULL


class RecordIn(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A record in JSON. `gc=False`: it cannot be part of a reference cycle, and there may be very many."""

    value: msgspec.Raw
    key: msgspec.Raw = NULL
    timestamp: int | None = None
    headers: dict[str, msgspec.Raw] | list[HeaderIn] | None = None
    partition: int | None = None

    @property
    def header_pairs(self) -> Iterable[tuple[str, msgspec.Raw]]:
        """Names and values of its headers."""
        headers = self.headers or ()
        return headers.items() if isinstance(headers, dict) else [(header.key, header.value) for header in headers]


Shown = str | msgspec.Raw | Binary | None
"""The type that msgspec encodes for a key or value."""

Show = Callable[[bytes | None], Shown]

_decode_string = msgspec.json.Decoder(str).decode
_decode_strings = msgspec.json.Decoder(list[str | None]).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_binary = msgspec.json.Decoder(Binary).decode

_QUOTE, _BRACE, _N = b'"{n'
_EMBEDDED_FIRST = b"{["
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKETS = re.compile(rb"[\[\]{}]")


# --- In --------------------------------------------------------------------------------------------------------------


def json_refused(error: Exception, where: str = "") -> InvalidRequest:
    """Return the refusal of JSON that msgspec cannot decode: `invalid_request` if only its shape is another. `where`:
    the place, before the error's text."""
    if isinstance(error, RecursionError):
        return InvalidRequest("invalid_json", f"{where}JSON is nested too deeply")
    code = "invalid_request" if isinstance(error, msgspec.ValidationError) else "invalid_json"
    return InvalidRequest(code, f"{where}{error}")


def value_bytes(text: bytes) -> bytes | None:
    """Return the stored bytes of a JSON value (valid JSON text, except perhaps its encoding); None for null.

    Raises `InvalidRequest`: `invalid_json` for text that is not UTF-8, `invalid_request` for bad base64.
    """
    first = text[0]
    try:
        if first == _QUOTE:
            return _decode_string(text).encode()
        if first == _N:
            return None
        if first == _BRACE and _may_be_binary(text) and _is_binary(text):
            return _decode_binary(text).base64
        text.decode()
    except JSON_ERRORS as error:
        raise json_refused(error) from None
    return text


def string_column(values: Sequence[Any]) -> list[bytes | None] | None:
    """Return the stored bytes of JSON values that are all strings or null, decoded by one call; otherwise None."""
    try:
        strings = _decode_strings(b"[" + b",".join(values) + b"]")
    except JSON_ERRORS:
        return None
    return [None if string is None else string.encode() for string in strings]


def _may_be_binary(text: bytes) -> bool:
    return b"base64" in text or b"\\u" in text


def _is_binary(text: bytes) -> bool:
    """Return whether the only member of an object is `base64`."""
    members = _decode_members(text)
    return len(members) == 1 and "base64" in members


# --- Out -------------------------------------------------------------------------------------------------------------


def show_text(value: bytes | None) -> Shown:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return Binary(value)


def show_json(value: bytes | None) -> Shown:
    if value is None:
        return None
    return _embedded(value) or Binary(value)


def show_base64(value: bytes | None) -> Shown:
    return None if value is None else Binary(value)


def show_auto(value: bytes | None) -> Shown:
    if not value or value[0] not in _EMBEDDED_FIRST:
        return show_text(value)
    embedded = _embedded(value)
    return show_text(value) if embedded is None else embedded


FORMATS: Mapping[str, Show] = {"auto": show_auto, "text": show_text, "json": show_json, "base64": show_base64}


def show_column(show: Show, values: Sequence[bytes | None]) -> Sequence[Shown]:
    """Return what one of the formats shows for each value; plain text costs no call per value."""
    if values.count(None) == len(values):
        return values  # type: ignore[return-value]  # they are all None
    try:
        if show is show_text:
            return [None if value is None else value.decode() for value in values]
        if show is show_auto:
            return [show(value) if not value or value[0] in _EMBEDDED_FIRST else value.decode() for value in values]
    except UnicodeDecodeError:
        pass  # some are not text: each is looked at alone
    return list(map(show, values))


def _embedded(value: bytes) -> msgspec.Raw | Binary | None:
    """Return the JSON in `value` on one line.

    The result is in base64 if the JSON could be mistaken for encoded bytes, and None if `value` is no JSON.
    """
    try:
        value.decode()
        compact = msgspec.json.format(value, indent=-1)
        if compact == b"null" or deeper_than(compact, MAX_SHOWN_DEPTH):
            return None
        if _may_be_binary(compact) and compact[0] == _BRACE and _is_binary(compact):
            return Binary(value)
    except JSON_ERRORS:
        return None
    return msgspec.Raw(compact)


def deeper_than(text: bytes, most: int) -> bool:
    """Return whether JSON text is nested deeper than `most`."""
    if text.count(b"[") + text.count(b"{") <= most:
        return False
    depth = 0
    for bracket in _BRACKETS.findall(_STRING.sub(b"", text)):
        depth += 1 if bracket in b"[{" else -1
        if depth > most:
            return True
    return False


def encode(document: Any) -> bytes:
    """Encode a JSON document."""
    return _encode(document)


_encode = msgspec.json.Encoder().encode
