"""Compression of a whole payload as one block, and decompression that cannot be made to allocate.

One standard container per codec, so that any language's usual library reads and writes it:

    gzip    one RFC 1952 member
    snappy  the raw block format (no framing): it begins with the uncompressed length
    lz4     one LZ4 frame (magic 0x184D2204), no dictionary
    zstd    one RFC 8878 frame, no dictionary, with a window of 8 MiB at most

A library that is handed a block and asked for the result allocates what the block tells it to: gigabytes, for a
kilobyte made on purpose. So before any of it is decompressed, `_room` finds out how much memory it can need: the size
that it announces, or a sum over its own inner blocks. More than the bound is refused there; then it is decompressed
into a buffer of just that size, and what does not fit, or does not fill an announced size, is corrupt. (gzip goes
through `zlib`, whose output can be limited call by call; cramjam's has versions that inflate first and look later.)
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
"""The levels that the codecs themselves (and Kafka) take when nobody says."""

_COMPRESS: dict[Codec, Callable[[Buffer], Any]] = {
    Codec.GZIP: lambda data: cramjam.gzip.compress(data, level=GZIP_LEVEL),
    Codec.SNAPPY: cramjam.snappy.compress_raw,
    Codec.LZ4: lambda data: cramjam.lz4.compress(data, level=LZ4_LEVEL),
    Codec.ZSTD: lambda data: cramjam.zstd.compress(data, level=ZSTD_LEVEL),
}

_MAX_INNER_BLOCKS = 65_536
"""Inner blocks of a frame that a reader walks over: room for 16 MiB in pieces of 256 bytes."""

_LZ4_MAGIC = 0x184D2204
_LZ4_BLOCK_BYTES = {4: 64 << 10, 5: 256 << 10, 6: 1 << 20, 7: 4 << 20}

_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_BLOCK_BYTES = 128 << 10
_ZSTD_MAX_WINDOW = 8 << 20
"""What RFC 8878 recommends that every reader supports. A frame of a single segment has its content for a window."""
_ZSTD_RLE, _ZSTD_COMPRESSED, _ZSTD_RESERVED = 1, 2, 3

_GZIP_CONTAINER = 16 + zlib.MAX_WBITS


def compress(codec: Codec, data: Buffer) -> memoryview:
    """`data` as one block of this codec; `data` itself for `Codec.NONE`."""
    return memoryview(data if codec == Codec.NONE else _COMPRESS[codec](data))


def decompress(codec: Codec, block: memoryview, max_bytes: int) -> memoryview:
    """What `block` holds; `block` itself for `Codec.NONE`.

    Raises `CorruptBatch` where that is more than `max_bytes`, or `block` is not exactly one block of this codec.
    Allocates at most `max_bytes`, and what the codec needs by itself (gzip as much again, lz4 and zstd up to 8 MiB).
    """
    try:
        room, exact = _room(codec, block)
        if room > max_bytes and exact:
            raise CorruptBatch(f"the payload has {room} bytes when decompressed; at most {max_bytes} are allowed")
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
        raise ValueError(f"it announces {room} bytes and holds {written}")
    return memoryview(buffer)[:written]


def _gunzip(block: memoryview, room: int) -> memoryview:
    decompressor = zlib.decompressobj(_GZIP_CONTAINER)
    data = decompressor.decompress(block, room + 1)
    if len(data) != room or not decompressor.eof or decompressor.unused_data:
        raise ValueError(f"it is not one whole member of {room} bytes")
    return memoryview(data)


# --- How much room a block needs -------------------------------------------------------------------------------------


def _room(codec: Codec, block: memoryview) -> tuple[int, bool]:
    """Bytes that the block decompresses to: as it announces (True), or at most (False)."""
    if codec == Codec.NONE:
        return block.nbytes, True
    if codec == Codec.GZIP:
        return struct.unpack_from("<I", block, block.nbytes - 4)[0], True
    if codec == Codec.SNAPPY:
        return int(cramjam.snappy.decompress_raw_len(block)), True
    return _lz4_room(block) if codec == Codec.LZ4 else _zstd_room(block)


def _lz4_room(block: memoryview) -> tuple[int, bool]:
    """Reads the frame's header and steps over its blocks (the LZ4 frame format, version 1.6.x)."""
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
    for _ in range(_MAX_INNER_BLOCKS + 1):  # and the mark at their end
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
    """Steps over the frame's blocks (RFC 8878, section 3.1.1.2), so that no other frame is behind it."""
    position, announced, checksum_bytes = _zstd_header(block)
    room = 0
    for _ in range(_MAX_INNER_BLOCKS):
        low, middle, high = block[position], block[position + 1], block[position + 2]
        last, kind, length = low & 1, low >> 1 & 3, (high << 16 | middle << 8 | low) >> 3
        if kind == _ZSTD_RESERVED or length > _ZSTD_BLOCK_BYTES:
            raise ValueError("it has an inner block that cannot be")
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
    """Where the frame's blocks begin, the content size that it names, and what follows the blocks (section 3.1.1.1).

    The library allocates the window that a header asks for, up to 128 MiB: that it is modest is made sure of here.
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
        raise ValueError(f"it asks for a window of {window} bytes; at most {_ZSTD_MAX_WINDOW} are given")
    return position + size_bytes, announced if size_bytes else None, 4 * checksummed
