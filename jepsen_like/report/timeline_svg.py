"""The drawing of a timeline as SVG: lanes from top to bottom, faults behind them and in separate lanes, time from left
to right.

The outcome of an operation is shown by more than its colour: a failed operation has a lower bar, an indeterminate one a
hatched and dashed bar. Operations that prove an anomaly have an outline and a mark above. A tooltip describes each bar.
The colours are in the page's style sheet, and `PATTERNS` has the hatching, once per page.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .timeline import Bar, Lane, Span, Timeline, Window

WIDTH = 1_000.0
LEFT = 78.0
"""Space for the lanes' names."""
RIGHT = 6.0
BREAK = 14.0
"""Space between two windows."""
NARROWEST = 0.3
"""Minimum width of a window, relative to the widest."""
TICK_EVERY = 80.0
TICKS_LEAST = 2.5
"""Minimum number of ticks in a window: one alone shows no length."""
FAULT_ROW, AXIS = 11.0, 26.0
BAR_LEAST = 1.0
"""Minimum width of a bar."""
FAULT_LEAST = 3.0

PATTERNS = (
    '<svg class="patterns" width="0" height="0" aria-hidden="true"><defs>'
    '<pattern id="hatched" width="4" height="4" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect class="under" width="4" height="4"/><rect class="over" width="2" height="4"/></pattern></defs></svg>'
)


@dataclass(frozen=True, slots=True)
class Panel:
    """The place of a window."""

    window: Window
    left: float
    width: float

    def x(self, at: float) -> float:
        """Return the horizontal position of a time, limited to the panel."""
        part = (at - self.window.began) / (self.window.ended - self.window.began)
        return self.left + self.width * min(max(part, 0.0), 1.0)

    def meets(self, began: float, ended: float) -> bool:
        return began <= self.window.ended and ended >= self.window.began


def draw(timeline: Timeline, colours: Mapping[str, str], *, row: float = 11.0) -> str:
    """Return the drawing. `colours`: kind of fault → its colour. `row`: height of a row of bars."""
    kinds = list(dict.fromkeys(span.kind for span in timeline.faults))
    faults_end = 4 + FAULT_ROW * len(kinds) + (5 if kinds else 0)
    tops = [faults_end]
    for lane in timeline.lanes:
        tops.append(tops[-1] + row * lane.rows + 4)
    bottom = tops.pop()
    parts: list[str] = []
    for panel in panels(timeline.windows):
        parts += _paper(panel, faults_end, bottom)
        parts += _faults(panel, timeline.faults, kinds, colours, bottom)
        for lane, top in zip(timeline.lanes, tops, strict=True):
            parts += _bars(panel, lane, top, row)
    parts += [_name(kind, 4 + FAULT_ROW * (number + 0.5), "fault") for number, kind in enumerate(kinds)]
    for lane, top in zip(timeline.lanes, tops, strict=True):
        proving = "proving" if any(bar.proves for bar in lane.bars) else ""
        parts.append(_name(lane.name, top + row * lane.rows / 2, proving))
    return (
        f'<svg class="timeline" viewBox="0 0 {WIDTH:g} {bottom + AXIS:g}" role="img" '
        f'aria-label="operations over time">{"".join(parts)}</svg>'
    )


def panels(windows: Sequence[Window]) -> list[Panel]:
    """Return panels side by side, as wide as their windows are long, but none too narrow to read."""
    lengths = [window.ended - window.began for window in windows]
    weights = [max(length, NARROWEST * max(lengths)) for length in lengths]
    room = WIDTH - LEFT - RIGHT - BREAK * (len(windows) - 1)
    found, left = [], LEFT
    for window, weight in zip(windows, weights, strict=True):
        width = room * weight / sum(weights)
        found.append(Panel(window, left, width))
        left += width + BREAK
    return found


def ticks(panel: Panel) -> list[tuple[float, str]]:
    """Return round numbers of seconds within a window, with as many digits as distinguish them."""
    length = panel.window.ended - panel.window.began
    rough = length * min(TICK_EVERY / panel.width, 1 / TICKS_LEAST)
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * times for times in (1, 2, 5, 10) if size * times >= rough * 0.999)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    first, last = math.ceil(panel.window.began / step - 1e-9), math.floor(panel.window.ended / step + 1e-9)
    return [(number * step, f"{number * step:.{digits}f}") for number in range(first, last + 1)]


def _paper(panel: Panel, top: float, bottom: float) -> Iterator[str]:
    yield f'<rect class="panel" {_box(panel.left, 2, panel.width, bottom)}/>'
    for at, told in ticks(panel):
        x = panel.x(at)
        yield f'<path class="tick" d="M{x:.1f} 2V{bottom + 5:.1f}"/>'
        anchor = "start" if x < panel.left + 12 else "end" if x > panel.left + panel.width - 12 else "middle"
        yield f'<text x="{x:.1f}" y="{bottom + 16:.1f}" text-anchor="{anchor}">{told}</text>'


def _faults(
    panel: Panel, faults: Sequence[Span], kinds: Sequence[str], colours: Mapping[str, str], bottom: float
) -> Iterator[str]:
    for span in faults:
        if not panel.meets(span.began, span.ended):
            continue
        left = panel.x(span.began)
        width = max(panel.x(span.ended) - left, FAULT_LEAST)
        left = min(left, panel.left + panel.width - width)
        style = f'style="--fault:{colours[span.kind]}"'
        void = " void" if span.void else ""
        yield f'<rect class="shade{void}" {style} {_box(left, 2, width, bottom - 2)}/>'
        top = 4 + FAULT_ROW * kinds.index(span.kind) + 1.5
        yield (
            f'<rect class="fault{void}" {style} {_box(left, top, width, FAULT_ROW - 3)}>'
            f"<title>{html.escape(span.told)}</title></rect>"
        )


def _bars(panel: Panel, lane: Lane, top: float, row: float) -> Iterator[str]:
    """Draw proving operations last, so that no bar hides them."""
    yield f'<path class="lane" d="M{panel.left:.1f} {top + row * lane.rows + 2:.1f}h{panel.width:.1f}"/>'
    for bar in sorted(lane.bars, key=lambda bar: bar.proves):
        if panel.meets(bar.began, bar.ended):
            yield from _bar(panel, bar, top + row * bar.row, row)


def _bar(panel: Panel, bar: Bar, top: float, row: float) -> Iterator[str]:
    left = panel.x(bar.began)
    width = max(panel.x(bar.ended) - left, BAR_LEAST + 2 * bar.proves)
    left = min(left, panel.left + panel.width - width)
    high = (row - 2) * (0.55 if bar.kind == "fail" else 1.0)
    names = f"bar {bar.kind}{' endless' if bar.endless else ''}{' proves' if bar.proves else ''}"
    yield (
        f'<rect class="{names}" {_box(left, top + row - 1 - high, width, high)}>'
        f"<title>{html.escape(bar.told)}</title></rect>"
    )
    if bar.proves:
        middle = left + width / 2
        yield f'<path class="mark" d="M{middle - 3:.1f} {top - 3.5:.1f}h6l-3 4z"/>'


def _name(name: str, middle: float, kind: str) -> str:
    place = f'x="{LEFT - 7:g}" y="{middle + 3.5:.1f}" text-anchor="end"'
    return f'<text class="name {kind}" {place}>{html.escape(name)}</text>'


def _box(left: float, top: float, width: float, height: float) -> str:
    return f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"'
