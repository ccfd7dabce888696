"""Three whole brokers on one scheduler and a quorum with a single image: decisions and logs of transactions together.

The brokers are the product's wiring (`raftlog.broker.wiring`): their leaders read their own views, write markers and
report them to the image by the product's `TransactionReports`. The test controls which brokers receive decisions
(`deaf`), which are connected (`cut`), and which lead.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from metadata.commands.cluster import CreateTopic, ElectLeaders, SetFeatureLevel, UnfenceBroker
from metadata.commands.envelope import Command, decode, encode
from metadata.commands.fields import Election
from metadata.commands.results import Elected, Registered, TransactionsChanged
from metadata.commands.transactions import Abort, ChangeTransactions, Commit, Initialize, OpenBlock, TransactionChange
from metadata.image.image import ClusterImage
from metadata.image.invariants import check
from metadata.quorum.port import Fate, Outcome
from metadata.records.events import MetadataEvent
from metadata.rules.elections import electable, recovery_winners
from partitions.manager import Produced
from raftlog.broker.identity import NodeIdentity
from raftlog.broker.wiring import Broker
from raftlog.config import NodeConfig
from raftlog.errors import RaftlogError
from raftlog.model import Acks, BrokerId, Endpoint, Offset, PartitionRecord, ProducerId, TopicId, TopicPartition
from raftlog.transactions import TransactionKey
from raftlog.version import FEATURE_LEVEL
from raftlog.wire import FetchPartition, TopicEnds, TransactionOutput
from tests.support.metadata.at_once import apply
from tests.support.partitions.manual import ManualScheduler, ManualTimer, ManualWorker
from tests.support.partitions.replication_cluster import AutoLink, ColdDisk, Fetch, QuietLogger
from tests.support.partitions.transaction_logs import batch_of

from .cluster import directory
from .groups import NOW_MS

TOPIC = TopicId(b"replicated-topic")
BROKERS = 3
DISK_SECONDS = 0.05
"""The delay of disk work while time passes."""


def tp(number: int) -> TopicPartition:
    return TopicPartition(TOPIC, number)


class _Life:
    """The scheduler of one process: its timers end with it."""

    def __init__(self, scheduler: ManualScheduler) -> None:
        self._scheduler = scheduler
        self.is_over = False

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.call_later(0.0, callback)

    def call_later(self, delay: float, callback: Callable[[], None]) -> ManualTimer:
        return self._scheduler.call_later(delay, lambda: None if self.is_over else callback())


class _Node:
    """One process of a broker, and its position in the decisions."""

    def __init__(self, world: TransactionWorld, number: int, disk: ColdDisk, start_number: int) -> None:
        self.number = number
        self.world = world
        self.disk = disk
        self.start_number = start_number
        self.life = _Life(world.scheduler)
        self.heard = 0
        """The number of the world's entries that it has received."""
        self.links: dict[int, AutoLink] = {}
        self.wanted: set[BrokerId] = set()
        """Peers to which there must be a link: a closed one is dialed again."""
        self.worker = ManualWorker(self.life)  # type: ignore[arg-type]
        self.fatal: list[BaseException] = []
        self.broker = Broker(
            NodeIdentity("tests", BrokerId(number), directory(number), {}, start_number, start_number == 1),
            NodeConfig(),
            disk=disk,
            clock=world.scheduler.clock,
            scheduler=self.life,
            worker=self.worker,
            log_worker=self.worker,
            random=random.Random(number + 10 * start_number),
            dialer=self,
            logger=QuietLogger(),
            on_fatal=self.fatal.append,
        )
        self.broker.load()
        here = Endpoint("127.0.0.1", 9640 + number)
        self.broker.register(self, here, here, lambda: None)

    # --- The quorum, as this broker sees it ---

    def register(self, command: Command, done: Callable[[Outcome], None]) -> None:
        result, index = self.world.apply(command)
        assert isinstance(result, Registered)
        done(Outcome(Fate.APPLIED, index, result))

    def propose(self, command: Command, done: Callable[[Outcome], None], *, timeout: float = 5.0) -> None:
        if self.number in self.world.mute:
            self.life.call_later(timeout, lambda: done(Outcome(Fate.UNKNOWN, detail="lost")))
            return
        result, index = self.world.apply(command)
        self.life.call_soon(lambda: done(Outcome(Fate.APPLIED, index, result)))

    def hear(self) -> None:
        while not self.life.is_over and self.heard < len(self.world.told) and self.number not in self.world.deaf:
            self.heard += 1
            self.broker.on_events(*self.world.told[self.heard - 1])

    # --- Dialer ---

    def connect(self, peer: BrokerId) -> None:
        self.wanted.add(peer)
        self.life.call_soon(lambda: self.world.dial(self.number, peer))

    def disconnect(self, peer: BrokerId) -> None:
        self.wanted.discard(peer)
        link = self.links.pop(peer, None)
        if link is not None:
            link.close()


