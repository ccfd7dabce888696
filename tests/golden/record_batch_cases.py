"""The records behind `record_batch_magic_82.txt`, and the generator of that file.

`python -m tests.golden.record_batch_cases` prints the file from the reference implementation. Such bytes are on users'
disks, so the file's existing content never changes; a new shape is a new case at its end, and a new format is a new
file.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from .record_batch_reference import NaiveRecord, batch

FILE = Path(__file__).with_name("record_batch_magic_82.txt")
NOW = 1_700_000_000_000


@dataclass
class Case:
    records: list[NaiveRecord]
    codec: int = 0
    fields: dict[str, int] = field(default_factory=dict)
    """Fields of the header."""


def mixed(count: int) -> list[NaiveRecord]:
    """Records of every kind: nulls, empty ones, text, headers, timestamps that decrease."""
    records = []
    for number in range(count):
        key = None if number % 3 == 0 else b"key-%d" % (number % 7)
        value = None if number % 5 == 4 else b"v" * (number * 7 % 23)
        headers: list[tuple[str, bytes | None]] = [("größe", b"%d" % number), ("", None)][: number % 3]
        records.append(NaiveRecord(number, NOW + (number * 37 % 11) - 5, key, value, headers))
    return records


def bare(*values: bytes | None, timestamp: int = NOW) -> list[NaiveRecord]:
    return [NaiveRecord(delta, timestamp, None, value) for delta, value in enumerate(values)]


CASES: dict[str, Case] = {
    "one value": Case(bare(b"hello")),
    "one empty value": Case(bare(b"")),
    "one tombstone": Case(bare(None)),
    "without timestamps": Case(bare(b"a", b"b", timestamp=-1)),
    "nine values, the last null": Case(bare(*[b"x"] * 8, None)),
    "keys, some null": Case(
        [NaiveRecord(0, NOW, b"k", b"1"), NaiveRecord(1, NOW, None, b"2"), NaiveRecord(2, NOW, b"", b"3")]
    ),
    "timestamps that rise and fall": Case(
        [NaiveRecord(i, NOW + t, None, b"%d" % i) for i, t in enumerate((0, 5, -7, 3))]
    ),
    "headers": Case([NaiveRecord(0, NOW, None, b"1", [("a", b"x"), ("b", None)]), NaiveRecord(1, NOW, None, b"2")]),
    "an idempotent producer": Case(
        bare(b"1", b"2"), fields={"producer_id": 2**40, "producer_epoch": 3, "base_sequence": 2**31 - 1}
    ),
    "a transaction, stamped": Case(
        bare(b"1"),
        fields={
            "attributes": 0x10,
            "producer_id": 5,
            "producer_epoch": 0,
            "base_sequence": 0,
            "base_offset": 2**40,
            "leader_epoch": 12,
        },
    ),
    "a value of 300 bytes": Case(bare(bytes(range(256)) + bytes(44))),
    "ten of every sort": Case(mixed(10)),
    "300 of every sort": Case(mixed(300)),
    "gzip": Case(mixed(10), codec=1),
    "snappy": Case(mixed(10), codec=2),
    "lz4": Case(mixed(10), codec=3),
    "zstd": Case(mixed(10), codec=4),
    "300 of every sort, zstd": Case(mixed(300), codec=4),
    "log append time": Case(mixed(4), fields={"attributes": 0x08, "max_timestamp": NOW + 99, "base_offset": 7}),
    "compacted: offsets 100, 103, 104 of 100 to 109": Case(
        [NaiveRecord(delta, NOW, b"k%d" % delta, b"v") for delta in (0, 3, 4)],
        fields={"base_offset": 100, "last_offset_delta": 9},
    ),
    "compacted: no record left of 100 to 109": Case([], fields={"base_offset": 100, "last_offset_delta": 9}),
    "compacted, 300 with holes": Case(
        [NaiveRecord(delta * 2 + 1, NOW + delta, b"k", b"v") for delta in range(300)],
        fields={"last_offset_delta": 1000},
    ),
}


def golden() -> dict[str, bytes]:
    """Return name → bytes, from the file."""
    blocks = FILE.read_text().strip().split("\n\n")[1:]
    named = (block.split("\n", 1) for block in blocks)
    return {name.removeprefix("case "): bytes.fromhex(content) for name, content in named}


def text() -> str:
    """Return the file's text, generated again."""
    lines = ["Record batches of magic 82, in hexadecimal. tests/golden/record_batch_cases.py tells what is in them."]
    for name, case in CASES.items():
        content = batch(case.records, codec=case.codec, **case.fields).hex()
        lines += ["", f"case {name}", *(content[start : start + 120] for start in range(0, len(content), 120))]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
