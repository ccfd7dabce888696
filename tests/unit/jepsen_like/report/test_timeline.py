"""Timelines of a run: bars, positions, omissions, and drawing."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from jepsen_like.histories.history import Kind, Operation, calls
from jepsen_like.report import timeline, timeline_svg
from jepsen_like.report.timeline import Timeline, Window
from jepsen_like.run_records import Fault

SECOND = 1_000_000_000


def history(*lines: tuple[float, int | str, Kind]) -> list[Operation]:
    return [
        Operation(index, process, kind, "send", [["send", "a/0", "<&>"]], round(at * SECOND), "n1")
        for index, (at, process, kind) in enumerate(lines)
    ]


def around(proving: set[int], of: Sequence[Operation], seconds: float = 60.0, *faults: Fault) -> Timeline:
    shown = timeline.around(proving, calls(of), faults, seconds)
    assert shown is not None
    return shown


def whole(of: Sequence[Operation], seconds: float, clients: int, proving: frozenset[int] = frozenset()) -> Timeline:
    shown = timeline.of_run(proving, calls(of), [], seconds, clients=clients)
    assert shown is not None
    return shown


def busy(processes: int, seconds: float, took: float) -> list[Operation]:
    """Processes that perform one operation after the other."""
    lines: list[tuple[float, int | str, Kind]] = []
    for process in range(processes):
        for number in range(int(seconds / took)):
            lines += [(number * took, process, "invoke"), ((number + 0.9) * took, process, "ok")]
    return history(*sorted(lines, key=lambda line: line[0]))


def test_windows_are_where_a_proof_begins_and_ends() -> None:
    assert timeline.windows([10.0, 0.1], 60.0) == [Window(0.0, 0.35), Window(9.75, 10.25)]
    assert timeline.windows([10.0, 10.9, 59.9], 60.0) == [Window(9.75, 11.15), Window(59.65, 60.0)]
    # More than there is room for: the closest ones are merged.
    many = timeline.windows([0.0, 5.0, 10.0, 14.0, 20.0, 30.0, 40.0], 60.0)
    assert len(many) == timeline.WINDOWS_MAX and Window(9.75, 14.25) in many


def test_a_long_operation_is_visible_at_both_ends() -> None:
    lines = history((1, 0, "invoke"), (20, 1, "invoke"), (20.1, 1, "ok"), (40, 0, "ok"))
    long = around({0}, lines)
    assert long.windows == [Window(0.75, 1.25), Window(39.75, 40.25)]
    assert [lane.name for lane in long.lanes] == ["process 0"], "the other is in between: within no window"
    shown = around({1}, lines)
    assert [(lane.name, [(bar.kind, bar.proves) for bar in lane.bars]) for lane in shown.lanes] == [
        ("process 0", [("ok", False)]),
        ("process 1", [("ok", True)]),
    ]


def test_a_proof_is_marked_by_either_end_and_by_nothing_else() -> None:
    lines = history((1, 0, "invoke"), (1.01, 1, "invoke"), (1.02, 0, "ok"), (1.03, 1, "fail"), (1.1, "kill", "info"))
    for proving in ({0}, {2}, {0, 2, 4}):
        bars = [bar for lane in around(proving, lines).lanes for bar in lane.bars]
        assert [(bar.kind, bar.proves) for bar in bars] == [("ok", True), ("fail", False)]
    assert timeline.around({4, 999}, calls(lines), [], 60.0) is None, "neither is a client's"
    assert timeline.around(frozenset(), calls(lines), [], 60.0) is None


def test_an_operation_without_an_end_lasts_until_the_runs_end_in_a_row_of_its_own() -> None:
    lines = history((1, 3, "invoke"), (1.1, 3, "invoke"), (1.2, 3, "ok"), (1.21, 3, "invoke"), (1.25, 3, "info"))
    (lane,) = around({0}, lines).lanes
    assert [(bar.began, bar.ended, bar.kind, bar.endless, bar.row) for bar in lane.bars] == [
        (1.0, 60.0, "info", True, 0),
        (1.1, 1.2, "ok", False, 1),
        (1.21, 1.25, "info", False, 1),
    ]
    assert lane.rows == 2 and "no completion" in lane.bars[0].told
    assert timeline.rows([(0.0, 9.0)] * 6) == [0, 1, 2, 3, 3, 3]


def test_after_info_a_process_continues_under_another_number() -> None:
    lines = history((1, 1, "invoke"), (1.1, 1, "info"), (1.11, 4, "invoke"), (1.2, 4, "ok"), (1.2, 2, "invoke"))
    assert [lane.name for lane in around({0}, lines).lanes] == ["process 1", "process 2", "process 4"]
    run = whole(lines, 2.0, clients=3)
    assert [(lane.name, [bar.kind for bar in lane.bars]) for lane in run.lanes] == [
        ("client 1", ["info", "ok"]),
        ("client 2", ["info"]),
    ]


def test_around_a_proof_the_farthest_operations_are_left_out_and_counted() -> None:
    lines = busy(processes=100, seconds=1.0, took=0.01)
    proving = next(one.index for one in lines if one.process == 77 and one.time >= SECOND // 2)
    shown = around({proving}, lines)
    bars = [bar for lane in shown.lanes for bar in lane.bars]
    assert len(shown.lanes) <= timeline.LANES_MAX and len(bars) <= timeline.BARS_MAX
    assert shown.left_out == shown.operations - len(bars) > 0
    assert [lane.name for lane in shown.lanes for bar in lane.bars if bar.proves] == ["process 77"]
    assert all(abs(bar.began - 0.5) < 0.2 for bar in bars)
    assert shown == around({proving}, lines), "the same each time"


def test_a_runs_columns_show_the_worst_outcome() -> None:
    lines = history(
        (0, 0, "invoke"), (1, 0, "ok"), (4, 0, "invoke"), (4.001, 0, "ok"), (4.002, 0, "invoke"), (4.003, 0, "fail"),
        (10, 0, "invoke"), (12, 0, "info"),
    )  # fmt: skip
    ((lane,), columns) = (whole(lines, 100.0, clients=1).lanes, whole(lines, 100.0, clients=1).columns)
    width = 100.0 / columns
    assert [(bar.kind, round(bar.began / width), round(bar.ended / width)) for bar in lane.bars] == [
        ("ok", 0, 11), ("fail", 40, 41), ("info", 100, 121),
    ]  # fmt: skip
    assert "1 ok, 1 fail begin here" in lane.bars[1].told
    assert "index 0 and 1, process 0, node n1" in lane.bars[0].told, "one alone is told as it is"


def test_a_run_of_any_length_has_a_bounded_number_of_bars_and_marks_its_proofs() -> None:
    lines = busy(processes=30, seconds=60.0, took=0.1)
    proving = frozenset(one.index for one in lines if one.process == 5)
    shown = whole(lines, 60.0, clients=30, proving=proving)
    own = [bar for lane in shown.lanes for bar in lane.bars if bar.proves]
    assert len(own) == timeline.PROVING_MAX == shown.unmarked and own[-1].began > 59, "one of two, to the end"
    assert shown.columns == timeline.CELLS_MAX // 30
    assert sum(len(lane.bars) for lane in shown.lanes) <= timeline.CELLS_MAX + timeline.PROVING_MAX
    many = whole(busy(70, 1.0, 0.5), 1.0, clients=70)
    assert len(many.lanes) == timeline.LANES_MAX and many.left_out == 20
    assert timeline.of_run(frozenset(), [], [], 60.0, clients=6) is None


def test_the_drawing_has_faults_outlines_and_titles_of_bars() -> None:
    lines = history(
        (1, 0, "invoke"), (1.1, 0, "ok"), (1, 1, "invoke"), (1.2, 1, "info"), (30, 2, "invoke"), (33, 2, "fail")
    )
    kill = Fault(kind="kill", targets=("n1",), began=SECOND, ended=33 * SECOND, evidence={"pids": [1]})
    void = Fault(kind="pause", targets=("n<2>",), began=SECOND, ended=SECOND)
    elsewhere = Fault(kind="rot", targets=("n1",), began=50 * SECOND, ended=51 * SECOND, evidence={"bytes": 1})
    shown = around({0, 4}, lines, 60.0, kill, void, elsewhere)
    assert [(span.kind, span.void) for span in shown.faults] == [("kill", False), ("pause", True)]
    svg = timeline_svg.draw(shown, {"kill": "#111111", "pause": "#222222"})
    assert svg.count('class="panel"') == 3 and svg.count('class="shade"') == 3 and svg.count('class="shade void"') == 1
    assert svg.count('class="bar ok proves"') == 1 and svg.count('class="bar info"') == 1
    assert svg.count('class="bar fail proves"') == 2, "it is seen in two windows"
    assert "&lt;&amp;&gt;" in svg and "n&lt;2&gt;" in svg and "<&>" not in svg
    for left, width in re.findall(r'x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', svg):
        assert float(left) >= timeline_svg.LEFT and float(left) + float(width) <= timeline_svg.WIDTH


@pytest.mark.parametrize(("began", "ended"), [(0.0, 0.01), (3.2, 3.7), (17.0, 77.5), (0.0, 4000.0)])
def test_the_axis_has_round_numbers_that_differ(began: float, ended: float) -> None:
    (panel,) = timeline_svg.panels([Window(began, ended)])
    found = timeline_svg.ticks(panel)
    assert 5 <= len(found) <= 13 and len({told for _, told in found}) == len(found)
    assert all(began - 1e-9 <= at <= ended + 1e-9 and float(told) == pytest.approx(at) for at, told in found)


def test_no_panel_is_too_narrow() -> None:
    long, short = timeline_svg.panels([Window(0, 60), Window(70, 70.5)])
    assert short.width == pytest.approx(timeline_svg.NARROWEST * long.width)
    assert [told for _, told in timeline_svg.ticks(short)] == ["70.0", "70.2", "70.4"]
    assert short.left + short.width == pytest.approx(timeline_svg.WIDTH - timeline_svg.RIGHT)
