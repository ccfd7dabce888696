"""The quorum's shell: one timer that is never late for a heartbeat, whom it dials, and links that say nothing."""

from __future__ import annotations

import asyncio
import math
import random
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from jepsen_like.simulator.world.disk import SimDisk
from metadata.quorum.pace import FOLLOWED_HEARTBEATS, HEARTBEAT_LATE, LOOK_AT_LEAST, TICK_SECONDS
from metadata.quorum_thread import streams as quorum_thread_streams
from metadata.quorum_thread import thread as quorum_thread
from metadata.quorum_thread.dialing import Dialing
from metadata.quorum_thread.streams import AcceptedStreams, DialedStream, StreamLink
from metadata.quorum_thread.thread import QuorumThread
from metadata.voters.configuration import Configuration, Voter
from raftlog.config import TimingConfig
from raftlog.http2.limits import Http2Limits
from raftlog.model import BrokerId, DirectoryId, Endpoint, QuorumStatus
from raftlog.ports import Link
from raftlog.system.clock import ManualClock
from tests.support.quorum_world import identity_of

HEARTBEAT = TimingConfig().quorum_heartbeat_ms / 1000

# --- Time ------------------------------------------------------------------------------------------------------------


class FakeNode:
    """What the thread needs of a node between its inputs."""

    def __init__(self) -> None:
        self.reaches_leader = True
        self.busy = False
        self.next_heartbeat = math.inf
        self.next_look = -math.inf
        self.wants_tick = True
        self.ticks = 0
        self.on_tick: Callable[[], None] = lambda: None

    def tick(self) -> None:
        self.ticks += 1
        self.on_tick()

    def status(self) -> QuorumStatus:
        return QuorumStatus(BrokerId(1), BrokerId(2), 1, 1, 1, 1, (BrokerId(1),))


@pytest.fixture
async def ticking() -> AsyncIterator[tuple[QuorumThread, FakeNode, ManualClock]]:
    clock, node = ManualClock(monotonic=1000.0), FakeNode()
    thread: Any = QuorumThread(
        identity_of(1, 1),
        peers={},
        disk=SimDisk(),
        clock=clock,
        random=random.Random(1),
        timing=TimingConfig(),
        on_events=lambda index, events: None,
        on_fatal=lambda error: None,
    )
    thread._node = node
    yield thread, node, clock
    thread._node = None
    if thread._next_beat is not None:
        thread._next_beat.cancel()


def timers_of(thread: Any) -> int:
    """How many timers of the loop are for its beat."""
    scheduled: Any = asyncio.get_running_loop()
    return sum(not timer.cancelled() and timer._callback == thread._beat for timer in scheduled._scheduled)


