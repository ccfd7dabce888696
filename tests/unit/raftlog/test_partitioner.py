"""Keys go to the partitions of Kafka's default partitioner; the bulk implementation equals the plain one."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.partitioner import murmur2, partition_for_key, partitions_for_keys

# Apache Kafka, clients/src/test/java/org/apache/kafka/common/utils/UtilsTest.java, testMurmur2.
KAFKAS_VECTORS = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
]


@pytest.mark.parametrize(("key", "signed"), KAFKAS_VECTORS)
def test_murmur2_is_kafkas(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF


@pytest.mark.parametrize(("key", "signed"), KAFKAS_VECTORS)
@pytest.mark.parametrize("count", [1, 2, 3, 12, 10_000])
def test_the_sign_bit_is_dropped_before_the_modulo(key: bytes, signed: int, count: int) -> None:
    assert partition_for_key(key, count) == (signed & 0x7FFFFFFF) % count


@pytest.mark.parametrize("length", range(18))
@pytest.mark.parametrize("lanes", [1, 15, 16, 17, 300])
def test_bulk_hashing_of_one_length_equals_the_plain_one(length: int, lanes: int) -> None:
    draw = random.Random(length * 1000 + lanes)
    keys = [draw.randbytes(length) for _ in range(lanes)]
    keys[0] = b"\xff" * length  # The largest products in a lane.
    assert partitions_for_keys(keys, 7) == [partition_for_key(key, 7) for key in keys]


def test_bulk_hashing_across_chunks_and_lengths_keeps_the_order() -> None:
    draw = random.Random(5)
    keys = [draw.randbytes(draw.choice([0, 3, 8, 36])) for _ in range(20_000)]
    assert partitions_for_keys(keys, 1009) == [partition_for_key(key, 1009) for key in keys]


@given(st.lists(st.binary(max_size=40), max_size=200), st.integers(1, 2**31 - 1))
def test_bulk_hashing_equals_the_plain_one(keys: list[bytes], count: int) -> None:
    assert partitions_for_keys(keys, count) == [partition_for_key(key, count) for key in keys]


def test_bulk_hashing_of_nothing() -> None:
    assert partitions_for_keys([], 3) == []
