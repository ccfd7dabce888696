"""What record batches cost: `python -m benchmarks.record_batch` (about 10 s, one core).

The load: 10,000 records of a timestamp, a key of about 8 bytes and a distinct, incompressible value of 100 bytes, no
compression, CRC-32C included everywhere, made before the clock starts. Each figure is the best of 5 rounds, each round
long enough for the clock; the calibration loop beside them tells how fast the machine was at that moment.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from functools import partial

from raftlog import record_batch
from raftlog.record_batch import Codec, RecordBatch, encode, load_arrow, validate

RECORDS = 10_000
VALUE_BYTES = 100
ROUNDS = 5
ROUND_SECONDS = 0.1
NOW = 1_700_000_000_000
MAX_BYTES = 16 << 20


def best_of(work: Callable[[], object]) -> float:
    """Seconds of one call: the best of `ROUNDS` rounds."""
    work()
    started = time.perf_counter()
    work()
    calls = max(1, int(ROUND_SECONDS / max(time.perf_counter() - started, 1e-7)))
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(calls):
            work()
        best = min(best, (time.perf_counter() - started) / calls)
    return best


def calibration() -> None:
    """A million additions: pure interpreter, no memory."""
    total = 0
    for number in range(1_000_000):
        total += number


def read_lists(batch: bytes) -> Sequence[object]:
    """Everything of a batch, as lists."""
    decoded = RecordBatch(batch)
    return decoded.offsets(), decoded.timestamps_ms(), decoded.keys(), decoded.values(), decoded.headers()


def row(name: str, work: Callable[[], object], records: int, bar: str = "") -> None:
    seconds = best_of(work)
    rate = records / seconds / 1e6
    print(f"{name:<52} {seconds * 1e6:>10.1f} {seconds / records * 1e9:>9.1f} {rate:>9.2f}   {bar}")


def columns(count: int, low: int, high: int) -> tuple[list[bytes], list[bytes], list[int]]:
    """Values of `low` to `high` bytes, keys and timestamps."""
    seeded = random.Random(1)
    values = [os.urandom(seeded.randint(low, high)) for _ in range(count)]
    return values, [b"key-%d" % number for number in range(count)], [NOW + number // 3 for number in range(count)]


def measure(count: int, low: int, high: int, bars: dict[str, str]) -> None:
    values, keys, timestamps = columns(count, low, high)
    label = f"{count} x {low if low == high else f'{low}-{high}'} B"

    def pack(codec: Codec = Codec.NONE) -> bytes:
        return encode(values, keys=keys, timestamps_ms=timestamps, codec=codec, base_timestamp_ms=NOW)

    batch = pack()
    row(f"{label}: encode from lists", pack, count, bars.get("encode", ""))
    row(f"{label}: decode to lists", lambda: read_lists(batch), count, bars.get("decode", ""))
    row(f"{label}: decode to records", lambda: RecordBatch(batch).records(), count)
    row(f"{label}: decode to Arrow", lambda: RecordBatch(batch).to_arrow(), count, bars.get("arrow", ""))
    row(f"{label}: validate", lambda: validate(batch, max_batch_bytes=MAX_BYTES), count)


def main() -> None:
    load_arrow()
    calibrated = best_of(calibration)
    print(f"calibration: 1,000,000 additions in {calibrated * 1e3:.1f} ms; best of {ROUNDS} rounds each")
    print(f"{'':<52} {'us/batch':>10} {'ns/rec':>9} {'M rec/s':>9}   bar")
    bars = {"encode": "> 5 M/s", "decode": "> 5 M/s", "arrow": "> 50 M/s"}
    measure(RECORDS, VALUE_BYTES, VALUE_BYTES, bars)
    measure(RECORDS, 50, 150, {})
    measure(600, VALUE_BYTES, VALUE_BYTES, {})

    value = os.urandom(VALUE_BYTES)
    one = encode([value], keys=[b"key-1"], timestamps_ms=[NOW], base_timestamp_ms=NOW)
    row(
        "one record: encode",
        lambda: encode([value], keys=[b"key-1"], timestamps_ms=[NOW], base_timestamp_ms=NOW),
        1,
        "< 15 us",
    )
    row("one record: decode to lists", lambda: read_lists(one), 1, "< 15 us")
    row("one record: decode to records", lambda: RecordBatch(one).records(), 1, "< 15 us")
    row("one record: validate", lambda: validate(one, max_batch_bytes=MAX_BYTES), 1)

    values, keys, timestamps = columns(RECORDS, VALUE_BYTES, VALUE_BYTES)
    arrow = RecordBatch(encode(values, keys=keys, timestamps_ms=timestamps, base_timestamp_ms=NOW)).to_arrow()
    row(
        f"{RECORDS} x {VALUE_BYTES} B: encode from Arrow",
        lambda: encode(
            arrow.column("value"),
            keys=arrow.column("key"),
            timestamps_ms=arrow.column("timestamp"),
            base_timestamp_ms=NOW,
        ),
        RECORDS,
    )
    codecs()
    twins()


def codecs() -> None:
    """What compression adds, with text that it is meant for."""
    count = 8000
    line = b'{"id": %d, "name": "user %d", "event": "page_view", "at": %d}'
    text = [line % (number, number % 77, NOW + number) for number in range(count)]
    for codec in Codec:
        pack = partial(encode, text, codec=codec, base_timestamp_ms=NOW)
        batch = pack()
        name = codec.name.lower()
        row(f"{count} JSON lines, {name}: encode", pack, count)
        check = partial(validate, batch, max_batch_bytes=MAX_BYTES)
        row(f"{count} JSON lines, {name} ({len(batch)} B): validate", check, count)


def twins() -> None:
    """Where pyarrow begins to pay: `record_batch.ARROW_FROM` lies near."""
    print(f"\n{'the twins, us a batch':<30} {'encode plain':>13} {'arrow':>8} {'decode plain':>13} {'arrow':>8}")
    chosen = record_batch.ARROW_FROM
    for count in (10, 50, 100, 200, 300, 400, 600, 1000):
        values, keys, timestamps = columns(count, VALUE_BYTES, VALUE_BYTES)
        pack = partial(encode, values, keys=keys, timestamps_ms=timestamps, base_timestamp_ms=NOW)
        figures = []
        for work in (pack, partial(read_lists, pack())):
            for threshold in (1 << 31, 0):
                record_batch.ARROW_FROM = threshold
                figures.append(best_of(work) * 1e6)
        print(f"{count:<30} {figures[0]:>13.1f} {figures[1]:>8.1f} {figures[2]:>13.1f} {figures[3]:>8.1f}")
    record_batch.ARROW_FROM = chosen


if __name__ == "__main__":
    main()
