"""Drawings of a latency histogram: lines of text for a terminal, or an SVG picture (alone, or in an HTML page).

Both have one bar for each sixth of a power of ten: latencies spread over decades, and a linear axis would show one bar
and an empty tail.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

from .histogram import Histogram

STEPS = 6
"""Bars in a decade."""
WIDTH, HEIGHT, MARGIN = 720, 240, 56
COLOURS = ("#3b6fb6", "#c8553d", "#5b8c5a", "#8a6fae")
EIGHTHS = " ▏▎▍▌▋▊▉"

Bar = tuple[float, float, int]
"""Lower and upper bound in milliseconds, and the count between them."""


def bars(histogram: Histogram) -> list[Bar]:
    """Return the bars from the first to the last non-empty one, including empty ones between them."""
    counts: dict[int, int] = {}
    for lowest, highest, count in histogram.buckets():
        step = math.floor(math.log10(max((lowest + highest) / 2, 1)) * STEPS)
        counts[step] = counts.get(step, 0) + count
    if not counts:
        return []
    edge = {step: 10 ** (step / STEPS) / 1000 for step in range(min(counts), max(counts) + 2)}
    return [(edge[step], edge[step + 1], counts.get(step, 0)) for step in range(min(counts), max(counts) + 1)]


def text_chart(histogram: Histogram, width: int = 50) -> str:
    """Return one line for each bar: its range, its length, its count and share.

    A non-empty bar has at least one eighth of a cell, because rare long latencies are the most interesting ones.
    """
    lines = []
    shown = bars(histogram)
    longest = max((count for _, _, count in shown), default=0)
    for start, end, count in shown:
        eighths = max(round(count / longest * width * 8), 1) if count else 0
        bar = "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()
        share = f"{count:>9,} {100 * count / histogram.count:7.3f} %"
        lines.append(f"{start:>9.3f} - {end:>9.3f} ms {bar.ljust(width)} {share}".rstrip())
    return "\n".join(lines)


def svg_chart(title: str, histograms: Mapping[str, Histogram]) -> str:
    """Return a complete SVG document: one row of bars for each histogram, on a common axis, with its percentiles."""
    rows = {name: bars(histogram) for name, histogram in histograms.items()}
    edges = [edge for row in rows.values() for start, end, _ in row for edge in (start, end)] or [0.001, 1.0]
    low, high = math.log10(min(edges)), math.log10(max(edges))

    def x(milliseconds: float) -> float:
        return MARGIN + (math.log10(milliseconds) - low) / (high - low) * (WIDTH - 2 * MARGIN)

    height = HEIGHT * max(len(rows), 1) + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="{MARGIN}" y="24" font-size="15">{html.escape(title)}</text>',
    ]
    for number, (name, row) in enumerate(rows.items()):
        floor = MARGIN + HEIGHT * (number + 1) - 40
        longest = max((count for _, _, count in row), default=1)
        colour = COLOURS[number % len(COLOURS)]
        for start, end, count in row:
            tall = max(count / longest * (HEIGHT - 80), 1) if count else 0
            parts.append(
                f'<rect x="{x(start):.1f}" y="{floor - tall:.1f}" width="{max(x(end) - x(start) - 1, 0.5):.1f}" '
                f'height="{tall:.1f}" fill="{colour}"><title>{start:.3f} to {end:.3f} ms: {count}</title></rect>'
            )
        parts.append(
            f'<text x="{MARGIN}" y="{floor - HEIGHT + 68}">{html.escape(_told(name, histograms[name]))}</text>'
        )
        parts.append(f'<line x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{floor}" y2="{floor}" stroke="#888"/>')
        parts += [
            f'<text x="{x(tick):.1f}" y="{floor + 16}" text-anchor="middle">{tick:g} ms</text>'
            for tick in _ticks(low, high)
        ]
    return "\n".join([*parts, "</svg>", ""])


def html_page(title: str, histograms: Mapping[str, Histogram]) -> str:
    """Return a self-contained page with the picture and a table of percentiles."""
    names = ("records", "avg ms", "p50 ms", "p95 ms", "p99 ms", "p99.9 ms", "max ms")
    head = "".join(f"<th>{name}</th>" for name in ("", *names))
    body = "".join(
        f"<tr><th>{html.escape(name)}</th>{''.join(f'<td>{cell}</td>' for cell in _cells(histogram))}</tr>"
        for name, histogram in histograms.items()
    )
    style = "body{font-family:sans-serif;margin:2em}td,th{padding:.2em .8em;text-align:right}"
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{style}</style>\n{svg_chart(title, histograms)}<table><tr>{head}</tr>{body}</table></html>\n"
    )


def _cells(histogram: Histogram) -> Sequence[str]:
    told = histogram.summary()
    marks = (told.avg_ms, told.p50_ms, told.p95_ms, told.p99_ms, told.p999_ms, told.max_ms)
    return [f"{told.count:,}", *(f"{mark:.3f}" for mark in marks)]


def _told(name: str, histogram: Histogram) -> str:
    marks = ", ".join(f"{mark} {value:.3f}" for mark, value in histogram.summary().marks.items())
    return f"{name}: {histogram.count:,} records, {marks} ms"


def _ticks(low: float, high: float) -> list[float]:
    """Return the powers of ten within the axis (given as logarithms)."""
    return [10.0**power for power in range(math.ceil(low), math.floor(high) + 1)]
