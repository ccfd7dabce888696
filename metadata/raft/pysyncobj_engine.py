"""The `Engine` on pysyncobj: the pinned version, the injected clock and randomness, and the order of sync and send.

pysyncobj reads its clock, its randomness and its journal factory from module globals. They are replaced, once, by
dispatchers that use the ports of the engine whose call is running on this thread, and pysyncobj's originals if no
engine's call is. Many engines can therefore live in one process (in a simulator or on threads), each with its own
time.

`ready` syncs the journal and only then hands out what was queued: messages, committed entries, lost proposals. No
caller can send a promise that is not durable, because no caller holds it.

Private methods are overridden, so the version is pinned, and the source of every method that is overridden or relied
on is compared with the source that this was written against. A different pysyncobj is a different state machine, and
the node refuses to start on it.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import math
from collections.abc import Iterator, Mapping

from pysyncobj.config import SyncObjConf
from pysyncobj.syncobj import SyncObj
from pysyncobj.version import VERSION

from metadata.journal.journal import Journal
from metadata.journal.snapshot_file import Snapshot, load_snapshot, reconcile, save_in_steps, save_snapshot
from metadata.voters.changes import ObserverState, QuorumFacts
from metadata.voters.configuration import Configuration, encode_configuration
from metadata.voters.identity import QuorumIdentity
from raftlog.config import TimingConfig
from raftlog.errors import InvariantViolation, RemoteProtocolError, ResourceShortage
from raftlog.model import NO_BROKER, BrokerId, DirectoryId, Endpoint, QuorumStatus
from raftlog.ports import Disk, Random

from . import messages
from .engine import Ready, VoterFacts
from .forgotten import Forgotten
from .membership import Membership
from .pysyncobj_node import EngineChecks, _SyncObj
from .pysyncobj_ports import Active, Outbox, Ports, PysyncobjJournal, install_dispatchers, node_of
from .replication import TRANSFER_BYTES

PINNED_VERSION = "0.3.17"

TRAILING_ENTRIES = 1024
TRAILING_BYTES = 1024 * 1024
"""The part of the log that is kept before a snapshot, in entries and in bytes, so that a voter that lags a little
needs no snapshot."""


LEADER = 2
"""pysyncobj's number for a voter that leads."""

WITNESS_AFTER = 0.1
"""Idle seconds after which the journal's last group gets its witness."""

PINNED_SOURCES: dict[str, str] = {
    # Overridden.
    "_SyncObj__connectedToAnyone": "acd40e9e3ac6c4cc",
    "_SyncObj__setCurrentTerm": "0ad5bf456ac06bd3",
    "_SyncObj__setState": "2c1f239f7bd79b39",
    "_SyncObj__onBecomeLeader": "5a3fd97bc17dc1cf",
    "_SyncObj__onMessageReceived": "ddfe34b6c0282179",
    "_SyncObj__sendAppendEntries": "9cb9073128c392fa",
    "_SyncObj__onNodeDisconnected": "a81c0475ba2218cc",
    "_SyncObj__applyLogEntries": "073db677773b5a2d",
    "_SyncObj__doApplyCommand": "1ea7aa506e950d0a",
    "_SyncObj__tryLogCompaction": "c2f8a0ec14cc7312",
    "_SyncObj__sendNextNodeIdx": "68aaeefc267b8896",
    "_SyncObj__loadDumpFile": "ec66e83905de703b",
    "_SyncObj__parseChangeClusterRequest": "b2d5d695b12e592f",
    "_SyncObj__changeCluster": "66b42884f9d2dbd1",
    "_SyncObj__doChangeCluster": "247d4d4101b8cd3c",
    "_SyncObj__onNodeConnected": "2655afb481b4c69b",
    "_checkCommandsToApply": "a386a8079361d204",
    # Relied on as they are.
    "__init__": "09df12cd7fd7d727",
    "_onTick": "cc9eb08232d005ba",
    "doTick": "bef78c2ba06d784b",
    "_applyCommand": "827f207d515b2d64",
    "_SyncObj__generateRaftTimeout": "92ed37d3620e781a",
    "_SyncObj__getCurrentLogIndex": "e5af22ca246686bd",
    "_SyncObj__getCurrentLogTerm": "1cb8867e6a13d397",
    "_SyncObj__getEntries": "e29c4b33293b2101",
    "_SyncObj__callErrCallback": "6037c14ef64c2763",
    "_SyncObj__onLeaderChanged": "53b7685e1d897887",
    "_SyncObj__onSetCodeVersion": "17b050edb193c853",
    "_getLeader": "90e3b8391a79e851",
}
"""Method → SHA-256 of its source, first 16 hex digits."""


