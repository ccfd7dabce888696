"""Compression of a payload as one block, and decompression with bounded memory.

Each codec has one standard container, so that the usual library of any language reads and writes it:

    gzip    one RFC 1952 member
    snappy  the raw block format (no framing): it begins with the uncompressed length
    lz4     one LZ4 frame (magic 0x184D2204), no dictionary
    zstd    one RFC 8878 frame, no dictionary, with a window of 8 MiB at most

A library that decompresses a block allocates what the block announces: a crafted kilobyte can ask for gigabytes. So
before decompression `_room` computes how much memory the result can need: the announced size, or a sum over the inner
blocks. A block above the bound is refused. Otherwise it is decompressed into a buffer of exactly that size, and it is
corrupt if it does not fit, or does not fill an announced size. (gzip goes through `zlib`, whose output can be limited
call by call; some versions of cramjam's inflate first and check later.)
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any

import cramjam

from raftlog.errors import CorruptBatch
from raftlog.ports import Buffer

from .header import Codec

GZIP_LEVEL = 6
LZ4_LEVEL = 1
ZSTD_LEVEL = 3
"""The default levels of the codecs themselves, and of Kafka."""

_COMPRESS: dict[Codec, Callable[[Buffer], Any]] = {
    Codec.GZIP: lambda data: cramjam.gzip.compress(data, level=GZIP_LEVEL),
    Codec.SNAPPY: cramjam.snappy.compress_raw,
    Codec.LZ4: lambda data: cramjam.lz4.compress(data, level=LZ4_LEVEL),
    Codec.ZSTD: lambda data: cramjam.zstd.compress(data, level=ZSTD_LEVEL),
}

_MAX_INNER_BLOCKS = 65_536
"""Maximum number of inner blocks of a frame: enough for 16 MiB in pieces of 256 bytes."""

_LZ4_MAGIC = 0x184D2204
_LZ4_BLOCK_BYTES = {4: 64 << 10, 5: 256 << 10, 6: 1 << 20, 7: 4 << 20}

_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_BLOCK_BYTES = 128 << 10
_ZSTD_MAX_WINDOW = 8 << 20
"""The window that RFC 8878 recommends that every reader supports. The window of a single-segment frame is its content.
"""
_ZSTD_RLE, _ZSTD_COMPRESSED, _ZSTD_RESERVED = 1, 2, 3

_GZIP_CONTAINER = 16 + zlib.MAX_WBITS


class ContentTooLarge(CorruptBatch):
    """The block announces more content than is allowed."""


def compress(codec: Codec, data: Buffer) -> memoryview:
    """Return `data` as one block of this codec; `data` itself for `Codec.NONE`."""
    return memoryview(data if codec == Codec.NONE else _COMPRESS[codec](data))


def decompress(codec: Codec, block: memoryview, max_bytes: int) -> memoryview:
    """Return the content of `block`; `block` itself for `Codec.NONE`.

    Raises `CorruptBatch` if the content has more than `max_bytes`, or if `block` is not exactly one block of this
    codec. Allocates at most `max_bytes`, and what the codec itself needs (gzip as much again, lz4 and zstd up to 8
    MiB).
    """
    try:
        room, exact = _room(codec, block)
        if room > max_bytes and exact:
            raise ContentTooLarge(f"the payload has {room} bytes when decompressed; at most {max_bytes} are allowed")
        if codec == Codec.NONE:
            return block
        return _decompress_into(codec, block, min(room, max_bytes), exact)
    except (cramjam.DecompressionError, zlib.error, struct.error, IndexError, ValueError) as error:
        name = codec.name.lower()
        raise CorruptBatch(f"the payload is not a block of {name} for at most {max_bytes} bytes: {error}") from None


def _decompress_into(codec: Codec, block: memoryview, room: int, exact: bool) -> memoryview:
    if codec == Codec.GZIP:
        return _gunzip(block, room)
    buffer = bytearray(room)
    if codec == Codec.SNAPPY:
        written = cramjam.snappy.decompress_raw_into(block, buffer)
    elif codec == Codec.LZ4:
        written = cramjam.lz4.decompress_into(block, buffer)
    else:
        written = cramjam.zstd.decompress_into(block, buffer)
    if exact and written != room:
        raise ValueError(f"it announces {room} bytes but holds {written}")
    return memoryview(buffer)[:written]


def _gunzip(block: memoryview, room: int) -> memoryview:
    decompressor = zlib.decompressobj(_GZIP_CONTAINER)
    data = decompressor.decompress(block, room + 1)
    if len(data) != room or not decompressor.eof or decompressor.unused_data:
        raise ValueError(f"it is not one whole member of {room} bytes")
    return memoryview(data)


# --- How much room a block needs -------------------------------------------------------------------------------------


def _room(codec: Codec, block: memoryview) -> tuple[int, bool]:
    """Return the decompressed size of the block: as announced (True), or an upper bound (False)."""
    if codec == Codec.NONE:
        return block.nbytes, True
    if codec == Codec.GZIP:
        return struct.unpack_from("<I", block, block.nbytes - 4)[0], True
    if codec == Codec.SNAPPY:
        return int(cramjam.snappy.decompress_raw_len(block)), True
    return _lz4_room(block) if codec == Codec.LZ4 else _zstd_room(block)


def _lz4_room(block: memoryview) -> tuple[int, bool]:
    """Read the frame's header and step over its blocks (the LZ4 frame format, version 1.6.x)."""
    magic, flags, block_descriptor = struct.unpack_from("<IBB", block)
    version, checksummed_blocks, has_size, checksummed, has_dictionary = (
        flags >> 6,
        flags >> 4 & 1,
        flags >> 3 & 1,
        flags >> 2 & 1,
        flags & 1,
    )
    block_bytes = _LZ4_BLOCK_BYTES.get(block_descriptor >> 4, 0)
    if magic != _LZ4_MAGIC or version != 1 or not block_bytes or has_dictionary:
        raise ValueError("it is not a frame of a known kind")
    announced = struct.unpack_from("<Q", block, 6)[0] if has_size else None
    position = 15 if has_size else 7
    room = 0
    for _ in range(_MAX_INNER_BLOCKS + 1):  # including the end mark
        (length,) = struct.unpack_from("<I", block, position)
        position += 4
        if length == 0:
            break
        position += (length & 0x7FFFFFFF) + 4 * checksummed_blocks
        room += block_bytes
    else:
        raise ValueError(f"it has more than {_MAX_INNER_BLOCKS} inner blocks")
    if position + 4 * checksummed != block.nbytes:
        raise ValueError("it is not exactly one frame")
    return (room, False) if announced is None else (announced, True)


