"""The caller of a forwarded request, as the forwarding broker states it (S12).

A node with security puts the caller before the message: `u32 big-endian length of caller | caller | message`, where the
caller is a msgpack array that begins with its tag. A node without security sends the message alone. Only the streams of
nodes, which their certificates name, are believed; the receiving node decides again with that caller.
"""

from __future__ import annotations

import struct
from typing import Annotated

import msgspec

from raftlog.errors import InvalidRequest
from raftlog.ports import Buffer, Part
from raftlog.security.principals import MAX_GROUPS, MAX_NAME, Caller, Principal

_TAG = "caller.1"
_MARK = b"\xa8" + _TAG.encode()
"""The tag as msgpack, after one byte for the array: no message begins with it."""
_LENGTH = struct.Struct(">I")
_MARK_AT = _LENGTH.size + 1
MAX_CALLER_BYTES = 512 * 1024
"""More than the longest possible name and groups take."""

_Text = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]


class _Head(msgspec.Struct, frozen=True, array_like=True, tag=_TAG):
    name: _Text
    groups: Annotated[tuple[_Text, ...], msgspec.Meta(max_length=MAX_GROUPS)]
    host: _Text
    superuser: bool
    mechanism: _Text


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Head)


def head_of(caller: Caller) -> Part:
    """Return the part that goes before a caller's message."""
    principal = caller.principal
    packed = _encoder.encode(_Head(principal.name, principal.groups, caller.host, caller.superuser, caller.mechanism))
    return _LENGTH.pack(len(packed)) + packed


def split_caller(message: Buffer) -> tuple[Caller | None, memoryview]:
    """Return the caller before a message, None if there is none, and the message.

    Raises `InvalidRequest` if it is malformed.
    """
    view = memoryview(message)
    if view[_MARK_AT : _MARK_AT + len(_MARK)] != _MARK:
        return None, view
    (length,) = _LENGTH.unpack_from(view)
    end = _LENGTH.size + length
    try:
        if length > MAX_CALLER_BYTES or end > view.nbytes:
            raise ValueError(f"a caller of {length} bytes")
        head = _decoder.decode(view[_LENGTH.size : end])
    except (msgspec.MsgspecError, ValueError) as error:
        raise InvalidRequest("invalid_request", f"malformed caller of a forwarded request: {error}") from None
    principal = Principal(head.name, head.groups)
    return Caller(principal, head.host, superuser=head.superuser, mechanism=head.mechanism), view[end:]
