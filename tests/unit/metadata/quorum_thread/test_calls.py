"""The broker's calls to its quorum's thread.

They reach the node unchanged, and the answer returns once; if the thread has ended, or its node has stopped, each call
still gets an answer.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import random
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from jepsen_like.simulator.world.disk import SimDisk
from metadata.journal.journal import prepare_journal
from metadata.quorum.port import Fate, Outcome
from metadata.quorum_thread import thread as quorum_thread
from metadata.quorum_thread.thread import QuorumThread
from metadata.voters.changes import VoterChange
from raftlog.config import TimingConfig
from raftlog.errors import RemoteProtocolError
from raftlog.model import BrokerId, QuorumStatus
from raftlog.system.clock import SystemClock
from tests.support.http.api_client import eventually
from tests.support.partitions.manual import ManualClock
from tests.support.quorum.world import identity_of

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
    """A node that answers each call at once with the call's name, and records it."""

    busy = False
    reaches_leader = True
    next_heartbeat = next_look = 1e9

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.wants_tick = False
        self.breaks_in_tick: Exception | None = None
        self.breaks_in_call: Exception | None = None
        self.closed = threading.Event()

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name not in CALLS:
            raise AttributeError(name)

        def asked(*arguments: Any, **options: Any) -> None:
            if self.breaks_in_call is not None:
                raise self.breaks_in_call
            *rest, done = arguments
            self.asked.append((name, tuple(rest), options))
            done(f"answer to {name}")

        return asked

    def tick(self) -> None:
        if self.breaks_in_tick is not None:
            raise self.breaks_in_tick

    def status(self) -> QuorumStatus:
        return QuorumStatus(BrokerId(1), BrokerId(1), 1, 1, 1, 1, (BrokerId(1),))

    def close(self) -> None:
        self.closed.set()


class Fatal:
    """The end of the node as the broker is notified of it."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.happened = asyncio.Event()
        self._thread = threading.get_ident()

    def __call__(self, error: BaseException) -> None:
        assert threading.get_ident() == self._thread, "on the broker's own loop"
        self.errors.append(error)
        self.happened.set()


@pytest.fixture
async def fatal() -> Fatal:
    return Fatal()


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    """The node of a thread that the test starts."""
    made = Node()
    monkeypatch.setattr(quorum_thread, "QuorumNode", lambda identity, **options: made)
    return made


@pytest.fixture
async def thread(fatal: Fatal, node: Node) -> AsyncIterator[QuorumThread]:
    made = QuorumThread(
        identity_of(1, 1),
        peers={},
        disk=SimDisk(),
        clock=ManualClock(monotonic=1000.0),
        random=random.Random(1),
        timing=TimingConfig(),
        on_events=lambda index, events: None,
        on_fatal=fatal,
    )
    yield made
    await made.close()


async def told_by(call: Call, thread: QuorumThread) -> list[Any]:
    told: list[Any] = []
    call(thread, told.append)
    assert not told, "never within the call"
    await eventually(lambda: bool(told))
    return told


async def inputs_are_taken(thread: QuorumThread) -> None:
    """Wait until the thread has handled every call up to now."""
    taken: concurrent.futures.Future[None] = concurrent.futures.Future()
    thread.loop.call_soon_threadsafe(taken.set_result, None)
    await asyncio.wrap_future(taken)
    await asyncio.sleep(0)


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_reaches_the_node_unchanged_and_is_answered_once(
    thread: QuorumThread, node: Node, name: str
) -> None:
    call, arguments, options = CALLS[name]
    await thread.start()
    told: list[Any] = []
    call(thread, told.append)
    await inputs_are_taken(thread)
    assert node.asked == [(name, arguments, options)]
    assert told == [], "carried over with the next tick"
    node.wants_tick = True
    thread.read_barrier(lambda outcome: None)
    await eventually(lambda: bool(told))
    await inputs_are_taken(thread)
    assert told == [f"answer to {name}"]


@pytest.mark.parametrize("begun", [False, True], ids=["never begun", "stopped"])
@pytest.mark.parametrize("name", CALLS)
async def test_a_call_to_a_quorum_that_has_stopped_is_answered(thread: QuorumThread, name: str, begun: bool) -> None:
    if begun:
        await thread.start()
        await thread.close()
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
async def test_an_unexpected_error_ends_the_node_and_is_reported(
    thread: QuorumThread, node: Node, fatal: Fatal, where: str
) -> None:
    """Its state is in doubt, so nothing may leave it any more; the broker is notified, and stops."""
    broken = ZeroDivisionError("broken")
    await thread.start()
    if where == "an input":
        node.breaks_in_call = broken
    else:
        node.breaks_in_tick, node.wants_tick = broken, True
    thread.read_barrier(lambda outcome: None)
    async with asyncio.timeout(20.0):
        await fatal.happened.wait()
        await asyncio.to_thread(node.closed.wait, 20.0)
    assert node.closed.is_set() and fatal.errors == [broken]


CONTEXTS: dict[str, tuple[dict[str, Any], bool]] = {
    "a callback": ({"message": "Exception in callback", "exception": ZeroDivisionError("a bug"), "handle": None}, True),
    "a task": ({"message": "never retrieved", "exception": OSError("no more descriptors"), "task": None}, True),
    "a connection": ({"message": "fatal", "exception": OSError("unreachable"), "transport": None}, False),
    "a peer": ({"message": "Exception in callback", "exception": RemoteProtocolError("nonsense")}, False),
    "a remark": ({"message": "unclosed transport"}, False),
}


@pytest.mark.parametrize("where", CONTEXTS)
async def test_an_uncaught_exception_on_the_threads_loop_ends_the_node_and_is_reported(
    thread: QuorumThread, node: Node, fatal: Fatal, where: str
) -> None:
    """Unless it concerned only one connection."""
    context, ends = CONTEXTS[where]
    await thread.start()
    thread.loop.call_soon_threadsafe(thread.loop.call_exception_handler, context)
    if ends:
        async with asyncio.timeout(20.0):
            await fatal.happened.wait()
            await asyncio.to_thread(node.closed.wait, 20.0)
    else:
        for _ in range(3):
            await inputs_are_taken(thread)
    assert node.closed.is_set() is ends
    assert fatal.errors == ([context["exception"]] if ends else [])


async def test_a_callback_that_breaks_on_the_thread_stops_it(fatal: Fatal) -> None:
    disk, identity = SimDisk(), identity_of(1, 1)
    prepare_journal(disk, identity)
    quorum = QuorumThread(
        identity,
        peers={},
        disk=disk,
        clock=SystemClock(),
        random=random.Random(1),
        timing=TimingConfig(),
        on_events=lambda index, events: None,
        on_fatal=fatal,
    )
    await quorum.start()
    broken = ZeroDivisionError("broken")

    def breaks() -> None:
        raise broken

    quorum.loop.call_soon_threadsafe(breaks)
    async with asyncio.timeout(20.0):
        await fatal.happened.wait()
    await quorum.close()
    assert fatal.errors == [broken]
    outcomes: list[Outcome] = []
    quorum.read_barrier(outcomes.append)
    await asyncio.sleep(0)
    assert [outcome.fate for outcome in outcomes] == [Fate.REFUSED]
