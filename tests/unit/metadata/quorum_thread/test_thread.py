"""The quorum's shell: one timer that is never late for a heartbeat, the dialed peers, and silent links."""

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
from metadata.quorum_thread import beat as quorum_beat
from metadata.quorum_thread import streams as quorum_thread_streams
from metadata.quorum_thread import thread as quorum_thread
from metadata.quorum_thread.beat import Beat
from metadata.quorum_thread.dialing import Dialing
from metadata.quorum_thread.streams import AcceptedStreams, DialedStream, StreamLink
from metadata.quorum_thread.thread import QuorumThread
from metadata.voters.configuration import Configuration, Voter
from raftlog.config import TimingConfig
from raftlog.http2.limits import Http2Limits
from raftlog.model import BrokerId, DirectoryId, Endpoint, QuorumStatus
from raftlog.ports import Link
from tests.support.http.http2_server import until
from tests.support.partitions.manual import ManualClock
from tests.support.quorum.world import identity_of

HEARTBEAT = TimingConfig().quorum_heartbeat_ms / 1000

# --- Time ------------------------------------------------------------------------------------------------------------


class FakeNode:
    """The part of a node that the thread uses between inputs."""

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
async def ticking() -> AsyncIterator[tuple[Beat, FakeNode, ManualClock]]:
    clock, node = ManualClock(monotonic=1000.0), FakeNode()
    made = Beat(node, node.tick, clock, HEARTBEAT)
    yield made, node, clock
    made.end()


def timers() -> int:
    """The number of the loop's timers."""
    loop: Any = asyncio.get_running_loop()
    return sum(not timer.cancelled() for timer in loop._scheduled)


