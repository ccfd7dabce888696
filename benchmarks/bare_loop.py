"""The physical limit of a replicated write: a bare loop that writes and fdatasyncs the same bytes three times.

    python benchmarks/bare_loop.py --bytes 1e9 --folder /data

One thread writes three files without any protocol: a chunk goes to each file, each file is fdatasynced, and then the
next chunk follows. A cluster of three nodes on the same disk can acknowledge at most this rate with fsync on, except
for the gain of larger chunks: the chunk of a broker's group commit is whatever has arrived meanwhile. `load.py` runs
this loop beside the cluster, on the same disk.
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
    """Return the seconds from the first write to the last fdatasync, with `copies` files."""
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
    """Return the seconds that each of `count` single records takes to be written and fdatasynced three times,
    sorted."""
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
    """Open empty files, which are removed when the block ends."""
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory(prefix="bare-loop-", dir=folder))
        files = []
        for number in range(count):
            files.append(os.open(os.path.join(place, f"{number}.log"), os.O_RDWR | os.O_CREAT, 0o644))
            stack.callback(os.close, files[-1])
        yield files


def incompressible(size: int) -> memoryview:
    """Return `size` incompressible bytes. They repeat every 256 MiB, which disks do not detect."""
    return memoryview(os.urandom(min(size, 256 * MIB)) * -(-size // (256 * MIB)))[:size]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=float, default=1e9, help="bytes to write, each three times (default 1e9)")
    parser.add_argument(
        "--folder", default=None, help="folder on the disk to measure (default: that of temporary files)"
    )
    parser.add_argument("--runs", type=int, default=3, help="runs of each chunk size; the median counts")
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
