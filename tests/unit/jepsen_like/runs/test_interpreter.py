"""The interpreter with clients that answer, do not know, hang, answer nonsense, and die."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from jepsen_like.clients import process
from jepsen_like.clients.messages import Ask, CertainlyNot, Open, OutcomeUnknown, Told
from jepsen_like.clients.process import CLIENTS, ClientHost, ClientSettings, made, outcome_of
from jepsen_like.histories.file import HistoryFile
from jepsen_like.histories.history import Operation, calls, read
from jepsen_like.run_records import RunFolder, RunPlan
from jepsen_like.runs.client_processes import ClientGone
from jepsen_like.runs.interpreter import STARTS_MAX, Interpreter, RunFailed, interpret
from jepsen_like.workloads import workload
from jepsen_like.workloads.generators import (
    PENDING,
    Calls,
    Context,
    Drawn,
    EachWorker,
    Generator,
    Limit,
    Phases,
    TimeLimit,
    Wanted,
)
from jepsen_like.workloads.workload import HEALED, UntilHealed
from raftlog.errors import CODES, Applied, InvalidRequest, RaftlogError, RemoteProtocolError, RetriableError

SECOND = 1_000_000_000


@dataclass
class FakeClient:
    """Answers as `answer` says: by a message, by an exception, or never (None)."""

    answer: Callable[[Ask], Told | BaseException | None]
    asked: list[Ask] = field(default_factory=list)
    killed: int = 0
    stopped: int = 0

    async def ask(self, asked: Ask) -> Told:
        self.asked.append(asked)
        await asyncio.sleep(0)
        answer = self.answer(asked)
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, BaseException):
            raise answer
        assert answer is not None
        return answer

    async def stall(self, seconds: float) -> None:
        await asyncio.sleep(0)

    async def kill(self) -> None:
        self.killed += 1

    async def stop(self) -> None:
        self.stopped += 1


@dataclass
class World:
    """An interpreter with fake clients."""

    folder: Path
    answer: Callable[[Ask], Told | BaseException | None]
    processes: int = 2
    options: dict[str, Any] = field(default_factory=lambda: {"operation_timeout_s": 0.05})
    seconds: float = 5
    grace: float = 0.05
    heal_within: float = 60
    starts: list[int] = field(default_factory=list)
    start_errors: int = 0
    clients: list[FakeClient] = field(default_factory=list)
    healed: asyncio.Event = field(default_factory=asyncio.Event)
    first_process: int = 0
    next_process: int = 0

    async def spawn(self, worker: int) -> FakeClient:
        self.starts.append(worker)
        if self.start_errors:
            self.start_errors -= 1
            raise ClientGone("it cannot be started")
        self.clients.append(FakeClient(self.answer))
        return self.clients[-1]

    async def run(self, generator: Generator) -> list[Operation]:
        """Return the history; whatever happens, every client is gone."""
        plan = RunPlan(
            cell="", workload="", nemesis="", nodes=3, seconds=self.seconds, rate=1, seed=1,
            processes=self.processes, options=self.options,
        )  # fmt: skip
        origin = time.monotonic_ns()
        path = self.folder / "history.jsonl"
        with HistoryFile(path, lambda: time.monotonic_ns() - origin) as history:
            interpreter = Interpreter(
                plan, self.spawn, history, lambda: time.monotonic_ns() - origin, 3, self.grace, self.heal_within,
                self.first_process,
            )  # fmt: skip
            try:
                await interpreter.start()
                await interpreter.run(generator, self.healed)
                self.next_process = interpreter.next_process
            finally:
                await interpreter.close()
        assert all(client.killed or client.stopped for client in self.clients)
        with path.open("rb") as lines:
            found = list(read(lines))
        assert [one.index for one in found] == list(range(len(found)))
        assert [one.time for one in found] == sorted(one.time for one in found)
        return found


def ok(asked: Ask) -> Told:
    return Told("ok", asked.value)


def work(count: int, f: str = "work") -> Generator:
    return Limit(count, Calls(lambda context: (f, context.random.randrange(100))))


async def test_every_operation_begins_and_ends_in_the_history(tmp_path: Path) -> None:
    world = World(tmp_path, ok)
    history = await world.run(Phases((work(20), work(1, "last"))))
    found = calls(history)
    assert [call.kind for call in found] == ["ok"] * 21
    assert all(call.completion and call.completion.value == call.invocation.value for call in found)
    assert {call.invocation.node for call in found if call.invocation.process == 1} == {"n2"}
    assert found[-1].invocation.f == "last" and world.starts == [0, 1]


async def test_an_unknown_outcome_ends_a_process_and_not_its_client(tmp_path: Path) -> None:
    kinds = iter(["info", "fail", "ok"] * 10)
    world = World(tmp_path, lambda asked: Told(next(kinds), error="why"), processes=1)  # type: ignore[arg-type]
    history = await world.run(work(6))
    assert [one.process for one in history if one.kind == "invoke"] == [0, 1, 1, 1, 2, 2]
    assert world.starts == [0] and world.clients[0].killed == 0
    failed = [one for one in history if one.kind in {"info", "fail"}]
    assert all(one.error == "why" and one.value is not None for one in failed), "what was asked is told again"


async def test_a_continued_history_uses_new_processes(tmp_path: Path) -> None:
    """A process of the history that has ended must not seem to continue."""
    world = World(tmp_path, lambda asked: Told("info"), first_process=4)
    history = await world.run(work(3))
    numbers = {one.process for one in history if isinstance(one.process, int)}
    assert min(numbers) == 4 and world.next_process > max(numbers) and world.next_process % world.processes == 0


async def test_crash_kills_the_process_and_another_one_takes_its_place(tmp_path: Path) -> None:
    world = World(tmp_path, ok, processes=1)
    history = await world.run(Phases((work(1), work(1, "crash"), work(1))))
    assert [(one.process, one.kind) for one in history if one.f == "crash"] == [(0, "invoke"), (0, "info")]
    assert [one.process for one in history if one.f == "work"] == [0, 0, 1, 1]
    assert world.starts == [0, 0] and world.clients[0].killed == 1
    assert [asked.f for asked in world.clients[0].asked] == ["work"], "nobody tells a client that it is to crash"


@pytest.mark.parametrize("answer", [None, ClientGone("it ended")])
async def test_a_client_that_hangs_or_dies_is_replaced_and_its_operation_unknown(
    tmp_path: Path, answer: Told | BaseException | None
) -> None:
    bad = iter([True])
    world = World(tmp_path, lambda asked: answer if next(bad, False) else ok(asked), processes=1)
    history = await world.run(work(3))
    first = calls(history)[0]
    assert first.kind == "info" and first.completion is not None and "client" in first.completion.error
    assert [call.kind for call in calls(history)] == ["info", "ok", "ok"]
    assert world.starts == [0, 0] and world.clients[0].killed == 1


async def test_one_that_hangs_does_not_hold_up_the_others(tmp_path: Path) -> None:
    stuck = World(tmp_path, lambda asked: None if asked.process == 0 else ok(asked), grace=0.3)
    history = await stuck.run(work(30))
    first = next(at for at, one in enumerate(history) if one.process == 0 and one.kind == "info")
    assert sum(one.kind == "ok" for one in history[:first]) >= 20


async def test_a_client_is_restarted_and_finally_the_run_fails(tmp_path: Path) -> None:
    patient = World(tmp_path, ok, processes=1, start_errors=1)
    assert len(calls(await patient.run(work(1)))) == 1
    hopeless = World(tmp_path, ok, processes=1, start_errors=STARTS_MAX)
    with pytest.raises(RunFailed, match="cannot be started"):
        await hopeless.run(work(1))


async def test_a_generator_waits_for_the_heal_but_not_forever(tmp_path: Path) -> None:
    world = World(tmp_path, ok, processes=1)
    asyncio.get_running_loop().call_later(0.05, world.healed.set)
    history = await world.run(Phases((work(1), UntilHealed(), work(1, "after"))))
    names = [one.f for one in history]
    assert names == ["work", "work", HEALED, "after", "after"]
    forgotten = World(tmp_path, ok, processes=1, seconds=0.01, heal_within=0.05)
    with pytest.raises(RunFailed, match="not healed"):
        await forgotten.run(UntilHealed())


async def test_the_end_of_the_time_ends_waits_for_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, ok, processes=1)
    world.healed.set()
    began = time.monotonic()
    await world.run(TimeLimit(SECOND // 100, EachWorker(UntilHealed())))
    assert time.monotonic() - began < 10


async def test_a_cancelled_run_leaves_no_client(tmp_path: Path) -> None:
    world = World(tmp_path, lambda asked: None, grace=60)
    running = asyncio.create_task(world.run(work(5)))
    async with asyncio.timeout(30):
        while sum(len(client.asked) for client in world.clients) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [client.stopped for client in world.clients] == [1, 1]


async def test_a_bug_in_a_generator_ends_the_run_and_leaves_nothing(tmp_path: Path) -> None:
    def broken(context: Any) -> tuple[str, Any]:
        raise ZeroDivisionError

    world = World(tmp_path, ok)
    with pytest.raises(ZeroDivisionError):
        await world.run(Calls(broken))
    assert [client.stopped for client in world.clients] == [1, 1]


@dataclass(frozen=True)
class OneAtATime(Generator):
    """Raises if it is asked about a process whose operation has not been reported as ended."""

    busy: frozenset[int] = frozenset()
    left: int = 200

    def draw(self, context: Context) -> Drawn:
        assert not self.busy & set(context.free), "nobody has told it"
        if not self.left:
            return None, self
        if not context.free:
            return PENDING, self
        return Wanted(context.free[-1], "work", None, context.time), replace(self, left=self.left - 1)

    def told(self, operation: Operation) -> Generator:
        assert isinstance(operation.process, int)
        mine = {operation.process}
        return replace(self, busy=self.busy | mine if operation.kind == "invoke" else self.busy - mine)


async def test_a_generator_knows_all_earlier_events(tmp_path: Path) -> None:
    world = World(tmp_path, ok, processes=4)
    assert len(calls(await world.run(OneAtATime()))) == 200


# --- In a client's process --------------------------------------------------------------------------------------------


@dataclass
class Doing:
    """A client that behaves as configured."""

    settings: ClientSettings
    what: Any
    closed: list[int]

    async def invoke(self, f: str, value: Any, hint: Any) -> Told:
        if isinstance(self.what, BaseException):
            raise self.what
        if self.what == "hang":
            await asyncio.Event().wait()
        if self.what == "stubborn":
            await self._never_mind()
        return Told("ok", [f, value, dict(hint)])

    async def _never_mind(self) -> None:
        """A cancelled caller waits once more."""
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.closed.append(self.settings.process)
        if self.what == "hang":
            raise RetriableError("connection_lost", "it was closing")


def host(what: Any, closed: list[int]) -> ClientHost:
    return ClientHost(
        Open("log", ["h:1"], 0), lambda settings: Doing(settings, what, closed), stuck=lambda: closed.append(-1)
    )


@pytest.mark.parametrize("code", CODES)
def test_an_error_with_an_unknown_outcome_is_never_reported_as_a_failure(code: str) -> None:
    kind = outcome_of(RaftlogError(code, "")).kind
    assert kind == ("info" if CODES[code].applied is not Applied.NO or code == "protocol_error" else "fail")


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        (None, "ok"),
        ("hang", "info"),
        (OutcomeUnknown("who knows"), "info"),
        (CertainlyNot("no"), "fail"),
        (RetriableError("not_leader", ""), "fail"),
        (RetriableError("request_timed_out", ""), "info"),
        (RemoteProtocolError("nonsense"), "info"),
        (ZeroDivisionError("a bug"), "info"),
    ],
)
async def test_a_client_process_reports_every_kind_of_outcome(
    what: Any, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    closed: list[int] = []
    serving = host(what, closed)
    told = await serving.do(Ask(4, "do", "it", 0.02, {"how": "so"}))
    assert told.kind == kind and (told.value == ["do", "it", {"how": "so"}]) == (kind == "ok")
    async with asyncio.timeout(30):
        while kind == "info" and not closed:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert closed == ([4] if kind == "info" else []), "what is unknown ends the client that did it"
    assert isinstance(told.error, dict) == isinstance(what, ZeroDivisionError)
    assert ("ZeroDivisionError" in capsys.readouterr().err) == isinstance(what, ZeroDivisionError)


async def test_another_process_is_another_client() -> None:
    closed: list[int] = []
    serving = host(None, closed)
    for number in (0, 0, 6, 12):
        assert (await serving.do(Ask(number, "do", 1, 1.0))).kind == "ok"
    await serving.close()
    assert closed == [0, 6, 12]


async def test_a_timeout_is_reported_at_once_whatever_its_client_still_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It aborts, for example, which takes as long as the cluster does not answer."""
    monkeypatch.setattr(process, "STUCK_SECONDS", 0.1)
    closed: list[int] = []
    serving = host("stubborn", closed)
    began = time.monotonic()
    assert (await serving.do(Ask(0, "do", 1, 0.02))).kind == "info"
    assert time.monotonic() - began < 5 and closed == []
    async with asyncio.timeout(30):
        while not closed:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert closed == [-1], "one that never ends is stuck"


