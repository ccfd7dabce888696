"""The physical limit of a replicated write: the same bytes written and fdatasynced three times, by a bare loop.

    python benchmarks/bare_loop.py --bytes 1e9 --folder /data

One thread, three files, no protocol: a chunk is written to each file and each file is fdatasynced, then the next chunk
follows. What a cluster of three on the same disk can acknowledge with fsync on is at most this, up to what a larger
chunk gains: a broker's group commit is what has arrived meanwhile. `load.py` runs it in the same run and on the same
disk as the cluster.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Iterator

from measuring import GB, console, machine, middle
from rich.table import Table

MIB = 1024 * 1024
CHUNKS = (256 * 1024, MIB, 4 * MIB, 16 * MIB)
COPIES = 3


def write_three_times(folder: str | None, content: memoryview, chunk_bytes: int, copies: int = COPIES) -> float:
    """Seconds from the first write to the last fdatasync. (Or as many times as `copies` says.)"""
    with open_files(folder, copies) as files:
        started = time.perf_counter()
        for start in range(0, len(content), chunk_bytes):
            chunk = content[start : start + chunk_bytes]
            for file in files:
                assert os.pwrite(file, chunk, start) == len(chunk)
            for file in files:
                os.fdatasync(file)
        return time.perf_counter() - started


def write_single_records(folder: str | None, records: int, record_bytes: int = 170) -> list[float]:
    """Seconds that each of so many lone records takes to be written and fdatasynced three times, rising."""
    content, took = os.urandom(record_bytes), []
    with open_files(folder, COPIES) as files:
        for number in range(records):
            started = time.perf_counter()
            for file in files:
                assert os.pwrite(file, content, number * record_bytes) == record_bytes
                os.fdatasync(file)
            took.append(time.perf_counter() - started)
    return sorted(took)


@contextlib.contextmanager
def open_files(folder: str | None, count: int) -> Iterator[list[int]]:
    """Empty ones, gone when the block ends."""
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory(prefix="bare-loop-", dir=folder))
        files = []
        for number in range(count):
            files.append(os.open(os.path.join(place, f"{number}.log"), os.O_RDWR | os.O_CREAT, 0o644))
            stack.callback(os.close, files[-1])
        yield files


def incompressible(size: int) -> memoryview:
    """So many bytes; the same again after each 256 MiB, which no disk notices."""
    return memoryview(os.urandom(min(size, 256 * MIB)) * -(-size // (256 * MIB)))[:size]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=float, default=1e9, help="how many, each three times (default 1e9)")
    parser.add_argument("--folder", default=None, help="on which disk (default: that of temporary files)")
    parser.add_argument("--runs", type=int, default=3, help="of each chunk size; the median counts")
    arguments = parser.parse_args()
    size = int(arguments.bytes)
    content = incompressible(size)
    console.print(machine())
    table = Table(
        "chunk", "MB/s of content", "100-byte records/s", "MB/s on disk", title=f"{size:,} bytes, three times"
    )
    for chunk in CHUNKS:
        seconds = middle([write_three_times(arguments.folder, content, chunk) for _ in range(arguments.runs)])
        rate = size / seconds
        table.add_row(f"{chunk:,}", f"{rate / 1e6:,.0f}", f"{rate / 100:,.0f}", f"{COPIES * rate / 1e6:,.0f}")
    console.print(table)
    console.print(f"{COPIES * size / GB:.1f} GB were written for each run; {machine()}")


if __name__ == "__main__":
    main()
