"""`rest`: consumers of the REST Proxy API behind a round robin of all nodes (S8).

Three consumers of one group live in the quorum, and every process uses any of them, each request through the next node:
it reads, breaks answers off in their middle, commits by empty bodies and by number, takes consumers over under their
names, and now and then deletes one. Producers write distinct records through the same API.

In the recovery every consumer is opened again, and every partition written to. The final reads dump the partitions
with the native client, and the consumers read on until the group has got everything.

| option | default | |
|---|---|---|
| `partitions` | 6 | |
| `crash_every` | 300 | one in this many operations kills its client's process; 0: none |
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jepsen_like.histories.history import Operation

from ..checkers import rest_consumers, stats
from ..clients.messages import option
from ..run_records import RunPlan
from .generators import PENDING, Context, Drawn, EachWorker, Generator, Phases, Wanted
from .workload import Checker, TopicPlan, UntilOk, Workload

NAMES = ("c0", "c1", "c2")
RECOVERY_VALUES = 1_000_000_000
"""Values from here on are sent after the heal."""
SHARES = (("read", 0.44), ("send", 0.22), ("commit", 0.2), ("offsets", 0.11), ("open", 0.025), ("delete", 0.005))
OPENING = 0.3
"""Share of the operations that open a consumer while one is missing: a cluster that is down must not get these only."""
CUT_SHARE = 0.3
"""Share of the reads whose answer is cut, if it is long."""
CUTS = ("reset", "reset", "end")
BY_NUMBER = 0.25
"""Share of the commits that name offsets."""
BATCH_MAX = 12
"""Records of one request."""
POLL_EVERY = 50_000_000
"""Nanoseconds between two final operations of a worker."""
COMMIT_EVERY = 5
"""Among a worker's final operations."""


