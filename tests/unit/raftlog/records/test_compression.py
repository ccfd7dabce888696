"""Blocks of every codec: writing, and reading of other writers' blocks."""

from __future__ import annotations

import gzip
import struct
import zlib

import cramjam
import pytest

from raftlog.errors import CorruptBatch
from raftlog.records.batch import Codec
from raftlog.records.compression import compress, decompress

TEXT = b"the same words, again and again. " * 20_000
COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("data", [b"", b"a", TEXT, bytes(range(256)) * 4])
def test_a_block_survives_compression(codec: Codec, data: bytes) -> None:
    block = compress(codec, data)
    assert decompress(codec, block, len(data)) == data
    if data:
        with pytest.raises(CorruptBatch, match=f"at most {len(data) - 1}"):
            decompress(codec, block, len(data) - 1)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_trailing_bytes_are_refused(codec: Codec) -> None:
    block = bytes(compress(codec, TEXT))
    for wrong in (block + b"\0", block[:-1], block + block, b"", block[:4], b"?" + block[1:]):
        with pytest.raises(CorruptBatch, match=f"not a block of {codec.name.lower()}|when decompressed"):
            decompress(codec, memoryview(wrong), 16 << 20)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_blocks_use_the_usual_container(codec: Codec) -> None:
    block = bytes(compress(codec, TEXT))
    readers = {
        Codec.GZIP: gzip.decompress,
        Codec.SNAPPY: cramjam.snappy.decompress_raw,
        Codec.LZ4: cramjam.lz4.decompress,
        Codec.ZSTD: cramjam.zstd.decompress,
    }
    assert bytes(readers[codec](block)) == TEXT
    assert len(block) < len(TEXT) // 10


def test_gzip_of_other_writers_is_read() -> None:
    named = zlib.compressobj(1, wbits=31)
    assert decompress(Codec.GZIP, memoryview(named.compress(TEXT) + named.flush()), len(TEXT)) == TEXT
    flags = bytearray(gzip.compress(b"data", mtime=0))
    flags[3] |= 0x08
    with_name = bytes(flags[:10]) + b"file name\0" + bytes(flags[10:])
    assert decompress(Codec.GZIP, memoryview(with_name), 100) == b"data"


def lz4_frame(*blocks: bytes, size: int | None = None, flags: int = 0x60) -> bytes:
    """An LZ4 frame of stored blocks, as the format's document describes it."""
    descriptor = bytes([flags | (8 if size is not None else 0), 0x40])
    descriptor += b"" if size is None else struct.pack("<Q", size)
    body = b"".join(struct.pack("<I", len(block) | 1 << 31) + block for block in blocks)
    return struct.pack("<I", 0x184D2204) + descriptor + bytes([xxh32(descriptor) >> 8 & 0xFF]) + body + bytes(4)


def xxh32(data: bytes) -> int:
    """xxHash of less than 16 bytes."""
    primes = (2654435761, 2246822519, 3266489917, 668265263, 374761393)
    mask = 0xFFFFFFFF
    digest, position = primes[4] + len(data) & mask, 0
    while position + 4 <= len(data):
        digest = digest + int.from_bytes(data[position : position + 4], "little") * primes[2] & mask
        digest = (digest << 17 | digest >> 15) * primes[3] & mask
        position += 4
    for byte in data[position:]:
        digest = digest + byte * primes[4] & mask
        digest = ((digest << 11 | digest >> 21) & mask) * primes[0] & mask
    digest = (digest ^ digest >> 15) * primes[1] & mask
    digest = (digest ^ digest >> 13) * primes[2] & mask
    return digest ^ digest >> 16


