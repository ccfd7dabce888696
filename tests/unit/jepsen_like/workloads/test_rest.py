"""The workload of HTTP consumers: its draws, and when its last reads end."""

from __future__ import annotations

from random import Random
from typing import Any

from jepsen_like.clients.rest import decoded, encoded
from jepsen_like.histories.history import Kind, Operation
from jepsen_like.workloads.generators import Context, Generator, Wanted
from jepsen_like.workloads.rest import NAMES, ReadOn, RestOperations

A, B = "t/0", "t/1"


def drawn(generator: Generator, seed: int = 0, free: tuple[int, ...] = (0,)) -> tuple[Wanted, Generator]:
    wanted, after = generator.draw(Context(0, free, (0, 1), Random(seed)))
    assert isinstance(wanted, Wanted)
    return wanted, after


def told(kind: Kind, f: str, value: Any, process: int = 0) -> Operation:
    return Operation(0, process, kind, f, value)


def test_values_tell_whether_they_are_whole() -> None:
    assert decoded(encoded(17)) == 17
    assert decoded(encoded(17)[:-1]) == decoded(b"") == -1


def opened(here: Generator, free: tuple[int, ...] = (0,)) -> tuple[Wanted, Generator]:
    """The first draw that opens a consumer."""
    return next(found for found in (drawn(here, seed, free) for seed in range(100)) if found[0].f == "open")


def test_missing_consumers_are_opened_each_by_one_process_and_not_all_the_time() -> None:
    here: Generator = RestOperations((A, B), crash_every=0)
    kinds = [drawn(here, seed)[0].f for seed in range(200)]
    assert 20 < kinds.count("open") < 120
    first, here = opened(here)
    second, here = opened(here, free=(1,))
    assert (first.value, second.value) == (NAMES[0], NAMES[1])
    here = here.told(told("info", "open", NAMES[0]))
    here = here.told(told("ok", "open", NAMES[1], process=1))
    third, _ = opened(here, free=(5,))
    assert third.value == NAMES[2], "the one of unknown outcome has its turn again later"


def test_every_value_is_sent_once_and_long_answers_are_cut() -> None:
    here: Generator = RestOperations((A, B), crash_every=0, missing=())
    sent: list[int] = []
    kinds: set[str] = set()
    hints = []
    for seed in range(1_500):
        wanted, after = drawn(here, seed)
        kinds.add(wanted.f)
        if wanted.f == "send":
            sent += wanted.value[1]
            here = after
        hints += [wanted.hint.get("cut", "")] if wanted.f == "read" else []
    assert sent == list(range(len(sent))) and kinds == {"send", "read", "commit", "offsets", "open", "delete"}
    assert set(hints) == {"", "reset", "end"}
    assert drawn(RestOperations((A,), crash_every=1, missing=()))[0].f == "crash"


def test_a_commit_by_number_names_the_last_records_of_its_consumer() -> None:
    here: Generator = RestOperations((A, B), crash_every=0, missing=())
    for name in NAMES:
        here = here.told(told("ok", "read", [name, {A: [[3, 13], [4, 14]]}], process=7))
    commits = [wanted.value for wanted, _ in (drawn(here, seed) for seed in range(400)) if wanted.f == "commit"]
    assert {None if processed is None else tuple(processed.items()) for _, processed in commits} == {None, ((A, 4),)}


def test_the_last_reads_end_when_the_group_has_got_every_dumped_record() -> None:
    here: Generator = ReadOn()
    here = here.told(told("ok", "dump", [A, [[0, 10], [1, 11]]])).told(told("ok", "dump", [B, []]))
    seen = set()
    for _ in range(10):
        wanted, here = drawn(here)
        seen.add((wanted.f, wanted.value[0]))
    assert seen == {("read", NAMES[0]), ("commit", NAMES[0])}
    here = here.told(told("ok", "read", [NAMES[1], {A: [[1, 11]]}], process=5))
    assert here.draw(Context(0, (0,), (0, 1), Random(0)))[0] is None
