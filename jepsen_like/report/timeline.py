"""Timelines: operations as bars in lanes, around the proof of an anomaly or over a whole run. Pure.

*Around a proof* a lane is a process of the history. The windows of time that are shown begin a little before and end a
little after each end of a proving operation; the time between two windows is left out, so a long operation is seen at
both of its ends. *Over a run* a lane is a client: after `info` the next process of the client continues in the same
lane. Time is cut into columns, and each column of a lane shows the worst outcome in it; equal neighbouring columns are
one bar. Operations that prove an anomaly remain separate bars.

Both are bounded for runs of any length, and report how much they leave out. An operation without an end continues to
the end of the run, beside the later operations of its process: overlapping bars of a lane are placed in rows.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from jepsen_like.histories.history import Call

from ..run_records import Fault

PAD_S = 0.25
"""Time shown before and after each end of a proving operation."""
GAP_S = 0.5
"""Windows that are closer together are joined."""
WINDOWS_MAX = 6
BARS_MAX = 600
"""Around a proof."""
LANES_MAX = 60
ROWS_MAX = 4
"""Limit of rows in a lane. Bars that overlap even more share the last one."""
FAULTS_MAX = 300
COLUMNS_MAX = 1_000
CELLS_MAX = 12_000
"""Columns of all lanes of a run."""
PROVING_MAX = 300
"""Limit of separate bars in a run's timeline."""
VALUE_CHARACTERS = 160
WORST = ("ok", "fail", "info")
"""From best to worst."""


@dataclass(frozen=True, slots=True)
class Window:
    """A window of time that is shown, in seconds since the run began, as all times here."""

    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Bar:
    """An operation, or several that are shown as one."""

    began: float
    ended: float
    kind: str
    """The worst outcome: `ok`, `fail`, `info`."""
    told: str
    """Text for the reader, in lines."""
    proves: bool = False
    endless: bool = False
    """Whether the history has no end of it."""
    row: int = 0
    """Row within its lane, from the top."""


@dataclass(frozen=True, slots=True)
class Lane:
    """The operations of one process, or of one client."""

    name: str
    bars: Sequence[Bar]
    rows: int = 1


@dataclass(frozen=True, slots=True)
class Span:
    """A fault."""

    began: float
    ended: float
    kind: str
    void: bool
    told: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """The content of a drawing."""

    windows: Sequence[Window]
    lanes: Sequence[Lane]
    faults: Sequence[Span]
    operations: int
    """Number of operations within the windows."""
    left_out: int = 0
    """Number of operations that are in no bar."""
    columns: int = 0
    """Number of columns of a window; 0: each bar is one operation."""
    unmarked: int = 0
    """Number of proving operations without a separate bar, because there are too many."""


def around(proving: Set[int], calls: Sequence[Call], faults: Sequence[Fault], seconds: float) -> Timeline | None:
    """Return the timeline around the operations with these indexes, or None if no client has one of them.

    `seconds`: the end of the run.
    """
    those = [call for call in calls if proves(call, proving)]
    if not those:
        return None
    moments = sorted({moment for call in those for moment in _moments(call)})
    shown = windows(moments, seconds)
    within = [call for call in calls if any(_meets(*_times(call, seconds), window) for window in shown)]

    def farness(call: Call) -> tuple[bool, float, int]:
        return not proves(call, proving), _distance(*_times(call, seconds), moments), call.called

    within.sort(key=farness)
    processes = set(list(dict.fromkeys(_number(call) for call in within))[:LANES_MAX])
    chosen = [call for call in within if _number(call) in processes][:BARS_MAX]
    own: dict[int, list[Call]] = {number: [] for number in sorted({_number(call) for call in chosen})}
    for call in sorted(chosen, key=lambda call: call.called):
        own[_number(call)].append(call)
    lanes = [_lane(f"process {number}", [_bar(call, proving, seconds) for call in of]) for number, of in own.items()]
    return Timeline(shown, lanes, _spans(faults, shown), len(within), len(within) - len(chosen))