def test_lz4_frames_of_other_writers_are_read() -> None:
    assert decompress(Codec.LZ4, memoryview(lz4_frame(b"abc", b"de")), 5) == b"abcde"
    assert decompress(Codec.LZ4, memoryview(lz4_frame(b"abc", b"de", size=5)), 5) == b"abcde"
    for wrong in (lz4_frame(b"abc", size=2), lz4_frame(b"abc", size=4), lz4_frame(b"abc", flags=0x61)):
        with pytest.raises(CorruptBatch):
            decompress(Codec.LZ4, memoryview(wrong), 100)
    most = [b"x"] * 65_536
    assert decompress(Codec.LZ4, memoryview(lz4_frame(*most)), 65_536) == b"x" * 65_536
    with pytest.raises(CorruptBatch, match="more than 65536 inner blocks"):
        decompress(Codec.LZ4, memoryview(lz4_frame(*most, b"x")), 100_000)


def test_a_single_segment_of_zstd_is_its_own_window() -> None:
    """Its reader needs as much room besides its output (RFC 8878, 3.1.1.1.1.2): the same bound applies."""
    eighth = (1, 128 << 10, b"x")
    for blocks, size in ((64, 8 << 20), (65, (8 << 20) + (128 << 10))):
        frame = memoryview(zstd_frame(*[eighth] * blocks, head=b"\xa0" + struct.pack("<I", size)))
        if blocks == 64:
            assert decompress(Codec.ZSTD, frame, 16 << 20) == b"x" * size
        else:
            with pytest.raises(CorruptBatch, match=f"window of {size} bytes"):
                decompress(Codec.ZSTD, frame, 16 << 20)


def zstd_frame(*blocks: tuple[int, int, bytes], head: bytes = b"\x00\x00") -> bytes:
    """A zstd frame of (type, length, content) blocks behind this header (RFC 8878)."""
    packed = [
        (length << 3 | kind << 1 | (number == len(blocks) - 1)).to_bytes(3, "little") + content
        for number, (kind, length, content) in enumerate(blocks)
    ]
    return b"\x28\xb5\x2f\xfd" + head + b"".join(packed)


def test_zstd_frames_of_other_writers_are_read() -> None:
    raw, repeated = (0, 3, b"abc"), (1, 1000, b"x")
    expected = b"abc" + b"x" * 1000
    for head in (b"\x00\x00", b"\x60\xeb\x02", b"\xa0\xeb\x03\0\0", b"\xe0\xeb\x03\0\0\0\0\0\0", b"\x40\x00\xeb\x02"):
        assert decompress(Codec.ZSTD, memoryview(zstd_frame(raw, repeated, head=head)), 1003) == expected
    with pytest.raises(CorruptBatch):
        decompress(Codec.ZSTD, memoryview(zstd_frame(raw, repeated)), 1002)
    with pytest.raises(CorruptBatch, match="not a block of zstd"):
        decompress(Codec.ZSTD, memoryview(zstd_frame(raw, repeated, head=b"\x60\xec\x02")), 2000)


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (zstd_frame((0, 1, b"x"), head=bytes([0, 14 << 3])), "window of 16777216 bytes"),
        (zstd_frame((0, 1, b"x"), head=b"\x01\x00\x07"), "not a frame of a known kind"),
        (zstd_frame((0, 1, b"x"), head=b"\x08\x00"), "not a frame of a known kind"),
        (zstd_frame((3, 1, b"x")), "an invalid inner block"),
        (zstd_frame((0, (128 << 10) + 1, b"x")), "an invalid inner block"),
        (zstd_frame((0, 1, b"x")) + b"\x50\x2a\x4d\x18\0\0\0\0", "not exactly one frame"),
        (zstd_frame(*[(0, 1, b"x")] * 65_537), "more than 65536 inner blocks"),
        (b"\x50\x2a\x4d\x18\0\0\0\0" + zstd_frame((0, 1, b"x")), "not a frame of a known kind"),
        (zstd_frame((0, 1, b"x")) * 2, "not exactly one frame"),
        (b"\x28\xb5\x2f\xfd\xa0", "index out of bounds"),
    ],
)
def test_zstd_frames_that_need_too_much_memory_are_refused(frame: bytes, text: str) -> None:
    with pytest.raises(CorruptBatch, match=text):
        decompress(Codec.ZSTD, memoryview(frame), 16 << 20)
