"""One node, from start to stop. The order of the steps matters.

Start: the folder is locked and this start counted. Logs are recovered (blocking, in a worker) while no request can
reach them. The quorum's thread begins to follow the metadata log. The data listener and the API open. Only then does
the broker register, because registering means "dial me".

Stop (SIGTERM, SIGINT): the quorum is asked to move this broker's leaderships away, requests in flight are answered,
listeners close, logs are written out, the quorum's journal is synced, and last, if all of that succeeded, the
clean-shutdown marker is written. A stop is bounded in time: waiting for a disk that does not answer ends with the
process, without a marker. A broken invariant or a lost disk of the quorum stops the node at once, without a marker: the
next start recovers as after a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import structlog

from http_api.app import build_app, start_api
from metadata.quorum.limits import QuorumLimits
from metadata.quorum_thread.thread import QUORUM_PATH, QuorumThread
from metadata.view import BrokerChanged, MetadataEvent
from metadata.voters.identity import QuorumIdentity
from raftlog.broker.changes.proposer import Proposer
from raftlog.broker.explain.asking import EXPLAIN_PATH, FactsAsker, facts_acceptor
from raftlog.broker.explain.history_file import HistoryFile
from raftlog.broker.explain.questions import QuestionAsker
from raftlog.broker.identity import LOCK_FILE, STARTS_FILE, begin_start, mark_clean_shutdown, read_identity
from raftlog.broker.instances.links import OwnerLinks, instances_acceptor
from raftlog.broker.instances.messages import INSTANCES_PATH
from raftlog.broker.loop_stalls import LoopStalls
from raftlog.broker.metrics.node_metrics import NodeMetrics
from raftlog.broker.metrics.process import ProcessSources
from raftlog.broker.peer_faults import PeerFaults
from raftlog.broker.plots.asking import PLOTS_PATH, PlotAsker, plots_acceptor
from raftlog.broker.plots.plots import ClusterPlots
from raftlog.broker.plots.ring import Ring
from raftlog.broker.plots.sampler import PlotSampler
from raftlog.broker.replication_links import REPLICATION_PATH, ReplicationDialer, replication_acceptor
from raftlog.broker.requests.data_listener import data_acceptors
from raftlog.broker.requests.forwarding import FORWARD_PATH, Forwarder
from raftlog.broker.requests.request_counts import RequestCounts
from raftlog.broker.security.access.request_access import OpenAccess
from raftlog.broker.security.administration.first_administrator import (
    AdministratorFile,
    FirstAdministrator,
    read_first_administrator,
)
from raftlog.broker.security.audit.recent import NO_AUDIT
from raftlog.broker.security.exposure import exposure_problems
from raftlog.broker.security.passwords.hashing import PasswordHashing
from raftlog.broker.service import Router, groups_of, transactions_of
from raftlog.broker.tls.node_tls import QUORUM_NAME, NodeTls, RefusalLog
from raftlog.broker.unforeseen import UnforeseenErrors
from raftlog.broker.wiring import Broker
from raftlog.config import NodeConfig
from raftlog.errors import InvalidRequest, InvariantViolation, RaftlogError
from raftlog.http2 import Http2Limits, Http2Listener
from raftlog.http2.limits import DEFAULT_WINDOW
from raftlog.http2.tls import DialTls
from raftlog.logs import configure_logging
from raftlog.model import NO_INCARNATION, BrokerId, Endpoint
from raftlog.ports import File
from raftlog.system.ballast import Ballast
from raftlog.system.ballasted_disk import BallastedDisk
from raftlog.system.clock import SystemClock
from raftlog.system.disk import LocalDisk
from raftlog.system.futures import resolve
from raftlog.system.runtime import LoopScheduler, ThreadWorker
from raftlog.system.thread_times import ThreadTimes

from .addresses import address_problem
from .descriptors import DescriptorBudget, raise_descriptor_limit
from .garbage import BulkCreation, loading
from .security import NodeSecurity

SWITCH_INTERVAL_SECONDS = 0.001
"""Time for which one thread may keep the interpreter when another wants it, in seconds. The quorum's thread waits no
longer than this for a busy broker loop (Python's default is five times as long)."""
HAND_OVER_SECONDS = 1.5
CLOSE_SECONDS = 10.0


class Node:
    """One node of the cluster in this process."""

    def __init__(self, config: NodeConfig, folder: str, stalls: LoopStalls | None = None) -> None:
        """`stalls` measures the running loop, if it is given.

        Raises `InvalidRequest` for settings that cannot be used.
        """
        self._config, self._stalls, self._local = config, stalls, LocalDisk(folder)
        limit = raise_descriptor_limit()
        self._lock: File = self._take_lock(folder)
        self._clock = SystemClock()
        # Before the start is counted, so that unusable settings change nothing.
        self._tls = self._load_tls(folder)
        administrator = read_first_administrator(self._local, folder)
        self._disk = BallastedDisk(self._local, Ballast(self._local, config.disk_ballast_bytes))
        dial = self._tls.dial if self._tls else None
        self.identity = begin_start(self._disk, folder)
        configure_logging(config.log_level, cluster_id=self.identity.cluster_id, node_id=self.identity.node_id)
        self._log = structlog.get_logger()
        self._loop = asyncio.get_running_loop()
        self._unforeseen = UnforeseenErrors(self._clock, self._log)
        self._loop.set_exception_handler(self._unforeseen.hear)
        self._faults = PeerFaults(self._clock, self._log)
        self._listener: Http2Listener | None = None
        self._stopping, self._requests = asyncio.Event(), RequestCounts()
        self._fatal: BaseException | None = None
        self._recovered = False
        """Whether every log was recovered, so that closing them makes them clean."""
        self._random, self._scheduler = random.Random(), LoopScheduler(self._loop)
        self._worker = ThreadWorker(self._loop, config.worker_threads)
        self._log_worker = ThreadWorker(self._loop, config.fsync_threads, name="fsync")
        self._dialer = ReplicationDialer(self.data_address_of, self._random, dial)
        self.broker = Broker(
            self.identity,
            config,
            disk=self._disk,
            clock=self._clock,
            scheduler=self._scheduler,
            worker=self._worker,
            log_worker=self._log_worker,
            random=self._random,
            dialer=self._dialer,
            logger=self._log,
            on_fatal=self.on_fatal,
            on_peer_fault=partial(self._faults.hear, "replication link dropped"),
        )
        self._dialer.attach(self.broker.manager.dialed)
        self.broker.view.subscribe(self._follow_addresses)
        self._quorum = self._new_quorum()
        self._forwarder = Forwarder(self.data_address_of, dial)
        ports = (self._clock, self._scheduler, self._worker)
        self._groups = groups_of(self.broker, self._quorum, self._forwarder, *ports, self._log)
        self._transactions = transactions_of(self.broker, self._quorum, *ports, self._random, self._log)
        self._security = self._new_security(folder)
        self._first_administrator = self._first_administrator_of(administrator)
        self._descriptors = DescriptorBudget(limit, self.broker.manager.replica_count, self._clock, self._log)
        self.metrics = self._new_metrics()
        self._plots = PlotSampler(self.broker, Ring(self._disk), self._scheduler, self._worker, self._log, self._stalls)
        self._owner_links = OwnerLinks(self.data_address_of, dial)
        self.router = self._new_router(dial)
        self._history = HistoryFile(self.broker.history, self._disk, self._scheduler, self._worker, self._log)
        self._api: Any = None
        self.api = self.data = Endpoint("", 0)

    @property
    def workers(self) -> tuple[ThreadWorker, ThreadWorker]:
        """The threads for logs, and those for other blocking work."""
        return self._log_worker, self._worker

    def _new_router(self, dial: Callable[[BrokerId], DialTls] | None) -> Router:
        asker = QuestionAsker(self.data_address_of, dial)
        return Router(
            self.broker,
            self._quorum,
            self._forwarder,
            self._random,
            self._groups,
            self._transactions,
            self._security.doors if self._security else OpenAccess(),
            PasswordHashing(self._worker).hash,
            self.metrics,
            stalls=self._stalls,
            own_problems=self._problems,
            expired=self._tls.expired if self._tls else tuple,
            ask=FactsAsker(asker).ask,
            plots=ClusterPlots(self.identity.node_id, self.broker.view, self._plots, PlotAsker(asker).ask),
            audit=self._security.recent_audit if self._security else NO_AUDIT,
            links=self._owner_links,
        )

    def _new_quorum(self) -> QuorumThread:
        identity = self.identity
        others = {voter: known for voter, known in identity.voters.items() if voter != identity.node_id}
        return QuorumThread(
            QuorumIdentity(
                cluster_id=identity.cluster_id,
                node_id=identity.node_id,
                directory_id=identity.directory_id,
                voters=tuple(sorted(identity.voters)),
                data=self._known_data_address(),
            ),
            peers={voter: self._overridden(voter, known) for voter, known in others.items()},
            disk=self._disk,
            clock=self._clock,
            random=random.Random(),
            timing=self._config.timing,
            on_events=self.broker.on_events,
            on_fatal=self.on_fatal,
            on_leader=self._on_quorum_leader,
            on_fault=partial(self._faults.hear, "quorum_link_dropped"),
            limits=QuorumLimits(snapshot_entries=self._config.metadata_snapshot_entries),
            tls=self._tls.dial_quorum if self._tls else None,
            redirect=self._overridden,
        )

    def _new_security(self, folder: str) -> NodeSecurity | None:
        config, tls = self._config.security, self._tls
        if not config.is_on or tls is None:
            return None
        broker = self.broker
        return NodeSecurity(
            config,
            cluster_id=self.identity.cluster_id,
            node_id=self.identity.node_id,
            folder=folder,
            view=broker.view,
            knows_cluster=lambda: broker.manager.active,
            clock=self._clock,
            now_ms=broker.cluster_clock.stamp_ms,
            names_a_node=tls.names.names_a_node,
            worker=self._worker,
            produce=lambda request, batches: self.router.partitions.produce(request, batches),
        )

    def _first_administrator_of(self, found: AdministratorFile | None) -> FirstAdministrator | None:
        if found is None:
            return None
        proposer = Proposer(self._quorum, self.broker.when_view_reaches)
        return FirstAdministrator(found, self._disk, self.broker.view, proposer, self._log)

    def _new_metrics(self) -> NodeMetrics:
        security, tls = self._security, self._tls
        sources = ProcessSources(
            requests=self._requests,
            sync_seconds=self._local.sync_seconds,
            writer=self.broker.manager.writer,
            room=self.broker.room,
            threads=ThreadTimes(),
            stalls=self._stalls,
            reserved_descriptors=lambda: self._descriptors.reserved,
            data_connections=lambda: 0 if self._listener is None else self._listener.connection_count,
            certificates=dict if tls is None else tls.ends,
            quota_delays=dict if security is None else security.quota_delays,
            failed_logins=dict if security is None else security.refused.copy,
        )
        return NodeMetrics(self.broker, self._quorum, self._scheduler, self._log, self._config.metrics, sources)

    def _problems(self) -> list[str]:
        return [
            *exposure_problems(self._config),
            *(self._first_administrator.problems() if self._first_administrator is not None else ()),
            *(self._security.problems() if self._security is not None else ()),
            *(self._tls.problems() if self._tls is not None else ()),
            *self._descriptors.problems(),
            *self._unforeseen.problems(),
            *self._faults.problems(),
        ]

    # --- Start ---

    async def start(self) -> None:
        """Start and register. Returns when requests are accepted; registration continues until the quorum answers."""
        sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
        self.broker.manager.on_new_replica = BulkCreation().on_new_replica
        with loading():
            await asyncio.to_thread(self.broker.load)
            await asyncio.to_thread(self._history.load)
            await asyncio.to_thread(self._plots.load)
        self._recovered = True
        if self._stopping.is_set():
            return
        await self._quorum.start()
        if self._security is not None:
            self._security.start()
        await self._open_listeners()
        if self._tls is not None:
            self._tls.watch()
        for problem in exposure_problems(self._config):
            self._log.warning("exposed", reason=problem)
        registered = asyncio.Event()
        self.broker.register(self._quorum, self.api, self.data, registered.set)
        self._log.info(
            "started",
            api=str(self.api),
            data=str(self.data),
            start_number=self.identity.start_number,
            clean=self.identity.clean,
        )
        await self._first_of(registered)
        if not registered.is_set():
            return
        # Most objects that are alive now live as long as the node, so the collector need not examine them repeatedly.
        gc.collect()
        gc.freeze()
        if self._stalls is not None:
            self._stalls.begin(self._log.warning)
        self.metrics.start()
        self._plots.start()
        self.router.instance_owner.start()
        self._log.info("registered", incarnation=self.broker.incarnation)
        if self._first_administrator is not None:
            self._first_administrator.start()

    async def _open_listeners(self) -> None:
        config = self._config
        acceptors = data_acceptors(
            self.broker.local,
            self._groups,
            self._transactions.ask,
            lambda: not self._stopping.is_set(),
            self._security,
            self.broker.view,
            takes_plain_nodes=config.tls is not None and config.tls.migrating,
            counts=self._requests,
        )
        acceptors[REPLICATION_PATH] = replication_acceptor(self.broker.manager.accepted)
        acceptors[QUORUM_PATH] = self._quorum.acceptor
        access = self._security.access if self._security else None
        acceptors[INSTANCES_PATH] = instances_acceptor(self.router.instance_owner.serve)
        acceptors[EXPLAIN_PATH] = facts_acceptor(self.router.own_facts, self.broker.view, access)
        acceptors[PLOTS_PATH] = plots_acceptor(self._plots, self.broker.view, access)
        tls = self._tls
        self._listener = Http2Listener(
            tls.guarded(acceptors) if tls else acceptors,
            limits=Http2Limits(unaccepted_window_bytes=DEFAULT_WINDOW),
            node_paths=(REPLICATION_PATH, QUORUM_PATH, FORWARD_PATH, EXPLAIN_PATH, PLOTS_PATH, INSTANCES_PATH),
            ssl=tls.server_context if tls else None,
            accepts_plain=config.accepts_plain,
            loop_for_path={QUORUM_PATH: self._quorum.loop},
            loop_for_name={QUORUM_NAME: self._quorum.loop},
            on_refused=tls.on_refused if tls else RefusalLog(self._clock),
            most_connections=self._descriptors.connections,
            on_short=self._descriptors.on_short,
        )
        listen = config.data.listen
        try:
            data_port = await self._listener.start(listen.host, listen.port)
            advertised = config.data.advertised
            self.data = advertised.endpoint if advertised else Endpoint(listen.host, data_port)
            listen = config.api.listen
            names = {listen.host, config.data.listen.host}
            names |= {a.host for a in (config.api.advertised, config.data.advertised) if a is not None}
            app = build_app(
                self.router,
                allowed_hosts=sorted({*names, *config.allowed_hosts}),
                rest_compat=config.rest_compat,
                allowed_origins=config.allowed_origins,
                clock_ms=self.broker.cluster_clock.stamp_ms,
            )
            self._api, api_port = await self._start_api(app)
            self._listener.exchanges = self._api.accept_exchange
            advertised = config.api.advertised
            self.api = advertised.endpoint if advertised else Endpoint(listen.host, api_port)
        except OSError as error:
            raise InvalidRequest(
                "invalid_config", f"cannot listen at {listen.host}:{listen.port}: {error.strerror or error}"
            ) from None

    async def _start_api(self, app: Any) -> tuple[Any, int]:
        listen, tls = self._config.api.listen, self._tls
        secured = tls is not None and self._config.security.is_on
        return await start_api(
            app,
            listen.host,
            listen.port,
            ssl_context=tls.api_context if tls is not None and secured else None,
            accepts_plain=self._config.security.mode == "optional",
            on_refused=tls.on_api_refused if tls is not None else lambda peer, error: None,
            most_connections=self._descriptors.connections,
            on_short=self._descriptors.on_short,
        )

    def _load_tls(self, folder: str) -> NodeTls | None:
        config = self._config.tls
        if config is None:
            return None
        prepared = read_identity(self._local, folder)
        return NodeTls(config, prepared.cluster_id, BrokerId(prepared.node_id), self._clock)

    def _take_lock(self, folder: str) -> File:
        if not self._local.exists(""):
            raise InvalidRequest("invalid_config", f"{folder} does not exist: run `raftlog server init` first")
        # The lock is a file. In a folder that is refused it would be the first one, and prevent `raftlog server init`.
        node = read_identity(self._local, folder)
        problem = address_problem(
            self._config, node.node_id, node.voter_address, started_before=self._local.exists(STARTS_FILE)
        )
        if problem:
            raise InvalidRequest("invalid_config", problem)
        return self._local.lock(LOCK_FILE)

    # --- Running ---

    def data_address_of(self, peer: BrokerId) -> Endpoint | None:
        """Return the address at which this node dials a broker's data listener."""
        record = self.broker.view.broker(peer)
        known = record.data if record is not None else self.identity.voters.get(peer)
        return None if known is None else self._overridden(peer, known)

    def _known_data_address(self) -> Endpoint | None:
        """Return the address that others should dial, as far as it is known before this node listens."""
        config = self._config.data
        if config.advertised is not None:
            return config.advertised.endpoint
        return Endpoint(config.listen.host, config.listen.port) if config.listen.port else None

    def _overridden(self, peer: BrokerId, known: Endpoint) -> Endpoint:
        override = self._config.peers.get(str(peer))
        return known if override is None else override.data.endpoint

    def _follow_addresses(self, index: int, events: Sequence[MetadataEvent]) -> None:
        if any(isinstance(event, BrokerChanged) for event in events):
            self._dialer.addresses_changed()

    def _on_quorum_leader(self, leader: BrokerId) -> None:
        self.broker.view.controller = leader
        self.broker.history.note_quorum_leader(leader, self.broker.view.index, self.broker.cluster_clock.stamp_ms())
        self._groups.wake()
        self._transactions.wake()

    def stop_soon(self) -> None:
        """Stop: a signal arrived."""
        if not self._stopping.is_set():
            self._log.info("stopping")
        self._stopping.set()

    def on_fatal(self, error: BaseException) -> None:
        """Stop after a fatal error: this process no longer knows what it promised, or has lost its identity."""
        known = isinstance(error, RaftlogError) and not isinstance(error, InvariantViolation)
        self._log.error("must stop" if known else "INVARIANT", error=str(error), kind=type(error).__name__)
        self._fatal = error
        self._stopping.set()

    async def wait(self) -> int:
        """Wait for a signal (returns 0) or a fatal error (returns 1)."""
        await self._stopping.wait()
        return 1 if self._fatal is not None else 0

    async def _first_of(self, event: asyncio.Event) -> None:
        waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(self._stopping.wait())]
        _, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()

    # --- Stop ---

    async def stop(self) -> None:
        """Stop in order. Safe to call whatever was started."""
        self._stopping.set()
        self.metrics.close()
        if self._first_administrator is not None:
            self._first_administrator.stop()
        if self._fatal is None:
            await self._hand_over()
        if self._api is not None:
            await self._api.cleanup()
        closed: asyncio.Future[bool] = self._loop.create_future()
        self.broker.manager.close(lambda clean: resolve(closed, clean), clean=self._fatal is None)
        clean = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                clean = await closed
        if self._tls is not None:
            await self._tls.close()
        await self._dialer.close()
        self.router.instance_owner.close()
        self._owner_links.close()
        self._groups.close()
        self._transactions.close()
        await self._forwarder.close()
        if self._listener is not None:
            await self._listener.close(grace=0.2)
        if self._security is not None:
            await self._security.close()
        await self._quorum.close()
        self.broker.room_watch.close()
        self._plots.close()
        await asyncio.to_thread(self._history.close)
        await asyncio.to_thread(self._log_worker.close)
        await asyncio.to_thread(self._worker.close)
        clean = clean and self._recovered and self._fatal is None and mark_clean_shutdown(self._disk)
        self._log.info("stopped", clean=clean)
        self._lock.close()

    async def _hand_over(self) -> None:
        """Transfer the leaderships before this broker stops, within bounded time even if the quorum is gone."""
        if self.broker.incarnation == NO_INCARNATION:
            return
        handed_over: asyncio.Future[bool] = self._loop.create_future()
        self._quorum.stop_broker(lambda fenced: resolve(handed_over, fenced), timeout=HAND_OVER_SECONDS)
        fenced = False
        # The quorum's thread keeps the deadline, unless a disk call blocks the thread.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * HAND_OVER_SECONDS):
                fenced = await handed_over
        if not fenced:
            self._log.warning("hand_over_failed", reason="the quorum did not answer in time")
