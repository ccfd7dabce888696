"""The brokers of a story: real partition managers and logs, a real cluster image, and links that wait."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest

from jepsen_like.simulator.world.disk import Inode, SimDisk
from metadata.commands.cluster import AlterIsr, DeleteTopic
from metadata.commands.envelope import Command
from metadata.commands.fields import IsrMember
from metadata.commands.results import IsrAltered, Refused, Registered
from metadata.commands.transactions import TRANSACTIONS_FEATURE_LEVEL
from metadata.quorum.port import Outcome
from metadata.view import ClusterView
from partitions.driver.ports import TransactionPorts
from partitions.manager import PartitionManager
from partitions.replica.effects import Fate, IsrProposal
from raftlog.broker.changes.transaction_reports import TransactionReports
from raftlog.config import TimingConfig
from raftlog.model import NO_EPOCH, BrokerId, Offset, ReplicaReport
from raftlog.records.batch import RecordBatch, split_batches
from tests.support.metadata.cluster import TP
from tests.support.partitions.manual import ManualScheduler
from tests.support.partitions.right_clock import RightClock

from .story_ports import LifeScheduler, LogQuorum, NothingSurvives, StoryLogger, StoryWorker
from .wires import StoryLink, connect, describe

LIMIT = 10_000


@dataclass
class Node:
    """One broker: a disk that outlives its processes, and at most one running process."""

    number: int
    disk: SimDisk = field(default_factory=SimDisk)
    manager: PartitionManager | None = None
    worker: StoryWorker | None = None
    read: int = 0
    """The position in the quorum's log that this process has read."""
    wanted: dict[int, None] = field(default_factory=dict)
    links: dict[int, StoryLink] = field(default_factory=dict)
    view: ClusterView = field(default_factory=ClusterView)
    """The incarnation of this process."""
    until_read: list[tuple[int, Callable[[], None]]] = field(default_factory=list)
    """Actions that this process takes when it has read up to an index."""

    def when_read(self, index: int, callback: Callable[[], None]) -> None:
        if index <= self.read:
            callback()
        else:
            self.until_read.append((index, callback))


class StoryDialer:
    def __init__(self, world: World, node: Node) -> None:
        self._world = world
        self._node = node

    def connect(self, peer: BrokerId) -> None:
        self._node.wanted[peer] = None
        self._world.scheduler.call_soon(self._world.dial_all)

    def disconnect(self, peer: BrokerId) -> None:
        self._node.wanted.pop(peer, None)
        link = self._node.links.pop(peer, None)
        if link is not None:
            link.close()


