"""A workload: topics to create, operations to draw, a client that executes them, and checkers that judge them.

Every workload has the same phases: operations while faults are injected, for the plan's time and at its rate; then,
after the heal, the *recovery* (everything that was written to is written to again, until it is acknowledged) and the
*final reads* (until everything known to exist was read, or their time is over). All of these are operations of the
history, so that the checkers see what a user would have seen.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from jepsen_like.histories.history import Operation
from raftlog.api.topics import TopicDescription
from raftlog.client import Admin, Producer
from raftlog.errors import InvalidRequest, RaftlogError

from ..checkers.verdict import Verdict
from ..clients.messages import option
from ..run_records import RunPlan
from .generators import PENDING, Context, Drawn, Generator, Phases, TimeLimit, Wanted, staggered

HEALED = "healed"
"""The note in the history that no more faults are injected."""
PREPARE_SECONDS = 60.0
"""A cluster that takes longer to create a topic was not healthy at the start."""
RECOVERY_SECONDS = 120.0
LAST_READS_SECONDS = 200.0
"""As in Jepsen's tests."""
POLL_SECONDS = 0.1

Checker: TypeAlias = Callable[[Sequence[Operation]], Verdict]


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic that a workload needs."""

    name: str
    partitions: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload. Its functions take the plan; those after `prepare` also take its result."""

    name: str
    client: str
    """A key of `clients.process.CLIENTS`."""
    topics: Callable[[RunPlan], Sequence[TopicPlan]]
    operations: Callable[[RunPlan, Mapping[str, Any]], Generator]
    """Endless."""
    recovery: Callable[[RunPlan, Mapping[str, Any]], Generator]
    last_reads: Callable[[RunPlan, Mapping[str, Any]], Generator]
    checkers: Callable[[RunPlan], Mapping[str, Checker]]
    records: int = 0
    """Number of records in every partition before the workload begins."""
    keeps_s: Callable[[RunPlan], float] | None = None
    """Seconds, by a true clock, for which its topics are certain to retain a record during the run; infinite: forever.
    None: the workload does not check its records.
    """

    def generator(self, plan: RunPlan, options: Mapping[str, Any]) -> Generator:
        """Return the operations of all phases."""
        recovery_s = option(plan.options, "recovery_s", RECOVERY_SECONDS)
        last_s = option(plan.options, "last_reads_s", LAST_READS_SECONDS)
        operations = staggered(plan.rate, self.operations(plan, options))
        return Phases(
            (
                WhileBroken(operations) if plan.rounds else TimeLimit(int(plan.seconds * 1e9), operations),
                UntilHealed(),
                TimeLimit(int(recovery_s * 1e9), self.recovery(plan, options)),
                TimeLimit(int(last_s * 1e9), self.last_reads(plan, options)),
            )
        )

    async def prepare(self, plan: RunPlan, bootstrap: Sequence[str]) -> dict[str, Any]:
        """Create the topics and wait until every replica is in sync. Returns the options for clients.

        The topics' names are unique to this run. Raises a `RaftlogError`, or `TimeoutError`.
        """
        tag = secrets.token_hex(3)
        factor = int(plan.options.get("replication_factor", min(3, plan.nodes)))
        named = [replace(topic, name=f"{topic.name}-{tag}") for topic in self.topics(plan)]
        async with asyncio.timeout(PREPARE_SECONDS), Admin(list(bootstrap)) as admin:
            for topic in named:
                await _made(admin, topic, factor)
            for topic in named:
                await _in_sync_until(admin, topic.name, time.monotonic() + PREPARE_SECONDS)
            if self.records:
                await _fill(bootstrap, named, self.records)
        return {"tag": tag, "topics": {topic.name: topic.partitions for topic in named}}

    async def ends(self, bootstrap: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
        """Return topic id → its state at the end.

        That is the name, the committed end of each partition (nil: unknown), and whether all replicas came back in sync
        after that. Takes little longer than `PREPARE_SECONDS` at most.
        """
        told: dict[str, Any] = {}
        deadline = time.monotonic() + PREPARE_SECONDS
        async with Admin(list(bootstrap)) as admin:
            for name in options["topics"]:
                description = await _in_sync_until(admin, name, deadline)
                if description is not None:
                    ends = [await _end(admin, name, number, deadline) for number in range(description.partition_count)]
                    again = await in_sync_everywhere(bootstrap, name, deadline)
                    told[description.id] = {"topic": name, "ends": ends, "in_sync": again}
        return told


@dataclass(frozen=True, slots=True)
class WhileBroken(Generator):
    """Operations until the note of the heal."""

    inner: Generator
    healed: bool = False

    def draw(self, context: Context) -> Drawn:
        if self.healed:
            return None, self
        wanted, inner = self.inner.draw(context)
        return (PENDING if wanted is None else wanted), replace(self, inner=inner)

    def told(self, operation: Operation) -> Generator:
        return replace(self, inner=self.inner.told(operation), healed=self.healed or operation.f == HEALED)


@dataclass(frozen=True, slots=True)
class UntilHealed(Generator):
    """No operation until the note of the heal."""

    healed: bool = False

    def draw(self, context: Context) -> Drawn:
        return (None if self.healed else PENDING), self

    def told(self, operation: Operation) -> Generator:
        return UntilHealed(healed=True) if operation.f == HEALED else self


@dataclass(frozen=True, slots=True)
class UntilOk(Generator):
    """Repeats an operation for each key until one succeeds, by any process."""

    make: Callable[[str, int, Context], Wanted]
    """Returns the key's operation at its n-th attempt; the process is chosen here."""
    keys: tuple[str, ...]
    interval: int = 200_000_000
    """Nanoseconds between two attempts."""
    under_way: Mapping[int, str] = field(default_factory=dict)
    """Process → the key of its operation in flight."""
    attempts: int = 0
    next_time: int = 0

    def draw(self, context: Context) -> Drawn:
        if not self.keys:
            return None, self
        idle = [key for key in self.keys if key not in self.under_way.values()]
        if not idle or not context.free:
            return PENDING, self
        process = context.random.choice(context.free)
        begins = max(context.time, self.next_time)
        # Attempts take turns: a key that cannot be written to does not block the others.
        wanted = replace(self.make(idle[0], self.attempts, context), process=process, time=begins)
        keys = (*(key for key in self.keys if key != idle[0]), idle[0])
        pace = self.interval // len(self.keys)
        return wanted, replace(
            self,
            keys=keys,
            attempts=self.attempts + 1,
            under_way={**self.under_way, process: idle[0]},
            next_time=begins + pace,
        )

    def told(self, operation: Operation) -> Generator:
        process = operation.process
        if operation.kind == "invoke" or not isinstance(process, int) or process not in self.under_way:
            return self
        key = self.under_way[process]
        left = {one: other for one, other in self.under_way.items() if one != process}
        keys = tuple(one for one in self.keys if one != key) if operation.kind == "ok" else self.keys
        return replace(self, under_way=left, keys=keys)


def in_sync(description: TopicDescription) -> bool:
    """Return whether every partition has a leader and all replicas in its ISR."""
    return all(
        partition.leader is not None and sorted(partition.isr) == sorted(partition.replicas)
        for partition in description.partitions
    )


async def in_sync_everywhere(bootstrap: Sequence[str], name: str, deadline: float) -> bool:
    """Wait until all nodes report the same state of the topic, with all replicas in sync; return whether they did in
    time.

    A node answers from its own view, and one that was cut off a moment ago may report an old state: that its replica,
    which lags, is in the ISR. Asking all nodes includes the leaders, which know their ISR: then every replica has
    everything that was committed before the request.
    """
    while True:
        told = await asyncio.gather(*(_described_by(node, name) for node in bootstrap))
        if all(one is not None and one == told[0] and in_sync(one) for one in told):
            return True
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(POLL_SECONDS)


async def _described_by(node: str, name: str) -> TopicDescription | None:
    try:
        async with Admin([node]) as admin:
            return await admin.describe_topic(name)
    except RaftlogError:
        return None


async def _made(admin: Admin, topic: TopicPlan, factor: int) -> None:
    """Create the topic; a retry finds it if an answer was lost, because no other run uses the name."""
    while True:
        try:
            await admin.create_topic(topic.name, topic.partitions, factor, topic.configs)
        except InvalidRequest as error:
            if error.code != "topic_exists":
                raise
            return
        except RaftlogError as error:
            if not error.retriable:
                raise
            await asyncio.sleep(POLL_SECONDS)
        else:
            return


async def _fill(bootstrap: Sequence[str], topics: Sequence[TopicPlan], records: int) -> None:
    async with Producer(list(bootstrap)) as producer:
        for topic in topics:
            for partition in range(topic.partitions):
                await producer.send_many(topic.name, [b""] * records, partition=partition)
        await producer.flush()


async def _in_sync_until(admin: Admin, name: str, deadline: float) -> TopicDescription | None:
    """Return the topic's description, in sync if it becomes so in time; None if no node describes it."""
    while True:
        description = None
        try:
            description = await admin.describe_topic(name)
        except RaftlogError as error:
            if error.code == "unknown_topic" or time.monotonic() >= deadline:
                return None
        if time.monotonic() >= deadline or (description is not None and in_sync(description)):
            return description
        await asyncio.sleep(POLL_SECONDS)


async def _end(admin: Admin, name: str, partition: int, deadline: float) -> int | None:
    if time.monotonic() >= deadline:
        return None
    try:
        return (await admin.offsets(name, partition)).latest
    except RaftlogError:
        return None
