"""A deliberately naive second implementation of the record batch format, from `docs/record-batch.md` alone.

The fast implementation is compared with it. It loops over records, uses one `struct` call per integer, and a bitwise
CRC. It imports nothing of raftlog, and trusts its input.
"""

from __future__ import annotations

import gzip
import struct
from dataclasses import dataclass, field

import cramjam
import msgpack

HEADER = struct.Struct(">qiibIhiqqqhii")


@dataclass
class NaiveRecord:
    delta: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def binary_column(entries: list[bytes | None]) -> list[bytes | None]:
    bits = bytearray((len(entries) + 7) // 8)
    offsets, data = struct.pack("<i", 0), b""
    for index, entry in enumerate(entries):
        if entry is not None:
            bits[index // 8] |= 1 << index % 8
            data += entry
        offsets += struct.pack("<i", len(data))
    return [bytes(bits) if None in entries else None, offsets, data]


def payload(records: list[NaiveRecord], base_timestamp: int) -> bytes:
    deltas = [record.delta for record in records]
    times = [record.timestamp - base_timestamp for record in records]
    keys = [record.key for record in records]
    list_offsets, flat = struct.pack("<i", 0), []
    for record in records:
        flat += record.headers
        list_offsets += struct.pack("<i", len(flat))
    headers = [
        list_offsets,
        binary_column([key.encode() for key, _ in flat]),
        binary_column([value for _, value in flat]),
    ]
    columns = [
        None if deltas == list(range(len(records))) else b"".join(struct.pack("<i", delta) for delta in deltas),
        None if not any(times) else b"".join(struct.pack("<q", time) for time in times),
        None if all(key is None for key in keys) else binary_column(keys),
        binary_column([record.value for record in records]),
        headers if flat else None,
    ]
    packed: bytes = msgpack.packb(columns)
    return packed


def seal(
    body: bytes,
    count: int,
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    magic: int = 82,
    attributes: int = 0,
    last_offset_delta: int | None = None,
    base_timestamp: int = 0,
    max_timestamp: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    batch_length: int | None = None,
) -> bytes:
    """Put any payload behind a header with these fields and a correct CRC."""
    last = count - 1 if last_offset_delta is None else last_offset_delta
    fields = (attributes, last, base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, count)
    checked = struct.pack(">hiqqqhii", *fields) + body
    length = len(checked) + 9 if batch_length is None else batch_length
    return struct.pack(">qiibI", base_offset, length, leader_epoch, magic, crc32c(checked)) + checked


def batch(records: list[NaiveRecord], *, codec: int = 0, **fields: int) -> bytes:
    """Build a batch of these records; `fields` overrides header fields that do not follow from the records."""
    first, greatest = (records[0].timestamp, max(r.timestamp for r in records)) if records else (0, 0)
    fields = {"base_timestamp": first, "max_timestamp": greatest, "attributes": 0} | fields
    fields["attributes"] |= codec
    return seal(compress(codec, payload(records, fields["base_timestamp"])), len(records), **fields)


def compress(codec: int, data: bytes) -> bytes:
    if codec == 0:
        return data
    if codec == 1:
        return gzip.compress(data, mtime=0)
    return bytes((cramjam.snappy.compress_raw, cramjam.lz4.compress, cramjam.zstd.compress)[codec - 2](data))


def decompress(codec: int, data: bytes) -> bytes:
    if codec == 0:
        return data
    if codec == 1:
        return gzip.decompress(data)
    return bytes((cramjam.snappy.decompress_raw, cramjam.lz4.decompress, cramjam.zstd.decompress)[codec - 2](data))


def read_binary(column: list[bytes | None] | None, count: int) -> list[bytes | None]:
    if column is None:
        return [None] * count
    bits, offsets, data = column
    assert offsets is not None and data is not None
    entries: list[bytes | None] = []
    for index in range(count):
        start, end = struct.unpack_from("<ii", offsets, 4 * index)
        there = bits is None or bits[index // 8] >> index % 8 & 1
        entries.append(data[start:end] if there else None)
    return entries


def read(data: bytes) -> list[NaiveRecord]:
    """Return the records of a valid batch, with absolute values: `delta` is the offset."""
    base, _, _, _, _, attributes, _, base_timestamp, max_timestamp, _, _, _, count = HEADER.unpack_from(data)
    deltas, times, keys, values, headers = msgpack.unpackb(decompress(attributes & 7, data[61:]))
    key_column, value_column = read_binary(keys, count), read_binary(values, count)
    records = []
    for index in range(count):
        delta = index if deltas is None else struct.unpack_from("<i", deltas, 4 * index)[0]
        timestamp = base_timestamp + (0 if times is None else struct.unpack_from("<q", times, 8 * index)[0])
        if attributes & 8:
            timestamp = max_timestamp
        own: list[tuple[str, bytes | None]] = []
        if headers is not None:
            start, end = struct.unpack_from("<ii", headers[0], 4 * index)
            total = len(headers[1][1]) // 4 - 1
            names, contents = read_binary(headers[1], total), read_binary(headers[2], total)
            own = [((names[i] or b"").decode(), contents[i]) for i in range(start, end)]
        records.append(NaiveRecord(base + delta, timestamp, key_column[index], value_column[index], own))
    return records
