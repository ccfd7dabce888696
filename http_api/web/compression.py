"""Content codings of answers (RFC 9110, 8.4.1; RFC 8878): which one a client gets, and compressing piece by piece."""

from __future__ import annotations

import zlib
from typing import Any, Protocol

import cramjam

GZIP, ZSTD = "gzip", "zstd"
GZIP_LEVEL = 1
"""The fastest level already reduces JSON of records to a fraction."""
ZSTD_LEVEL = 1
_ZERO = {"q=0", "q=0.0", "q=0.00", "q=0.000"}


class Compressor(Protocol):
    """Compresses one content."""

    def compress(self, piece: bytes) -> bytes:
        """Return what is ready; it may be nothing."""
        ...

    def flush(self) -> bytes:
        """Return the rest."""
        ...


def coding_of(accept_encoding: str) -> str:
    """Return the coding of an answer to a client with this `Accept-Encoding`; empty: none. zstd comes first, because it
    costs least."""
    accepted = _accepted(accept_encoding)
    return next((coding for coding in (ZSTD, GZIP) if coding in accepted), "")


def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether an `Accept-Encoding` header names gzip (RFC 9110, 12.5.3)."""
    return GZIP in _accepted(accept_encoding)


def compressor(coding: str) -> Compressor:
    """Return a compressor for this coding."""
    return _ZstdCompressor() if coding == ZSTD else zlib.compressobj(GZIP_LEVEL, wbits=16 + zlib.MAX_WBITS)


def compressed(coding: str, content: bytes) -> bytes:
    """Return a whole content in this coding."""
    made = compressor(coding)
    return made.compress(content) + made.flush()


class _ZstdCompressor:
    """One frame."""

    def __init__(self) -> None:
        self._compressor: Any = cramjam.zstd.Compressor(level=ZSTD_LEVEL)

    def compress(self, piece: bytes) -> bytes:
        if piece:
            self._compressor.compress(piece)
        return bytes(self._compressor.flush())

    def flush(self) -> bytes:
        return bytes(self._compressor.finish())


def _accepted(accept_encoding: str) -> set[str]:
    """Return the codings that a header names."""
    named = set()
    for choice in accept_encoding.lower().split(","):
        name, _, parameters = choice.partition(";")
        if parameters.replace(" ", "") not in _ZERO:
            named.add(name.strip().removeprefix("x-"))
    return named