class World:
    """All brokers, the links between them, and the quorum."""

    def __init__(self) -> None:
        self.scheduler = ManualScheduler()
        self.quorum: LogQuorum
        self.nodes: dict[int, Node] = {}
        self.proposals: dict[str, tuple[IsrProposal, Callable[[Fate], None]]] = {}
        self._said: list[str] = []
        self._proposed = 0
        self.reports: dict[str, tuple[int, Command, Callable[[Outcome], None]]] = {}
        self._reported = 0
        self.committed: dict[int, tuple[int, list[bytes | None]]] = {}

    def say(self, line: str) -> None:
        self._said.append(line)

    # --- The quorum ---

    def do_fence(self, number: str) -> None:
        self.quorum.fence(int(number))
        self.say_record()

    def do_unfence(self, number: str) -> None:
        self.quorum.unfence(int(number))
        self.say_record()

    def do_elect(self, number: str, recovery: str = "") -> None:
        refusal = self.quorum.elect(int(number), recovery=bool(recovery))
        self.say(f"refused: {refusal}") if refusal else self.say_record()

    def do_metadata(self, *numbers: str, count: str = "", snapshot: str = "") -> None:
        """Let these brokers (or all running ones) read the quorum's log, to its end or a number of entries further;
        with `snapshot` the missing entries arrive in one step, as from a snapshot of the quorum."""
        for node in self.chosen(numbers):
            assert node.manager is not None
            end = min(len(self.quorum.log), node.read + int(count)) if count else len(self.quorum.log)
            if snapshot:
                self._see(node, end)
                node.manager.on_metadata([change for entry in self.quorum.log[node.read : end] for change in entry])
                node.read = end
                self._have_read(node)
            while node.read < end:
                self._see(node, node.read + 1)
                node.read += 1
                if self.quorum.log[node.read - 1]:
                    node.manager.on_metadata(self.quorum.log[node.read - 1])
                self._have_read(node)

    def _see(self, node: Node, end: int) -> None:
        """The view is updated before the partitions."""
        for index in range(node.read, end):
            node.view.on_events(index + 1, self.quorum.events_of[index])

    def _have_read(self, node: Node) -> None:
        assert node.manager is not None
        node.manager.on_transactions(())
        due = [callback for index, callback in node.until_read if index <= node.read]
        node.until_read = [(index, callback) for index, callback in node.until_read if index > node.read]
        for callback in due:
            callback()
        self.scheduler.run()

    def report(self, number: int, command: Command, done: Callable[[Outcome], None]) -> None:
        raise NotImplementedError

    def do_quorum(self, name: str, answer: str = "given") -> None:
        """Apply a proposal. Its proposer gets the answer unless it is `lost`, or the proposer had given up before
        (`late`)."""
        proposal, done = self.proposals.pop(name)
        record = self.quorum.partition
        result = self.quorum.apply(
            AlterIsr(
                TP.topic_id,
                TP.partition,
                proposal.leader,
                proposal.leader_incarnation,
                proposal.leader_epoch,
                proposal.partition_epoch,
                tuple(IsrMember(broker, incarnation) for broker, incarnation in proposal.isr),
            )
        )
        self.say(f"refused: {result.code}" if isinstance(result, Refused) else "accepted")
        if self.quorum.partition != record:
            self.say_record()
        if answer == "given":
            done(Fate.ACCEPTED if isinstance(result, IsrAltered) else Fate.REFUSED)
        elif answer == "lost":
            done(Fate.UNKNOWN)

    def do_give_up(self, name: str) -> None:
        """The proposer gets an unknown outcome, and the proposal stays in flight."""
        self.proposals[name][1](Fate.UNKNOWN)

    def propose(self, proposal: IsrProposal, done: Callable[[Fate], None]) -> None:
        self._proposed += 1
        name = f"p{self._proposed}"
        self.proposals[name] = (proposal, done)
        isr = ",".join(f"{broker}@{incarnation}" for broker, incarnation in proposal.isr)
        self.say(f"{proposal.leader} proposes {name}: isr={isr} at partition_epoch={proposal.partition_epoch}")

    # --- Lives ---

    def do_crash(self, number: str) -> None:
        """The process dies; its page cache survives."""
        self.end_life(self.nodes[int(number)])

    def do_power_loss(self, number: str) -> None:
        """All data that was not fsynced is lost."""
        node = self.nodes[int(number)]
        self.end_life(node)
        node.disk.power_loss(NothingSurvives())

    def do_start(self, number: str) -> None:
        """Start a new process: it recovers and registers. It has not read any metadata, and is fenced."""
        node = self.nodes[int(number)]
        self.begin_life(node)
        assert node.manager is not None
        reports = node.manager.load(clean_shutdown=False)
        registered = self.quorum.do(self.quorum.registration(node.number, reports))
        assert isinstance(registered, Registered)
        for report in reports:
            self.say(_describe_report(report))
        self.say_record()
        node.manager.on_registered(registered.incarnation)

    def do_start_empty(self, number: str) -> None:
        """Like `start`, after the stories' topic was deleted."""
        node = self.nodes[int(number)]
        self.begin_life(node)
        assert node.manager is not None
        reports = node.manager.load(clean_shutdown=False)
        registered = self.quorum.do(self.quorum.registration(node.number, reports))
        assert isinstance(registered, Registered)
        node.manager.on_registered(registered.incarnation)

    def do_quorum_sees_another_life(self, number: str) -> None:
        """The quorum registers another process under this broker's name, which found nothing on its disk."""
        report = ReplicaReport(TP, False, NO_EPOCH, Offset(0), True)
        self.quorum.do(self.quorum.registration(int(number), [report]))
        self.say_record()

    def do_interrupted_write(self, number: str) -> None:
        """The broker's disk work is executed up to the fsync of its batches, without results."""
        node = self.nodes[int(number)]
        assert node.worker is not None
        disk = node.disk

        def all_but_batches(fsync: Callable[[Inode], None], inode: Inode) -> None:
            names = [name for name in disk.files() if disk.inode_of(name) is inode]
            if not names[0].endswith(".log"):
                fsync(inode)

        with pytest.MonkeyPatch.context() as patch:
            for call in ("fsync_inode", "fsync_last_write"):
                patch.setattr(disk, call, partial(all_but_batches, getattr(disk, call)))
            node.worker.begin()

    def do_flip(self, number: str, offset: str) -> None:
        """A bit of the batch at this offset is flipped on disk."""
        node = self.nodes[int(number)]
        folder = f"partitions/{TP.directory_name}"
        (name,) = [name for name in node.disk.list(folder) if name.endswith(".log")]
        position = 0
        content = node.disk.read(f"{folder}/{name}")
        for batch in split_batches(content):
            if RecordBatch(batch).header.base_offset == int(offset):
                node.disk.flip(f"{folder}/{name}", position + len(batch) - 1, 1)
            position += len(batch)

    def begin_life(self, node: Node) -> None:
        worker = StoryWorker(self.scheduler)
        alive = LifeScheduler(self.scheduler, lambda: node.worker is worker)
        node.read = 0
        node.view, node.until_read = ClusterView(), []
        node.view.feature_level = TRANSACTIONS_FEATURE_LEVEL
        reports = TransactionReports(
            BrokerId(node.number), node.view, alive, lambda *asked: self.report(node.number, *asked), node.when_read
        )
        node.worker = worker
        node.manager = PartitionManager(
            node_id=BrokerId(node.number),
            cluster_id="stories",
            disk=node.disk,
            clock=self.scheduler.clock,
            cluster_clock=RightClock(self.scheduler.clock),
            scheduler=alive,
            worker=worker,
            log_worker=worker,
            random=random.Random(0),
            dialer=StoryDialer(self, node),
            propose_isr=self.propose,
            logger=StoryLogger(self.say, node.number),
            timing=TimingConfig(),
            on_replica_offline=lambda tp, reason: None,
            report_loss=None,
            transactions=TransactionPorts(node.view.transactions, reports.markers_written, reports.overdue),
            catch_up=lambda done: done(True),
        )
        self.scheduler.call_soon(self.dial_all)

    def end_life(self, node: Node) -> None:
        node.manager = node.worker = None
        node.wanted.clear()
        for other in self.nodes.values():
            for peer, link in list(other.links.items()):
                if node.number in {other.number, peer}:
                    link.close()
        node.links.clear()

    # --- Links ---

    def dial_all(self) -> None:
        """Open every link that a broker wants and that is possible."""
        for node in self.nodes.values():
            for peer in list(node.wanted):
                target = self.nodes[peer].manager
                link = node.links.get(peer)
                if node.manager is not None and target is not None and (link is None or not link.open):
                    node.links[peer] = connect(self.scheduler, node.number, peer, node.manager.dialed, target.accepted)

    def do_drop(self, path: str) -> None:
        """The connection that the first broker dialed to the second breaks; messages in flight are lost."""
        owner, peer = map(int, path.split("->"))
        self.nodes[owner].links[peer].close()

    def do_dial(self) -> None:
        """Broken connections are dialed again."""
        self.scheduler.run()
        self.dial_all()

    def ends(self, path: str) -> list[tuple[StoryLink, bool]]:
        """Return the link ends that send from the first broker to the second, and whether each is a follower's."""
        owner, peer = map(int, path.split("->"))
        ends = []
        if peer in self.nodes[owner].links:
            ends.append((self.nodes[owner].links[peer], True))
        if owner in self.nodes[peer].links:
            ends.append((self.nodes[peer].links[owner].other, False))
        return ends

    def do_deliver(self, path: str, count: str = "") -> None:
        """Deliver the waiting messages from the first broker to the second, oldest first."""
        left = int(count) if count else LIMIT
        for link, from_follower in self.ends(path):
            waiting = min(len(link.queue), left)
            for _ in range(waiting):
                left -= 1
                message = link.queue[0]
                for line in describe(message, from_follower=from_follower):
                    self.say(f"{path} {line}")
                link.deliver()
                self.scheduler.run()

    def do_waiting(self, path: str) -> None:
        """Show the messages in flight in this direction, without delivering them."""
        for link, from_follower in self.ends(path):
            for message in link.queue:
                for line in describe(message, from_follower=from_follower):
                    self.say(f"{path} {line}")

    def do_corrupt(self, path: str) -> None:
        """Flip a bit in the last byte of the last message in flight."""
        link, _ = next(end for end in self.ends(path) if end[0].queue)
        message = link.queue[-1]
        link.queue[-1] = message[:-1] + bytes([message[-1] ^ 1])

    def do_disk_fault(self, number: str, kind: str) -> None:
        """`full` until `room`; `fail` makes the next fsync fail."""
        disk = self.nodes[int(number)].disk
        if kind == "fail":
            disk.fail_fsync += 1
        else:
            disk.full = kind == "full"

    def do_delete_topic(self) -> None:
        self.quorum.do(DeleteTopic(TP.topic_id))

    def do_folders(self, number: str) -> None:
        """Show the replica folders on the broker's disk."""
        disk = self.nodes[int(number)].disk
        self.say(" ".join(f"{f}:{len(disk.list(f))}" for f in ("partitions", "partitions-removed")))

    def do_set_log_start(self, number: str, offset: str) -> None:
        """Advance the log start as retention would: the leader no longer serves records below, and informs its
        followers."""
        driver = self.manager(number).driver(TP)
        assert driver is not None
        driver.move_log_start(Offset(int(offset)))

    # --- Helpers ---

    def say_record(self) -> None:
        record = self.quorum.partition
        fenced = [str(b) for b, r in sorted(self.quorum.image.brokers.items()) if r.fenced]
        commit = ",".join(map(str, record.commit_set))
        text = (
            f"quorum: leader={record.leader} epoch={record.leader_epoch} partition_epoch={record.partition_epoch} "
            f"isr={','.join(map(str, record.isr))}"
        )
        if record.commit_set != record.isr:
            text += f" commit_set={commit}"
        if record.not_eligible:
            text += f" not_eligible={','.join(map(str, record.not_eligible))}"
        if record.target_replicas or len(record.replicas) < len(self.nodes):
            text += f" replicas={','.join(map(str, record.replicas))}"
        if record.target_replicas:
            text += f" target={','.join(map(str, record.target_replicas))}"
        if self.quorum.image.throttle:
            text += f" throttle={self.quorum.image.throttle.leader_rate}"
        self.say(text + (f" fenced={','.join(fenced)}" if fenced else ""))

    def manager(self, number: str) -> PartitionManager:
        manager = self.nodes[int(number)].manager
        assert manager is not None, f"broker {number} does not run"
        return manager

    def chosen(self, numbers: tuple[str, ...]) -> list[Node]:
        nodes = [self.nodes[int(number)] for number in numbers] if numbers else list(self.nodes.values())
        return [node for node in nodes if node.manager is not None]


def _describe_report(report: ReplicaReport) -> str:
    state = "cut" if report.cut_or_quarantined else "clean" if report.clean else "unclean"
    return f"reports: {state} last_epoch={report.last_epoch} stable_end={report.stable_end_offset}"