def _zstd_room(block: memoryview) -> tuple[int, bool]:
    """Step over the frame's blocks (RFC 8878, section 3.1.1.2) and check that nothing follows the frame."""
    position, announced, checksum_bytes = _zstd_header(block)
    room = 0
    for _ in range(_MAX_INNER_BLOCKS):
        low, middle, high = block[position], block[position + 1], block[position + 2]
        last, kind, length = low & 1, low >> 1 & 3, (high << 16 | middle << 8 | low) >> 3
        if kind == _ZSTD_RESERVED or length > _ZSTD_BLOCK_BYTES:
            raise ValueError("it has an invalid inner block")
        position += 3 + (1 if kind == _ZSTD_RLE else length)
        room += _ZSTD_BLOCK_BYTES if kind == _ZSTD_COMPRESSED else length
        if last:
            break
    else:
        raise ValueError(f"it has more than {_MAX_INNER_BLOCKS} inner blocks")
    if position + checksum_bytes != block.nbytes:
        raise ValueError("it is not exactly one frame")
    return (room, False) if announced is None else (announced, True)


def _zstd_header(block: memoryview) -> tuple[int, int | None, int]:
    """Return the start of the frame's blocks, the content size if announced, and the checksum's size (section 3.1.1.1).

    The library allocates the window that a header asks for, up to 128 MiB, so the window is bounded here.
    """
    magic, descriptor = struct.unpack_from("<IB", block)
    size_flag, single_segment, reserved, checksummed, dictionary = (
        descriptor >> 6,
        descriptor >> 5 & 1,
        descriptor >> 3 & 1,
        descriptor >> 2 & 1,
        descriptor & 3,
    )
    if magic != _ZSTD_MAGIC or reserved or dictionary:
        raise ValueError("it is not a frame of a known kind")
    position, window = 5, 0
    if not single_segment:
        base = 1 << 10 + (block[position] >> 3)
        window = base + (base >> 3) * (block[position] & 7)
        position += 1
    size_bytes = (single_segment, 2, 4, 8)[size_flag]
    announced = int.from_bytes(block[position : position + size_bytes], "little") + (256 if size_bytes == 2 else 0)
    window = window or announced
    if window > _ZSTD_MAX_WINDOW:
        raise ValueError(f"it asks for a window of {window} bytes; at most {_ZSTD_MAX_WINDOW} are allowed")
    return position + size_bytes, announced if size_bytes else None, 4 * checksummed
