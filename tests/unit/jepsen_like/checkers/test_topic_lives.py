"""Topics that are deleted and re-created while a group reads them: correct histories, and one for each anomaly (S1,
S8).
"""

from __future__ import annotations

from typing import Any

import pytest

from jepsen_like.checkers import topic_lives
from jepsen_like.checkers.verdict import Verdict
from jepsen_like.histories.history import Kind, Operation

T, OLD, NEW = "t", "0" * 31 + "1", "0" * 31 + "2"


def call(process: int, f: str, asked: Any, answer: Any = None, kind: Kind = "ok") -> list[Operation]:
    return [Operation(0, process, "invoke", f, asked), Operation(0, process, kind, f, answer)]


def send(process: int, value: int, offset: int | None, partition: int = 0, name: str = T) -> list[Operation]:
    """`offset` None: the outcome is unknown."""
    if offset is None:
        return call(process, "send", [name, value], [name, value], "info")
    return call(process, "send", [name, value], [name, value, partition, offset])


def poll(
    process: int, life: str, *pairs: tuple[int, int], kind: str = "records", partition: int = 0
) -> list[Operation]:
    answer: dict[str, Any] = {"records": [], "unclear": [], "unknown": []}
    answer[kind] = [[T, life, partition, [list(pair) for pair in pairs]]] if pairs else []
    return call(process, "poll", None, answer)


def committed(process: int, f: str, life: str, offset: int) -> list[Operation]:
    return call(process, f, None, [[T, life, 0, offset]])


def create(life: str, *, made: bool = True) -> list[Operation]:
    return call(9, "create", [T, 1], [T, 1, life, made])


def delete(life: str) -> list[Operation]:
    return call(9, "delete", [T, None], [T, life])


def end(*pairs: tuple[int, int], life: str = NEW) -> list[Operation]:
    return [
        *call(8, "settle", [T, 1], [T, 1, life]),
        *call(8, "dump", [T, None, []], [T, life, [[list(pair) for pair in pairs]]]),
    ]


def checked(*parts: list[Operation]) -> Verdict:
    flat = [one for part in parts for one in part]
    return topic_lives.check(
        [Operation(at, one.process, one.kind, one.f, one.value, at, error=one.error) for at, one in enumerate(flat)]
    )


OLD_LIFE = [*create(OLD), *send(0, 1, 0), *send(0, 2, 1), *poll(5, OLD, (0, 1), (1, 2))]
OLD_LIFE += [*committed(5, "commit", OLD, 2), *committed(6, "read", OLD, 2), *delete(OLD), *create(NEW)]
"""Values 1 and 2, which the group has read."""


def test_a_deleted_lifes_records_are_gone_with_it() -> None:
    verdict = checked(
        OLD_LIFE, send(0, 3, 0), send(1, 4, 1), poll(5, NEW, (0, 3)), committed(5, "commit", NEW, 1),
        end((0, 3), (1, 4)), poll(5, NEW, (1, 4)), committed(6, "read", NEW, 1),
    )  # fmt: skip
    assert verdict.valid is True, verdict.anomalies
    assert verdict.measured["lives"] == 2 and verdict.measured["judged"] == 2


def test_a_record_sent_before_the_end_may_belong_to_the_deleted_life() -> None:
    """The deletion was decided, and a leader that did not know acknowledged."""
    verdict = checked(OLD_LIFE, send(0, 3, 2), send(1, 4, 0), end((0, 4)), poll(5, NEW, (0, 4)))
    assert verdict.valid is True, verdict.anomalies


def test_a_record_with_an_unknown_outcome_may_be_there_or_not() -> None:
    verdict = checked(OLD_LIFE, send(0, 3, None), send(1, 4, None), end((0, 4)), poll(5, NEW, (0, 4)))
    assert verdict.valid is True, verdict.anomalies


def test_a_value_that_was_sent_again_into_the_next_life_is_no_duplicate() -> None:
    """Its first answer was lost with its topic."""
    verdict = checked(
        create(OLD), poll(5, OLD, (0, 1)), delete(OLD), create(NEW), end((0, 1)), poll(5, NEW, (0, 1)),
        send(0, 1, 0),
    )  # fmt: skip
    assert verdict.valid is True, verdict.anomalies


def test_a_record_of_either_of_two_lives_counts_for_either() -> None:
    verdict = checked(
        OLD_LIFE, send(0, 3, 0), poll(5, NEW, (0, 3), kind="unclear"), poll(5, OLD, (0, 3), kind="unclear"),
        committed(5, "commit", NEW, 1), end((0, 3)),
    )  # fmt: skip
    assert verdict.valid is True and verdict.measured["unclear"] == 2, verdict.anomalies


SOUND_END = [*end((0, 3)), *poll(5, NEW, (0, 3))]

