"""Three quorum threads in one process, over real sockets and disks: elections, forwarding, restarts, a stalled broker
loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import shutil
import ssl
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from metadata.commands.cluster import CreateTopic, NoOp, RegisterBroker
from metadata.commands.results import Done, Registered
from metadata.journal.journal import prepare_journal
from metadata.quorum.port import Fate, Outcome
from metadata.quorum.protocol import PROTOCOL_VERSION, Hello, encode
from metadata.quorum_thread import streams as quorum_thread_streams
from metadata.quorum_thread.thread import QUORUM_PATH, QuorumThread
from metadata.records.events import MetadataEvent
from metadata.view import ClusterView
from metadata.voters.identity import QuorumIdentity
from raftlog.config import TimingConfig
from raftlog.errors import DiskDamaged, InvalidRequest
from raftlog.http2.connection import Http2Stream
from raftlog.http2.dialer import connect
from raftlog.http2.limits import Http2Limits
from raftlog.http2.listener import Http2Listener
from raftlog.http2.tls import DialTls, prepare
from raftlog.model import BrokerId, DirectoryId, Endpoint, TopicId
from raftlog.system.clock import SystemClock
from raftlog.system.disk import LocalDisk
from tests.support.clusters.certificates import self_signed
from tests.support.clusters.held_port import HOST, HeldPort
from tests.support.http.http2_server import Recorder

pytestmark = pytest.mark.integration

PATIENCE = 10.0

Tls = tuple[ssl.SSLContext, ssl.SSLContext]
"""For listeners and dialers."""


async def eventually(holds: Any, what: str, seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not in time: {what}"
        await asyncio.sleep(0.01)


class Member:
    """One node of the test's cluster."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.number = BrokerId(number)
        self.identity = QuorumIdentity("test", self.number, DirectoryId(bytes([number]) * 16), cluster.voters)
        folder = cluster.folder / str(number)
        folder.mkdir()
        self.disk = LocalDisk(str(folder))
        prepare_journal(self.disk, self.identity)
        self.port = 0
        self.starts = 0
        self.view = ClusterView()
        self.indexes: list[int] = []
        self.fatal: list[BaseException] = []
        self.quorum: QuorumThread | None = None
        self.listener: Http2Listener | None = None

    async def start(self) -> None:
        """The listener's loop map needs the thread, so the thread is created first."""
        self.starts += 1
        self.view, self.indexes = ClusterView(), []
        peers = {m.number: Endpoint(HOST, m.port) for m in self.cluster.members if m is not self}
        self.quorum = QuorumThread(
            self.identity,
            peers=peers,
            disk=self.disk,
            clock=SystemClock(),
            random=random.Random(),
            timing=TimingConfig(),
            on_events=self._on_events,
            on_fatal=self.fatal.append,
            tls=self._dial if self.cluster.tls else None,
        )
        await self.quorum.start()
        self.listener = Http2Listener(
            {QUORUM_PATH: self.quorum.acceptor},
            loop_for_path={QUORUM_PATH: self.quorum.loop},
            loop_for_name={self.cluster.name: self.quorum.loop} if self.cluster.name else None,
            ssl=self.cluster.tls[0] if self.cluster.tls else None,
        )
        await self.listener.start(HOST, self.port)

    def _dial(self, peer: BrokerId) -> DialTls:
        assert self.cluster.tls is not None
        context = self.cluster.tls[1]
        return DialTls(lambda: context, self.cluster.name)

    def _on_events(self, index: int, events: Sequence[MetadataEvent]) -> None:
        self.indexes.append(index)
        self.view.on_events(index, events)

    async def stop(self) -> None:
        if self.listener is not None:
            await self.listener.close(0.0)
        if self.quorum is not None:
            await self.quorum.close()
        self.listener = self.quorum = None

    def live(self) -> QuorumThread:
        assert self.quorum is not None
        return self.quorum

    async def propose(self, command: Any, timeout: float = 5.0) -> Outcome:
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.live().propose(command, future.set_result, timeout=timeout)
        return await future

    async def register(self) -> Outcome:
        where = Endpoint(HOST, self.port)
        command = RegisterBroker.of(
            self.number,
            self.identity.directory_id,
            self.starts,
            api=where,
            data=where,
            rack="",
            feature_level=1,
            reports=[],
        )
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.live().register(command, future.set_result)
        outcome = await future
        await eventually(lambda: self.view.alive(self.number), "the registered broker is unfenced")
        return outcome

    async def create(self, name: str) -> Outcome:
        """A topic with its one replica here."""
        topic_id = TopicId(hashlib.sha256(name.encode()).digest()[:16])
        return await self.propose(CreateTopic(name, topic_id, ((self.number,),), ()))

    def leads(self) -> bool:
        return self.quorum is not None and self.quorum.status().leader == self.number


