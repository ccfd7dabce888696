"""The workload whose topics are deleted and re-created: its draws, and how its client distinguishes lives."""

from __future__ import annotations

from random import Random
from typing import Any

from jepsen_like.clients.topic_lives import by_life, listed, offsets_of
from jepsen_like.histories.history import Kind, Operation
from jepsen_like.workloads.generators import Context, Generator, Wanted
from jepsen_like.workloads.group_offsets import STALL_SECONDS
from jepsen_like.workloads.topic_lives import RECOVERY_VALUES, LivesOperations, ReadOn, SendToEach
from raftlog.client import ConsumerRecord, GroupPartition

SECOND = 1_000_000_000
A, B = "a", "b"
OLD, NEW = GroupPartition("t", 0, "1"), GroupPartition("t", 0, "2")


def record(offset: int, partition: int = 0) -> ConsumerRecord:
    return ConsumerRecord("t", partition, offset, 0, None, b"%d" % (100 + offset), ())


def context(seed: int = 0, time: int = 0, free: tuple[int, ...] = (0,)) -> Context:
    return Context(time, free, (0, 1), Random(seed))


def drawn(generator: Generator, seed: int = 0, time: int = 0, free: tuple[int, ...] = (0,)) -> tuple[Wanted, Generator]:
    wanted, after = generator.draw(context(seed, time, free))
    assert isinstance(wanted, Wanted)
    return wanted, after


def told(kind: Kind, f: str, value: Any, process: int = 0, time: int = 0) -> Operation:
    return Operation(0, process, kind, f, value, time)


# --- The life of a record ---------------------------------------------------------------------------------------------


def test_a_record_belongs_to_the_life_whose_position_passed_it() -> None:
    handed, unclear, unknown = by_life([record(3), record(4)], {OLD: 9, NEW: 3}, {OLD: 9, NEW: 5})
    assert listed(handed) == [["t", "2", 0, [[3, 103], [4, 104]]]] and not unclear and not unknown


def test_a_record_of_one_of_two_lives_names_both() -> None:
    handed, unclear, unknown = by_life([record(0), record(1)], {OLD: 1, NEW: 0}, {OLD: 2, NEW: 2})
    assert listed(handed) == [["t", "2", 0, [[0, 100]]]] and not unknown
    assert listed(unclear) == [["t", "1", 0, [[1, 101]]], ["t", "2", 0, [[1, 101]]]]


def test_a_record_of_an_unassigned_partition_is_reported() -> None:
    handed, unclear, unknown = by_life([record(0, partition=1)], {NEW: 0}, {NEW: 1})
    assert (handed, unclear, unknown) == ({}, {}, [["t", 1, 0, 100]])


def test_offsets_name_their_lives() -> None:
    assert offsets_of({NEW: 3, OLD: 7}) == [["t", "1", 0, 7], ["t", "2", 0, 3]]


# --- Draws ------------------------------------------------------------------------------------------------------------


def operations(**given: Any) -> LivesOperations:
    return LivesOperations((A, B), crash_every=0, stall_every=0, **given)


def test_one_topic_at_a_time_is_deleted_and_then_created_again() -> None:
    here: Generator = operations()
    wanted, here = drawn(here)
    assert wanted.f == "delete"
    name = wanted.value[0]
    seen = {drawn(here, seed, time=SECOND, free=(1,))[0].f for seed in range(100)}
    assert seen <= {"send", "poll", "commit", "read", "leave"}, "one change at a time"
    here = here.told(told("ok", "delete", [name, "1"], time=SECOND))
    wanted, here = drawn(here, time=4 * SECOND)
    assert wanted.f == "create" and wanted.value[0] == name and 1 <= wanted.value[1] <= 3
    here = here.told(told("ok", "create", [name, 2, "2", True], time=5 * SECOND))
    wanted, _ = drawn(here, time=60 * SECOND)
    assert wanted.f == "delete"


def test_a_name_with_an_unknown_deletion_or_creation_is_created_until_it_exists() -> None:
    for f in ("delete", "create"):
        here: Generator = operations(operator=0, gone=(A,) if f == "create" else ())
        here = here.told(told("info", f, [A, 1], time=SECOND))
        wanted, _ = drawn(here, time=SECOND + SECOND // 2, free=(1,))
        assert (wanted.f, wanted.value[0]) == ("create", A), f


def test_every_value_is_sent_once_and_to_every_name() -> None:
    here: Generator = operations(next_change=SECOND)
    sent = []
    for seed in range(200):
        wanted, here = drawn(here, seed)
        sent += [wanted.value] if wanted.f == "send" else []
    assert [value for _, value in sent] == list(range(len(sent))) and {name for name, _ in sent} == {A, B}


def test_members_are_stopped_beyond_their_session_and_killed() -> None:
    stalled, _ = drawn(LivesOperations((A,), crash_every=0, stall_every=1, next_change=SECOND))
    assert (stalled.f, stalled.value) == ("stall", STALL_SECONDS)
    assert drawn(LivesOperations((A,), crash_every=1, next_change=SECOND))[0].f == "crash"


def test_a_worker_sends_to_every_name_until_that_is_acknowledged() -> None:
    here: Generator = SendToEach((A, B))
    wanted, here = drawn(here)
    assert wanted.value == [A, RECOVERY_VALUES]
    here = here.told(told("fail", "send", wanted.value))
    wanted, here = drawn(here)
    assert wanted.value == [B, RECOVERY_VALUES + 1], "a name that cannot be written to does not hold up the others"
    here = here.told(told("ok", "send", wanted.value, process=1))
    here = here.told(told("ok", "send", wanted.value))
    wanted, here = drawn(here)
    assert wanted.value[0] == A
    assert here.told(told("ok", "send", wanted.value)).draw(context())[0] is None


def test_members_continue_until_the_group_has_read_every_dumped_record() -> None:
    here: Generator = ReadOn().told(told("ok", "dump", ["t", "2", [[[0, 3], [1, 4]], []]], process=1))

    def handed(*pairs: list[int], process: int = 0) -> Operation:
        return told("ok", "poll", {"records": [["t", "2", 0, list(pairs)]], "unclear": [], "unknown": []}, process)

    wanted, here = drawn(here)
    assert wanted.f == "poll"
    here = here.told(handed([0, 3]))
    assert {drawn(here, seed)[0].f for seed in range(3)} == {"poll"}
    there = here.told(handed([1, 4], process=1))
    assert there.draw(context())[0] is None, "another member was handed it"
    assert drawn(ReadOn().told(handed([1, 4], process=1)))[0].f == "poll", "each member is to be heard of once"
    commits = here
    seen = set()
    for _ in range(10):
        wanted, commits = drawn(commits)
        seen.add(wanted.f)
    assert seen == {"poll", "commit"}
