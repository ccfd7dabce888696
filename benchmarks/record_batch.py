"""The cost of record batches: `python -m benchmarks.record_batch` (about 15 s, one core).

The load: 10,000 records with a timestamp, a key of about 8 bytes and a distinct, incompressible value of 100 bytes,
without compression, always including CRC-32C, created before the clock starts. The whole table is measured 5 times, and
each row is the best of its 5, so that only continuous disturbance can affect it. The calibration loop (a million
additions) shows the best and the worst speed of the machine meanwhile.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from raftlog.records import batch as record_batch
from raftlog.records.batch import Codec, RecordBatch, encode, load_arrow, validate

RECORDS = 10_000
VALUE_BYTES = 100
ROUNDS = 5
ROUND_SECONDS = 0.06
NOW = 1_700_000_000_000
MAX_BYTES = 16 << 20


@dataclass
class Row:
    """One line of the table."""

    name: str
    work: Callable[[], object]
    records: int
    bar: str = ""
    arrow_from: int = record_batch.ARROW_FROM
    best: float = float("inf")
    """The seconds of one call."""

    def measure(self) -> None:
        chosen, record_batch.ARROW_FROM = record_batch.ARROW_FROM, self.arrow_from
        started = time.perf_counter()
        self.work()
        calls = max(1, int(ROUND_SECONDS / max(time.perf_counter() - started, 1e-7)))
        started = time.perf_counter()
        for _ in range(calls):
            self.work()
        self.best = min(self.best, (time.perf_counter() - started) / calls)
        record_batch.ARROW_FROM = chosen

    def __str__(self) -> str:
        each = self.best / self.records
        return f"{self.name:<52} {self.best * 1e6:>10.1f} {each * 1e9:>9.1f} {1e-6 / each:>9.2f}   {self.bar}"


def calibrate() -> float:
    """Return the seconds of a million additions: only the interpreter, no memory."""
    started = time.perf_counter()
    total = 0
    for number in range(1_000_000):
        total += number
    return time.perf_counter() - started


def read_lists(batch: bytes) -> Sequence[object]:
    """Read everything in a batch, as lists."""
    decoded = RecordBatch(batch)
    return decoded.offsets(), decoded.timestamps_ms(), decoded.keys(), decoded.values(), decoded.headers()


def packer(count: int, low: int, high: int) -> Callable[[], bytes]:
    """A function that packs values of `low` to `high` bytes, keys and timestamps."""
    seeded = random.Random(1)
    return partial(
        encode,
        [os.urandom(seeded.randint(low, high)) for _ in range(count)],
        keys=[b"key-%d" % number for number in range(count)],
        timestamps_ms=[NOW + number // 3 for number in range(count)],
        base_timestamp_ms=NOW,
    )


def rows_of(count: int, low: int, high: int, bars: Sequence[str] = ("", "", "", "", "")) -> list[Row]:
    label = f"{count} x {low if low == high else f'{low}-{high}'} B" if count > 1 else "one record"
    pack = packer(count, low, high)
    batch = pack()
    work: dict[str, Callable[[], object]] = {
        "encode from lists": pack,
        "decode to lists": partial(read_lists, batch),
        "decode to records": lambda: RecordBatch(batch).records(),
        "decode to Arrow": lambda: RecordBatch(batch).to_arrow(),
        "validate": partial(validate, batch, max_batch_bytes=MAX_BYTES),
    }
    return [Row(f"{label}: {name}", call, count, bar) for (name, call), bar in zip(work.items(), bars, strict=True)]


def rows_from_arrow() -> list[Row]:
    arrow = RecordBatch(packer(RECORDS, VALUE_BYTES, VALUE_BYTES)()).to_arrow()
    pack = partial(
        encode,
        arrow.column("value"),
        keys=arrow.column("key"),
        timestamps_ms=arrow.column("timestamp"),
        base_timestamp_ms=NOW,
    )
    return [Row(f"{RECORDS} x {VALUE_BYTES} B: encode from Arrow", pack, RECORDS)]


def rows_of_codecs() -> list[Row]:
    """The additional cost of compression, with typical text."""
    count = 8000
    line = b'{"id": %d, "name": "user %d", "event": "page_view", "at": %d}'
    text = [line % (number, number % 77, NOW + number) for number in range(count)]
    rows = []
    for codec in Codec:
        pack = partial(encode, text, codec=codec, base_timestamp_ms=NOW)
        batch = pack()
        label = f"{count} JSON lines, {codec.name.lower()}"
        rows.append(Row(f"{label}: encode ({len(batch)} B)", pack, count))
        rows.append(Row(f"{label}: validate", partial(validate, batch, max_batch_bytes=MAX_BYTES), count))
    return rows


def rows_of_twins() -> list[Row]:
    """The sizes around which pyarrow becomes faster: `record_batch.ARROW_FROM` lies between them."""
    rows = []
    for count in (50, 100, 200, 400, 800):
        pack = packer(count, VALUE_BYTES, VALUE_BYTES)
        read = partial(read_lists, pack())
        for name, arrow_from in (("plain", 1 << 31), ("arrow", 0)):
            rows.append(Row(f"{count} x {VALUE_BYTES} B, {name} twin: encode", pack, count, arrow_from=arrow_from))
            rows.append(Row(f"{count} x {VALUE_BYTES} B, {name} twin: decode", read, count, arrow_from=arrow_from))
    return rows


def main() -> None:
    load_arrow()
    rows = [
        *rows_of(RECORDS, VALUE_BYTES, VALUE_BYTES, ("> 5 M/s", "> 5 M/s", "", "> 50 M/s", "")),
        *rows_of(RECORDS, VALUE_BYTES // 2, VALUE_BYTES * 3 // 2),
        *rows_of(600, VALUE_BYTES, VALUE_BYTES),
        *rows_of(1, VALUE_BYTES, VALUE_BYTES, ("< 15 us", "< 15 us", "< 15 us", "", "")),
        *rows_from_arrow(),
        *rows_of_codecs(),
        *rows_of_twins(),
    ]
    calibrated = []
    for _ in range(ROUNDS):
        for row in rows:
            row.measure()
        calibrated.append(calibrate())
    best, worst = min(calibrated) * 1e3, max(calibrated) * 1e3
    print(f"calibration: 1,000,000 additions in {best:.1f} ms at best, {worst:.1f} ms at worst; best of {ROUNDS} each")
    print(f"{'':<52} {'us/batch':>10} {'ns/rec':>9} {'M rec/s':>9}   bar")
    print(*rows, sep="\n")


if __name__ == "__main__":
    main()
