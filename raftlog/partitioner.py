"""The partition of a key: Kafka's default partitioner, bit for bit.

A record with a key goes to `murmur2(key) & 0x7fffffff` modulo the number of partitions. A program that moves between
Kafka and raftlog therefore puts a key into the same partition.

`murmur2` hashes one key in plain Python. `partitions_for_keys` hashes a column of keys in a few C calls: keys of the
same length are hashed side by side, each in a 64-bit lane of one large integer. A lane holds a 32-bit number and the
hash's multiplier has 31 bits, so a product stays within its lane, and one multiplication of the large integer
multiplies all of them. The tests compare the two.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from functools import lru_cache

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK_32 = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF
"""Kafka's `toPositive`: the sign bit is dropped, not negated."""

_FEWEST_LANES = 16
"""Minimum number of keys of one length for which large integers are faster."""

_MOST_LANES = 4096
"""Keys hashed by one large integer: 32 KiB, so that it stays in the processor's first-level cache."""


def murmur2(data: bytes) -> int:
    """Return MurmurHash2 (32 bits, Kafka's seed) as an unsigned number; Kafka has the same bits, signed."""
    length = len(data)
    hashed = _SEED ^ length
    for (word,) in struct.iter_unpack("<I", data[: length & ~3]):
        word = (word * _MULTIPLIER) & _MASK_32
        word ^= word >> 24
        hashed = ((hashed * _MULTIPLIER) ^ (word * _MULTIPLIER)) & _MASK_32
    if length & 3:
        hashed ^= int.from_bytes(data[length & ~3 :], "little")
        hashed = (hashed * _MULTIPLIER) & _MASK_32
    hashed ^= hashed >> 13
    hashed = (hashed * _MULTIPLIER) & _MASK_32
    return hashed ^ (hashed >> 15)


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Return the partition that Kafka's default partitioner chooses for this key."""
    return (murmur2(key) & _POSITIVE) % partition_count


def partitions_for_keys(keys: Sequence[bytes], partition_count: int) -> list[int]:
    """Return `partition_for_key` of every key, in order; several times faster if many keys have the same length."""
    by_length: dict[int, list[int]] = {}
    for index, length in enumerate(map(len, keys)):
        by_length.setdefault(length, []).append(index)
    partitions = [0] * len(keys)
    for length, indexes in by_length.items():
        for start in range(0, len(indexes), _MOST_LANES):
            chunk = indexes[start : start + _MOST_LANES]
            hashes = _murmur2_of_one_length([keys[index] for index in chunk], length)
            for index, hashed in zip(chunk, hashes, strict=True):
                partitions[index] = (hashed & _POSITIVE) % partition_count
    return partitions


def _murmur2_of_one_length(keys: list[bytes], length: int) -> Sequence[int]:
    """Return `murmur2` of keys that all have `length` bytes."""
    if len(keys) < _FEWEST_LANES or sys.byteorder != "little":
        return [murmur2(key) for key in keys]
    lanes = len(keys)
    low_32 = _repeat(_MASK_32, lanes)
    words_per_key = (length + 3) // 4
    padding = bytes(4 * words_per_key - length)
    # Every key padded to whole words: word `w` of key `k` is word `k * words_per_key + w` of the column.
    words = memoryview(padding.join(keys) + padding).cast("I")
    spread = bytearray(8 * lanes)
    into_lanes = memoryview(spread).cast("I")[::2]

    hashed = _repeat(_SEED ^ length, lanes)
    for position in range(words_per_key):
        into_lanes[:] = words[position::words_per_key]
        word = int.from_bytes(spread, "little")
        if position < length // 4:
            word = (word * _MULTIPLIER) & low_32
            word ^= (word >> 24) & _repeat(_MASK_32 >> 24, lanes)
            hashed = ((hashed * _MULTIPLIER) ^ (word * _MULTIPLIER)) & low_32
        else:
            hashed = ((hashed ^ word) * _MULTIPLIER) & low_32
    hashed ^= (hashed >> 13) & _repeat(_MASK_32 >> 13, lanes)
    hashed = (hashed * _MULTIPLIER) & low_32
    hashed ^= (hashed >> 15) & _repeat(_MASK_32 >> 15, lanes)
    return memoryview(hashed.to_bytes(8 * lanes, "little")).cast("Q").tolist()


@lru_cache(maxsize=64)
def _repeat(value: int, lanes: int) -> int:
    """Return an integer with `value` in every lane."""
    return int.from_bytes(value.to_bytes(8, "little") * lanes, "little")
