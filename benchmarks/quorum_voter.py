"""One voter of `benchmarks/quorum.py`, as a process of its own: the quorum's thread with real sockets and a real disk,
a broker without replicas, and a view.

It reads tasks as JSON lines and answers each with one line. It is no complete node: no partition has a log, so the
figures are the cost of the metadata alone.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from measuring import cpu_seconds, resident_mb

from metadata.commands.cluster import AlterIsr, CreateTopic, DeleteTopic, GrantProducerIds, RegisterBroker
from metadata.commands.envelope import Command
from metadata.commands.fields import IsrMember
from metadata.commands.groups import ChangeGroups, Commit, OffsetToCommit
from metadata.commands.results import Refused
from metadata.journal.journal import prepare_journal
from metadata.quorum.port import Fate, Outcome
from metadata.quorum_thread.thread import QUORUM_PATH, QuorumThread
from metadata.records.events import MetadataEvent, PartitionChanged, TopicChanged
from metadata.view import ClusterView
from metadata.voters.identity import QuorumIdentity
from raftlog.broker.loop_stalls import LoopStalls, StallReport
from raftlog.broker.node.node import SWITCH_INTERVAL_SECONDS
from raftlog.broker.wiring import EVENTS_PER_STEP
from raftlog.config import TimingConfig
from raftlog.http2.listener import Http2Listener
from raftlog.logs import configure_logging
from raftlog.model import NO_BROKER, BrokerId, DirectoryId, Endpoint, Offset, TopicId, TopicPartition
from raftlog.slices import WorkQueue
from raftlog.system.clock import SystemClock
from raftlog.system.disk import LocalDisk
from raftlog.system.runtime import LoopScheduler

VOTERS = (BrokerId(0), BrokerId(1), BrokerId(2))
PARTITIONS_A_TOPIC = 10_000
OFFSETS_A_COMMAND = 100
OFFSETS_TOPIC = "offsets"

quorum_stalls, view_stalls = LoopStalls(), LoopStalls()


class _MeasuredLoops(asyncio.DefaultEventLoopPolicy):
    """The factory for the loop of the quorum's thread."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        quorum = threading.current_thread().name == "raftlog-quorum"
        return (quorum_stalls if quorum else view_stalls).new_loop()


def topic_id_of(name: str) -> TopicId:
    return TopicId(hashlib.sha256(name.encode()).digest()[:16])