async def test_there_is_one_timer_however_often_the_leader_is_lost(
    ticking: tuple[Any, FakeNode, ManualClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A voter that finds, on its own time, that its leader is gone looks sooner from then on: with the same timer."""
    thread, node, _ = ticking
    monkeypatch.setattr(quorum_thread, "TICK_SECONDS", 0.001)
    thread._heartbeat = 0.002
    done = asyncio.Event()

    def flap() -> None:
        node.reaches_leader = not node.reaches_leader
        if node.ticks >= 30:
            done.set()

    node.on_tick = flap
    thread._beat()
    async with asyncio.timeout(10.0):
        await done.wait()
    assert timers_of(thread) == 1


async def test_no_input_puts_a_heartbeat_off(ticking: tuple[Any, FakeNode, ManualClock]) -> None:
    thread, node, clock = ticking
    loop = asyncio.get_running_loop()
    node.next_heartbeat = clock.monotonic() + HEARTBEAT
    thread._beat()
    for left in (HEARTBEAT, HEARTBEAT / 2, HEARTBEAT / 100, 0.0, -HEARTBEAT):
        node.next_heartbeat = clock.monotonic() + left
        thread._tick()
        due = thread._next_beat.when() - loop.time()
        assert due <= max(left, 0.0) + HEARTBEAT_LATE * HEARTBEAT
        assert timers_of(thread) == 1


async def test_who_lost_its_leader_looks_sooner(ticking: tuple[Any, FakeNode, ManualClock]) -> None:
    thread, node, _ = ticking
    loop = asyncio.get_running_loop()
    thread._beat()
    assert HEARTBEAT < thread._next_beat.when() - loop.time() <= FOLLOWED_HEARTBEATS * HEARTBEAT
    node.reaches_leader = False
    thread._tick()
    assert thread._next_beat.when() - loop.time() <= TICK_SECONDS


async def test_who_is_alone_and_has_nothing_to_do_looks_when_it_has(ticking: tuple[Any, FakeNode, ManualClock]) -> None:
    thread, node, clock = ticking
    loop = asyncio.get_running_loop()
    node.reaches_leader = False
    for due, least, most in ((0.2, 0.15, 0.2), (-1.0, 0.0, TICK_SECONDS), (math.inf, TICK_SECONDS, LOOK_AT_LEAST)):
        node.next_look = clock.monotonic() + due
        thread._tick()
        thread._set_beat()
        assert least < thread._next_beat.when() - loop.time() <= most


async def test_an_input_that_asks_for_nothing_has_no_tick(
    ticking: tuple[Any, FakeNode, ManualClock],
) -> None:
    thread, node, _ = ticking
    for wants in (False, True, False):
        node.wants_tick = wants
        before = node.ticks
        thread._do_guarded(lambda: None)
        await asyncio.sleep(0)
        assert node.ticks == before + wants


# --- Whom it dials ---------------------------------------------------------------------------------------------------


class Nobody:
    """A link handler that is told of nothing."""

    def on_opened(self, link: Link) -> None: ...
    def on_message(self, link: Link, message: memoryview) -> None: ...
    def on_closed(self, link: Link) -> None: ...


NOWHERE = Endpoint("127.0.0.1", 1)


def dialed_by(dialing: Dialing) -> tuple[int, ...]:
    return tuple(map(int, dialing.dialed))


def voting(*nodes: int) -> Configuration:
    return Configuration.of(Voter.of(BrokerId(n), DirectoryId(bytes([n]) * 16), NOWHERE) for n in nodes)


@pytest.fixture
async def dialing() -> AsyncIterator[Dialing]:
    made = Dialing(
        BrokerId(1),
        {BrokerId(2): NOWHERE, BrokerId(3): NOWHERE},
        handler=Nobody(),
        guard=lambda call: call(),
        random=random.Random(1),
        limits=Http2Limits(connect_timeout_s=1.0),
        tls=None,
        redirect=lambda peer, known: known,
    )
    made.start()
    yield made
    await made.close()


async def test_voters_and_who_is_here_are_dialed_and_nobody_else(dialing: Dialing) -> None:
    assert dialed_by(dialing) == (2, 3)
    dialing.on_heard(BrokerId(4), NOWHERE)
    assert dialed_by(dialing) == (2, 3, 4)
    dialing.on_gone(BrokerId(4))
    assert dialed_by(dialing) == (2, 3)


async def test_a_dead_voter_that_was_removed_is_dialed_no_longer(dialing: Dialing) -> None:
    """It was heard of, was lost, and is replaced: nobody calls after it for ever."""
    dialing.on_heard(BrokerId(3), Endpoint("127.0.0.1", 2))
    dialing.on_gone(BrokerId(3))
    assert dialed_by(dialing) == (2, 3)
    assert dialing.address_of(BrokerId(3)) == Endpoint("127.0.0.1", 2), "where it said, for as long as it is a voter"
    dialing.on_configuration(voting(1, 2))
    assert dialed_by(dialing) == (2,)


async def test_a_voter_that_was_removed_and_is_here_is_dialed_until_it_goes(dialing: Dialing) -> None:
    dialing.on_heard(BrokerId(3), NOWHERE)
    dialing.on_configuration(voting(1, 2))
    assert dialed_by(dialing) == (2, 3)
    dialing.on_gone(BrokerId(3))
    assert dialed_by(dialing) == (2,)


async def test_who_reaches_no_leader_dials_whom_its_peers_call_voters(dialing: Dialing) -> None:
    """It was away while voters 2 and 3 were replaced by 5; they are there, and lead nothing."""
    dialing.on_told(BrokerId(2), {BrokerId(1): NOWHERE, BrokerId(5): NOWHERE})
    assert dialed_by(dialing) == (2, 3), "with a leader at hand there is nobody to look for"
    dialing.set_lost(True)
    assert dialed_by(dialing) == (2, 3, 5) and dialing.address_of(BrokerId(5)) == NOWHERE
    dialing.on_told(BrokerId(2), {BrokerId(6): NOWHERE})
    assert dialed_by(dialing) == (2, 3, 6)
    dialing.on_heard(BrokerId(6), NOWHERE)
    dialing.set_lost(False)
    assert dialed_by(dialing) == (2, 3, 6), "the leader that was found has dialed back"


# --- Links that say nothing ------------------------------------------------------------------------------------------


class FakeStream:
    """A stream that a peer accepted, and its connection."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.connection = self
        self.closed = asyncio.Event()
        self.peer_node = 2

    def close(self, reason: str) -> None:
        self.closed.set()


async def test_a_peer_that_takes_a_stream_and_does_not_answer_the_hello_is_dialed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quorum_thread_streams, "HELLO_SECONDS", 0.02)
    dialed = DialedStream(BrokerId(2), Nobody(), lambda call: call())
    silent, answering = FakeStream(), FakeStream()
    for stream in (silent, answering):
        dialed.on_opened(stream)  # type: ignore[arg-type]
    dialed.on_message(answering, memoryview(b"hello"))  # type: ignore[arg-type]
    async with asyncio.timeout(10.0):
        await silent.closed.wait()
    assert not answering.closed.is_set()
    for stream in (silent, answering):
        dialed.on_closed(stream, "over")  # type: ignore[arg-type]


class Ears:
    """A link handler that records the events it receives."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Link]] = []

    def on_opened(self, link: Link) -> None:
        self.heard.append(("opened", link))

    def on_message(self, link: Link, message: memoryview) -> None:
        self.heard.append((bytes(message).decode(), link))

    def on_closed(self, link: Link) -> None:
        self.heard.append(("closed", link))

    def the_one_link(self) -> Link:
        """Every event came from this link."""
        (link,) = {link for _, link in self.heard}
        return link


async def test_a_handler_hears_which_stream_a_peer_opened_and_closed() -> None:
    ears = Ears()
    streams = AcceptedStreams(ears, asyncio.get_running_loop(), lambda call: call())
    stream = FakeStream()
    accepted = streams.accept(stream)  # type: ignore[arg-type]
    accepted.on_message(stream, memoryview(b"hello"))  # type: ignore[arg-type]
    accepted.on_closed(stream, "over")  # type: ignore[arg-type]
    assert [what for what, _ in ears.heard] == ["opened", "hello", "closed"]
    link = ears.the_one_link()
    assert isinstance(link, StreamLink) and link.peer == BrokerId(2)


async def test_a_handler_hears_once_that_a_stream_it_dialed_is_closed() -> None:
    ears = Ears()
    dialed = DialedStream(BrokerId(2), ears, lambda call: call())
    stream = FakeStream()
    dialed.on_opened(stream)  # type: ignore[arg-type]
    dialed.on_message(stream, memoryview(b"hello"))  # type: ignore[arg-type]
    for _ in range(2):
        dialed.on_closed(stream, "over")  # type: ignore[arg-type]
    assert [what for what, _ in ears.heard] == ["opened", "hello", "closed"]
    link = ears.the_one_link()
    assert isinstance(link, StreamLink) and link.peer == BrokerId(2)


# --- The end ---------------------------------------------------------------------------------------------------------


async def test_a_disk_that_hangs_keeps_nobody_from_stopping(
    ticking: tuple[Any, FakeNode, ManualClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    thread, _, _ = ticking
    monkeypatch.setattr(quorum_thread, "HANGING_SECONDS", 0.01)
    synced = threading.Event()
    hanging = thread._thread = threading.Thread(target=synced.wait, args=(30.0,), daemon=True)
    hanging.start()
    async with asyncio.timeout(10.0):
        await thread.close()
        assert hanging.is_alive()
        synced.set()
        await asyncio.to_thread(hanging.join)
