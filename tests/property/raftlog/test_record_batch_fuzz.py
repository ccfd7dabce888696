"""Arbitrary bytes give `CorruptBatch` or a valid batch: no other exception, no unbounded memory, no disagreement.

Mutations get a correct CRC again, since otherwise none of them would pass its check.
"""

from __future__ import annotations

import contextlib
import os
import random
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cramjam
import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raftlog.errors import CorruptBatch, InvalidRequest
from raftlog.records import arrow as record_arrow
from raftlog.records import header as record_header
from raftlog.records.batch import HEADER_BYTES, Codec, RecordBatch, encode, encode_control, split_batches, validate
from raftlog.records.compression import decompress
from tests.golden import record_batch_reference as reference
from tests.golden.record_batch_cases import golden
from tests.property.record_batch_strategies import TWINS, Columns, columns, twin

MIB = 1 << 20
SEEDS = [batch for batch in golden().values() if len(batch) < 2000]
SEEDS.append(encode_control(1, [(1, 2, 3), (4, 5, -1)], base_timestamp_ms=7))


def seal(payload: bytes, header: bytes) -> bytes:
    """A batch of this payload behind that header, with a matching length and CRC."""
    fields = list(reference.HEADER.unpack(header[:HEADER_BYTES]))
    fields[1] = len(payload) + 49
    checked = reference.HEADER.pack(*fields)[21:] + payload
    fields[4] = record_header.crc32c(checked)
    return reference.HEADER.pack(*fields)[:21] + checked


def read_all(batch: bytes) -> Any:
    """Everything that one implementation can read of it; None if it refuses."""
    try:
        decoded = RecordBatch(batch)
        decoded.check()
    except CorruptBatch:
        decoded = None
    try:
        found = RecordBatch(batch)
        records, rows = found.records(), found.to_arrow()
        rows.validate(full=True)
        control = found.control
    except CorruptBatch:
        assert decoded is None, "what passes the check can be read"
        return None
    if control is None:
        assert rows.num_rows == len(records) == found.header.record_count
    assert rows.column("value").to_pylist() == [record.value for record in records]
    assert rows.column("key").to_pylist() == [record.key for record in records]
    assert rows.column("offset").to_pylist() == [record.offset for record in records]
    return records, control, decoded is None


def check_any(batch: bytes) -> None:
    """Both implementations agree, with and without the newer pyarrow's fast path, and so does the leader's check."""
    found = []
    for name in TWINS:
        with twin(name):
            found.append(read_all(batch))
    assert found[0] == found[1]
    try:
        validate(batch, max_batch_bytes=16 * MIB)
    except CorruptBatch:
        pass
    else:
        assert found[0] is not None and not found[0][2]


@given(st.binary(max_size=300))
def test_any_bytes(content: bytes) -> None:
    check_any(content)
    try:
        for batch in split_batches(content):
            check_any(bytes(batch))
    except CorruptBatch:
        pass


@given(st.binary(max_size=200), st.sampled_from(SEEDS))
def test_any_payload(payload: bytes, like: bytes) -> None:
    check_any(seal(payload, like))


def small_payloads() -> st.SearchStrategy[Any]:
    """Arrays of roughly the right form and lengths."""
    buffers = st.none() | st.binary(max_size=24) | st.lists(st.integers(-1, 4), max_size=6).map(pack_int32)
    binary = st.none() | st.lists(buffers, min_size=3, max_size=3)
    headers = st.none() | st.tuples(buffers, binary, binary)
    return st.tuples(buffers, buffers, binary, binary, headers)