@functools.cache
def source_hash(method: str) -> str:
    """Return the hash of a method's source in the installed pysyncobj.

    Raises `InvariantViolation` if the method does not exist or its source is missing.
    """
    try:
        source = inspect.getsource(getattr(SyncObj, method))
    except (AttributeError, OSError, TypeError) as error:
        raise InvariantViolation(f"pysyncobj's {method} cannot be inspected: {error}") from None
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def check_pysyncobj() -> None:
    """Raise `InvariantViolation` unless the installed pysyncobj is the one that the overrides were written for."""
    if VERSION != PINNED_VERSION:
        raise InvariantViolation(
            f"pysyncobj {VERSION} is installed, raftlog overrides private methods of exactly {PINNED_VERSION}"
        )
    changed = [method for method, pinned in PINNED_SOURCES.items() if source_hash(method) != pinned]
    if changed:
        raise InvariantViolation(
            f"this pysyncobj calls itself {VERSION}, but its source differs in {', '.join(changed)}: raftlog does not "
            "start on an engine that it was not written for; install the pinned version"
        )


# --- pysyncobj's configuration ----------------------------------------------------------------------------------------


def configuration(timing: TimingConfig) -> SyncObjConf:
    """Return pysyncobj's settings: no threads, no files, no forks, no membership changes, no batching by time."""
    shortest, longest = timing.election_timeout_min_ms / 1000, timing.election_timeout_max_ms / 1000
    return SyncObjConf(
        autoTick=False,
        commandsWaitLeader=False,
        dynamicMembershipChange=False,
        appendEntriesUseBatch=True,
        appendEntriesPeriod=shortest / 4,
        raftMinTimeout=shortest,
        raftMaxTimeout=longest,
        connectionTimeout=max(longest, 3.5),
        leaderFallbackTimeout=longest,
        commandsQueueSize=100_000,
        useFork=False,
        fullDumpFile=None,
        journalFile=None,
    )