def of_run(
    proving: Set[int], calls: Sequence[Call], faults: Sequence[Fault], seconds: float, *, clients: int
) -> Timeline | None:
    """Return the timeline from the first operation to the end, or None if there is no operation.

    `clients`: the number of clients at a time; a process belongs to the client with its number modulo `clients`.
    """
    if not calls:
        return None
    began = calls[0].invocation.time / 1e9
    window = Window(began, max(seconds, began + 0.001))
    own: dict[int, list[Call]] = {
        number: [] for number in sorted({_number(call) % clients for call in calls})[:LANES_MAX]
    }
    for call in calls:
        own.get(_number(call) % clients, []).append(call)
    columns = min(COLUMNS_MAX, CELLS_MAX // len(own))
    those = [call.called for call in calls if proves(call, proving)]
    alone = set(those[:: max(1, -(-len(those) // PROVING_MAX))])
    lanes = []
    for number, of in own.items():
        together = _together([call for call in of if call.called not in alone], window, columns, seconds)
        lanes.append(
            Lane(f"client {number}", [*together, *(_bar(one, proving, seconds) for one in of if one.called in alone)])
        )
    shown = sum(len(of) for of in own.values())
    return Timeline(
        [window], lanes, _spans(faults, [window]), len(calls), len(calls) - shown, columns, len(those) - len(alone)
    )


def proves(call: Call, proving: Set[int]) -> bool:
    """Return whether one of the operation's ends is among the proving lines."""
    return call.invocation.index in proving or (call.completion is not None and call.completion.index in proving)


def windows(moments: Sequence[float], seconds: float) -> list[Window]:
    """Return windows around the moments, in order; close ones are joined, and then the closest until few are left."""
    found: list[Window] = []
    for moment in sorted(moments):
        began, ended = max(0.0, moment - PAD_S), max(min(seconds, moment + PAD_S), moment)
        if found and began - found[-1].ended <= GAP_S:
            found[-1] = Window(found[-1].began, max(ended, found[-1].ended))
        else:
            found.append(Window(began, ended))
    while len(found) > WINDOWS_MAX:
        place = min(range(len(found) - 1), key=lambda at: found[at + 1].began - found[at].ended)
        found[place : place + 2] = [Window(found[place].began, found[place + 1].ended)]
    return found


def rows(spans: Iterable[tuple[float, float]]) -> list[int]:
    """Return a row for each span, in the order of their beginnings: the first row that is free."""
    busy: list[float] = []
    found = []
    for began, ended in spans:
        free = next((row for row, until in enumerate(busy) if until <= began), len(busy))
        if free == len(busy) and free < ROWS_MAX:
            busy.append(ended)
        free = min(free, ROWS_MAX - 1)
        busy[free] = max(busy[free], ended)
        found.append(free)
    return found


def _lane(name: str, bars: Sequence[Bar]) -> Lane:
    placed = rows((bar.began, bar.ended) for bar in bars)
    lying = [replace(bar, row=row) for bar, row in zip(bars, placed, strict=True)]
    return Lane(name, lying, max(placed, default=0) + 1)


def _bar(call: Call, proving: Set[int], seconds: float) -> Bar:
    began, ended = _times(call, seconds)
    return Bar(began, ended, call.kind, _told(call), proves(call, proving), call.completion is None)


def _together(calls: Sequence[Call], window: Window, columns: int, seconds: float) -> Iterator[Bar]:
    """Yield one bar for neighbouring columns with the same outcome."""
    width = (window.ended - window.began) / columns
    spans = []
    for call in calls:
        began, ended = _times(call, seconds)
        first, last = (min(max(int((at - window.began) / width), 0), columns - 1) for at in (began, ended))
        spans.append((first, last, WORST.index(call.kind)))
    firsts = [first for first, _, _ in spans]
    place = 0
    for worst, same in itertools.groupby(_worst(spans, columns)):
        begins, place = place, place + len(list(same))
        if worst < 0:
            continue
        begun = calls[bisect.bisect_left(firsts, begins) : bisect.bisect_left(firsts, place)]
        began, ended = window.began + begins * width, window.began + place * width
        yield Bar(
            began, ended, WORST[worst], _told(begun[0]) if len(begun) == 1 else _told_together(begun, began, ended)
        )


def _worst(spans: Iterable[tuple[int, int, int]], columns: int) -> list[int]:
    """Return for each column the highest number of a span over it, or -1."""
    changes = [[0] * (columns + 1) for _ in WORST]
    for first, last, kind in spans:
        changes[kind][first] += 1
        changes[kind][last + 1] -= 1
    over = [list(itertools.accumulate(of)) for of in changes]
    return [max((kind for kind in range(len(WORST)) if over[kind][at]), default=-1) for at in range(columns)]


def _spans(faults: Iterable[Fault], shown: Sequence[Window]) -> list[Span]:
    found = []
    for fault in faults:
        began, ended = fault.began / 1e9, fault.ended / 1e9
        if any(_meets(began, ended, window) for window in shown):
            void = "" if fault.evidence else ", void: no proof of an effect"
            told = f"{fault.kind} of {', '.join(fault.targets)}\n{began:.3f} to {ended:.3f} s{void}"
            found.append(Span(began, ended, fault.kind, not fault.evidence, told))
    return found[:FAULTS_MAX]


def _told(call: Call) -> str:
    one, end = call.invocation, call.completion
    began = one.time / 1e9
    until = f"{end.time / 1e9:.3f} s, {(end.time - one.time) / 1e6:.1f} ms" if end is not None else "no completion"
    numbers = f"{one.index}" if end is None else f"{one.index} and {end.index}"
    lines = [
        f"{one.f}: {call.kind}",
        f"index {numbers}, process {one.process}" + (f", node {one.node}" if one.node else ""),
        f"{began:.3f} to {until}",
        _short(one.value if end is None or end.value is None else end.value),
    ]
    if end is not None and end.error is not None:
        lines.append(_short(end.error))
    return "\n".join(lines)


def _told_together(begun: Sequence[Call], began: float, ended: float) -> str:
    counted = Counter[str](call.kind for call in begun)
    told = ", ".join(f"{counted[kind]:,} {kind}" for kind in WORST if counted[kind])
    return f"{began:.2f} to {ended:.2f} s\n{told + ' begin here' if told else 'continues'}"


def _short(value: Any) -> str:
    text = msgspec.json.encode(value, enc_hook=repr).decode()
    return text if len(text) <= VALUE_CHARACTERS else f"{text[:VALUE_CHARACTERS]}…"


def _number(call: Call) -> int:
    assert isinstance(call.invocation.process, int), "calls belong to clients"
    return call.invocation.process


def _times(call: Call, seconds: float) -> tuple[float, float]:
    began = call.invocation.time / 1e9
    return began, max(began, call.completion.time / 1e9 if call.completion is not None else seconds)


def _moments(call: Call) -> list[float]:
    """Return its beginning, and its end if it has one."""
    return [one.time / 1e9 for one in (call.invocation, call.completion) if one is not None]


def _meets(began: float, ended: float, window: Window) -> bool:
    return began <= window.ended and ended >= window.began


def _distance(began: float, ended: float, moments: Sequence[float]) -> float:
    """Return the distance to the nearest of some sorted moments; 0 if one lies within."""
    place = bisect.bisect_left(moments, began)
    after = max(0.0, moments[place] - ended) if place < len(moments) else float("inf")
    before = began - moments[place - 1] if place else float("inf")
    return min(before, after)