BAD: list[tuple[str, list[Operation]]] = [
    ("lost-record", [*send(0, 3, 0), *SOUND_END, *send(1, 4, 1)]),
    ("lost-record", [*send(0, 3, 0), *send(0, 4, 1), *SOUND_END]),
    ("other-place", [*send(0, 3, 1), *SOUND_END]),
    ("duplicate", [*send(0, 3, 0), *end((0, 3), (1, 3)), *poll(5, NEW, (0, 3), (1, 3))]),
    ("reordered", [*send(0, 3, 1), *send(1, 4, 0), *end((0, 4), (1, 3)), *poll(5, NEW, (0, 4), (1, 3))]),
    ("unexpected-record", [*send(0, 3, 0), *end((0, 3), (1, 77)), *poll(5, NEW, (0, 3), (1, 77))]),
    ("foreign-record", [*send(0, 3, 0), *poll(6, NEW, (0, 2)), *SOUND_END]),
    ("foreign-record", [*send(0, 3, 0), *poll(6, NEW, (5, 2)), *SOUND_END]),
    ("conflicting-records", [*send(0, 3, 0), *send(0, 4, None), *poll(6, OLD, (1, 4)), *SOUND_END]),
    ("skipped", [*send(0, 3, 0), *send(0, 4, 1), *poll(5, NEW, (1, 4)), *committed(5, "commit", NEW, 2),
                 *end((0, 3), (1, 4))]),
    ("committed-unread", [*send(0, 3, 0), *committed(6, "read", NEW, 2), *SOUND_END]),
    ("committed-unread", [*send(0, 3, 0), *committed(5, "commit", OLD, 3), *SOUND_END]),
    ("commit-went-back", [*send(0, 3, 0), *SOUND_END, *committed(5, "commit", NEW, 1), *committed(6, "read", NEW, 0)]),
    ("commit-went-back", [*send(0, 3, 0), *SOUND_END, *committed(5, "commit", NEW, 1), *call(6, "read", None, [])]),
    ("not-read", [*send(0, 3, 0), *end((0, 3)), *poll(5, NEW)]),
    ("not-assigned", [*send(0, 3, 0), *SOUND_END,
                      *call(6, "poll", None, {"records": [], "unclear": [], "unknown": [[T, 0, 0, 3]]})]),
    ("member-stopped", [*send(0, 3, 0), *SOUND_END, *(3 * call(6, "poll", None, None, "fail"))]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "after"), BAD, ids=[f"{name}-{at}" for at, (name, _) in enumerate(BAD)])
def test_each_anomaly_is_found_with_its_proof(name: str, after: list[Operation]) -> None:
    verdict = checked(OLD_LIFE, after)
    assert verdict.valid is False and name in verdict.anomalies, verdict
    count = len(OLD_LIFE) + len(after)
    assert all(one["proof"] and set(one["proof"]) <= set(range(count)) for one in verdict.anomalies[name])


def test_an_offset_of_the_old_life_committed_under_the_new_one_skips_its_records() -> None:
    """S8: the group had read two records of the old life, and continues behind two of the new one."""
    verdict = checked(
        OLD_LIFE, send(0, 3, 0), send(0, 4, 1), send(0, 5, 2), committed(6, "read", NEW, 2), poll(5, NEW, (2, 5)),
        end((0, 3), (1, 4), (2, 5)),
    )  # fmt: skip
    assert {"committed-unread", "skipped"} <= verdict.anomalies.keys()
    assert [one["offset"] for one in verdict.anomalies["skipped"]] == [0, 1]


def test_a_member_that_fails_now_and_then_or_is_killed_has_not_stopped() -> None:
    few = 2 * call(7, "poll", None, None, "fail")
    again = [*(3 * call(6, "poll", None, None, "fail")), *poll(6, NEW)]
    verdict = checked(OLD_LIFE, send(0, 3, 0), SOUND_END, few, again)
    assert verdict.valid is True, verdict.anomalies


def test_a_client_that_found_a_topic_did_not_create_it() -> None:
    verdict = checked(OLD_LIFE, send(0, 3, 0), create(NEW, made=False), SOUND_END)
    assert verdict.valid is True, verdict.anomalies


@pytest.mark.parametrize(
    "history",
    [[], [*OLD_LIFE, *send(0, 3, 0)], [*OLD_LIFE, *call(8, "settle", [T, 1], [T, 1, OLD]), *end((0, 3))[2:]]],
    ids=["empty", "without-a-dump", "another-life-than-was-settled"],
)
def test_without_a_lasting_life_nothing_is_known(history: list[Operation]) -> None:
    sent = send(1, 3, None) if history else []
    verdict = checked(history, sent, poll(5, NEW, (0, 3)) if history else [])
    assert verdict.valid is None and verdict.measured["reason"], verdict.anomalies