class Cluster:
    def __init__(self, folder: Path, size: int, tls: Tls | None = None, name: str | None = None) -> None:
        self.folder = folder
        self.tls = tls
        self.name = name
        """The server name under which the quorum's connections are dialed, and served on its own loop."""
        self.voters = tuple(BrokerId(number) for number in range(1, size + 1))
        self.members: list[Member] = []
        self.members += [Member(self, number) for number in self.voters]

    def leader(self) -> Member | None:
        agreed = {m.live().status().leader for m in self.members if m.quorum is not None}
        leader = next((m for m in self.members if m.leads()), None)
        return leader if len(agreed) == 1 else None

    async def await_leader(self) -> Member:
        await eventually(lambda: self.leader() is not None, "an agreed leader")
        leader = self.leader()
        assert leader is not None
        return leader


@asynccontextmanager
async def running(
    folder: Path, size: int = 3, tls: Tls | None = None, name: str | None = None
) -> AsyncIterator[Cluster]:
    cluster = Cluster(folder, size, tls, name)
    with ExitStack() as ports:
        for member in cluster.members:
            member.port = ports.enter_context(HeldPort()).number
        try:
            for member in cluster.members:
                await member.start()
            yield cluster
        finally:
            for member in cluster.members:
                await member.stop()
    assert [member.fatal for member in cluster.members] == [[] for _ in cluster.members]