class TransactionWorld:
    """Broker n leads partition n of one topic at first; each is on all three."""

    def __init__(self, partitions: int = 2) -> None:
        self.scheduler = ManualScheduler()
        self.image = ClusterImage()
        self.told: list[tuple[int, list[MetadataEvent]]] = []
        """The timestamp of every entry."""
        self.deaf: set[int] = set()
        """Brokers that receive no decisions."""
        self.mute: set[int] = set()
        """Brokers whose proposals get lost."""
        self.silent: set[int] = set()
        """Leaders whose messages to followers stay in flight."""
        self.nodes: dict[int, _Node] = {}
        for number in range(BROKERS):
            self._start(number, ColdDisk(), 1)
        self.apply(SetFeatureLevel(FEATURE_LEVEL))
        placed = tuple(tuple(BrokerId((n + shift) % BROKERS) for shift in range(BROKERS)) for n in range(partitions))
        self.apply(CreateTopic("orders", TOPIC, placed))
        self.settle()

    def _start(self, number: int, disk: ColdDisk, start_number: int) -> None:
        self.nodes[number] = _Node(self, number, disk, start_number)
        self.apply(UnfenceBroker(BrokerId(number), self.image.brokers[BrokerId(number)].incarnation))

    def crash(self, number: int, rng: random.Random) -> None:
        """This broker loses power and restarts at once; any eligible replica leads its former partitions."""
        node = self.nodes[number]
        node.life.is_over = True
        ended = [*node.links.values(), *(n.links[number] for n in self.nodes.values() if number in n.links)]
        for link in ended:
            link.close()
        node.disk.power_loss(rng)
        self._start(number, node.disk, node.start_number + 1)
        self.settle()
        self.elect_all()

    def elect_all(self) -> None:
        """Elect leaders for partitions without one, by the rules of `metadata.rules.elections`."""
        brokers = self.image.brokers
        for name in list(self.image.leaderless):
            record = self.image.partitions[name]
            able = electable(record, brokers)
            tickets = self.image.tickets_of(name)
            winners = able or recovery_winners(record, tickets, brokers, self.image.feature_level)
            if winners:
                self.elect(name.partition, winners[0], recovery=not able)

    # --- Decisions ---

    def apply(self, command: Command) -> tuple[Any, int]:
        """Apply a command; return the answer, and the entry's index. Every broker receives it soon."""
        index = self.image.index + 1
        result, events = apply(self.image, index, 1, decode(encode(command)))
        check(self.image)
        self.told.append((index, events))
        for node in self.nodes.values():
            self.scheduler.call_soon(node.hear)
        return result, index

    def ask(self, change: TransactionChange) -> tuple[str, tuple[TransactionKey, ...]]:
        """Return the code of the refusal ("": none), and the keys of the answer."""
        result, _ = self.apply(ChangeTransactions((change,)))
        assert isinstance(result, TransactionsChanged)
        if not result.answers:
            ended = change.keys if isinstance(change, Abort) else ()
            return "", self.image.transactions.going_on(ended)
        (answer,) = result.answers
        return answer.code, answer.keys

    def initialize(self, name: str = "app", timeout_ms: int = 60_000) -> TransactionKey:
        code, (first,) = self.ask(Initialize(name, timeout_ms, NOW_MS))
        assert not code
        self.settle()
        return first

    def open_block(self, count: int = 5, name: str = "") -> list[TransactionKey]:
        code, (first,) = self.ask(OpenBlock(name, count, 60_000))
        assert not code
        self.settle()
        return [TransactionKey(ProducerId(first.producer_id + n), first.producer_epoch) for n in range(count)]

    def commit(self, *outputs: tuple[TransactionKey, dict[int, int]], **other: Any) -> str:
        """Return the code of the refusal, if it is refused."""
        packed = tuple(
            TransactionOutput(
                *of, (TopicEnds(TOPIC, tuple(ends), tuple(Offset(end) for end in ends.values())),) if ends else ()
            )
            for of, ends in outputs
        )
        return self.ask(Commit(packed, other.get("groups", ()), other.get("positions", ()), "", NOW_MS))[0]

    def elect(self, number: int, leader: int, *, recovery: bool = False) -> None:
        """Elect another leader of this partition."""
        record = self.image.partitions[tp(number)]
        incarnation = self.image.brokers[BrokerId(leader)].incarnation
        election = Election(TOPIC, number, BrokerId(leader), incarnation, record.partition_epoch, recovery)
        result, _ = self.apply(ElectLeaders((election,)))
        assert isinstance(result, Elected) and result.refusals == (None,), result

    def waits_for(self, of: TransactionKey) -> int:
        """The number of partitions in which the quorum waits for a marker of it."""
        return self.image.transactions.unmarked_count(of)

    # --- Events ---

    def dial(self, owner: int, peer: int) -> None:
        known = self.nodes[owner].links.get(peer)
        if peer not in self.nodes or (known is not None and known.open):
            return
        dialed, accepted = self.nodes[owner].broker.manager.dialed, self.nodes[peer].broker.manager.accepted
        here, there = AutoLink(self.scheduler, peer, dialed), AutoLink(self.scheduler, owner, accepted)
        here.other, there.other = there, here
        there.paused = peer in self.silent
        self.nodes[owner].links[peer] = here
        accepted.on_opened(there)
        dialed.on_opened(here)

    def cut(self, leader: int) -> None:
        """Keep this leader's messages to its followers in flight."""
        self.silent.add(leader)
        for node in self.nodes.values():
            if leader in node.links:
                node.links[leader].other.paused = True

    def join(self) -> None:
        """Connect all brokers again."""
        self.silent.clear()
        for node in self.nodes.values():
            for link in node.links.values():
                link.other.resume()

    def _dial_again(self) -> None:
        for node in self.nodes.values():
            for peer in sorted(node.wanted):
                self.dial(node.number, peer)

    def settle(self) -> None:
        """Deliver messages and run disks, until nothing moves."""
        for _ in range(10_000):
            moved = self.scheduler.run()
            for node in self.nodes.values():
                while node.worker.pending:
                    node.worker.run_one()
                    moved += 1
            if not moved:
                assert not any(node.fatal for node in self.nodes.values())
                return
        raise AssertionError("never comes to rest")

    def wait(self, seconds: float = 1.0) -> None:
        for _ in range(max(1, round(seconds / DISK_SECONDS))):
            self._dial_again()
            self.settle()
            self.scheduler.advance(DISK_SECONDS)
        self.settle()

    def hear(self, *numbers: int) -> None:
        """Let these brokers receive decisions again."""
        self.deaf.difference_update(numbers)
        for number in numbers:
            self.scheduler.call_soon(self.nodes[number].hear)
        self.wait()

    def leader_of(self, number: int) -> PartitionRecord:
        return self.image.partitions[tp(number)]

    def write(self, of: TransactionKey, number: int, *values: bytes, to: int | None = None, sequence: int = 0) -> str:
        """Write a batch. Returns the code of the refusal, `""`, or `"?"` while there is no answer."""
        answers = self.send(of, number, *values, to=to, sequence=sequence)
        if not answers:
            return "?"
        (answer,) = answers
        return answer.code if isinstance(answer, RaftlogError) else ""

    def send(
        self, of: TransactionKey, number: int, *values: bytes, to: int | None = None, sequence: int = 0
    ) -> list[Produced | RaftlogError]:
        """Send a batch; its answer is in the list once it has arrived."""
        answers: list[Produced | RaftlogError] = []
        leader = self.leader_of(number).leader if to is None else to
        now_ms = self.scheduler.clock.wall_ms()
        data = batch_of(of, *values, sequence=sequence, timestamp_ms=now_ms)
        self.nodes[leader].broker.manager.produce(tp(number), data, Acks.ALL, answers.append)
        self.settle()
        return answers

    def read(self, number: int, *, leader: int | None = None) -> list[bytes | None]:
        """The records of a partition that a `read_committed` reader sees."""
        fetch = self.fetch(number, self.leader_of(number).leader if leader is None else leader)
        assert fetch.errors == [""], fetch.answers
        return fetch.committed()

    def fetch(self, number: int, leader: int) -> Fetch:
        fetch = Fetch()
        asked = [FetchPartition(TOPIC, number, 0, 1 << 20)]
        manager = self.nodes[leader].broker.manager
        manager.fetch(asked, fetch.done, min_bytes=0, max_bytes=1 << 20, max_wait_ms=0, isolation=1)
        self.settle()
        return fetch

    def reads(self, numbers: Sequence[int]) -> list[list[bytes | None]]:
        return [self.read(number) for number in numbers]
