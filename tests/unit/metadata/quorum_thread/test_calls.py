"""What the broker asks of its quorum's thread reaches the node as it was asked, and its answer comes back once; where
the thread has ended, or its node has stopped, each call still gets an answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from jepsen_like.simulator.world.disk import SimDisk
from metadata.journal.journal import prepare_journal
from metadata.quorum.port import Fate, Outcome
from metadata.quorum_thread.thread import QuorumThread
from metadata.voters.changes import VoterChange
from raftlog.config import TimingConfig
from raftlog.errors import RemoteProtocolError
from raftlog.model import BrokerId, QuorumStatus
from raftlog.system.clock import ManualClock, SystemClock
from tests.support.quorum_world import identity_of

Call = Callable[[QuorumThread, Callable[[Any], None]], None]
COMMAND: Any = object()
CHANGE = VoterChange("add", 3)  # type: ignore[arg-type]
CALLS: dict[str, tuple[Call, tuple[Any, ...], dict[str, Any]]] = {
    "register": (lambda thread, done: thread.register(COMMAND, done), (COMMAND,), {}),
    "propose": (lambda thread, done: thread.propose(COMMAND, done, timeout=2.5), (COMMAND,), {"timeout": 2.5}),
    "read_barrier": (lambda thread, done: thread.read_barrier(done, timeout=2.5), (), {"timeout": 2.5}),
    "leader_status": (lambda thread, done: thread.leader_status(done, timeout=2.5), (), {"timeout": 2.5}),
    "stop_broker": (lambda thread, done: thread.stop_broker(done, timeout=2.5), (), {"timeout": 2.5}),
    "change_voters": (
        lambda thread, done: thread.change_voters(CHANGE, done, plan=True, timeout=2.5),
        (CHANGE,),
        {"plan": True, "timeout": 2.5},
    ),
}


class Node:
    """Answers what it is asked with the call's name, at once; keeps what it was asked."""

    wants_tick = False

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name not in CALLS:
            raise AttributeError(name)

        def asked(*arguments: Any, **options: Any) -> None:
            *rest, done = arguments
            self.asked.append((name, tuple(rest), options))
            done(f"answer to {name}")

        return asked


@pytest.fixture
def fatal() -> list[BaseException]:
    """What the broker was told is the node's end."""
    return []


@pytest.fixture
async def thread(fatal: list[BaseException]) -> Any:
    return QuorumThread(
        identity_of(1, 1),
        peers={},
        disk=SimDisk(),
        clock=ManualClock(monotonic=1000.0),
        random=random.Random(1),
        timing=TimingConfig(),
        on_events=lambda index, events: None,
        on_fatal=fatal.append,
    )


async def told_by(call: Call, thread: Any, turns: int = 5) -> list[Any]:
    told: list[Any] = []
    call(thread, told.append)
    assert not told, "never within the call"
    for _ in range(turns):
        await asyncio.sleep(0)
    return told


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_reaches_the_node_as_it_was_asked_and_is_answered_once(thread: Any, name: str) -> None:
    call, arguments, options = CALLS[name]
    thread._node, thread._loop = Node(), asyncio.get_running_loop()
    told: list[Any] = []
    call(thread, told.append)
    await asyncio.sleep(0)
    assert thread._node.asked == [(name, arguments, options)]
    assert told == [], "carried over with the next tick"
    thread._bridge.flush()
    for _ in range(3):
        await asyncio.sleep(0)
    assert told == [f"answer to {name}"]


@pytest.mark.parametrize("begun", [False, True], ids=["never begun", "stopped"])
@pytest.mark.parametrize("name", CALLS)
async def test_a_call_to_a_quorum_that_has_stopped_is_answered(thread: Any, name: str, begun: bool) -> None:
    if begun:
        thread._loop = asyncio.get_running_loop()
    (answer,) = await told_by(CALLS[name][0], thread)
    stopped = "the quorum of this node has stopped"
    if name == "leader_status":
        assert isinstance(answer, QuorumStatus) and answer == thread.status()
        assert answer.node_id == BrokerId(1)
    elif name == "stop_broker":
        assert answer is False
    elif name == "change_voters":
        assert (answer.verdict, answer.code, answer.detail) == ("refused", "shutting_down", stopped)
    else:
        assert answer == Outcome(Fate.REFUSED, detail=stopped)


@pytest.mark.parametrize("where", ["an input", "a tick"])
async def test_an_error_that_nobody_expected_ends_the_node_and_is_told(
    thread: Any, fatal: list[BaseException], where: str
) -> None:
    """Its state is in doubt, so nothing may leave it any more; the broker hears of it, and stops."""
    broken = ZeroDivisionError("broken")

    class Broken(Node):
        busy = False
        reaches_leader = True
        next_heartbeat = next_look = 1e9

        def tick(self) -> None:
            raise broken

    def input_() -> None:
        raise broken

    thread._node, thread._stop, thread._loop = Broken(), asyncio.Event(), asyncio.get_running_loop()
    thread._started.set_result(None)
    if where == "an input":
        thread._do_guarded(input_)
    else:
        thread._tick()
    assert thread._stop.is_set() and not fatal, "told on the broker's own loop"
    for _ in range(3):
        await asyncio.sleep(0)
    assert fatal == [broken]
    if thread._next_beat is not None:
        thread._next_beat.cancel()


CONTEXTS: dict[str, tuple[dict[str, Any], bool]] = {
    "a callback": ({"message": "Exception in callback", "exception": ZeroDivisionError("a bug"), "handle": None}, True),
    "a task": ({"message": "never retrieved", "exception": OSError("no more descriptors"), "task": None}, True),
    "a connection": ({"message": "fatal", "exception": OSError("unreachable"), "transport": None}, False),
    "a peer": ({"message": "Exception in callback", "exception": RemoteProtocolError("nonsense")}, False),
    "a remark": ({"message": "unclosed transport"}, False),
}


@pytest.mark.parametrize("where", CONTEXTS)
async def test_what_nobody_caught_on_the_threads_loop_ends_the_node_and_is_told(
    thread: Any, fatal: list[BaseException], where: str
) -> None:
    """Unless it was about one connection only."""
    context, ends = CONTEXTS[where]
    thread._stop = asyncio.Event()
    thread._started.set_result(None)
    thread._unforeseen(asyncio.get_running_loop(), context)
    for _ in range(3):
        await asyncio.sleep(0)
    assert thread._stop.is_set() is ends
    assert fatal == ([context["exception"]] if ends else [])


async def test_a_callback_that_breaks_on_the_thread_stops_it(fatal: list[BaseException]) -> None:
    disk, identity, told = SimDisk(), identity_of(1, 1), asyncio.Event()
    prepare_journal(disk, identity)

    def on_fatal(error: BaseException) -> None:
        fatal.append(error)
        told.set()

    quorum = QuorumThread(
        identity,
        peers={},
        disk=disk,
        clock=SystemClock(),
        random=random.Random(1),
        timing=TimingConfig(),
        on_events=lambda index, events: None,
        on_fatal=on_fatal,
    )
    await quorum.start()
    broken = ZeroDivisionError("broken")

    def breaks() -> None:
        raise broken

    quorum.loop.call_soon_threadsafe(breaks)
    async with asyncio.timeout(20.0):
        await told.wait()
    await quorum.close()
    assert fatal == [broken]
    outcomes: list[Outcome] = []
    quorum.read_barrier(outcomes.append)
    await asyncio.sleep(0)
    assert [outcome.fate for outcome in outcomes] == [Fate.REFUSED]
