"""Kreps' table of 2014, by one command on one machine: throughput of producers and consumers, and latency.

    python benchmarks/table.py                         # every row that is not in the results file yet: about an hour
    python benchmarks/table.py --smoke                 # ten seconds per row
    python benchmarks/table.py --rows all/send latency --again
    python benchmarks/table.py --show                  # only the table of stored results
    python benchmarks/table.py --security --rows all/send_many consumer/lists latency    # plain and secured, in turn

Each row has three nodes of its own in a temporary folder, with fsync on. The load: distinct, incompressible values of
100 bytes, created before the clock starts, no compression; at least 60 s and 1 GB after a warm-up; topics of six
partitions with `retention.bytes` of 2 GB; consumers read a log of 4 GB repeatedly. Every record is read back by a
second consumer. Results are lines of JSON, appended as rows end, so an interrupted run continues; the table shows each
row's last result of this commit. It needs 50 GB of disk (smoke: 5) and 6 GB of memory.

With `--security` each row is measured `--pairs` times plain and secured in turn (`table_pairs.py`), and the table shows
the ratios. These results are not part of the other table.

The limit of each row is measured in the same run: a bare loop writes and fdatasyncs the same bytes once per replica
(`bare_loop.py`), or `sendfile` sends them to a socket whose reader drops them (`bare_sendfile.py`).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
from collections.abc import Collection, Iterable, Sequence
from functools import partial

import msgspec
from measuring import GB, console, machine
from table_pairs import markdown as pairs_markdown
from table_pairs import measure_pair, pairs_of
from table_rows import PUBLISHED_LATENCY_MS, ROWS, Row
from table_run import FULL, SMOKE, Measured, measure

HERE = os.path.dirname(os.path.abspath(__file__))
RESULTS = os.path.join(os.path.dirname(HERE), "build", "throughput.jsonl")
HEADER = ("row", "records/s", "MB/s", "of the limit", "of Kreps'", "CPU s/GB", "peak RSS of brokers, MB", "verified")


def commit() -> str:
    """Return the commit of the sources, with `+` if they differ from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=HERE, capture_output=True, text=True, check=False).stdout.strip()

    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + "+" * bool(git("status", "--porcelain", "-uno"))


def read_results(path: str) -> list[Measured]:
    """Read all results; an incomplete last line is skipped."""
    if not os.path.exists(path):
        return []
    found = []
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                found.append(msgspec.json.decode(line, type=Measured))
            except msgspec.DecodeError as error:
                console.print(f"{path}, line {number} is left out: {error}")
    return found