@dataclass(frozen=True, slots=True)
class RestOperations(Generator):
    """The operations of processes while faults are injected."""

    keys: tuple[str, ...]
    crash_every: float = 300
    next_value: int = 0
    missing: tuple[str, ...] = NAMES
    """Consumers that may not exist, or not be subscribed."""
    opening: Mapping[int, str] = field(default_factory=dict)
    """Process → the consumer that it is opening or deleting."""
    got: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Consumer → key → the last offset of its last answer with records of that key."""

    def draw(self, context: Context) -> Drawn:
        if not context.free:
            return PENDING, self
        chance, now = context.random, context.time
        process = chance.choice(context.free)
        absent = [name for name in self.missing if name not in self.opening.values()]
        if absent and chance.random() < OPENING:
            return self._change(process, "open", absent[0], now)
        if self.crash_every and chance.random() * self.crash_every < 1:
            return Wanted(process, "crash", None, now), self
        f = chance.choices([name for name, _ in SHARES], [share for _, share in SHARES])[0]
        name = chance.choice(NAMES)
        match f:
            case "send":
                values = list(range(self.next_value, self.next_value + chance.randrange(1, BATCH_MAX + 1)))
                wanted = Wanted(process, f, [chance.choice(self.keys), values], now)
                return wanted, replace(self, next_value=values[-1] + 1)
            case "read":
                hint = {"cut": chance.choice(CUTS)} if chance.random() < CUT_SHARE else {}
                return Wanted(process, f, [name, None], now, hint), self
            case "commit":
                processed = self.got.get(name) if chance.random() < BY_NUMBER else None
                return Wanted(process, f, [name, dict(processed) if processed else None], now), self
            case "offsets":
                return Wanted(process, f, [name, list(self.keys)], now), self
        return self._change(process, f, name, now)

    def told(self, operation: Operation) -> Generator:
        process = operation.process
        if operation.kind == "invoke" or not isinstance(process, int):
            return self
        if operation.f == "read" and operation.kind == "ok":
            name, found = operation.value
            last = _ends(found)
            return replace(self, got={**self.got, name: {**self.got.get(name, {}), **last}}) if last else self
        if process not in self.opening:
            return self
        name = self.opening[process]
        left = {one: other for one, other in self.opening.items() if one != process}
        rest = tuple(one for one in self.missing if one != name)
        is_there = operation.f == "open" and operation.kind == "ok"
        got = {one: offsets for one, offsets in self.got.items() if one != name}
        return replace(self, opening=left, missing=rest if is_there else (*rest, name), got=got)

    def _change(self, process: int, f: str, name: str, now: int) -> tuple[Wanted, RestOperations]:
        return Wanted(process, f, name, now), replace(self, opening={**self.opening, process: name})


@dataclass(frozen=True, slots=True)
class ReadOn(Generator):
    """Reads and commits of one worker until the group has got everything in the dumps, for `EachWorker`."""

    last: Mapping[str, int] = field(default_factory=dict)
    """Key → the last offset in its dump."""
    seen: Mapping[str, int] = field(default_factory=dict)
    """Key → the highest offset that any process has got since the run began."""
    count: int = 0
    next_time: int = 0

    def draw(self, context: Context) -> Drawn:
        (process,) = context.free
        if all(self.seen.get(key, -1) >= last for key, last in self.last.items()):
            return None, self
        begins = max(context.time, self.next_time)
        name = NAMES[context.worker(process) % len(NAMES)]
        f = "commit" if self.count % COMMIT_EVERY == COMMIT_EVERY - 1 else "read"
        after = replace(self, count=self.count + 1, next_time=begins + POLL_EVERY)
        return Wanted(process, f, [name, None], begins), after

    def told(self, operation: Operation) -> Generator:
        if operation.kind != "ok":
            return self
        if operation.f == "dump":
            key, pairs = operation.value
            return replace(self, last={**self.last, key: pairs[-1][0]}) if pairs else self
        if operation.f == "read":
            highest = {key: max(self.seen.get(key, -1), end) for key, end in _ends(operation.value[1]).items()}
            return replace(self, seen={**self.seen, **highest}) if highest else self
        return self


def _ends(found: Mapping[str, Sequence[Any]] | None) -> dict[str, int]:
    """Return key → the last offset that was read; None: nothing was."""
    return {key: pairs[-1][0] for key, pairs in (found or {}).items()}


def _keys(options: Mapping[str, Any]) -> tuple[str, ...]:
    ((topic, count),) = options["topics"].items()
    return tuple(f"{topic}/{number}" for number in range(count))


def _topics(plan: RunPlan) -> list[TopicPlan]:
    return [TopicPlan("rest", int(option(plan.options, "partitions", 6)), {"retention.ms": "-1"})]


def _operations(plan: RunPlan, options: Mapping[str, Any]) -> Generator:
    return RestOperations(_keys(options), option(plan.options, "crash_every", 300))


def _recovery(plan: RunPlan, options: Mapping[str, Any]) -> Generator:
    def opened(name: str, attempt: int, context: Context) -> Wanted:
        return Wanted(-1, "open", name)

    def sent(key: str, attempt: int, context: Context) -> Wanted:
        return Wanted(-1, "send", [key, [RECOVERY_VALUES + attempt]])

    return Phases((UntilOk(opened, NAMES), UntilOk(sent, _keys(options))))


def _last_reads(plan: RunPlan, options: Mapping[str, Any]) -> Generator:
    keys = _keys(options)

    def dumped(key: str, attempt: int, context: Context) -> Wanted:
        return Wanted(-1, "dump", [key, None])

    def looked(name: str, attempt: int, context: Context) -> Wanted:
        return Wanted(-1, "offsets", [name, list(keys)])

    return Phases((UntilOk(dumped, keys), EachWorker(ReadOn()), UntilOk(looked, NAMES)))


def _sent_keys(operation: Operation) -> Iterator[str]:
    yield operation.value[0]


def _checkers(plan: RunPlan) -> Mapping[str, Checker]:
    return {
        "consumers": rest_consumers.check,
        "stats": functools.partial(stats.check, wanted=("send", "read", "commit", "offsets", "open", "dump")),
        "recovery": functools.partial(stats.recovery, parts=_sent_keys, writes=("send",)),
    }


def _keeps_all(plan: RunPlan) -> float:
    return float("inf")


REST = Workload("rest", "rest", _topics, _operations, _recovery, _last_reads, _checkers, keeps_s=_keeps_all)
