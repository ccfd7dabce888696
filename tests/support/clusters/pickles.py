"""Detection of pickles in bytes: bare, in zlib or in gzip, at any offset."""

from __future__ import annotations

import io
import pickle
import pickletools
import re
import zlib
from typing import NoReturn

PROTOCOL_2_TO_5 = re.compile(rb"\x80[\x02-\x05]")
OLD_GLOBAL = re.compile(rb"c[A-Za-z_][\w.]*\n[A-Za-z_][\w.]*\n")
"""The prefix by which a pickle without a protocol byte names the callable to be called."""
COMPRESSED = re.compile(rb"\x78[\x01\x5e\x9c\xda]|\x1f\x8b\x08")
OPCODES_MIN = 6
"""The least length: shorter matches occur by chance, in ids and checksums."""
LOOK_INTO_MAX = 1 << 20


def pickles_in(data: bytes, *, compressed: bool = True) -> list[int]:
    """Return the offsets at which a pickle begins: one that announces its protocol and is complete up to its STOP, or
    one that names a callable in the old way; and the offsets of compressed data that contain such."""
    found = [match.start() for match in PROTOCOL_2_TO_5.finditer(data) if _reads_to_its_end(data, match.start())]
    found += [match.start() for match in OLD_GLOBAL.finditer(data)]
    if compressed:
        for match in COMPRESSED.finditer(data):
            inside = _inflated(data[match.start() :])
            if inside and pickles_in(inside, compressed=False):
                found.append(match.start())
    return sorted(found)


class _Named(Exception):
    """The pickle names a callable, which is not looked up."""


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise _Named


def _reads_to_its_end(data: bytes, start: int) -> bool:
    """Whether it is a pickle, and not a few random bytes."""
    piece = data[start : start + LOOK_INTO_MAX]
    try:
        if sum(1 for _ in pickletools.genops(io.BytesIO(piece))) < OPCODES_MIN:
            return False
        _Reader(io.BytesIO(piece)).load()
    except _Named:
        return True
    except Exception:  # any exception of an unpickler for bytes that are no pickle
        return False
    return True


def _inflated(data: bytes) -> bytes:
    """Decompress as far as possible; empty if it is not compressed."""
    inflate = zlib.decompressobj(wbits=47)  # zlib or gzip
    try:
        return inflate.decompress(data, LOOK_INTO_MAX)
    except zlib.error:
        return b""
