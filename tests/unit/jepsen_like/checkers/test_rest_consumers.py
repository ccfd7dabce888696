"""Consumers of the REST Proxy API: correct histories, and one for each anomaly (S8)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from jepsen_like.checkers import rest_consumers
from jepsen_like.checkers.verdict import Verdict
from jepsen_like.histories.history import Kind, Operation

K = "t/0"
CONFLICT = {"status": 409, "code": 40903, "message": "nothing was delivered"}
NOT_FOUND = {"status": 404, "code": 40403, "message": "no such consumer"}
SECOND = 1_000_000_000


def call(process: int, f: str, asked: Any, answer: Any = None, kind: Kind = "ok", error: Any = None) -> list[Operation]:
    value = answer if answer is not None else asked
    return [Operation(0, process, "invoke", f, asked), Operation(0, process, kind, f, value, error=error)]


def send(*pairs: tuple[int, int], kind: Kind = "ok") -> list[Operation]:
    """Offsets and values."""
    return call(0, "send", [K, [value for _, value in pairs]], [K, [list(pair) for pair in pairs]], kind)


def read(*pairs: tuple[int, int], name: str = "c", kind: Kind = "ok", error: Any = None) -> list[Operation]:
    found = {K: [list(pair) for pair in pairs]} if pairs else {}
    return call(1, "read", [name, None], [name, found] if kind == "ok" else None, kind, error)


def commit(offset: int | None = None, kind: Kind = "ok", error: Any = None) -> list[Operation]:
    return call(1, "commit", ["c", None if offset is None else {K: offset}], None, kind, error)


def offsets(offset: int, process: int = 2) -> list[Operation]:
    return call(process, "offsets", ["c", [K]], ["c", {K: offset}])


def opened(kind: Kind = "ok", error: Any = None) -> list[Operation]:
    return call(3, "open", "c", None, kind, error)


def dump(*pairs: tuple[int, int]) -> list[Operation]:
    return call(4, "dump", [K, None], [K, [list(pair) for pair in pairs]])


def checked(*parts: list[Operation]) -> Verdict:
    flat = [one for part in parts for one in part]
    return rest_consumers.check(
        [msgspec.structs.replace(one, index=at, time=one.time or at) for at, one in enumerate(flat)]
    )


BEGIN = [*opened(), *send((0, 10), (1, 11)), *read((0, 10), (1, 11)), *commit(), *offsets(2)]
"""Two records that were delivered and committed."""


def test_a_sound_history_is_valid() -> None:
    verdict = checked(
        BEGIN, opened(), commit(kind="fail", error=CONFLICT), send((2, 12)), read(kind="fail", error="cut by reset"),
        read((2, 12)), read((2, 12)), commit(2), offsets(3), dump((0, 10), (1, 11), (2, 12)),
    )  # fmt: skip
    assert verdict.valid is True, verdict.anomalies
    assert verdict.measured["redelivered"] == 1 and verdict.measured["cut"] == 1
    assert verdict.measured["delivered"] == verdict.measured["acknowledged"] == 3


def test_a_partition_that_was_not_dumped_leaves_the_verdict_open() -> None:
    assert checked(BEGIN).valid is None
    assert checked(opened(), dump()).valid is None


def test_a_commit_may_be_seen_before_its_delivery_is_reported() -> None:
    """The kernel has acknowledged the answer, and another program commits before the first one reports."""
    invoked, answered = read((0, 10))
    invoked, answered = (msgspec.structs.replace(one, process=7) for one in (invoked, answered))
    verdict = checked(opened(), send((0, 10)), [invoked], commit(), offsets(1), [answered], dump((0, 10)))
    assert verdict.valid is True, verdict.anomalies


def test_a_read_whose_program_was_killed_may_have_delivered_anything() -> None:
    verdict = checked(opened(), send((0, 10)), read(kind="info"), commit(), offsets(1), dump((0, 10)))
    assert verdict.valid is None and not verdict.anomalies and verdict.measured["unclear"] == 1


def test_a_consumer_that_may_have_been_deleted_is_not_missed() -> None:
    late = call(5, "delete", "c", kind="info")
    assert "not-found" not in checked(BEGIN, late, read(kind="fail", error=NOT_FOUND)).anomalies
    deleted = call(5, "delete", "c")
    assert "not-found" not in checked(BEGIN, deleted, read(kind="fail", error=NOT_FOUND)).anomalies


def test_a_deletion_that_is_long_over_excuses_nothing() -> None:
    deleted = call(5, "delete", "c", kind="info")
    missed = [msgspec.structs.replace(one, time=200 * SECOND) for one in read(kind="fail", error=NOT_FOUND)]
    assert "not-found" in checked(BEGIN, deleted, missed).anomalies


END = dump((0, 10), (1, 11))

BAD: list[tuple[str, list[Operation]]] = [
    ("lost-record", [*send((2, 12)), *END]),
    ("lost-record", [*send((1, 12)), *END]),
    ("duplicate", [*send((2, 12)), *read((2, 12), (3, 12)), *dump((0, 10), (1, 11), (2, 12), (3, 12))]),
    ("unexpected-record", [*read((2, 77)), *dump((0, 10), (1, 11), (2, 77))]),
    ("unexpected-record", [*read((2, 77)), *END]),
    ("unexpected-record", [*send((2, 12), kind="fail"), *read((2, 12)), *dump((0, 10), (1, 11), (2, 12))]),
    ("conflicting-records", [*send((2, 12), kind="info"), *read((1, 12)), *END]),
    ("answer-gap", [*send((2, 12)), *read((0, 10), (2, 12)), *dump((0, 10), (1, 11), (2, 12))]),
    ("skipped", [*send((2, 12), (3, 13)), *read((3, 13)), *commit(), *offsets(4),
                 *dump((0, 10), (1, 11), (2, 12), (3, 13))]),
    ("skipped", [*send((2, 12)), *read(kind="fail", error="cut by reset"), *commit(2),
                 *dump((0, 10), (1, 11), (2, 12))]),
    ("skipped", [*send((2, 12)), *offsets(3), *read((2, 12)), *dump((0, 10), (1, 11), (2, 12))]),
    ("commit-went-back", [*offsets(1), *END]),
    ("commit-went-back", [*send((2, 12)), *read((2, 12)), *commit(2), *offsets(2), *dump((0, 10), (1, 11), (2, 12))]),
    ("commit-without-delivery", [*opened(), *commit(), *END]),
    ("commit-without-delivery", [*opened(), *read(), *read((0, 10), name="other"), *commit(), *END]),
    ("not-found", [*read(kind="fail", error=NOT_FOUND), *END]),
    ("not-found", [*opened("info", NOT_FOUND), *END]),
    ("not-found", [*call(0, "send", [K, [12]], kind="fail", error=NOT_FOUND), *END]),
    ("refused", [*read(kind="fail", error=CONFLICT), *END]),
    ("refused", [*commit(kind="fail", error={"status": 422, "code": 422, "message": "unknown"}), *END]),
    ("not-read", [*send((2, 12)), *dump((0, 10), (1, 11), (2, 12))]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "after"), BAD, ids=[f"{name}-{at}" for at, (name, _) in enumerate(BAD)])
def test_each_anomaly_is_found_with_its_proof(name: str, after: list[Operation]) -> None:
    verdict = checked(BEGIN, after)
    assert verdict.valid is False and name in verdict.anomalies, verdict
    count = len(BEGIN) + len(after)
    assert all(one["proof"] and set(one["proof"]) <= set(range(count)) for one in verdict.anomalies[name])
