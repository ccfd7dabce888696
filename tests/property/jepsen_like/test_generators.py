"""Generators: pure values, whose operations may be drawn, discarded and drawn again."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jepsen_like.clients.group_offsets import SOUGHT
from jepsen_like.histories.history import Operation
from jepsen_like.run_records import RunPlan
from jepsen_like.workloads import WORKLOADS
from jepsen_like.workloads.generators import (
    PENDING,
    Calls,
    Context,
    EachWorker,
    Generator,
    Limit,
    Mix,
    Nothing,
    Phases,
    Stagger,
    TimeLimit,
    Wanted,
    staggered,
)
from jepsen_like.workloads.group_offsets import STALL_SECONDS, OffsetOperations
from jepsen_like.workloads.log import LogOperations, topic_count
from jepsen_like.workloads.log_reads import ReadAll
from jepsen_like.workloads.workload import HEALED, UntilHealed, UntilOk

SECOND = 1_000_000_000
OPTIONS = {"tag": "x", "topics": {"t": 2}}


@dataclass
class Driver:
    """An interpreter without processes: every operation takes `latency`, and ends as `outcome` says."""

    workers: int = 3
    seed: int = 0
    latency: int = SECOND // 100
    outcomes: tuple[str, ...] = ("ok",)
    time: int = 0
    events: list[Operation] = field(default_factory=list)
    busy: dict[int, int] = field(default_factory=dict)
    """Process → when its operation ends."""
    processes: list[int] = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        self.processes = list(range(self.workers))
        self.chance = Random(self.seed)

    def context(self) -> Context:
        free = tuple(process for process in self.processes if process not in self.busy)
        return Context(self.time, free, tuple(self.processes), Random(f"{self.seed}/{self.count}"))

    def run(self, generator: Generator, *, steps: int = 20_000, until: int = 1000 * SECOND) -> Generator:
        """Run until it is over. Every draw is made twice: the first one is discarded."""
        for _ in range(steps):
            first, _ = generator.draw(self.context())
            wanted, after = generator.draw(self.context())
            assert first == wanted, "a generator that was asked has changed"
            if wanted is None:
                return after
            assert self.time < until, "it does not end"
            if isinstance(wanted, Wanted) and wanted.time <= self.time:
                assert wanted.process in self.context().free
                generator = after.told(self._add(wanted, "invoke"))
                self.count += 1
                self.busy[wanted.process] = self.time + self.latency
                self._under_way[wanted.process] = wanted
                continue
            if wanted is PENDING:
                generator = after
            done = self._next(wanted.time if isinstance(wanted, Wanted) else None)
            if done is not None:
                generator = generator.told(done)
        raise AssertionError("it takes too many steps")

    _under_way: dict[int, Wanted] = field(default_factory=dict)

    def _next(self, at: int | None) -> Operation | None:
        first = min(self.busy, key=lambda process: self.busy[process], default=None)
        if first is None or (at is not None and at < self.busy[first]):
            self.time = self.time + SECOND if at is None else at
            return None
        self.time = self.busy.pop(first)
        wanted = self._under_way.pop(first)
        kind = "info" if wanted.f == "crash" else self.chance.choice(self.outcomes)
        if kind == "info":
            self.processes[first % self.workers] += self.workers
        return self._add(wanted, kind)

    def _add(self, wanted: Wanted, kind: str) -> Operation:
        operation = Operation(len(self.events), wanted.process, kind, wanted.f, wanted.value, self.time)  # type: ignore[arg-type]
        self.events.append(operation)
        return operation

    def invoked(self) -> list[Operation]:
        return [one for one in self.events if one.kind == "invoke"]


def reads() -> Calls:
    return Calls(lambda context: ("read", context.random.randrange(10)))


def test_a_limit_ends_after_its_number_of_operations() -> None:
    driver = Driver()
    driver.run(Limit(7, reads()))
    assert len(driver.invoked()) == 7
    driver.run(Limit(0, reads()))
    assert len(driver.invoked()) == 7


@settings(max_examples=8)
@given(rate=st.integers(1, 40), seed=st.integers(0, 10), workers=st.integers(1, 6))
def test_operations_come_at_the_requested_rate_or_as_fast_as_possible(rate: int, seed: int, workers: int) -> None:
    driver = Driver(workers=workers, seed=seed, latency=SECOND // 1000)
    driver.run(TimeLimit(10 * SECOND, staggered(rate, reads())))
    assert driver.time <= 10 * SECOND + driver.latency
    assert 0.6 * rate * 10 <= len(driver.invoked()) <= 1.4 * rate * 10 + 5


def test_slow_operations_are_not_made_up_for() -> None:
    driver = Driver(workers=1, latency=SECOND)
    driver.run(TimeLimit(10 * SECOND, Stagger(SECOND // 100, reads())))
    assert len(driver.invoked()) <= 11


def test_a_mix_draws_by_weight_and_continues_with_the_remaining_ones() -> None:
    mix = Mix(((9.0, Limit(900, Calls(lambda _: ("often", None)))), (1.0, Calls(lambda _: ("seldom", None)))))
    driver = Driver()
    driver.run(Limit(1200, mix))
    names = [one.f for one in driver.invoked()]
    assert names.count("often") == 900
    assert 50 < names[:1000].count("seldom") < 200
    empty = Mix(((1.0, Nothing()),))
    assert empty.draw(driver.context())[0] is None


def test_a_phase_begins_when_no_operation_of_the_previous_one_is_in_flight() -> None:
    driver = Driver(workers=4)
    driver.run(Phases((Limit(9, Calls(lambda _: ("a", None))), Nothing(), Limit(3, Calls(lambda _: ("b", None))))))
    names = [(one.f, one.kind) for one in driver.events]
    assert names.count(("a", "ok")) == 9 and names.count(("b", "invoke")) == 3
    assert names.index(("b", "invoke")) > max(at for at, name in enumerate(names) if name == ("a", "ok"))


def test_every_worker_has_its_own_generator_whatever_the_name_of_its_process() -> None:
    driver = Driver(workers=3, outcomes=("ok", "info"))
    driver.run(EachWorker(Limit(20, reads())))
    counts = [sum(one.process % 3 == worker for one in driver.invoked()) for worker in range(3)]
    assert counts == [20, 20, 20]


def test_it_waits_for_the_heal() -> None:
    waiting: Generator = UntilHealed()
    context = Driver().context()
    assert waiting.draw(context)[0] is PENDING
    assert waiting.told(Operation(0, "suite", "info", HEALED)).draw(context)[0] is None


@settings(max_examples=20)
@given(seed=st.integers(0, 20), workers=st.integers(1, 5))
def test_an_operation_that_must_succeed_is_repeated_until_it_does(seed: int, workers: int) -> None:
    driver = Driver(workers=workers, seed=seed, outcomes=("ok", "fail", "info"))
    keys = ("a", "b", "c")
    driver.run(UntilOk(lambda key, attempt, _: Wanted(-1, "write", [key, attempt]), keys))
    done = [one.value[0] for one in driver.events if one.kind == "ok"]
    assert sorted(done) == sorted(keys)
    values = [one.value[1] for one in driver.invoked()]
    assert len(values) == len(set(values))


@settings(max_examples=10)
@given(
    seed=st.integers(0, 30),
    transactions=st.booleans(),
    subscribe=st.booleans(),
    outcomes=st.sampled_from([("ok",), ("ok", "info"), ("ok", "fail", "info")]),
)
def test_every_value_of_a_key_is_sent_once_by_a_client_that_reads_the_key(
    seed: int, transactions: bool, subscribe: bool, outcomes: tuple[str, ...]
) -> None:
    driver = Driver(seed=seed, outcomes=outcomes)
    keys = ("t/0", "t/1")
    driver.run(Limit(200, LogOperations(keys, transactions, subscribe, crash_every=20, assign_every=10)))
    sent = [
        (micro[1], micro[2]) for one in driver.invoked() for micro in one.value or () if one.f in {"send", "txn"}
        if micro[0] == "send"
    ]  # fmt: skip
    assert sent and len(sent) == len(set(sent))
    placed: set[object] = set()
    for one in driver.events:
        if one.kind == "ok" and one.f in {"assign", "subscribe"}:
            placed.add(one.process)
        assert one.f in {"assign", "subscribe"} or one.process in placed
        assert one.f != ("subscribe" if not subscribe else "assign")
        assert (one.f == "txn") == (transactions and one.f not in {"crash", "assign", "subscribe"})


def told(kind: str, f: str, value: object, process: int = 0) -> Operation:
    return Operation(0, process, kind, f, value)  # type: ignore[arg-type]


def drawn(generator: Generator, driver: Driver) -> tuple[str, object]:
    wanted, _ = generator.draw(driver.context().only(driver.processes[0]))
    assert isinstance(wanted, Wanted)
    return wanted.f, wanted.value


def test_the_last_reads_continue_until_every_known_value_was_read() -> None:
    driver = Driver(workers=1)
    reading: Generator = ReadAll(("t/0", "t/1"))
    reading = reading.told(told("ok", "send", [["send", "t/0", [7, "v"]]]))
    for f, value in (("assign", []), ("assign", ["t/0", "t/1"])):
        wanted, reading = reading.draw(driver.context())
        assert isinstance(wanted, Wanted) and (wanted.f, wanted.value) == (f, value)
        hint = dict(wanted.hint)
        reading = reading.told(told("ok", f, value))
    assert hint == {"start": "earliest"}
    assert drawn(reading, driver) == ("poll", [["poll"]])
    _, reading = reading.draw(driver.context())
    reading = reading.told(told("ok", "poll", [["poll", {"t/0": [[6, "u"]]}]]))
    assert drawn(reading, driver) == ("poll", [["poll"]])
    assert reading.told(told("ok", "poll", [["poll", {"t/0": [[7, "v"]]}]])).draw(driver.context())[0] is None
    other = reading.told(told("ok", "poll", [["poll", {"t/1": [[3, "w"]]}]], process=5))
    assert other.draw(driver.context())[0] is not None, "what another one saw has to be read, too"


def test_a_reader_without_progress_is_killed_and_starts_again() -> None:
    driver = Driver(workers=1)
    reading: Generator = ReadAll(("t/0",)).told(told("ok", "send", [["send", "t/0", [7, "v"]]]))
    driver.run(TimeLimit(25 * SECOND, EachWorker(reading)))
    names = [one.f for one in driver.invoked() if one.f != "poll"]
    assert names == ["assign", "assign", "crash"] * 2 + ["assign", "assign"]


def test_a_reader_with_progress_is_not_killed_however_long_it_takes() -> None:
    driver = Driver(workers=1)
    reading: Generator = ReadAll(("t/0",)).told(told("ok", "send", [["send", "t/0", [99, "v"]]]))
    for f, value in (("assign", []), ("assign", ["t/0"])):
        _, reading = reading.draw(driver.context())
        reading = reading.told(told("ok", f, value))
    for offset in range(6):
        driver.time += 8 * SECOND
        assert drawn(reading, driver)[0] == "poll"
        reading = reading.told(Operation(0, 0, "ok", "poll", [["poll", {"t/0": [[offset, "u"]]}]], driver.time))
    driver.time += 11 * SECOND
    assert drawn(reading, driver)[0] == "crash"


def test_a_stopped_member_commits_its_offsets_before_it_polls() -> None:
    driver = Driver(workers=1)
    owning: Generator = OffsetOperations(("t/0",), crash_every=0, stall_every=1)
    owning = owning.told(told("ok", "poll", {"owned": ["t/0"]}))
    assert drawn(owning, driver) == ("stall", STALL_SECONDS)
    owning = owning.told(told("ok", "stall", STALL_SECONDS))
    f, value = drawn(owning, driver)
    assert (f, value[0]) == ("commit", "t/0")  # type: ignore[index]
    after = owning.told(told("info", "commit", value))
    assert all(drawn(after, Driver(workers=1, seed=seed))[0] != "stall" for seed in range(20)), "it owns nothing now"


def test_a_member_that_lost_a_partition_commits_there_late_and_a_stopped_one_polls_first() -> None:
    owning: Generator = OffsetOperations(("t/0",), crash_every=0, stall_every=1, late_every=1)
    owning = owning.told(told("ok", "poll", {"owned": ["t/0"], "gone": []}))
    stopped = owning.told(told("ok", "stall", STALL_SECONDS))
    assert {drawn(stopped, Driver(workers=1, seed=seed))[0] for seed in range(20)} == {"poll"}
    late = stopped.told(told("ok", "poll", {"owned": [], "gone": ["t/0"]}))
    wanted, _ = late.draw(Driver(workers=1).context())
    assert isinstance(wanted, Wanted) and (wanted.f, wanted.value[0], wanted.hint) == ("commit", "t/0", {"late": True})
    again = late.told(told("ok", "poll", {"owned": ["t/0"], "gone": []}))
    hints = [again.draw(Driver(workers=1, seed=seed).context())[0] for seed in range(20)]
    assert not any(one.hint for one in hints if isinstance(one, Wanted)), "it is its own again, and it knows"


@pytest.mark.parametrize(("every", "hangs"), [(0, False), (1, True)])
def test_transactions_hang_if_requested(every: float, hangs: bool) -> None:
    log = LogOperations(("a",), transactions=True, crash_every=0, assign_every=1e9, hang_every=every)
    wanted, _ = log.told(told("ok", "subscribe", ["a"])).draw(Driver(workers=1).context())
    assert isinstance(wanted, Wanted) and wanted.f == "txn" and bool(wanted.hint) is hangs


def test_keys_of_a_log_take_turns() -> None:
    """A partition's history thus stays short enough to be checked, and new partitions come into use."""
    log: Generator = LogOperations(("a", "b", "c", "d"), crash_every=0, assign_every=1e9, at_once=2, key_writes=5)
    driver = Driver(workers=1)
    driver.run(Limit(200, log), until=9 * SECOND)
    sent = [one.value[0][1] for one in driver.invoked() if one.f == "send"]
    first, last = {key: sent.index(key) for key in "abcd"}, {key: len(sent) - 1 - sent[::-1].index(key) for key in "ab"}
    assert set(sent[:5]) <= {"a", "b"} and max(sent.count(key) for key in "ab") == 5
    assert first["c"] > min(last.values()) and first["d"] > first["c"]
    assert sent.count("c") > 5 and sent.count("d") > 5, "the last ones go on"


