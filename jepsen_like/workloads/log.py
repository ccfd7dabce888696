"""`log`: records are sent to keys and polled, as in Jepsen's Kafka workload. A key is a partition, a value is sent
once.

| option | default | |
|---|---|---|
| `topics`, `partitions` | 2, 2 | keys are `topic/partition`; this many are written to at a time |
| `key_writes` | 1024 | values per key, as in Jepsen's; then another key has its turn. A longer run has more topics |
| `transactions` | false | sends and polls in atomic transactions, by producers with transactional ids |
| `subscribe` | false | a process reads what a group assigns to it; otherwise it assigns keys to itself |
| `crash_every` | 400 | one in this many operations kills its client's process; 0: none |
| `assign_every` | 64 | one in this many changes what a process reads |
| `hang_every` | 0 | one in this many transactions hangs after its reads, until others own the member's partitions |
| `poll_records` | 500 | at most, per key |
| `retention_past_s` | -1 | the topics retain records for the run's time plus this many seconds; -1: forever |

In a third of its assignments, a process adds the keys that have records which no process has read. With `transactions`
and `subscribe`, a transaction commits the group's offsets of its polls.

With `retention_past_s`, only a clock that jumped can delete records that are younger than the run. The product promises
that a jump of more than a minute deletes nothing (`partitions/log/retention.py`); it may trust a smaller one, and the
clock with which a node starts, which must not be wrong in such a run. Records that are younger than the topics'
retention minus a minute must exist at the end.

A hanging member (`hang_every`) hangs with its whole program: this needs `subscribe`, clients in separate processes, and
a longer `operation_timeout_s`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jepsen_like.histories.history import Operation

from ..checkers import kafka, stats, transactions
from ..clients.members import SESSION_MS
from ..clients.messages import option
from ..run_records import RunPlan
from .generators import PENDING, Context, Drawn, EachWorker, Generator, Wanted
from .log_progress import Progress
from .log_reads import ReadAll
from .workload import Checker, TopicPlan, UntilOk, Workload

KEY_WRITES = 1_024
KEYS_MAX = 64
"""A longer run writes more to its last keys."""
MICRO_OPERATIONS_MAX = 4
"""Limit for one transaction."""
HANG_SECONDS = SESSION_MS / 1000 + 4
"""After this time other members own the partitions that the member has read, and have consumed them."""
RECOVERY_VALUES = 1_000_000_000
"""Values from here on are sent after the heal."""
LEAP_BELIEVED_SECONDS = 60.0
"""A wall clock that jumps by up to this is trusted, so retention may delete records this much too early."""
SEGMENT_BYTES = "16384"
"""Small, so that a run fills many segments and tests the code between them."""
RETENTION = {"segment.bytes": SEGMENT_BYTES, "retention.ms": "-1", "retention.bytes": "-1"}


@dataclass(frozen=True, slots=True)
class LogOperations(Generator):
    """The operations of processes while faults are injected."""

    keys: tuple[str, ...]
    """In the order of their turns."""
    transactions: bool = False
    subscribe: bool = False
    crash_every: float = 400
    assign_every: float = 64
    at_once: int = 0
    """Number of keys written to at a time; 0: all."""
    key_writes: float = KEY_WRITES
    hang_every: float = 0
    progress: Progress = field(default_factory=Progress)
    next_value: Mapping[str, int] = field(default_factory=dict)
    placed: frozenset[int] = frozenset()
    """Processes that have an assignment or a subscription."""

    def draw(self, context: Context) -> Drawn:
        if not context.free:
            return PENDING, self
        chance = context.random
        process = chance.choice(context.free)
        if process not in self.placed or chance.random() * self.assign_every < 1:
            return self._placing(process, context), self
        if self.crash_every and chance.random() * self.crash_every < 1:
            return Wanted(process, "crash", None, context.time), self
        if self.transactions:
            return self._transaction(process, context)
        if chance.random() < 0.5:
            return Wanted(process, "poll", [["poll"]], context.time), self
        key = chance.choice(self.active)
        value, after = self._value(key)
        return Wanted(process, "send", [["send", key, value]], context.time), after

    @property
    def active(self) -> Sequence[str]:
        """The keys whose turn it is; the last ones after all have had theirs."""
        count = self.at_once or len(self.keys)
        left = [key for key in self.keys if self.next_value.get(key, 0) < self.key_writes]
        return left[:count] if len(left) >= count else self.keys[-count:]

    def told(self, operation: Operation) -> Generator:
        progress = self.progress.told(operation)
        here = self if progress is self.progress else replace(self, progress=progress)
        process = operation.process
        if not isinstance(process, int):
            return here
        if operation.kind == "info":
            return replace(here, placed=here.placed - {process})
        if operation.kind == "ok" and operation.f in {"assign", "subscribe"}:
            return replace(here, placed=here.placed | {process})
        return here

    def _placing(self, process: int, context: Context) -> Wanted:
        chance = context.random
        if self.subscribe:
            return Wanted(process, "subscribe", list(self.keys), context.time)
        active = self.active
        chosen = set(chance.sample(active, chance.randrange(1, len(active) + 1)))
        if chance.random() < 1 / 3:
            chosen |= set(self.progress.unseen)
        # A process that begins at the end skips what the final reads will see, and reads new records at once.
        hint = {"start": chance.choice(("earliest", "latest"))}
        return Wanted(process, "assign", [key for key in self.keys if key in chosen], context.time, hint)

    def _transaction(self, process: int, context: Context) -> tuple[Wanted, LogOperations]:
        chance = context.random
        here = self
        micro: list[list[Any]] = []
        for _ in range(chance.randrange(1, MICRO_OPERATIONS_MAX + 1)):
            if chance.random() < 0.5:
                micro.append(["poll"])
                continue
            key = chance.choice(here.active)
            value, here = here._value(key)
            micro.append(["send", key, value])
        hangs = self.hang_every and chance.random() * self.hang_every < 1
        return Wanted(process, "txn", micro, context.time, {"hang": HANG_SECONDS} if hangs else {}), here

    def _value(self, key: str) -> tuple[int, LogOperations]:
        value = self.next_value.get(key, 0)
        return value, replace(self, next_value={**self.next_value, key: value + 1})


def keys_of(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the keys of the topics that were created."""
    return tuple(f"{name}/{number}" for name, count in options["topics"].items() for number in range(count))