class PySyncObjEngine:
    """The `Engine` of one node, on pysyncobj."""

    def __init__(
        self,
        identity: QuorumIdentity,
        *,
        disk: Disk,
        now: float,
        random: Random,
        timing: TimingConfig,
        checks: EngineChecks | None = None,
    ) -> None:
        """Open journal and snapshot. `now` is monotonic, in seconds.

        Raises `InvalidRequest`, `DiskDamaged`, `InvariantViolation` or `DiskFailed` if this voter must not start.
        """
        check_pysyncobj()
        install_dispatchers()
        self._disk = disk
        self._identity = identity
        self._ports = Ports(now, random)
        self._active = Active(self._ports)
        self.journal = Journal(disk, identity)
        self._quiet_since = now
        self._status_of: object = None
        self._status = QuorumStatus(identity.node_id, NO_BROKER, 0, 0, 0, 0, identity.voters)
        snapshot = load_snapshot(disk, identity)
        reconcile(self.journal, snapshot)
        self._outbox = Outbox()
        self._timing = timing
        self._forgotten = Forgotten(disk)
        self.membership = self._outbox.membership = Membership(identity, self.journal)
        self._ports.journal = PysyncobjJournal(self.journal, snapshot.index if snapshot else self.journal.base_index)
        with self._active:
            self._core = _SyncObj(
                node_of(int(identity.node_id)),
                self.membership,
                configuration(timing),
                self._outbox,
                heartbeat=timing.quorum_heartbeat_ms / 1000,
                journal=self.journal,
                snapshot=snapshot,
                save_snapshot=lambda taken: save_snapshot(disk, identity, taken),
                forgotten=self._forgotten,
                now=lambda: self._ports.now,
                checks=checks or EngineChecks(),
            )

    # --- Engine ---

    def propose(self, command: bytes, token: int) -> None:
        with self._active:
            self._core.propose(command, token)

    def step(self, sender: BrokerId, message: bytes) -> bool:
        if sender == self._identity.node_id:
            raise RemoteProtocolError(f"node {sender} is this node")
        decoded = messages.decode(message)
        with self._active:
            self._outbox._onMessageReceived(node_of(int(sender)), decoded)
        core = self._core
        if not isinstance(decoded, messages.AppendReply) or core.replication is None:
            return True
        return core.may_commit_more or core.replication.stirred

    def tick(self, now: float) -> None:
        self._ports.now = max(now, self._ports.now)
        with self._active:
            # Proposals first: a single voter commits in the same tick what it appends.
            self._core._checkCommandsToApply()
            self._core.do_what_is_due()
            self._core.replicate()
        if self.journal.dirty:
            self._quiet_since = self._ports.now
        elif self.journal.unwitnessed and self._ports.now - self._quiet_since >= WITNESS_AFTER:
            self._mark()

    def _mark(self) -> None:
        try:
            self.journal.mark()
        except ResourceShortage:
            self._quiet_since = self._ports.now  # retry later: nothing waits for it

    def peer_connected(self, peer: BrokerId) -> None:
        with self._active:
            self._outbox._onNodeConnected(node_of(int(peer)))

    def peer_disconnected(self, peer: BrokerId) -> None:
        with self._active:
            self._outbox._onNodeDisconnected(node_of(int(peer)))

    def meet(self, peer: BrokerId, directory_id: DirectoryId, endpoint: Endpoint | None) -> None:
        with self._active:
            if self.membership.meet(peer, directory_id, endpoint):
                self._core.begin_anew_with(node_of(int(peer)))

    def distrust(self, peer: BrokerId, distrusted: bool) -> None:
        """Set whether a voter's votes and acknowledgements are ignored while no configuration names its disk.

        They are ignored if the voter came with another disk before (S9).
        """
        with self._active:
            if self.membership.distrust(peer, distrusted):
                self._core.begin_anew_with(node_of(int(peer)))

    def forget(self, peer: BrokerId) -> None:
        """Forget the peer's disk and acknowledgements. The outgoing link may outlive the incoming one."""
        with self._active:
            if self.membership.forget(peer):
                self._core.begin_anew_with(node_of(int(peer)))

    def ready(self) -> Ready:
        self.journal.sync()
        ready = Ready(self._outbox.take(), self._core.applied, list(self._core.lost))
        self._core.applied = []
        self._core.lost.clear()
        return ready

    @property
    def received_state(self) -> tuple[BrokerId, bytes] | None:
        """The state of a leader's complete snapshot that waits for `take_received`, and the leader's node."""
        if self._core.received is None:
            return None
        node, snapshot = self._core.received
        return BrokerId(node.id), snapshot.state

    def take_received(self, *, readable: bool) -> None:
        """Install the received snapshot if its state is `readable`; otherwise never install it."""
        with self._active:
            self._core.take_received(readable=readable)

    def hold_back(self, held_back: bool) -> None:
        self._core.held_back = held_back

    def compact(self, state: bytes, applied_index: int) -> Iterator[None]:
        if (term := self.journal.term_at(applied_index)) is None or applied_index > self._core.raftLastApplied:
            raise InvariantViolation(f"snapshot at {applied_index}, but applied is {self._core.raftLastApplied}")
        self.journal.sync()
        configuration = encode_configuration(self.journal.configuration_at(applied_index))
        snapshot = Snapshot.of(applied_index, term, state, configuration)
        for _ in save_in_steps(self._disk, self._identity, snapshot, save_snapshot):
            yield
            if (self._core.snapshot or snapshot).index > applied_index:
                return  # the leader has sent a newer one in the meantime
        self._core.snapshot = snapshot
        base = self.journal.trailing_base(applied_index, TRAILING_ENTRIES, TRAILING_BYTES)
        sent = self._core.oldest_on_its_way(self._ports.now - self._timing.election_timeout_max_ms / 1000)
        if sent is not None and sent < base:
            base = min(base, self.journal.trailing_base(applied_index, applied_index - sent, TRANSFER_BYTES))
        self.journal.drop_before(base)

    def status(self) -> QuorumStatus:
        core = self._core
        progress = core.replication.progress if core.replication is not None else {}
        match = {BrokerId(peer): its.match for peer, its in progress.items()}
        if core.replication is not None:
            match[self._identity.node_id] = self.journal.last_index
        indexes = (core.raftCurrentTerm, core.raftCommitIndex, core.raftLastApplied, self.journal.last_index)
        voters = self.membership.configuration
        forgetful = self._forgetful()
        known = (self.leader, indexes, voters, match, forgetful)
        if known != self._status_of:
            self._status_of = known
            self._status = QuorumStatus(
                node_id=self._identity.node_id,
                leader=self.leader,
                term=core.raftCurrentTerm,
                commit_index=core.raftCommitIndex,
                applied_index=core.raftLastApplied,
                last_index=self.journal.last_index,
                voters=voters.node_ids,
                match_index=match,
                forgetful=forgetful,
            )
        return self._status

    def _forgetful(self) -> tuple[BrokerId, ...]:
        core = self._core
        told = core.forgetful if core.replication is not None else set()
        if not (told or self._forgotten.it_did):
            return ()
        return tuple(sorted({*map(BrokerId, told), *([self._identity.node_id] if self._forgotten.it_did else [])}))

    # --- Membership ---

    @property
    def configuration(self) -> Configuration:
        return self.membership.configuration

    @property
    def base_configuration(self) -> Configuration:
        return self.journal.configurations[0][1]

    def facts(self) -> QuorumFacts:
        core = self._core
        membership = self.membership
        recently = self._ports.now - self._timing.election_timeout_max_ms / 1000
        progress = core.replication.progress if core.replication is not None else {}
        answering = {peer for peer in progress if core.answered_since(peer, recently)}
        observers = {}
        for peer in sorted(set(progress) - set(membership.others)):
            met = membership.as_voter(peer)
            if met is not None:
                observers[peer] = ObserverState(met, progress[peer].match, peer in answering)
        own = membership.as_voter(self._identity.node_id)
        assert own is not None
        return QuorumFacts(
            leader=own,
            may_change=core.may_change(),
            configuration=membership.configuration,
            pinned=membership.pinned(),
            answering=frozenset(peer for peer in answering - core.forgetful if membership.counts(peer))
            | {int(own.node_id)},
            forgetful=frozenset(core.forgetful),
            observers=observers,
            commit_index=core.raftCommitIndex,
            young=core.led_since > recently,
        )

    def append_configuration(self, configuration: Configuration, token: int) -> None:
        with self._active:
            self._core.append_configuration(configuration, token)

    def resign(self) -> None:
        with self._active:
            self._core.resign()

    @property
    def is_leader(self) -> bool:
        return self._core.leads_and_is_current()

    @property
    def leader(self) -> BrokerId:
        leader = self._core._getLeader()
        return NO_BROKER if leader is None else BrokerId(leader.id)

    @property
    def term(self) -> int:
        return int(self._core.raftCurrentTerm)

    @property
    def next_heartbeat(self) -> float:
        return self._core.next_due() if self._core.replication is not None else math.inf

    @property
    def next_due(self) -> float:
        if self.journal.dirty or self._outbox:
            return -math.inf
        witness_due = self._quiet_since + WITNESS_AFTER if self.journal.unwitnessed else math.inf
        return min(self._core.next_due(), witness_due)

    @property
    def forgot(self) -> bool:
        """Whether this voter knows that it lost entries that it had acknowledged (S9)."""
        return self._forgotten.it_did

    @property
    def snapshot_index(self) -> int:
        """The last entry that the stored snapshot covers; 0 without one."""
        return 0 if self._core.snapshot is None else int(self._core.snapshot.index)

    @property
    def incoming_bytes(self) -> int:
        """Bytes of a snapshot that is being received."""
        return self._core.incoming.held_bytes

    def voter_facts(self) -> VoterFacts:
        """Return the Raft state. Cheap: a simulator takes it after every event."""
        inside, journal = self._core.__dict__, self.journal
        entries = journal.entries
        _, last_index, last_term = entries[-1]
        return VoterFacts(
            inside["_SyncObj__raftCurrentTerm"],
            inside["_SyncObj__votedForNodeId"],
            inside["_SyncObj__raftState"] == LEADER,
            inside["_SyncObj__raftCommitIndex"],
            inside["_SyncObj__raftLastApplied"],
            last_index,
            last_term,
            entries[0][1],
            journal.dirty,
        )

    def transfer_facts(self) -> Mapping[int, int]:
        """Return the peers that are being sent a snapshot, with the number of its bytes that each holds, for tests."""
        progress = self._core.replication.progress if self._core.replication is not None else {}
        return {peer: its.snapshot.offset for peer, its in progress.items() if its.snapshot is not None}

    @property
    def journal_bytes(self) -> int:
        """The size of the journal in bytes; a compaction shrinks it."""
        return self.journal.size_bytes

    def check_invariants(self) -> None:
        """Check the invariants that hold between any two calls. Raises `InvariantViolation`."""
        journal = self.journal
        core = self._core
        snapshot_index = core.snapshot.index if core.snapshot is not None else journal.base_index
        base = journal.base_index
        last = journal.last_index
        applied = core.raftLastApplied
        committed = core.raftCommitIndex
        if not base <= snapshot_index <= applied <= committed <= last:
            order = (base, snapshot_index, applied, committed, last)
            raise InvariantViolation(f"base, snapshot, applied, committed, last: {order}")
        if (core.raftCurrentTerm, journal.vote) < (journal.term, journal.vote) or journal.last_term > journal.term:
            raise InvariantViolation(f"term {core.raftCurrentTerm}, journal {journal.term}, log {journal.last_term}")
        for peer, progress in core.replication.progress.items() if core.replication else ():
            if not 0 <= progress.match < progress.next or progress.match > last:
                raise InvariantViolation(f"voter {peer}: {progress}, last index {last}")

    def close(self, *, sync: bool = True) -> None:
        """Close the files. Without `sync` nothing staged is written, because it may be wrong."""
        self.journal.close(sync=sync)