@pytest.mark.parametrize("name", CLIENTS)
async def test_every_client_refuses_unknown_operations_and_closes_without_a_cluster(name: str) -> None:
    opened = Open(name, ["127.0.0.1:1"], 0, {"tag": "x", "topics": {"t": 1}})
    serving = ClientHost(opened, made(opened), stuck=lambda: pytest.fail("it is stuck"))
    told = await serving.do(Ask(0, "sing", ["k", 1], 1.0))
    await serving.close()
    assert told.kind == "info" and "exception" in told.error


# --- A whole run that is impossible -----------------------------------------------------------------------------------


def plan(**changed: Any) -> RunPlan:
    asked: dict[str, Any] = {"workload": "log", "seconds": 1.0, "rate": 10.0, "processes": 1, **changed}
    return RunPlan(cell="", nemesis="none", nodes=1, seed=1, **asked)


@pytest.mark.parametrize("wrong", [{"workload": "sing"}, {"seconds": 0.0}, {"rate": -1.0}, {"processes": 0}])
async def test_a_plan_that_cannot_be_run_is_refused_and_leaves_nothing(tmp_path: Path, wrong: dict[str, Any]) -> None:
    """S11."""
    with pytest.raises(InvalidRequest):
        await interpret(plan(**wrong), ["127.0.0.1:1"], RunFolder(tmp_path), time.monotonic_ns(), asyncio.Event())
    assert os.listdir(tmp_path) == []


async def test_a_cluster_that_cannot_be_prepared_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "PREPARE_SECONDS", 0.1)
    with pytest.raises(RunFailed, match="could not be prepared for log"):
        await interpret(plan(), ["127.0.0.1:1"], RunFolder(tmp_path), time.monotonic_ns(), asyncio.Event())
