"""Rows of the throughput table measured twice, plain and secured, one after the other; and the table of their ratios.

A secured cluster has TLS at every listener, nodes among themselves included, and required credentials; the clients
authenticate by a token of a user that is no superuser, so that rules decide each of their requests. Both clusters of a
pair are new, and the order alternates from pair to pair, so that a machine that becomes slower favours neither.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from measuring import console, machine
from table_rows import Row
from table_run import Measured, Scale, measure

HEADER = ("row", "pairs", "plain", "secured", "ratio", "ratio of each pair", "CPU s/GB, plain", "secured", "verified")
TARGET = 0.7
"""The least ratio that is wanted."""

Pair = tuple[Measured, Measured]
"""The plain and the secured result."""


def pairs_of(results: Iterable[Measured], row: Row, *, smoke: bool, sources: Collection[str]) -> list[Pair]:
    """Return a row's complete pairs, for these sources and this size."""
    sides: dict[str, dict[bool, Measured]] = {}
    for result in results:
        if result.pair and result.row == row.name and result.smoke == smoke and result.commit in sources:
            sides.setdefault(result.pair, {})[result.secure] = result
    return [(found[False], found[True]) for found in sides.values() if len(found) == 2]


def measure_pair(
    row: Row, scale: Scale, number: int, append: Callable[[Measured], None], *, smoke: bool, commit: str,
    folder: str | None,
) -> None:  # fmt: skip
    """Measure a row plain and secured. An interrupted pair is measured again as a whole."""
    name = f"{row.name} {number} {time.time_ns():x}"
    for secure in (False, True) if number % 2 == 0 else (True, False):
        console.print(f"{row.name}, pair {number}, {'secured' if secure else 'plain'}: {machine()}")
        append(measure(row, scale, smoke=smoke, commit=commit, folder=folder, secure=secure, pair=name))


def ratio(pair: Pair) -> float:
    """Return the secured rate as a share of the plain one; of latencies the plain p99 as a share of the secured one,
    so that less is worse in both."""
    plain, secured = pair
    if plain.latency is not None and secured.latency is not None:
        return plain.latency.p99_ms / secured.latency.p99_ms
    return secured.records_per_second / plain.records_per_second


def markdown(pairs: dict[str, list[Pair]], rows: Sequence[Row]) -> str:
    """Return the table, in the order of the rows: medians over the pairs."""
    lines = ["| " + " | ".join(HEADER) + " |", "|---" + "|---:" * (len(HEADER) - 2) + "|---|"]
    lines += ["| " + " | ".join(_cells(row, pairs[row.name])) + " |" for row in rows if pairs.get(row.name)]
    return "\n".join(lines)


def _cells(row: Row, pairs: list[Pair]) -> list[str]:
    ratios = sorted(map(ratio, pairs))
    middle = statistics.median(ratios)
    mark = "" if middle >= TARGET else f" (below {TARGET})"
    sides = [[pair[secured] for pair in pairs] for secured in (False, True)]
    return [
        row.what,
        str(len(pairs)),
        *map(_figures, sides),
        f"{middle:.2f}{mark}",
        ", ".join(f"{one:.2f}" for one in ratios),
        *map(_cpu, sides),
        f"{sum(one.records for side in sides for one in side):,} records",
    ]


def _figures(results: list[Measured]) -> str:
    """Return the median rate, or the medians of the latencies."""
    latencies = [one.latency for one in results if one.latency is not None]
    if not latencies:
        return f"{statistics.median(one.records_per_second for one in results):,.0f}/s"
    p50, p99 = (statistics.median(getattr(one, name) for one in latencies) for name in ("p50_ms", "p99_ms"))
    return f"p50 {p50:.2f}, p99 {p99:.2f} ms"


def _cpu(results: list[Measured]) -> str:
    found = [one.cpu_seconds_per_gigabyte for one in results if one.cpu_seconds_per_gigabyte is not None]
    return f"{statistics.median(found):.1f}" if found else ""