def pack_int32(numbers: list[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(small_payloads(), st.integers(0, 4), st.integers(0, 6))
def test_payloads_of_roughly_the_right_form(payload: Any, count: int, holes: int) -> None:
    check_any(reference.seal(msgpack.packb(payload), count, last_offset_delta=max(0, count + holes - 1)))


def mutate(chosen: random.Random, content: bytes) -> bytes:
    """A few bytes are changed, cut out or duplicated, or a length is made large."""
    changed = bytearray(content)
    for _ in range(chosen.randint(1, 4)):
        at = chosen.randrange(0, len(changed) + 1)
        kind = chosen.randrange(6)
        if kind == 0 and at < len(changed):
            changed[at] = chosen.randrange(256)
        elif kind == 1 and at < len(changed):
            changed[at] ^= 1 << chosen.randrange(8)
        elif kind == 2:
            del changed[at : at + chosen.randint(1, 8)]
        elif kind == 3:
            changed[at:at] = changed[at : at + chosen.randint(1, 16)]
        elif kind == 4:
            heads = (
                b"\xdd\xff\xff\xff\xff",
                b"\xc6\x7f\xff\xff\xff",
                b"\xdc\xff\xff",
                b"\xdf\xff\xff\xff\xff",
                b"\xc0",
            )
            changed[at : at + 1] = chosen.choice(heads)
        else:
            changed[at : at + 4] = struct.pack("<i", chosen.choice((-1, 0, 1, 2**31 - 1, -(2**31))))
    return bytes(changed)


def mutation_run(seed: int) -> None:
    chosen = random.Random(seed)
    original = chosen.choice(SEEDS)
    header, payload = original[:HEADER_BYTES], original[HEADER_BYTES:]
    kind = chosen.randrange(4)
    if kind == 0:
        check_any(mutate(chosen, original))
    elif kind == 1:
        check_any(seal(mutate(chosen, payload), header))
    elif kind == 2:
        fields = mutate(chosen, header[21:])[:40].ljust(40, b"\0")
        check_any(seal(payload, header[:21] + fields))
    else:
        # The codec's block is valid; its content is not.
        codec = (header[22]) & 7
        inner = mutate(chosen, reference.decompress(codec, payload))
        check_any(seal(reference.compress(codec, inner), header))


@pytest.mark.parametrize("seed", range(20))
def test_mutated_batches(seed: int) -> None:
    for number in range(60):
        mutation_run(seed * 60 + number)


@pytest.mark.soak
def test_many_mutated_batches() -> None:
    first = random.SystemRandom().randrange(1 << 40)
    for seed in range(first, first + int(os.environ.get("RAFTLOG_FUZZ", "200000"))):
        try:
            mutation_run(seed)
        except BaseException as error:
            raise AssertionError(f"seed {seed}") from error


@given(st.binary(max_size=200), st.sampled_from(Codec), st.integers(0, 300))
def test_any_block_of_any_codec(content: bytes, codec: Codec, bound: int) -> None:
    with contextlib.suppress(CorruptBatch):
        assert decompress(codec, memoryview(content), bound).nbytes <= bound


@given(st.binary(max_size=500), st.sampled_from(Codec), st.integers(0, 2**32))
def test_mutated_blocks_of_any_codec(content: bytes, codec: Codec, seed: int) -> None:
    block = mutate(random.Random(seed), reference.compress(codec, content * 3))
    with contextlib.suppress(CorruptBatch):
        assert decompress(codec, memoryview(block), 1000).nbytes <= 1000


def test_the_slow_and_the_fast_way_to_lists_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """pyarrow before 26 and after."""
    for batch in SEEDS:
        with twin("arrow"):
            monkeypatch.setattr(record_arrow, "TO_PYLIST_IS_FAST", False)
            slow = read_all(batch)
            monkeypatch.setattr(record_arrow, "TO_PYLIST_IS_FAST", True)
            assert read_all(batch) == slow is not None


# --- Lies about size -------------------------------------------------------------------------------------------------

LYING_PAYLOADS = {
    "an array of 2^32 - 1": b"\xdd\xff\xff\xff\xff" + b"\xc0" * 10,
    "five columns, one an array of 2^32 - 1": b"\x95\xc0\xc0\xdd\xff\xff\xff\xff\xc0\xc0",
    "a bin of 2^32 - 1": b"\x95\xc6\xff\xff\xff\xff" + b"\xc0" * 4,
    "a string of 2^32 - 1": b"\x95\xdb\xff\xff\xff\xff" + b"\xc0" * 4,
    "a map of 2^32 - 1": b"\xdf\xff\xff\xff\xff" + b"\xc0" * 10,
    "an extension of 2^32 - 1": b"\x95\xc9\xff\xff\xff\xff\x01" + b"\xc0" * 4,
    "a control batch of 2^32 - 1 entries": b"\x93\x01\x01\xdd\xff\xff\xff\xff" + b"\xc0" * 10,
    "a control batch, arrays in arrays behind it": b"\x94\x01\x01\x90" + b"\x91" * 500_000,
    "arrays in arrays": b"\x91" * 500_000,
    "columns in columns": b"\x95\xc0\xc0" + b"\x93" * 500_000,
}


@pytest.mark.parametrize("name", LYING_PAYLOADS)
def test_lying_payloads_are_refused(name: str) -> None:
    for count in (0, 1, 2**31 - 1):
        for attributes in (0, 0x20):
            fields = {"attributes": attributes, "last_offset_delta": 2**31 - 1}
            header = reference.seal(b"", count, **fields)
            with pytest.raises(CorruptBatch):
                RecordBatch(seal(LYING_PAYLOADS[name], header))


@given(columns(max_count=3), st.integers(0, 2**31 - 1))
def test_a_lying_record_count_is_refused_before_anything_is_allocated(given_columns: Columns, count: int) -> None:
    batch = given_columns.encode()
    if count == len(given_columns.values):
        return
    header = reference.seal(b"", count, last_offset_delta=2**31 - 1)
    lying = seal(batch[HEADER_BYTES:], header)
    with pytest.raises(CorruptBatch, match="offsets of values"):
        RecordBatch(lying)


BOMB = """
import resource, sys
from raftlog.records import batch as record_batch
from raftlog.errors import CorruptBatch
from raftlog.records.batch import RecordBatch, encode, Codec, validate, load_arrow
bomb = sys.stdin.buffer.read()
load_arrow()
for codec in Codec:
    RecordBatch(encode([b"x" * 100_000] * 5, codec=codec, base_timestamp_ms=0)).to_arrow()
def status(name):
    return int(next(line for line in open("/proc/self/status") if line.startswith(name)).split()[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (status("VmSize") + {room}, resource.RLIM_INFINITY))
before = status("VmHWM")
for read in (RecordBatch, lambda b: validate(b, max_batch_bytes=1 << 30)):
    try:
        (RecordBatch(bomb, max_decompressed_bytes={bound}) if read is RecordBatch
         else validate(bomb, max_batch_bytes=1 << 30, max_decompressed_bytes={bound}))
    except CorruptBatch as error:
        print(error)
    else:
        raise SystemExit("it was taken")
print(status("VmHWM") - before)
"""


def gzip_bomb() -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    return b"".join([packer.compress(bytes(MIB)) for _ in range(64)] + [packer.flush()])


def lying_gzip_bomb() -> bytes:
    return gzip_bomb()[:-4] + struct.pack("<I", 1000)


def lz4_frame(blocks: int) -> bytes:
    """64 KiB of zeros (a block with its checksum), repeated: the frame's own checksum is never reached."""
    frame = bytes(cramjam.lz4.compress(bytes(64 << 10), level=1))
    (length,) = struct.unpack_from("<I", frame, 7)
    return frame[:7] + frame[7 : 15 + length] * blocks + frame[-8:]


def zstd_bomb() -> bytes:
    """A window of 1 KiB, no content size, and blocks that each repeat one byte 128 Ki times."""
    block = (128 << 10) << 3 | 1 << 1
    blocks = [block.to_bytes(3, "little") + b"\0"] * 2000 + [(block | 1).to_bytes(3, "little") + b"\0"]
    return b"\x28\xb5\x2f\xfd\x00\x38" + b"".join(blocks)


def zstd_window() -> bytes:
    """One byte, for which the library would first allocate a window of 128 MiB."""
    return b"\x28\xb5\x2f\xfd\x00" + bytes([17 << 3]) + (1 << 3 | 1).to_bytes(3, "little") + b"x"


def zstd_second_window() -> bytes:
    """The same behind a valid small frame."""
    return bytes(cramjam.zstd.compress(b"modest")) + zstd_window()


BOMBS: dict[str, tuple[Codec, Callable[[], bytes]]] = {
    "gzip": (Codec.GZIP, gzip_bomb),
    "gzip, lying about its size": (Codec.GZIP, lying_gzip_bomb),
    "snappy": (Codec.SNAPPY, lambda: bytes(cramjam.snappy.compress_raw(bytes(64 * MIB)))),
    "snappy, announcing 4 GiB": (Codec.SNAPPY, lambda: b"\xff\xff\xff\xff\x0f" + b"\0" * 20),
    "lz4": (Codec.LZ4, lambda: lz4_frame(4000)),
    "zstd": (Codec.ZSTD, zstd_bomb),
    "zstd, with its size": (Codec.ZSTD, lambda: bytes(cramjam.zstd.compress(bytes(64 * MIB)))),
    "zstd, a great window": (Codec.ZSTD, zstd_window),
    "zstd, a great window in a second frame": (Codec.ZSTD, zstd_second_window),
    "none": (Codec.NONE, lambda: bytes(2 * MIB)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_allocates_no_more_than_the_bound(name: str) -> None:
    """In a process of its own, which gets little more address space than the bound and reports its peak memory."""
    codec, make = BOMBS[name]
    bound, slack = MIB, 6 * MIB
    header = encode([b"x"], base_timestamp_ms=0)[:HEADER_BYTES]
    bomb = seal(make(), header[:22] + bytes([codec]) + header[23:])
    script = BOMB.format(bound=bound, room=bound + slack)
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        input=bomb,
        capture_output=True,
        cwd=Path(__file__).parents[3],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3]), "MALLOC_ARENA_MAX": "1"},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr.decode()
    *errors, grown = done.stdout.decode().splitlines()
    assert len(errors) == 2 and all(error.startswith("corrupt_batch: ") for error in errors)
    assert int(grown) <= bound + slack


def test_a_batch_over_the_topics_bound_is_too_large() -> None:
    batch = encode([b"x" * 5000], base_timestamp_ms=0)
    with pytest.raises(InvalidRequest, match=r"5\d\d\d bytes, but max.message.bytes is 1024") as caught:
        validate(batch, max_batch_bytes=1024)
    assert caught.value.code == "batch_too_large"