class Voter:
    def __init__(self, number: int, folder: str, ports: Sequence[int]) -> None:
        self.number = BrokerId(number)
        self.ports = ports
        self.disk = LocalDisk(folder)
        self.identity = QuorumIdentity("benchmark", self.number, DirectoryId(bytes([number]) * 16), VOTERS)
        if not self.disk.exists("quorum"):
            prepare_journal(self.disk, self.identity)
        self.view = ClusterView()
        self.fatal: BaseException | None = None
        self.changed = asyncio.Event()
        self.leaders: dict[TopicPartition, BrokerId] = {}
        self.led_by: Counter[int] = Counter()
        loop = asyncio.get_running_loop()
        self.following = WorkQueue(LoopScheduler(loop), SystemClock(), self._on_fatal)
        peers = {v: Endpoint("127.0.0.1", ports[v]) for v in VOTERS if v != number}
        self.quorum = QuorumThread(
            self.identity,
            peers=peers,
            disk=self.disk,
            clock=SystemClock(),
            random=random.Random(),
            timing=TimingConfig(),
            on_events=lambda index, events: self.following.add(partial(self._take_over, index, events)),
            on_fatal=self._on_fatal,
        )
        self.incarnation = -1
        self.offset = 0

    def _on_fatal(self, error: BaseException) -> None:
        self.fatal = error
        print(f"voter {self.number} stops: {error!r}", file=sys.stderr)
        os._exit(1)

    def _take_over(self, index: int, events: Sequence[MetadataEvent]) -> Iterator[None]:
        """Process the changes as a broker does, without its partitions."""
        late = [event for event in events if isinstance(event, TopicChanged)]
        for start in range(0, len(events), EVENTS_PER_STEP):
            some = events[start : start + EVENTS_PER_STEP]
            self.view.on_events(self.view.index, [event for event in some if not isinstance(event, TopicChanged)])
            yield
        self.view.on_events(index, late)
        for number, event in enumerate(events):
            if number % EVENTS_PER_STEP == 0:
                yield
            if isinstance(event, PartitionChanged):
                tp = event.topic_partition
                self.led_by[self.leaders.get(tp, event.record.leader)] -= tp in self.leaders
                self.leaders[tp] = event.record.leader
                self.led_by[event.record.leader] += 1
        self.changed.set()

    async def start(self) -> dict[str, Any]:
        await self.quorum.start()
        self.quorum.loop.call_soon_threadsafe(quorum_stalls.begin, lambda *_, **__: None)
        view_stalls.begin(lambda *_, **__: None)
        listener = Http2Listener({QUORUM_PATH: self.quorum.acceptor}, loop_for_path={QUORUM_PATH: self.quorum.loop})
        await listener.start("127.0.0.1", self.ports[self.number])
        self.listener = listener
        here = Endpoint("127.0.0.1", self.ports[self.number])
        command = RegisterBroker.of(
            self.number, self.identity.directory_id, time.time_ns(), api=here, data=here, rack="", feature_level=1,
            reports=[],
        )  # fmt: skip
        outcome = await self._outcome(lambda done: self.quorum.register(command, done))
        self.incarnation = outcome.result.incarnation  # type: ignore[union-attr]
        await self._until(lambda: self.view.index >= outcome.index and self.view.alive(self.number), 60.0)
        gc.collect()
        gc.freeze()
        return {"partitions": len(self.view.partitions())}

    async def _until(self, holds: Callable[[], bool], seconds: float) -> bool:
        async with asyncio.timeout(seconds):
            while not holds():
                self.changed.clear()
                await self.changed.wait()
        return True

    async def _outcome(self, ask: Callable[[Callable[[Outcome], None]], None]) -> Outcome:
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        ask(lambda outcome: future.done() or future.set_result(outcome))
        return await future

    async def propose(self, command: Command, timeout: float = 30.0) -> Outcome:
        return await self._outcome(lambda done: self.quorum.propose(command, done, timeout=timeout))

    # --- Tasks -------------------------------------------------------------------------------------------------------

    async def leads(self) -> dict[str, Any]:
        return {"leader": self.quorum.status().leader, "own": self.number}

    async def commits(self, seconds: float, in_flight: int, rate: float, kind: str) -> dict[str, Any]:
        """Run as many commits as possible with `in_flight` proposals, or at a rate; latencies are in seconds."""
        make = self._offsets if kind == "offsets" else self._grant
        latencies: list[float] = []
        lost = 0
        end = time.perf_counter() + seconds
        slots = asyncio.Semaphore(in_flight)
        next_at = time.perf_counter()
        loop = asyncio.get_running_loop()

        def begin() -> None:
            started = time.perf_counter()

            def done(outcome: Outcome) -> None:
                nonlocal lost
                slots.release()
                refused = isinstance(outcome.result, Refused) or bool(getattr(outcome.result, "refusals", ()))
                if outcome.fate is Fate.APPLIED and not refused:
                    latencies.append(time.perf_counter() - started)
                else:
                    lost += 1

            self.quorum.propose(make(), done, timeout=30.0)

        began = time.perf_counter()
        while time.perf_counter() < end:
            if rate:
                next_at += 1 / rate
                await asyncio.sleep(max(0.0, next_at - time.perf_counter()))
            await slots.acquire()
            begin()
        for _ in range(in_flight):
            await slots.acquire()
        del loop
        return {"took": time.perf_counter() - began, "latencies": sorted(latencies), "lost": lost}

    def _grant(self) -> Command:
        """A command of about seventy bytes, with a session."""
        return GrantProducerIds(self.number, self.incarnation, 1)  # type: ignore[arg-type]

    def _offsets(self) -> Command:
        """A commit of a hundred offsets, by a consumer that assigns partitions to itself."""
        self.offset += 1
        topic = topic_id_of(OFFSETS_TOPIC)
        offsets = tuple(OffsetToCommit(topic, n, Offset(self.offset)) for n in range(OFFSETS_A_COMMAND))
        return ChangeGroups((Commit(f"group-{self.number}", "", 0, 0, 0, offsets),))

    async def isr(self, seconds: float, rate: float) -> dict[str, Any]:
        """Propose ISR changes of the partitions that this broker leads, one after the other, at most at this rate."""
        latencies: list[float] = []
        refused = 0
        led = [record.topic_partition for record in self.view.partitions() if record.leader == self.number]
        end, turn = time.perf_counter() + seconds, 0
        while time.perf_counter() < end:
            record = self.view.partition(led[turn % len(led)])
            assert record is not None
            turn += 1
            members = tuple(IsrMember(b, self.view.broker(b).incarnation) for b in record.isr)  # type: ignore[union-attr]
            tp = record.topic_partition
            started = time.perf_counter()
            outcome = await self.propose(
                AlterIsr(
                    tp.topic_id, tp.partition, self.number, self.incarnation,  # type: ignore[arg-type]
                    record.leader_epoch, record.partition_epoch, members,
                )
            )  # fmt: skip
            if outcome.fate is Fate.APPLIED:
                latencies.append(time.perf_counter() - started)
                await self._until(lambda index=outcome.index: self.view.index >= index, 30.0)  # type: ignore[misc]
            else:
                refused += 1
            await asyncio.sleep(max(0.0, started + 1 / rate - time.perf_counter()))
        return {"latencies": sorted(latencies), "lost": refused}

    async def create(self, name: str, partitions: int) -> dict[str, Any]:
        """Create a topic with three replicas, whose leaders alternate between all brokers."""
        replicas = tuple(tuple(VOTERS[(n + k) % 3] for k in range(3)) for n in range(partitions))
        started = time.perf_counter()
        outcome = await self.propose(CreateTopic(name, topic_id_of(name), replicas))
        took = time.perf_counter() - started
        await self._until(lambda: self.view.index >= outcome.index, 60.0)
        return {"took": took, "result": str(outcome.result), "fate": outcome.fate.value}

    async def delete(self, name: str) -> dict[str, Any]:
        started = time.perf_counter()
        outcome = await self.propose(DeleteTopic(topic_id_of(name)))
        return {"took": time.perf_counter() - started, "result": str(outcome.result)}

    async def barrier(self, timeout: float) -> dict[str, Any]:
        outcome = await self._outcome(lambda done: self.quorum.read_barrier(done, timeout=timeout))
        return {"applied": outcome.fate is Fate.APPLIED}

    async def without(self, broker: int, timeout: float) -> dict[str, Any]:
        """Wait until the view shows a broker fenced, and until every partition has a leader again."""
        started = time.perf_counter()
        await self._until(lambda: not self.view.alive(BrokerId(broker)), timeout)
        fenced = time.perf_counter() - started

        await self._until(lambda: not self.led_by[broker] and not self.led_by[NO_BROKER], timeout)
        return {"fenced": fenced, "led": time.perf_counter() - started}

    async def snapshot(self) -> dict[str, Any]:
        """Take a snapshot as the node does: a step, and then any other due work."""
        done: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        home, there, node = asyncio.get_running_loop(), self.quorum.loop, self.quorum._node
        assert node is not None
        started, worst = time.perf_counter(), 0.0

        def step() -> None:
            nonlocal worst
            began = time.perf_counter()
            taken = node._machine.snapshot_step(begin=True)
            worst = max(worst, time.perf_counter() - began)
            if taken is None:
                there.call_soon(step)
                return
            written = time.perf_counter()
            write(node.engine.compact(*taken), len(taken[0]), written)

        def write(slices: Iterator[object], size: int, began: float) -> None:
            written = object()
            if next(slices, written) is not written:
                there.call_soon(write, slices, size, began)
                return
            now = time.perf_counter()
            answer = {"took": now - started, "step": worst, "write": now - began, "bytes": size}
            home.call_soon_threadsafe(done.set_result, answer)

        there.call_soon_threadsafe(step)
        return await done

    async def costs(self, forget: bool) -> dict[str, Any]:
        """Return memory, CPU and the longest turns of both loops; with `forget`, reset the counters of turns."""
        found = {"rss": resident_mb(os.getpid()), "peak": resident_mb(os.getpid(), peak=True)}
        found["cpu"] = cpu_seconds(os.getpid())
        for name, gauge in (("quorum", quorum_stalls), ("view", view_stalls)):
            report: StallReport = gauge.report()
            found[name], found[name + "_processor"] = report.worst, report.worst_processor
            if forget:
                gauge._worst = gauge._worst_processor = 0.0
        return found


async def main() -> None:
    number, folder, *ports = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # All other output of this process is for people.
    configure_logging("error", cluster_id="benchmark", node_id=int(number))
    voter = Voter(int(number), folder, [int(port) for port in ports])
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def do(task: dict[str, Any]) -> None:
        name = task.pop("do")
        try:
            answer = await getattr(voter, name)(**task)
        except Exception as error:  # noqa: BLE001  whatever it is, the parent must hear of it
            answer = {"error": repr(error)}
        print(json.dumps(answer), file=answers, flush=True)

    while line := await reader.readline():
        await do(json.loads(line))
    os._exit(0)


if __name__ == "__main__":
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    asyncio.set_event_loop_policy(_MeasuredLoops())
    asyncio.run(main())