async def test_there_is_one_timer_however_often_the_leader_is_lost(
    ticking: tuple[Beat, FakeNode, ManualClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A voter that finds, on its own timer, that its leader is gone wakes sooner from then on: with the same timer."""
    _, node, clock = ticking
    monkeypatch.setattr(quorum_beat, "TICK_SECONDS", 0.001)
    beat = Beat(node, node.tick, clock, 0.002)
    done = asyncio.Event()

    def flap() -> None:
        node.reaches_leader = not node.reaches_leader
        if node.ticks >= 30:
            done.set()

    node.on_tick = flap
    beat.begin()
    async with asyncio.timeout(10.0):
        await done.wait()
    assert timers() == 1
    beat.end()


async def test_no_input_postpones_a_heartbeat(ticking: tuple[Beat, FakeNode, ManualClock]) -> None:
    beat, node, clock = ticking
    loop = asyncio.get_running_loop()
    node.next_heartbeat = clock.monotonic() + HEARTBEAT
    beat.begin()
    for left in (HEARTBEAT, HEARTBEAT / 2, HEARTBEAT / 100, 0.0, -HEARTBEAT):
        node.next_heartbeat = clock.monotonic() + left
        beat.tick()
        due = beat.wakes_at - loop.time()
        assert due <= max(left, 0.0) + HEARTBEAT_LATE * HEARTBEAT
        assert timers() == 1


async def test_a_node_that_lost_its_leader_wakes_sooner(ticking: tuple[Beat, FakeNode, ManualClock]) -> None:
    beat, node, _ = ticking
    loop = asyncio.get_running_loop()
    beat.begin()
    assert HEARTBEAT < beat.wakes_at - loop.time() <= FOLLOWED_HEARTBEATS * HEARTBEAT
    node.reaches_leader = False
    beat.tick()
    assert beat.wakes_at - loop.time() <= TICK_SECONDS


async def test_a_node_without_peers_and_work_wakes_when_it_has_some(
    ticking: tuple[Beat, FakeNode, ManualClock],
) -> None:
    beat, node, clock = ticking
    loop = asyncio.get_running_loop()
    node.reaches_leader = False
    for due, least, most in ((0.2, 0.15, 0.2), (-1.0, 0.0, TICK_SECONDS), (math.inf, TICK_SECONDS, LOOK_AT_LEAST)):
        node.next_look = clock.monotonic() + due
        beat.tick()
        assert least < beat.due_at - loop.time() <= most


async def test_an_input_without_work_causes_no_tick(
    ticking: tuple[Beat, FakeNode, ManualClock],
) -> None:
    beat, node, _ = ticking
    for wants in (False, True, False):
        node.wants_tick = wants
        before = node.ticks
        beat.on_input()
        await asyncio.sleep(0)
        assert node.ticks == before + wants


# --- Dialed peers ----------------------------------------------------------------------------------------------------


class Nobody:
    """A link handler that ignores everything."""

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


async def test_voters_and_connected_nodes_are_dialed_and_no_others(dialing: Dialing) -> None:
    assert dialed_by(dialing) == (2, 3)
    dialing.on_heard(BrokerId(4), NOWHERE)
    assert dialed_by(dialing) == (2, 3, 4)
    dialing.on_gone(BrokerId(4))
    assert dialed_by(dialing) == (2, 3)


async def test_a_dead_voter_that_was_removed_is_no_longer_dialed(dialing: Dialing) -> None:
    """It was connected, was lost, and is replaced: it is not dialed forever."""
    dialing.on_heard(BrokerId(3), Endpoint("127.0.0.1", 2))
    dialing.on_gone(BrokerId(3))
    assert dialed_by(dialing) == (2, 3)
    assert dialing.address_of(BrokerId(3)) == Endpoint("127.0.0.1", 2), "where it said, for as long as it is a voter"
    dialing.on_configuration(voting(1, 2))
    assert dialed_by(dialing) == (2,)


async def test_a_peer_that_does_not_answer_where_the_log_says_is_dialed_where_it_came_from(dialing: Dialing) -> None:
    came_from = Endpoint("127.0.0.1", 2)
    dialing.on_heard(BrokerId(3), came_from, proven=False)
    assert dialing.address_of(BrokerId(3)) == dialing.trusted_address_of(BrokerId(3)) == NOWHERE
    await until(lambda: dialing.address_of(BrokerId(3)) == came_from)
    dialing.on_registered(BrokerId(3), Endpoint("127.0.0.1", 3))
    assert dialing.address_of(BrokerId(3)) == Endpoint("127.0.0.1", 3)


async def test_a_removed_voter_that_is_connected_is_dialed_until_it_leaves(dialing: Dialing) -> None:
    dialing.on_heard(BrokerId(3), NOWHERE)
    dialing.on_configuration(voting(1, 2))
    assert dialed_by(dialing) == (2, 3)
    dialing.on_gone(BrokerId(3))
    assert dialed_by(dialing) == (2,)


async def test_a_node_without_a_leader_dials_the_voters_that_its_peers_name(dialing: Dialing) -> None:
    """It was offline while voters 2 and 3 were replaced by 5; they are there, and do not lead."""
    dialing.on_told(BrokerId(2), {BrokerId(1): NOWHERE, BrokerId(5): NOWHERE})
    assert dialed_by(dialing) == (2, 3), "with a leader at hand there is nobody to look for"
    dialing.set_lost(True)
    assert dialed_by(dialing) == (2, 3, 5) and dialing.address_of(BrokerId(5)) == NOWHERE
    dialing.on_told(BrokerId(2), {BrokerId(6): NOWHERE})
    assert dialed_by(dialing) == (2, 3, 6)
    dialing.on_heard(BrokerId(6), NOWHERE)
    dialing.set_lost(False)
    assert dialed_by(dialing) == (2, 3, 6), "the leader that was found has dialed back"


# --- Silent links ----------------------------------------------------------------------------------------------------


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


async def test_a_handler_is_notified_which_stream_a_peer_opened_and_closed() -> None:
    ears = Ears()
    streams = AcceptedStreams(ears, asyncio.get_running_loop(), lambda call: call())
    stream = FakeStream()
    accepted = streams.accept(stream)  # type: ignore[arg-type]
    accepted.on_message(stream, memoryview(b"hello"))  # type: ignore[arg-type]
    accepted.on_closed(stream, "over")  # type: ignore[arg-type]
    assert [what for what, _ in ears.heard] == ["opened", "hello", "closed"]
    link = ears.the_one_link()
    assert isinstance(link, StreamLink) and link.peer == BrokerId(2)


async def test_a_handler_is_notified_once_that_a_dialed_stream_is_closed() -> None:
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


async def test_a_hanging_disk_does_not_prevent_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    thread: Any = QuorumThread(
        identity_of(1, 1),
        peers={},
        disk=SimDisk(),
        clock=ManualClock(monotonic=1000.0),
        random=random.Random(1),
        timing=TimingConfig(),
        on_events=lambda index, events: None,
        on_fatal=lambda error: None,
    )
    monkeypatch.setattr(quorum_thread, "HANGING_SECONDS", 0.01)
    synced = threading.Event()
    hanging = thread._thread = threading.Thread(target=synced.wait, args=(30.0,), daemon=True)
    hanging.start()
    async with asyncio.timeout(10.0):
        await thread.close()
        assert hanging.is_alive()
        synced.set()
        await asyncio.to_thread(hanging.join)
