"""Applications of a simulated world: producers, readers and group members that use the client library.

Each is a process with an event loop on virtual time (`loop.py`). Applications know topics by name only, and nothing of
the world's faults. A process may be paused, crash, or close its clients and end.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from jepsen_like.simulator.load.clients import FIRST_TIMESTAMP_MS
from jepsen_like.simulator.world.heap import EventHeap, Life
from jepsen_like.simulator.world.network import CLIENT, SimNetwork
from jepsen_like.simulator.world.violation import Violation
from raftlog.broker.requests import forwarding
from raftlog.client.cluster import transport
from raftlog.client.cluster.api import HttpApi
from raftlog.client.consumer import Consumer
from raftlog.client.consuming import fetcher
from raftlog.client.consuming.records import ConsumerRecord
from raftlog.client.groups import membership as group_membership
from raftlog.client.groups.consumer import GroupConsumer
from raftlog.client.producer import Producer
from raftlog.client.producing import requests as lanes
from raftlog.client.producing import sender
from raftlog.client.producing import sending as record_sending
from raftlog.client.transactions import manager as transaction_manager
from raftlog.errors import CODES, RaftlogError

from .loop import VirtualLoop
from .network import REACHES, Reach, connect, exchange
from .topic_lives import LivesTruth

WAITING_MAX = 30
"""The most records without an answer; a producer sends no further ones."""
DELIVERY_TIMEOUT_MS = 20_000
REQUEST_TIMEOUT_MS = 2_000
POLL_SECONDS = 0.5
GROUP = "group"
SESSION_TIMEOUT_MS = 6_000
HEARTBEAT_MS = 500
COMMIT_MS = 400
REBALANCE_MS = 4_000
AGAIN_SECONDS = 0.3
NEVER = 1_000_000


class Application(ABC):
    """One process that uses the library."""

    def __init__(
        self, name: str, heap: EventHeap, network: SimNetwork, bootstrap: str, truth: LivesTruth, rng: random.Random
    ) -> None:
        self.name = name
        self.heap = heap
        self.bootstrap = bootstrap
        self.truth = truth
        self.rng = rng
        self.life = Life(name)
        self.loop = VirtualLoop(heap, self.life, self.failed)  # type: ignore[abstract]
        self.stopping = False
        """The application starts nothing new."""
        REACHES[self.loop] = Reach(network, CLIENT)

    def start(self) -> None:
        with self.loop.entered():
            self.loop.create_task(self._guarded())

    @property
    def missing(self) -> list[str]:
        """The things that it still waits for."""
        return []

    def failed(self, error: BaseException) -> None:
        """Raise the error outside all product code, so nothing catches it."""

        def raise_it() -> None:
            raise error

        self.heap.schedule(0.0, raise_it)

    @abstractmethod
    async def run(self) -> None:
        """The application's whole work. An exception ends the world."""

    def member(self, group: str, topics: tuple[str, ...], **options: Any) -> GroupConsumer:
        """A group member with timeouts that suit the length of a simulated run; `options` are `GroupConsumer`'s."""
        return GroupConsumer(
            self.bootstrap,
            group,
            topics,
            client_id=self.name,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            **options,
        )

    async def take(self, consumer: Consumer | GroupConsumer, most: int) -> list[ConsumerRecord]:
        """The next records. Raises what `poll` raises."""
        return await consumer.poll(most, POLL_SECONDS)

    async def _guarded(self) -> None:
        try:
            await self.run()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  the world hears of it, whatever it is
            self.failed(error)


class ProducerApplication(Application):
    """Sends records with unique values to topics by name."""

    def __init__(self, *made: Any, topics: tuple[str, ...]) -> None:
        super().__init__(*made)
        self._topics = topics
        self._number = 0
        self.waiting = 0
        self.proved: set[tuple[str, int]] = set()
        """(topic, partition) with an acknowledged record after the heal."""
        self._linger_ms = self.rng.choice((0.0, 5.0))
        self._pause = self.rng.choice((0.1, 0.3))

    @property
    def missing(self) -> list[str]:
        found = [f"producer {self.name} waits for {self.waiting} deliveries"] if self.waiting else []
        if self.stopping:
            unproved = sorted(place for place in self._living() if place not in self.proved)
            found += [f"producer {self.name} gets nothing into {topic}/{number}" for topic, number in unproved]
        return found

    async def run(self) -> None:
        producer = Producer(
            self.bootstrap,
            linger_ms=self._linger_ms,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
        )
        while not self.stopping:
            if self.waiting < WAITING_MAX:
                self._send(producer, self.rng.choice(self._topics))
            await asyncio.sleep(self.rng.expovariate(1 / self._pause))
        while unproved := [place for place in self._living() if place not in self.proved]:
            for topic, partition in unproved:
                await self._prove(producer, topic, partition)
            await asyncio.sleep(AGAIN_SECONDS)
        try:
            await producer.close()
        except RaftlogError as error:  # a record's error, which `_hear` gets too
            self.truth.counts[f"close {error.code}"] += 1

    def _living(self) -> list[tuple[str, int]]:
        return [
            (name, number) for name, count in self.truth.living() if name in self._topics for number in range(count)
        ]

    async def _ask(self, producer: Producer, topic: str, value: bytes, partition: int) -> Any:
        try:
            return await producer.send_and_wait(topic, value, partition=partition)
        except RaftlogError as error:
            if error.code == "unknown_partition":
                self.proved.add((topic, partition))  # the producer looks for new partitions once a minute
            raise

    async def _prove(self, producer: Producer, topic: str, partition: int) -> None:
        """Prove that the producer can write there after the heal (S10)."""
        value = f"{self.name}:{self._number}".encode()
        self._number += 1
        self.waiting += 1
        told = await self._hear(topic, value, self._ask(producer, topic, value, partition))
        if told:
            self.proved.add((topic, partition))

    def _send(self, producer: Producer, topic: str) -> None:
        value = f"{self.name}:{self._number}".encode()
        self._number += 1
        self.waiting += 1
        self.loop.create_task(self._hear(topic, value, producer.send_and_wait(topic, value)))

    async def _hear(self, topic: str, value: bytes, delivery: Any) -> bool:
        """Whether the record was delivered."""
        try:
            told = await delivery
        except RaftlogError as error:
            self.truth.counts[f"send {error.code}"] += 1
            return False
        else:
            self.truth.acknowledged(topic, told.partition, told.offset, value)
            return True
        finally:
            self.waiting -= 1