def _topics(plan: RunPlan) -> list[TopicPlan]:
    partitions = int(option(plan.options, "partitions", 2))
    retention = _retention_seconds(plan)
    configs = {**RETENTION, "retention.ms": "-1" if retention == math.inf else str(int(retention * 1000))}
    if "min_insync_replicas" in plan.options:
        configs["min.insync.replicas"] = str(int(plan.options["min_insync_replicas"]))
    return [TopicPlan(f"log{number}", partitions, configs) for number in range(topic_count(plan))]


def _retention_seconds(plan: RunPlan) -> float:
    """Return the retention of the plan's topics in seconds; infinite if they retain all."""
    past = option(plan.options, "retention_past_s", -1)
    return plan.seconds + past if past >= 0 else math.inf


def keeps_seconds(plan: RunPlan) -> float:
    """Return for how many seconds, by a true clock, a record is certain to be retained; infinite if all are."""
    return _retention_seconds(plan) - LEAP_BELIEVED_SECONDS


def topic_count(plan: RunPlan) -> int:
    """Return the number of topics with which each key has its turn, if half of the operations write."""
    partitions, topics = (int(option(plan.options, name, 2)) for name in ("partitions", "topics"))
    at_once, turn = partitions * topics, option(plan.options, "key_writes", KEY_WRITES)
    writes = 0.0 if plan.rounds else plan.rate * plan.seconds / 2
    if writes <= at_once * turn:
        return topics
    keys = min(math.ceil(writes / turn) + at_once - 1, KEYS_MAX)
    return max(math.ceil(keys / partitions), topics)


def _operations(plan: RunPlan, options: Mapping[str, Any]) -> Generator:
    return LogOperations(
        keys_of(options),
        bool(plan.options.get("transactions", False)),
        bool(plan.options.get("subscribe", False)),
        option(plan.options, "crash_every", 400),
        option(plan.options, "assign_every", 64),
        int(option(plan.options, "partitions", 2)) * int(option(plan.options, "topics", 2)),
        option(plan.options, "key_writes", KEY_WRITES),
        option(plan.options, "hang_every", 0),
    )


def _recovery(plan: RunPlan, options: Mapping[str, Any]) -> Generator:
    f = "txn" if plan.options.get("transactions", False) else "send"

    def make(key: str, attempt: int, context: Context) -> Wanted:
        return Wanted(-1, f, [["send", key, RECOVERY_VALUES + attempt]])

    return UntilOk(make, keys_of(options))


def _last_reads(plan: RunPlan, options: Mapping[str, Any]) -> Generator:
    return EachWorker(ReadAll(keys_of(options)))


def _checkers(plan: RunPlan) -> Mapping[str, Checker]:
    transactional = bool(plan.options.get("transactions", False))
    f = "txn" if transactional else "send"
    found: dict[str, Checker] = {
        # Other producers may write between the records of a transaction.
        "kafka": functools.partial(
            kafka.check,
            transactional=transactional,
            rebalances_told=True,
            keeps_s=keeps_seconds(plan),
            allow=frozenset({"int-send-skip"}) if transactional else frozenset(),
        ),
        "stats": functools.partial(stats.check, wanted=(f, "poll", "assign")),
        "recovery": functools.partial(stats.recovery, parts=_sent_keys, writes=(f,)),
    }
    if transactional:
        found["transactions"] = functools.partial(transactions.check, consumes=bool(plan.options.get("subscribe")))
    return found


def _sent_keys(operation: Operation) -> Sequence[str]:
    return [micro[1] for micro in operation.value or () if micro[0] == "send"]


LOG = Workload("log", "log", _topics, _operations, _recovery, _last_reads, _checkers, keeps_s=keeps_seconds)
