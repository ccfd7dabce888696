"""Compression of a whole payload as one block, and decompression that cannot be made to allocate.

One standard container per codec, so that any language's usual library reads it:

    gzip    one RFC 1952 member
    snappy  the raw block format (no framing): it begins with the uncompressed length
    lz4     one LZ4 frame
    zstd    one RFC 8878 frame, without a dictionary, whose window is not greater than the reader's bound

A reader never lets a library choose the size of what it writes: it decompresses into a buffer of its own, which is as
great as the block says that it needs, and never greater than the bound. What the block says is a lie at worst, and a
lie ends in `CorruptBatch`. LZ4 frames (and zstd frames of a stream) need not say; there the buffer grows by fours up to
the bound, which costs a third more work and no more memory.

What is *not* here: what the bytes mean, and any thread. A megabyte takes up to tens of milliseconds; whoever must not
wait for it calls from a worker.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import cramjam

from .errors import CorruptBatch
from .ports import Buffer
from .record_header import Codec

_LZ4_LEVEL = 1
_GZIP_LEVEL = 6
_ZSTD_LEVEL = 3

_COMPRESS: dict[Codec, Callable[[Any], Any]] = {
    Codec.GZIP: lambda data: cramjam.gzip.compress(data, level=_GZIP_LEVEL),
    Codec.SNAPPY: cramjam.snappy.compress_raw,
    Codec.LZ4: lambda data: cramjam.lz4.compress(data, level=_LZ4_LEVEL),
    Codec.ZSTD: lambda data: cramjam.zstd.compress(data, level=_ZSTD_LEVEL),
}
_DECOMPRESS_INTO: dict[Codec, Callable[[Any, Any], int]] = {
    Codec.GZIP: cramjam.gzip.decompress_into,
    Codec.SNAPPY: cramjam.snappy.decompress_raw_into,
    Codec.LZ4: cramjam.lz4.decompress_into,
    Codec.ZSTD: cramjam.zstd.decompress_into,
}

_FIRST_GUESS = 64 * 1024
_NO_ROOM = "failed to write whole buffer"
"""How cramjam says that the output buffer is full."""

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

_LZ4_MAGIC = 0x184D2204
_LZ4_HAS_CONTENT_SIZE = 0x08

_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_MAX_BLOCKS = 65_536
_ZSTD_RLE_BLOCK = 1


def compress(codec: Codec, data: Buffer) -> Buffer:
    """`data` as one block of this codec; `data` itself for `Codec.NONE`."""
    if codec is Codec.NONE:
        return data
    return memoryview(_COMPRESS[codec](data))


def decompress(codec: Codec, block: memoryview, max_bytes: int) -> memoryview:
    """What `block` holds. Raises `CorruptBatch` where that is more than `max_bytes`, or `block` is not one whole
    block of this codec. Never allocates more than `max_bytes` for it (once more while an LZ4 frame's buffer grows)."""
    if codec is Codec.NONE:
        _check_size(codec, block.nbytes, max_bytes)
        return block
    try:
        announced = _announced_size(codec, block, max_bytes)
        if announced is not None:
            _check_size(codec, announced, max_bytes)
            return _decompress_announced(codec, block, announced)
        return _decompress_growing(codec, block, max_bytes)
    except (cramjam.DecompressionError, struct.error, IndexError) as error:
        raise CorruptBatch(f"the payload is not a block of {codec.name.lower()}: {error}") from None


def _decompress_announced(codec: Codec, block: memoryview, announced: int) -> memoryview:
    buffer = bytearray(announced)
    written = _DECOMPRESS_INTO[codec](block, buffer)
    if written != announced:
        raise CorruptBatch(f"the {codec.name.lower()} block announces {announced} bytes and holds {written}")
    return memoryview(buffer)


def _decompress_growing(codec: Codec, block: memoryview, max_bytes: int) -> memoryview:
    room = min(max_bytes, max(_FIRST_GUESS, 4 * block.nbytes))
    while True:
        buffer = bytearray(room)
        try:
            written = _DECOMPRESS_INTO[codec](block, buffer)
            return memoryview(buffer)[:written]
        except cramjam.DecompressionError as error:
            if _NO_ROOM not in str(error):
                raise
        _check_size(codec, room + 1, max_bytes)
        room = min(max_bytes, 4 * room)
        del buffer


def _check_size(codec: Codec, size: int, max_bytes: int) -> None:
    if size > max_bytes:
        name = "uncompressed" if codec is Codec.NONE else f"decompressed from {codec.name.lower()}"
        raise CorruptBatch(f"the payload is greater than {max_bytes} bytes when {name}")


def _announced_size(codec: Codec, block: memoryview, max_bytes: int) -> int | None:
    """Bytes that the block says it decompresses to; None where it does not say."""
    if codec is Codec.SNAPPY:
        return int(cramjam.snappy.decompress_raw_len(block))
    if codec is Codec.GZIP:
        (size,) = _U32.unpack_from(block, block.nbytes - _U32.size)
        return int(size)
    if codec is Codec.ZSTD:
        return _check_zstd_frame(block, max_bytes)
    if _U32.unpack_from(block)[0] == _LZ4_MAGIC and block[4] & _LZ4_HAS_CONTENT_SIZE:
        return int(_U64.unpack_from(block, 6)[0])
    return None


def _check_zstd_frame(block: memoryview, max_bytes: int) -> int | None:
    """The content size in the frame's header, if it is there; the frame must be the only one, and modest.

    The library allocates the window that a frame's header asks for, up to 128 MiB; so headers are read first (RFC 8878,
    3.1.1), and that there is one frame, with one header, is known from walking over its blocks.
    """
    magic, descriptor = struct.unpack_from("<IB", block)
    if magic != _ZSTD_MAGIC:
        raise CorruptBatch("the payload is not a zstd frame")
    if descriptor & 0x03 or descriptor & 0x08:
        raise CorruptBatch("the zstd frame needs a dictionary, or sets a reserved bit")
    single_segment = bool(descriptor & 0x20)
    position = 5
    if not single_segment:
        exponent, mantissa = block[position] >> 3, block[position] & 7
        window = (1 << (10 + exponent)) + (1 << (10 + exponent)) // 8 * mantissa
        if window > max(max_bytes, 1024):
            raise CorruptBatch(f"the zstd frame asks for a window of {window} bytes; at most {max_bytes} are given")
        position += 1
    size_bytes = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
    content_size = int.from_bytes(block[position : position + size_bytes], "little") if size_bytes else None
    if size_bytes == 2 and content_size is not None:
        content_size += 256
    position += size_bytes
    for _ in range(_ZSTD_MAX_BLOCKS):
        header = int.from_bytes(block[position : position + 3], "little")
        kind, length = header >> 1 & 3, header >> 3
        position += 3 + (1 if kind == _ZSTD_RLE_BLOCK else length)
        if header & 1 or position > block.nbytes:
            break
    position += 4 if descriptor & 0x04 else 0
    if position != block.nbytes:
        raise CorruptBatch("the payload is not exactly one zstd frame")
    return content_size
