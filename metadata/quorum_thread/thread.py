"""The quorum's own thread: an asyncio loop beside the broker's, with the quorum's connections, ticks and fsyncs.

Votes, appends and broker heartbeats are sent from here, so that neither a busy broker loop nor a slow fsync of a
partition causes an election or a fence. The two threads share nothing but calls. The broker's loop passes in
proposals, and receives events, outcomes and hints through `call_soon_threadsafe`, in exactly the order in which the
quorum produced them. A long batch of events is passed in slices, so that it does not block the broker's loop.

Every node dials the data listeners of the voters and of the nodes that dial it, and sends on those connections only
(`dialing.py`). Messages of its peers arrive on connections that they dialed, which the listener passes to this loop
by their path (`loop_for_path`), or under TLS by their server name. If a connection stays on the listener's loop
nevertheless, its messages are passed on.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from metadata.commands.cluster import RegisterBroker
from metadata.commands.envelope import Command
from metadata.quorum.limits import QuorumLimits
from metadata.quorum.links import QuorumLinks, is_dialable
from metadata.quorum.node import QuorumNode
from metadata.quorum.port import Fate, Outcome
from metadata.quorum.protocol import QUORUM_PATH, VotersChanged
from metadata.records.events import BrokerChanged, BrokerRemoved, MetadataEvent
from metadata.voters.changes import VoterChange
from metadata.voters.configuration import Configuration
from metadata.voters.damage import forgot
from metadata.voters.identity import QuorumIdentity
from raftlog.config import MIB, TimingConfig
from raftlog.errors import InvariantViolation, RaftlogError, RemoteProtocolError
from raftlog.http2.connection import StreamAcceptor
from raftlog.http2.limits import Http2Limits
from raftlog.http2.tls import DialTls
from raftlog.model import NO_BROKER, BrokerId, Endpoint, QuorumStatus
from raftlog.ports import Clock, Disk, Random
from raftlog.system.runtime import call_on

from .beat import Beat
from .bridge import Bridge
from .dialing import Dialing, Redirect
from .streams import AcceptedStreams, StreamLink

__all__ = ["QUORUM_PATH", "QuorumThread"]

HANGING_SECONDS = 60.0
"""Seconds after which opening or closing the journal counts as hanging: its size is bounded, so the disk hangs."""

TELL_FORGOTTEN_SECONDS = 60.0
"""The shortest interval between two log lines that a voter forgot."""

LIMITS = Http2Limits(
    connect_timeout_s=1.0, ping_interval_s=2.0, ping_timeout_s=2.0, stall_timeout_s=3.0, max_queued_bytes=64 * MIB
)
"""The limits of dialed connections: a peer that was cut off is given up within seconds, and dialed again."""


class QuorumThread:
    """The `MetadataQuorum` of one broker process. All methods and callbacks run on the broker's loop."""

    def __init__(
        self,
        identity: QuorumIdentity,
        *,
        peers: Mapping[BrokerId, Endpoint],
        disk: Disk,
        clock: Clock,
        random: Random,
        timing: TimingConfig,
        on_events: Callable[[int, Sequence[MetadataEvent]], None],
        on_fatal: Callable[[BaseException], None],
        on_leader: Callable[[BrokerId], None] | None = None,
        on_fault: Callable[[BrokerId, RemoteProtocolError], None] | None = None,
        limits: QuorumLimits | None = None,
        tls: Callable[[BrokerId], DialTls] | None = None,
        redirect: Redirect = lambda peer, known: known,
    ) -> None:
        """Create the quorum, on the broker's running loop.

        `on_fault` is called with each peer that broke the protocol; without it, such faults are logged. `peers` are the
        addresses of the other initial voters' data listeners, and `tls` returns the TLS settings for
        dialing a peer (None: plaintext). `random` belongs to the thread from now on. `on_fatal` is called once, with
        the reason why this node must stop. `redirect` returns the address to dial instead of the one that a peer
        reports, and is called on the thread.
        """
        missing = set(identity.peers) - set(peers)
        if missing:
            raise InvariantViolation(f"voters {sorted(missing)} have no address")
        self._identity = identity
        self._peers = {peer: peers[peer] for peer in identity.peers}
        self._random = random
        self._tls = tls
        self._redirect = redirect
        self._clock = clock
        self._on_events = on_events
        self._on_fatal = on_fatal
        self._on_fault = on_fault or self._log_fault
        self._bridge = Bridge(asyncio.get_running_loop(), clock)
        self._log = structlog.get_logger()
        self._make_node: Callable[[QuorumLinks], QuorumNode] = lambda links: QuorumNode(
            identity,
            disk=disk,
            clock=clock,
            random=random,
            timing=timing,
            send=links.send,
            on_events=self._hand_over_events,
            on_leader=lambda leader: self._leads(links, leader, on_leader),
            on_configuration=lambda configuration: self._configured(links, configuration),
            on_fault=self._fault,
            limits=limits,
            peers_are_proven=tls is not None,
        )
        self._thread: threading.Thread | None = None
        self._closing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started: asyncio.Future[None] = self._bridge.loop.create_future()
        self._status = QuorumStatus(identity.node_id, NO_BROKER, 0, 0, 0, 0, identity.voters)
        # The following attributes belong to the thread.
        self._node: QuorumNode | None = None
        self._stop = asyncio.Event()
        self._dialing: Dialing | None = None
        self._accepted: AcceptedStreams | None = None
        self._tell_forgotten_at: dict[BrokerId, float] = {}
        self._heartbeat = timing.quorum_heartbeat_ms / 1000
        self._beat: Beat | None = None

    # --- On the broker's loop ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the journal and start the thread. Returns when messages can be received. Raises as `QuorumNode` does."""
        self._thread = threading.Thread(target=self._run, name="raftlog-quorum", daemon=True)
        self._thread.start()
        await asyncio.wait_for(self._started, HANGING_SECONDS)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The thread's loop, for `Http2Listener(loop_for_path={QUORUM_PATH: quorum.loop})`. Available after `start`."""
        assert self._loop is not None, "not started"
        return self._loop

    @property
    def acceptor(self) -> StreamAcceptor:
        """The listener's handler of `QUORUM_PATH`, called on the thread's loop, or under TLS on the listener's."""
        assert self._accepted is not None, "not started"
        return self._accepted.accept

    def register(self, command: RegisterBroker, done: Callable[[Outcome], None]) -> None:
        self._hand_in(lambda node: node.register(command, self._bridge.carry(done)), done)

    def propose(self, command: Command, done: Callable[[Outcome], None], *, timeout: float = 5.0) -> None:
        self._hand_in(lambda node: node.propose(command, self._bridge.carry(done), timeout=timeout), done)

    def read_barrier(self, done: Callable[[Outcome], None], *, timeout: float = 5.0) -> None:
        self._hand_in(lambda node: node.read_barrier(self._bridge.carry(done), timeout=timeout), done)

    def leader_status(self, done: Callable[[QuorumStatus], None], *, timeout: float = 1.0) -> None:

        def stopped(outcome: Outcome) -> None:
            done(self._status)

        self._hand_in(lambda node: node.leader_status(self._bridge.carry(done), timeout=timeout), stopped)

    def stop_broker(self, done: Callable[[bool], None], *, timeout: float = 5.0) -> None:
        self._hand_in(lambda node: node.stop_broker(self._bridge.carry(done), timeout=timeout), lambda _: done(False))

    def change_voters(
        self, change: VoterChange, done: Callable[[VotersChanged], None], *, plan: bool = False, timeout: float = 10.0
    ) -> None:

        def stopped(outcome: Outcome) -> None:
            done(VotersChanged(0, "refused", code="shutting_down", detail=outcome.detail))

        self._hand_in(
            lambda node: node.change_voters(change, self._bridge.carry(done), plan=plan, timeout=timeout), stopped
        )

    def status(self) -> QuorumStatus:
        """Return the status as of this node's last tick."""
        return self._status

    async def close(self) -> None:
        """Stop the thread, close its connections and sync the journal; if its disk hangs, leave the thread alone.

        Waiting proposals end as unknown.
        """
        thread, self._thread = self._thread, None
        self._closing = True
        if thread is not None:
            self._call(self._stop.set)
            await asyncio.to_thread(thread.join, HANGING_SECONDS)
            if thread.is_alive():
                self._log.error("quorum_thread_hangs", seconds=HANGING_SECONDS)

    def _hand_in(self, call: Callable[[QuorumNode], None], stopped: Callable[[Outcome], None]) -> None:
        """Call this with the node on the thread; if the thread has stopped, call `stopped` instead."""

        def refuse() -> None:
            stopped(Outcome(Fate.REFUSED, detail="the quorum of this node has stopped"))

        def on_thread() -> None:
            if self._node is None:
                self._bridge.post(refuse)
                self._bridge.flush()
            else:
                self._do(call)

        if not self._call(on_thread):
            self._bridge.loop.call_soon(refuse)

    def _call(self, callback: Callable[[], None]) -> bool:
        """Schedule a call on the thread's loop. Returns False if the loop has ended or never began."""
        return self._loop is not None and call_on(self._loop, callback)

    # --- On the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001  reported here or nowhere: this node must stop
            self._report(error)

    async def _main(self) -> None:
        links = QuorumLinks(
            self._identity,
            on_dropped=self._fault,
            on_heard=self._heard,
            on_gone=lambda peer: self._with_dialing(lambda dialing: dialing.on_gone(peer)),
            on_told=lambda peer, voters: self._with_dialing(lambda dialing: dialing.on_told(peer, voters)),
            source_of=lambda link: link.source if isinstance(link, StreamLink) else "",
            trusted_address_of=self._trusted_address_of,
        )
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._unforeseen)
        self._accepted = AcceptedStreams(links.accepted, loop, self._do_guarded)
        try:
            node = self._make_node(links)
        except BaseException as error:
            self._bridge.call(self._refuse_start, error)
            if not isinstance(error, RaftlogError):
                raise
            return
        links.attach(node)
        self._node = node
        self._beat = Beat(node, self._tick, self._clock, self._heartbeat)
        self._dialing = Dialing(
            self._identity.node_id,
            self._peers,
            handler=links.dialed,
            guard=self._do_guarded,
            random=self._random,
            limits=LIMITS,
            tls=self._tls,
            redirect=self._redirect,
        )
        self._dialing.start()
        self._loop = loop
        if self._closing:
            self._stop.set()  # the request to close came before the loop existed
        self._bridge.call(self._say_started)
        try:
            self._beat.begin()
            await self._stop.wait()
        finally:
            await self._end(node)

    def _with_dialing(self, call: Callable[[Dialing], None]) -> None:
        if self._dialing is not None and not self._stop.is_set():
            call(self._dialing)

    def _heard(self, peer: BrokerId, endpoint: Endpoint | None, *, proven: bool) -> None:
        self._with_dialing(lambda dialing: dialing.on_heard(peer, endpoint, proven=proven))

    def _trusted_address_of(self, peer: BrokerId) -> Endpoint | None:
        return None if self._dialing is None else self._dialing.trusted_address_of(peer)

    def _hand_over_events(self, index: int, events: Sequence[MetadataEvent]) -> None:
        for event in events:
            if isinstance(event, BrokerChanged):
                self._registered(event.record.broker_id, event.record.data)
            elif isinstance(event, BrokerRemoved):
                self._registered(event.broker_id, None)
        self._bridge.post(self._events, index, events)

    def _registered(self, broker: BrokerId, data: Endpoint | None) -> None:
        usable = data if data is not None and data.host and is_dialable(data.host) else None
        if broker != self._identity.node_id:
            self._with_dialing(lambda dialing: dialing.on_registered(broker, usable))

    def _configured(self, links: QuorumLinks, configuration: Configuration) -> None:
        self._log.info("quorum_voters", voters=list(configuration.node_ids))
        links.set_voters(configuration)
        if self._dialing is not None:
            self._dialing.on_configuration(configuration)

    def _do(self, call: Callable[[QuorumNode], None]) -> None:
        node = self._node
        assert node is not None
        self._do_guarded(lambda: call(node))

    def _do_guarded(self, call: Callable[[], None]) -> None:
        """Stage an input now; a tick at the end of this turn of the loop carries out all inputs, if any needs it."""
        if self._node is None:
            return
        try:
            call()
        except RemoteProtocolError:
            raise
        except BaseException as error:  # noqa: BLE001  whatever it is, the node's state is in doubt
            self._fail(error)
            return
        if self._beat is not None:
            self._beat.on_input()

    def _tick(self) -> None:
        node = self._node
        assert node is not None
        try:
            node.tick()
            self._take_status(node.status())
            if self._dialing is not None:
                self._dialing.set_lost(not node.reaches_leader)
        except BaseException as error:  # noqa: BLE001  whatever it is, the node's state is in doubt
            self._fail(error)
        self._bridge.flush()

    def _unforeseen(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Process an exception that no callback or task of this loop caught.

        The end of a connection, or a peer's fault, ends only the connection. After any other exception the node's
        state is in doubt, or a peer may no longer be dialed, so the node stops.
        """
        error = context.get("exception")
        message = str(context.get("message", "no description"))
        self._log.error("unforeseen", message=message, exc_info=error)
        of_connection = isinstance(error, OSError) and "transport" in context
        if error is not None and not of_connection and not isinstance(error, RemoteProtocolError):
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Report the error and stop: nothing leaves this node any more."""
        self._report(error)
        self._stop.set()
        if self._beat is not None:
            self._beat.end()

    def _report(self, error: BaseException) -> None:
        self._bridge.call(self._fatal, error)

    def _take_status(self, status: QuorumStatus) -> None:
        for voter in set(status.forgetful) - set(self._status.forgetful):
            if self._clock.monotonic() >= self._tell_forgotten_at.get(voter, 0.0):
                self._tell_forgotten_at[voter] = self._clock.monotonic() + TELL_FORGOTTEN_SECONDS
                self._log.error("quorum_voter_forgot", voter=voter, detail=forgot(voter))
        self._status = status

    async def _end(self, node: QuorumNode) -> None:
        self._node = None
        if self._beat is not None:
            self._beat.end()
        if self._dialing is not None:
            await self._dialing.close()
        if self._accepted is not None:
            await self._accepted.close()
        node.close()
        self._bridge.flush()

    def _fault(self, peer: BrokerId, error: RemoteProtocolError) -> None:
        self._bridge.post(self._on_fault, peer, error)

    def _leads(self, links: QuorumLinks, leader: BrokerId, told: Callable[[BrokerId], None] | None) -> None:
        self._log.info("quorum_leader", leader=leader)
        links.set_leader(leader)
        if told is not None:
            self._bridge.post(told, leader)

    # --- Back on the broker's loop -----------------------------------------------------------------------------------

    def _log_fault(self, peer: BrokerId, error: RemoteProtocolError) -> None:
        self._log.warning("quorum_link_dropped", peer=peer, detail=error.detail)

    def _say_started(self) -> None:
        if not self._started.done():
            self._started.set_result(None)

    def _refuse_start(self, error: BaseException) -> None:
        if not self._started.done():
            self._started.set_exception(error)

    def _events(self, index: int, events: Sequence[MetadataEvent]) -> None:
        try:
            self._on_events(index, events)
        except BaseException as error:
            # Later events would be applied to a view with a gap.
            self._on_events = lambda index, events: None
            self._fatal(error)
            raise

    def _fatal(self, error: BaseException) -> None:
        if not self._started.done():
            self._started.set_exception(error)
        else:
            told, self._on_fatal = self._on_fatal, lambda _: None
            told(error)