@pytest.mark.parametrize(("seconds", "topics"), [(60, 2), (80, 2), (600, 17), (100_000, 32)])
def test_a_longer_run_has_more_keys(seconds: float, topics: int) -> None:
    plan = RunPlan(cell="", workload="log", nemesis="", nodes=3, seconds=seconds, rate=100, seed=1)
    assert topic_count(plan) == topics
    assert topic_count(msgspec.structs.replace(plan, rounds=3)) == 2


def test_offsets_are_reset_to_where_they_were_last_seen() -> None:
    offsets: Generator = OffsetOperations(("t/0",), crash_every=0)
    offsets = offsets.told(told("ok", "read", [SOUGHT + "t/0", 17]))
    seen = [drawn(offsets, Driver(workers=1, seed=seed)) for seed in range(300)]
    swaps = [value for f, value in seen if f == "cas"]
    resets = [value for f, value in seen if f == "reset"]
    assert swaps and resets and {value[1][0] for value in swaps} == {17}
    assert {value[0] for value in (*swaps, *resets)} == {SOUGHT + "t/0"}
    after = offsets.told(told("ok", "cas", [SOUGHT + "t/0", [17, 5]]))
    assert {v[1][0] for f, v in (drawn(after, Driver(workers=1, seed=seed)) for seed in range(300)) if f == "cas"} == {
        5
    }


@pytest.mark.parametrize("name", WORKLOADS)
@settings(max_examples=3)
@given(seed=st.integers(0, 3), outcomes=st.sampled_from([("ok",), ("ok", "fail", "info")]))
def test_every_workload_ends(name: str, seed: int, outcomes: tuple[str, ...]) -> None:
    """Whatever the answers: here they are meaningless, so that recovery and last reads use up their time."""
    options = {"recovery_s": 2, "last_reads_s": 3, "partitions": 2}
    plan = RunPlan(
        cell="", workload=name, nemesis="", nodes=3, seconds=4, rate=20, seed=seed, processes=3, options=options
    )
    driver = Driver(seed=seed, outcomes=outcomes)
    generator = WORKLOADS[name].generator(plan, OPTIONS)
    driver.run(generator.told(Operation(0, "suite", "info", HEALED)), until=40 * SECOND)
    assert 40 <= len([one for one in driver.invoked() if one.time < 4 * SECOND]) <= 160