class ReaderApplication(Application):
    """Reads a topic by name from its beginning, and starts again if the topic was deleted or recreated."""

    def __init__(self, *made: Any, topic: str) -> None:
        super().__init__(*made)
        self._topic = topic
        self._reads: Consumer | None = None

    @property
    def topic_id(self) -> bytes:
        """Id of the topic that it reads; empty before it knows one."""
        reads = self._reads
        return b"" if reads is None or reads._fetcher is None else reads._fetcher.topic.topic_id

    @property
    def missing(self) -> list[str]:
        topic_id = self.topic_id
        if self._reads is None or not topic_id or not self.truth.is_there(topic_id):
            return []
        positions, found = self._reads.positions, []
        for topic_partition, known in self.truth.truth.partitions.items():
            position = positions.get(topic_partition.partition, 0)
            if topic_partition.topic_id == topic_id and position < known.log.end_offset:
                found.append(f"reader {self.name} is at {position} of {known.log.end_offset} in {topic_partition}")
        return found

    async def run(self) -> None:
        while True:
            self._reads = Consumer(self.bootstrap, self._topic, start="earliest", max_wait_ms=500)
            try:
                await self._read(self._reads)
            finally:
                reads, self._reads = self._reads, None
                await reads.close()
            await asyncio.sleep(AGAIN_SECONDS)

    async def _read(self, reads: Consumer) -> None:
        """Read until the topic is gone."""
        while True:
            try:
                records = await self.take(reads, 100)
            except RaftlogError as error:
                topic_id = self.topic_id
                if CODES[error.code].retriable:
                    continue
                if error.code not in ("unknown_topic", "unknown_partition"):
                    raise Violation(f"S10: reader {self.name} of {topic_id.hex()} stops permanently: {error}") from None
                if topic_id:
                    self.truth.told_gone(self.name, topic_id, str(error))
                return
            for record in records:
                self.truth.shown(self.name, self.topic_id, record.partition, record.offset, record.value)


class MemberApplication(Application):
    """A member of the group that reads all topics."""

    def __init__(self, *made: Any, topics: tuple[str, ...]) -> None:
        super().__init__(*made)
        self._topics = topics
        self.leaves = False

    async def run(self) -> None:
        member = self.member(GROUP, self._topics, auto_commit_interval_ms=COMMIT_MS, isolation="read_committed")
        try:
            while not self.leaves:
                await self._poll(member)
        finally:
            await member.close()

    async def _poll(self, member: GroupConsumer) -> None:
        try:
            records = await self.take(member, 50)
        except RaftlogError as error:
            self.truth.counts[f"poll {error.code}"] += 1
            if not CODES[error.code].retriable:
                raise Violation(f"S10: member {self.name} stops permanently: {error}") from None
            await asyncio.sleep(AGAIN_SECONDS)
            return
        ids = {(one.topic, one.partition): one.topic_id for one in member.positions}
        for record in records:
            topic_id = ids.get((record.topic, record.partition))
            if topic_id is None:
                raise Violation(f"S8: member {self.name} was handed {record}, of what it does not read")
            self.truth.handed_out(self.name, bytes.fromhex(topic_id), record.partition, record.offset, record.value)
        if records:
            await asyncio.sleep(self.rng.uniform(0.0, 0.1))


@contextmanager
def virtual_library(seed: int) -> Iterator[None]:
    """Replace the library's network, clocks and random sources by the world's, inside the `with` block."""
    draws = _Draws(seed)
    with ExitStack() as stack:

        def replace(owner: Any, name: str, by: Any) -> None:
            stack.enter_context(mock.patch.object(owner, name, by))

        replace(HttpApi, "_exchange", exchange)
        for module in (transport, forwarding):
            replace(module, "connect", connect)
        replace(transport, "FALL_BACK_AFTER", NEVER)
        for module in (fetcher, lanes):
            replace(module, "random", draws)
        for module in (group_membership, transaction_manager):
            replace(module, "secrets", draws)
        replace(group_membership, "monotonic", _now)
        for module in (record_sending, sender):
            replace(module, "time", _Clock())
        try:
            yield
        finally:
            REACHES.clear()


class _Draws:
    """In place of the modules `random` and `secrets`."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"{seed}/clients/library")

    def uniform(self, low: float, high: float) -> float:
        return self._rng.uniform(low, high)

    def token_hex(self, count: int) -> str:
        return self._rng.randbytes(count).hex()

    def token_bytes(self, count: int) -> bytes:
        return self._rng.randbytes(count)

    def Random(self) -> random.Random:  # noqa: N802  the module's name of it
        return random.Random(self._rng.random())


def _now() -> float:
    """The time of the process that asks."""
    return asyncio.get_running_loop().time()


class _Clock:
    """In place of the module `time`."""

    def time_ns(self) -> int:
        return FIRST_TIMESTAMP_MS * 1_000_000 + int(_now() * 1e9)
