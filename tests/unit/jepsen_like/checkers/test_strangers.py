"""The checker of strangers finds what they learn, make or change, and passes no run that tested nothing. S12."""

from __future__ import annotations

from typing import Any

from jepsen_like.checkers.strangers import ACTOR, ASKED, ENDED, FINAL, HELD, LEARNT, OVER, check
from jepsen_like.checkers.verdict import Verdict
from jepsen_like.histories.history import Operation

SECOND = 1_000_000_000
RIGHT = "visitor-1/revoked"
LOOKED = {"made": [], "changed": [], "value": -1_666}


def note(at: float, f: str, value: Any, node: str = "") -> tuple[float, str, str, Any, str]:
    return at, ACTOR, f, value, node


def asked(at: float, outcome: str, *, right: str = "", node: str = "n1", **more: Any) -> Any:
    value = {"as": "a stranger", "door": "GET /v1/topics", "outcome": outcome, "told": "", "began": int(at * SECOND)}
    return note(at + 0.1, ASKED, {**value, **more} | ({"right": right} if right else {}), node)


def held(at: float, outcome: str, *, node: str = "n1") -> Any:
    value = {"as": "a visitor", "door": "a stream", "outcome": outcome, "told": "", "stream": "s", "right": RIGHT}
    return note(at, HELD, value, node)


def judged(*notes: Any) -> Verdict:
    """Judge notes in the order of their times, after a right that was of use and ended at 10 s."""
    usual = [
        asked(5, "told", right=RIGHT),
        note(10, ENDED, {"right": RIGHT}),
        asked(40, "refused", right=RIGHT),
        held(12, "refused"),
        note(12, OVER, {"stream": "s"}),
    ]
    ordered = sorted([*usual, *notes, note(99, FINAL, LOOKED)], key=lambda one: one[0])
    return check(
        [
            Operation(index, who, "info", f, value, int(at * SECOND), node)
            for index, (at, who, f, value, node) in enumerate(ordered)
        ]
    )


def test_refusals_and_rights_in_time_are_valid_s12() -> None:
    assert judged(asked(1, "refused"), asked(10.9, "told", right=RIGHT)).valid is True
    assert judged(asked(1, "told", allowed=True)).valid is True


def test_a_stranger_that_was_told_anything_is_found_s12() -> None:
    for outcome in ("told", "nothing"):
        assert set(judged(asked(1, outcome)).anomalies) == {"stranger-told"}
    for outcome in ("silent", "unavailable"):
        assert not judged(asked(1, outcome)).anomalies


def test_a_right_ends_one_second_after_the_decision_without_faults_s12() -> None:
    assert set(judged(asked(11.1, "told", right=RIGHT)).anomalies) == {"right-outlived"}


def test_a_node_may_be_late_in_a_fault_but_not_after_it_has_learnt_s12() -> None:
    fault = (20.0, "nemesis", "partition", {"targets": ["n1"], "began": 9 * SECOND}, "")
    late = asked(18, "told", right=RIGHT)
    assert judged(fault, late).valid is True
    assert set(judged(fault, late, note(15, LEARNT, {"right": RIGHT}, "n1")).anomalies) == {"right-outlived"}
    assert judged(fault, late, note(15, LEARNT, {"right": RIGHT}, "n2")).valid is True
    assert set(judged(fault, asked(36, "told", right=RIGHT)).anomalies) == set(), "a right is judged by its own trouble"


def test_an_open_stream_may_answer_a_little_later_and_not_for_ever_s12() -> None:
    assert judged(held(11.9, "told")).valid is True
    assert set(judged(held(12.1, "told")).anomalies) == {"right-outlived"}
    found = check(
        [
            Operation(0, ACTOR, "info", HELD, held(1, "told")[3], SECOND, "n1"),
            Operation(1, ACTOR, "info", ENDED, {"right": RIGHT}, 2 * SECOND),
            Operation(2, ACTOR, "info", FINAL, LOOKED, 99 * SECOND),
        ]
    )
    assert set(found.anomalies) == {"stream-outlived"}


def test_what_strangers_made_or_changed_is_found_s12() -> None:
    assert set(judged(note(98, FINAL, {**LOOKED, "made": ["/v1/groups"]})).anomalies) == {"stranger-made"}
    assert set(judged(note(98, FINAL, {**LOOKED, "changed": ["topic t"]})).anomalies) == {"stranger-changed"}
    record = Operation(9, 1, "ok", "poll", [["poll", {"t/0": [[4, -1_666]]}]], 0)
    told = check([record, Operation(10, ACTOR, "info", FINAL, LOOKED, SECOND)])
    assert set(told.anomalies) == {"stranger-made"}


def test_a_run_that_tested_nothing_is_unknown_s12() -> None:
    assert check([]).valid is None
    assert check([Operation(0, ACTOR, "info", FINAL, LOOKED, SECOND)]).valid is None
    never = note(50, ASKED, {"as": "x", "door": "y", "outcome": "silent", "told": "", "began": 0}, "n1")
    refused = asked(50, "unavailable", allowed=False)
    told = judged(never, refused)
    assert told.valid is True, "a door that never answers shows nothing"