async def test_commands_from_any_node_reach_every_view_in_order(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        for member in cluster.members:
            outcome = await member.register()
            assert isinstance(outcome.result, Registered)
        for number, member in enumerate(cluster.members * 3):
            outcome = await member.create(f"topic-{number}")
            assert outcome.fate is Fate.APPLIED and outcome.result == Done(), outcome
            await eventually(
                lambda m=member, o=outcome: m.view.index >= o.index, "the proposer's view shows what it proposed"
            )
        await eventually(lambda: all(len(m.view.topics()) == 9 for m in cluster.members), "nine topics everywhere")
        for member in cluster.members:
            assert member.indexes == list(range(2, member.view.index + 1))
        await eventually(lambda: all(m.view.alive(BrokerId(3)) for m in cluster.members), "broker 3 unfenced")


async def test_a_dead_leader_is_replaced_and_returns(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        for member in cluster.members:
            await member.register()
        leader = await cluster.await_leader()
        outcome = await leader.create("before")
        assert outcome.result == Done()
        await leader.stop()
        others = [member for member in cluster.members if member is not leader]
        outcome = await others[0].create("after")
        assert outcome.fate is Fate.APPLIED
        await eventually(lambda: not others[1].view.alive(leader.number), "the dead broker is fenced")
        await leader.start()
        await eventually(lambda: len(leader.view.topics()) == 2, "the restarted node catches up")
        assert leader.indexes == list(range(leader.indexes[0], leader.view.index + 1))
        await leader.register()
        await eventually(lambda: others[1].view.alive(leader.number), "the restarted broker is unfenced")


@pytest.mark.parametrize("under_tls", [False, True])
async def test_a_stalled_broker_loop_deposes_and_fences_nobody(tmp_path: Path, under_tls: bool) -> None:
    """Every member's callbacks are on this test's loop: it stalls for twice a broker's session."""
    tls, name = (contexts(tmp_path), "quorum.raftlog") if under_tls else (None, None)
    async with running(tmp_path, tls=tls, name=name) as cluster:
        for member in cluster.members:
            await member.register()
        await eventually(lambda: all(m.view.alive(BrokerId(n)) for m in cluster.members for n in (1, 2, 3)), "all live")
        leader = await cluster.await_leader()
        term, index = leader.live().status().term, leader.view.index
        time.sleep(2.0)  # noqa: ASYNC251  the stall is the test
        await asyncio.sleep(0.1)
        assert leader.live().status().term == term
        assert leader.leads()
        assert all(m.view.alive(BrokerId(n)) for m in cluster.members for n in (1, 2, 3))
        assert leader.view.index == index, "nothing was decided meanwhile"


def contexts(folder: Path) -> Tls:
    certificate, key = self_signed("127.0.0.1")
    (folder / "certificate.pem").write_bytes(certificate)
    (folder / "key.pem").write_bytes(key)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    client = ssl.create_default_context(cafile=str(folder / "certificate.pem"))
    client.check_hostname = False
    return prepare(server), prepare(client)


async def test_under_tls_connections_stay_on_the_listeners_loop_and_everything_works(tmp_path: Path) -> None:
    async with running(tmp_path, tls=contexts(tmp_path)) as cluster:
        for member in cluster.members:
            await member.register()
            assert (await member.create(f"topic-{member.number}")).result == Done()
        leader = await cluster.await_leader()
        await leader.stop()
        others = [member for member in cluster.members if member is not leader]
        assert (await others[0].create("after")).result == Done()


async def test_linearizable_reads_and_the_leaders_status(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        leader = await cluster.await_leader()
        follower = next(member for member in cluster.members if member is not leader)
        await leader.register()
        outcome = await leader.create("read-me")
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        follower.live().read_barrier(future.set_result)
        barrier = await future
        assert barrier.fate is Fate.APPLIED and barrier.index > outcome.index
        await eventually(lambda: follower.view.index >= barrier.index, "the view comes to the barrier")
        assert follower.view.topic("read-me") is not None
        asked: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        follower.live().leader_status(asked.set_result)
        status = await asked
        assert status.node_id == leader.number and set(status.match_index) == set(cluster.voters)


async def test_without_a_majority_outcomes_are_never_failed(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        leader = await cluster.await_leader()
        await leader.register()
        others = [member for member in cluster.members if member is not leader]
        for member in others:
            await member.stop()
        outcome = await leader.propose(NoOp(), timeout=1.0)
        assert outcome.fate is Fate.UNKNOWN
        await eventually(lambda: leader.live().status().leader == -1, "it no longer believes that it leads")
        refused = await leader.propose(NoOp(), timeout=0.3)
        assert refused.fate is Fate.REFUSED
        for member in others:
            await member.start()
        outcome = await leader.propose(NoOp())
        assert outcome.fate is Fate.APPLIED


async def test_a_single_voter_serves(tmp_path: Path) -> None:
    async with running(tmp_path, size=1) as cluster:
        (only,) = cluster.members
        assert isinstance((await only.register()).result, Registered)
        began = time.monotonic()
        for number in range(50):
            assert (await only.create(f"t{number}")).result == Done()
        assert time.monotonic() - began < PATIENCE
        await only.stop()
        await only.start()
        await eventually(lambda: len(only.view.topics()) == 50, "all is there after a restart")


async def test_a_folder_that_was_never_initialized_is_refused(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1)
    cluster.members[0].disk.remove("quorum")
    with pytest.raises(InvalidRequest, match="missing"):
        await cluster.members[0].start()
    await cluster.members[0].stop()


async def test_a_disk_that_lost_fsynced_data_is_detected_and_the_others_continue(tmp_path: Path) -> None:
    """Detected at the start, by a journal without its end; or by the leader, if the whole folder went back in time (S9,
    S10)."""
    async with running(tmp_path) as cluster:
        leader = await cluster.await_leader()
        victim = next(member for member in cluster.members if member is not leader)
        folder, old = Path(victim.disk.root, "quorum"), tmp_path / "old"
        await victim.stop()
        shutil.copytree(folder, old)
        await victim.start()
        assert (await victim.propose(NoOp())).fate is Fate.APPLIED
        await victim.stop()
        journal = victim.disk.open("quorum/journal-0000000000.log")
        journal.truncate(journal.size() - 100)
        journal.close()
        with pytest.raises(DiskDamaged, match=rf"(lost its end|damaged at byte).*quorum remove {victim.number}"):
            await victim.start()
        await victim.stop()
        shutil.rmtree(folder)
        old.rename(folder)
        await victim.start()
        await eventually(lambda: leader.live().status().forgetful == (victim.number,), "the leader knows")
        await eventually(lambda: victim.live().status().forgetful == (victim.number,), "it knows itself")
        assert leader.leads() and (await victim.propose(NoOp())).fate is Fate.APPLIED, "it follows"


async def test_strangers_and_garbage_are_dropped_without_any_other_effect(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        leader = await cluster.await_leader()
        term = leader.live().status().term
        for garbage in (b"", b"\x80\x04.", b"\xff" * 2000, bytes(100)):
            ended = asyncio.Event()

            class Stranger:
                def on_message(self, stream: Any, message: memoryview) -> None: ...
                def on_ended(self, stream: Any) -> None: ...
                def on_closed(self, stream: Any, reason: str, ended: asyncio.Event = ended) -> None:
                    ended.set()

            connection = await connect(HOST, leader.port)
            connection.open_stream(QUORUM_PATH, {}, Stranger()).send([garbage])
            async with asyncio.timeout(PATIENCE):
                await ended.wait()
            connection.close()
        await leader.register()
        assert (await leader.create("still-there")).result == Done()
        assert leader.live().status().term == term


async def test_closing_while_the_journal_is_opened_ends_the_thread(tmp_path: Path) -> None:
    opening, may_go_on = threading.Event(), threading.Event()

    class SlowDisk(LocalDisk):
        def read(self, path: str) -> bytes:
            opening.set()
            assert may_go_on.wait(PATIENCE)
            return super().read(path)

    cluster = Cluster(tmp_path, 1)
    (member,) = cluster.members
    member.disk = SlowDisk(str(tmp_path / "1"))
    starting = asyncio.create_task(member.start())
    await asyncio.to_thread(opening.wait, PATIENCE)
    starting.cancel()
    await asyncio.wait([starting])
    closing = asyncio.create_task(member.live().close())
    await asyncio.sleep(0)
    may_go_on.set()
    async with asyncio.timeout(PATIENCE):
        await closing
    assert member.fatal == []


async def test_a_silent_stranger_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection is kept alive by PINGs, but its stream has a deadline. Peers that sent a hello stay."""
    monkeypatch.setattr(quorum_thread_streams, "HELLO_SECONDS", 0.3)
    async with running(tmp_path) as cluster:
        leader = await cluster.await_leader()
        term = leader.live().status().term
        for elsewhere in (False, True):
            gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()

            class Silent:
                def on_message(self, stream: Http2Stream, message: memoryview) -> None: ...
                def on_ended(self, stream: Http2Stream) -> None: ...
                def on_closed(self, stream: Http2Stream, reason: str, gone: Any = gone) -> None:
                    gone.set_result(reason)

            connection = await connect(HOST, leader.port)
            if elsewhere:  # the connection stays on the listener's loop, because its first stream was another one
                connection.open_stream("/nothing", {}, Recorder())
            connection.open_stream(QUORUM_PATH, {}, Silent())
            async with asyncio.timeout(PATIENCE):
                assert "the quorum drops this link" in await gone
                await connection.wait_closed()
        assert leader.leads() and leader.live().status().term == term


async def test_a_stranger_that_accepts_no_message_stops_no_node(tmp_path: Path) -> None:
    """It announces that it accepts messages of one byte, and sends a voter's hello: the answer cannot be sent."""
    async with running(tmp_path, size=2) as cluster:
        await cluster.await_leader()
        first = cluster.members[0]
        connection = await connect(HOST, first.port, limits=Http2Limits(max_message_bytes=1))
        closed = asyncio.Event()

        class Stranger:
            def on_message(self, stream: Http2Stream, message: memoryview) -> None: ...
            def on_ended(self, stream: Http2Stream) -> None: ...
            def on_closed(self, stream: Http2Stream, reason: str) -> None:
                closed.set()

        def opened(stream: Http2Stream) -> None:
            stream.send([encode(Hello(PROTOCOL_VERSION, "test", 2, bytes([2]) * 16))])

        connection.open_stream(QUORUM_PATH, {}, Stranger(), opened)
        async with asyncio.timeout(PATIENCE):
            await closed.wait()
        await cluster.await_leader()
        assert (await first.propose(NoOp())).fate is Fate.APPLIED