def append_result(path: str, result: Measured) -> None:
    """Append a result, and fsync it before the next row begins."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "ab") as file:
        file.write(msgspec.json.encode(result) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def latest(results: Iterable[Measured], *, smoke: bool, sources: Collection[str]) -> dict[str, Measured]:
    """Return the last result of each row, for these sources and this size, without those of pairs."""
    found = (result for result in results if result.smoke == smoke and result.commit in sources)
    return {result.row: result for result in found if not result.pair}


def markdown(results: dict[str, Measured], rows: Sequence[Row]) -> str:
    """Return the table, in the order of the rows."""
    lines = ["| " + " | ".join(HEADER) + " |", "|---" + "|---:" * (len(HEADER) - 2) + "|---|"]
    for row in rows:
        if row.name in results:
            lines.append("| " + " | ".join(_cells(row, results[row.name])) + " |")
    return "\n".join(lines)


def _cells(row: Row, found: Measured) -> list[str]:
    peaks = ", ".join(f"{mb:.0f}" for mb in found.peak_rss_mb)
    verified = f"{found.records:,} records"
    if found.latency is not None and found.acknowledged is not None:
        told, published = found.latency, "/".join(f"{ms:g}" for ms in PUBLISHED_LATENCY_MS)
        marks = f"p50 {told.p50_ms:.2f}, p99 {told.p99_ms:.2f}, p99.9 {told.p999_ms:.2f}, max {told.max_ms:.1f} ms"
        what = f"{row.what}: {marks} (acknowledged: p50 {found.acknowledged.p50_ms:.2f} ms)"
        bare = f"{found.bare_p50_ms:.2f} ms for 3 bare fsyncs"
        rate, size = f"{found.records_per_second:,.0f}", f"{found.megabytes_per_second:.1f}"
        return [what, rate, size, bare, f"{published} ms", "", peaks, verified]
    return [
        row.what,
        f"{found.records_per_second:,.0f}",
        f"{found.megabytes_per_second:,.0f}",
        f"{found.of_limit:.2f} of {found.limit_megabytes_per_second:,.0f} MB/s",
        f"{found.of_published:.2f} of {row.published:,.0f}",
        f"{found.cpu_seconds_per_gigabyte:.1f}",
        peaks,
        f"{verified}, {found.checksum}",
    ]


def show(path: str, *, smoke: bool, sources: Collection[str]) -> None:
    results = latest(read_results(path), smoke=smoke, sources=sources)
    # The console would break the lines.
    print(markdown(results, ROWS))
    for name, found in results.items():
        print(f"{name}: {found.seconds:.1f} s in {found.passes} passes, {found.cores}, "
              f"calibration loop {found.calibration_seconds:.3f} s, {found.when}, commit {found.commit}")  # fmt: skip


def show_pairs(path: str, *, smoke: bool, sources: Collection[str]) -> None:
    results = read_results(path)
    print(pairs_markdown({row.name: pairs_of(results, row, smoke=smoke, sources=sources) for row in ROWS}, ROWS))


def measure_rows(wanted: Sequence[Row], options: argparse.Namespace, source: str, sources: Collection[str]) -> None:
    """Measure the rows that have no result yet."""
    scale = SMOKE if options.smoke else FULL
    done = latest(read_results(options.results), smoke=options.smoke, sources=sources)
    for row in wanted:
        if row.name not in done or options.again:
            console.print(f"{row.name}: {machine()}")
            result = measure(row, scale, smoke=options.smoke, commit=source, folder=options.folder)
            append_result(options.results, result)


def measure_pairs(wanted: Sequence[Row], options: argparse.Namespace, source: str, sources: Collection[str]) -> None:
    """Measure the pairs that are missing, one of each row before the next of any."""
    scale, results = SMOKE if options.smoke else FULL, [] if options.again else read_results(options.results)
    done = {row.name: len(pairs_of(results, row, smoke=options.smoke, sources=sources)) for row in wanted}
    for number in range(options.pairs):
        for row in wanted:
            if done[row.name] <= number:
                measure_pair(row, scale, number, partial(append_result, options.results), smoke=options.smoke,
                             commit=source, folder=options.folder)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rows", nargs="+", choices=[row.name for row in ROWS], metavar="ROW", help="rows to measure (default: all)"
    )
    parser.add_argument("--smoke", action="store_true", help="ten seconds per row, with small pools and logs")
    parser.add_argument("--security", action="store_true", help="measure each row plain and secured, in turn")
    parser.add_argument("--pairs", type=int, default=3, help="with --security: pairs per row (default: %(default)s)")
    parser.add_argument("--again", action="store_true", help="measure rows again that have results")
    parser.add_argument("--show", action="store_true", help="only print the table of stored results")
    parser.add_argument("--results", default=RESULTS, help="file of results (default: %(default)s)")
    parser.add_argument("--also", nargs="+", default=[], metavar="COMMIT", help="commits whose results are included")
    parser.add_argument(
        "--folder", default=None, help="folder on the disk to measure (default: that of temporary files)"
    )
    options = parser.parse_args()
    source = commit()
    sources = {source, *options.also}
    wanted = [row for row in ROWS if options.rows is None or row.name in options.rows]
    if not options.show:
        free, needed = shutil.disk_usage(options.folder or "/tmp").free / GB, 5 if options.smoke else 50
        if free < needed:
            raise SystemExit(f"{needed} GB of disk are needed, {free:.0f} are free: choose another --folder")
        (measure_pairs if options.security else measure_rows)(wanted, options, source, sources)
    (show_pairs if options.security else show)(options.results, smoke=options.smoke, sources=sources)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        console.print("interrupted; the same command continues with the unfinished row")
        raise SystemExit(130) from None
