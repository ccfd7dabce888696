"""The frames that are written and parsed by hand, and RFC 9113's numbers for all of them.

DATA, WINDOW_UPDATE and GOAWAY never pass through the `h2` library: DATA because of its cost; WINDOW_UPDATE because the
code that counts DATA must count windows, too; GOAWAY because `h2` treats one as the end of everything, while open
streams may finish. All other frames are built and parsed by `h2` (`raftlog/http2/core.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TypeAlias

from h2.errors import ErrorCodes

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The client's first bytes (RFC 9113 section 3.4)."""

HEADER_BYTES = 9
PREFIX_BYTES = 4
"""Size of a message's length prefix: u32, big-endian, not counting itself."""

FRAME_HEADER = struct.Struct(">IBI")
"""Length and type in one word (`length << 8 | type`), flags, stream id."""
DATA_AND_PREFIX = struct.Struct(">IBII")
"""The header of a DATA frame and the prefix of the message that it begins with."""
PREFIX = struct.Struct(">I")
_WORD_PAIR = struct.Struct(">II")

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

FLAG_ACK = FLAG_END_STREAM = 0x1
FLAG_END_HEADERS = 0x4
FLAG_PADDED = 0x8

STREAM_ID_MASK = 2**31 - 1

SETTING_BYTES = 6
KNOWN_SETTINGS = frozenset(number.to_bytes(2, "big") for number in range(1, 7))
"""Setting identifiers that have a meaning here (RFC 9113 section 6.5.2)."""

CONTENT_TYPE = "application/octet-stream"
"""Content type of both directions of a stream; the path determines the format of its messages."""
MAX_MESSAGE_HEADER = "raftlog-max-message-bytes"
"""Header field in which each side announces the longest message that it accepts."""
AUTHORIZATION_HEADER = "authorization"
"""Header field of a request with its credential (RFC 9110 section 11.6.2)."""
ERROR_HEADER = "raftlog-error"
"""Header field of a refusal: the stable error code (`raftlog/errors.py`)."""
DETAIL_HEADER = "raftlog-detail"
"""Header field of a refusal: its text."""


ErrorCode: TypeAlias = ErrorCodes
"""Reasons for resetting a stream or closing a connection (RFC 9113 section 7)."""


def error_name(code: int) -> str:
    """Return the code's name; peers may send numbers without one."""
    return ErrorCode(code).name if code in ErrorCode.__members__.values() else f"error {code}"


class Http2Error(Exception):
    """The peer broke the protocol: the connection ends with this code.

    It never leaves the sans-I/O core.
    """

    def __init__(self, code: ErrorCode, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


def window_update(stream_id: int, increment: int) -> bytes:
    """Build a WINDOW_UPDATE frame; stream 0 is the connection."""
    return FRAME_HEADER.pack(4 << 8 | WINDOW_UPDATE, 0, stream_id) + PREFIX.pack(increment)


def rst_stream(stream_id: int, code: int) -> bytes:
    """Build a RST_STREAM frame."""
    return FRAME_HEADER.pack(4 << 8 | RST_STREAM, 0, stream_id) + PREFIX.pack(code)


def goaway(last_stream_id: int, code: int, detail: str) -> bytes:
    """Build a GOAWAY frame with at most 200 bytes of text."""
    debug = detail.encode("utf-8", "replace")[:200]
    return FRAME_HEADER.pack((8 + len(debug)) << 8 | GOAWAY, 0, 0) + _WORD_PAIR.pack(last_stream_id, code) + debug


def parse_window_update(payload: bytes) -> int:
    """Return the increment. Raises `Http2Error`."""
    if len(payload) != 4:
        raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE must have 4 bytes")
    (increment,) = PREFIX.unpack(payload)
    return int(increment) & STREAM_ID_MASK


def parse_goaway(payload: bytes) -> tuple[int, int, str]:
    """Return last stream id, code and text. Raises `Http2Error`."""
    if len(payload) < 8:
        raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY must have at least 8 bytes")
    last_stream_id, code = _WORD_PAIR.unpack_from(payload)
    return last_stream_id & STREAM_ID_MASK, code, payload[8:208].decode("utf-8", "replace")


def known_settings(frame: bytes) -> bytes:
    """Return a SETTINGS frame without unknown identifiers, which must be ignored.

    `h2` would keep a history of each and walk through all of them with each frame. A malformed frame is returned
    unchanged, to be refused.
    """
    word, flags, stream_id = FRAME_HEADER.unpack_from(frame)
    if flags & FLAG_ACK or (len(frame) - HEADER_BYTES) % SETTING_BYTES:
        return frame
    settings = [frame[start : start + SETTING_BYTES] for start in range(HEADER_BYTES, len(frame), SETTING_BYTES)]
    known = b"".join(setting for setting in settings if setting[:2] in KNOWN_SETTINGS)
    return FRAME_HEADER.pack(len(known) << 8 | word & 0xFF, flags, stream_id) + known


def split_headers(raw: Iterable[tuple[bytes, bytes]]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the pseudo header fields and the others.

    A repeated field's values are joined (RFC 9110 section 5.3).
    """
    pseudo: dict[str, str] = {}
    headers: dict[str, str] = {}
    for name_bytes, value_bytes in raw:
        name, value = name_bytes.decode("latin-1"), value_bytes.decode("latin-1")
        if name.startswith(":"):
            pseudo[name] = value
        else:
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return pseudo, headers


def parse_status(text: str) -> int:
    """Return the status of a response. Raises `Http2Error`."""
    if not (len(text) == 3 and text.isascii() and text.isdecimal()):
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"a response with the invalid status {text[:20]!r}")
    return int(text)


def announced_limit(headers: dict[str, str]) -> int:
    """Return the peer's limit of a message, in bytes; without one, the limit of the prefix."""
    text = headers.get(MAX_MESSAGE_HEADER, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 10 else 2**32 - 1
