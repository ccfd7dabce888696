"""`topic-lives`: a group reads topics that are deleted and recreated under the same names while producers write (S8).

One operation at a time deletes a topic, by its id, or creates one of the same name with another number of partitions.
All other operations use names: producers send, members of one group poll, commit what they read, leave, die and are
stopped beyond their session. A life is one topic id of a name.

In the recovery each name is settled (a topic exists, and all nodes report the same of it), and then every worker sends
to every name until a record is acknowledged. The final reads dump the remaining lives, without a group, and members
poll until the group has received everything.

| option | default | |
|---|---|---|
| `topics` | 3 | names |
| `partitions` | 3 | maximum for a life |
| `recreate_every_s` | 4 | average seconds from a creation to the next deletion, of any name |
| `crash_every` | 300 | one in this many operations kills its client's process; 0: none |
| `stall_every` | 200 | one in this many stops its client's process beyond its member's session; 0: none |
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from jepsen_like.histories.history import Operation

from ..checkers import stats, topic_lives
from ..clients.messages import option
from ..run_records import RunPlan
from .generators import PENDING, Calls, Context, Drawn, EachWorker, Generator, Limit, Phases, Wanted
from .group_offsets import STALL_SECONDS
from .workload import Checker, TopicPlan, UntilOk, Workload

RECOVERY_VALUES = 1_000_000_000
"""Values from here on are sent after the heal."""
ATTEMPTS_MAX = 10_000
"""Maximum number of attempts of a process in the recovery, and the distance between the first values of two
processes.
"""
AGAIN_EVERY = 200_000_000
POLL_EVERY = 50_000_000
GAP_MAX = 2_000_000_000
"""All three in nanoseconds. The last one: the longest time for which a name is left without a topic."""
SHARES = (("send", 0.42), ("poll", 0.38), ("commit", 0.12), ("read", 0.07), ("leave", 0.01))
COMMIT_EVERY = 5
"""Among a member's final operations."""


@dataclass(frozen=True, slots=True)
class LivesOperations(Generator):
    """The operations of processes while faults are injected."""

    names: tuple[str, ...]
    partitions: int = 3
    recreate_every: float = 4e9
    """Nanoseconds."""
    crash_every: float = 300
    stall_every: float = 200
    next_value: int = 0
    gone: tuple[str, ...] = ()
    """Names whose topic may have been deleted and has not been recreated yet."""
    operator: int | None = None
    """The process that is deleting or creating a topic."""
    next_change: int = 0
    gap: int = 0
    """Nanoseconds from the end of the current change to the next one."""

    def draw(self, context: Context) -> Drawn:
        if not context.free:
            return PENDING, self
        chance, now = context.random, context.time
        process = chance.choice(context.free)
        if self.operator is None and now >= self.next_change:
            return self._change(process, context)
        for f, value, every in (("crash", None, self.crash_every), ("stall", STALL_SECONDS, self.stall_every)):
            if every and chance.random() * every < 1:
                return Wanted(process, f, value, now), self
        f = chance.choices([name for name, _ in SHARES], [share for _, share in SHARES])[0]
        if f != "send":
            return Wanted(process, f, None, now), self
        wanted = Wanted(process, f, [chance.choice(self.names), self.next_value], now)
        return wanted, replace(self, next_value=self.next_value + 1)

    def told(self, operation: Operation) -> Generator:
        if operation.kind == "invoke" or operation.process != self.operator:
            return self
        is_there = operation.f == "create" and operation.kind == "ok"
        gap = AGAIN_EVERY if operation.f == "create" and not is_there else self.gap
        here = replace(self, operator=None, next_change=operation.time + gap)
        name = _name(operation)
        if name is None:
            return here
        left = tuple(one for one in self.gone if one != name)
        return replace(here, gone=left if is_there else (*left, name))

    def _change(self, process: int, context: Context) -> tuple[Wanted, LivesOperations]:
        chance = context.random
        if self.gone:
            gap = int(self.recreate_every * 2 * chance.random())
            value: list[Any] = [self.gone[0], chance.randrange(1, self.partitions + 1)]
            return Wanted(process, "create", value, context.time), replace(self, operator=process, gap=gap)
        gap = chance.choice((0, 0, chance.randrange(GAP_MAX)))
        wanted = Wanted(process, "delete", [chance.choice(self.names), None], context.time)
        return wanted, replace(self, operator=process, gap=gap)


@dataclass(frozen=True, slots=True)
class SendToEach(Generator):
    """Sends of one worker to every name until one record of each is acknowledged, for `EachWorker`."""

    left: tuple[str, ...]
    process: int = -1
    under_way: str = ""
    attempts: int = 0
    next_time: int = 0

    def draw(self, context: Context) -> Drawn:
        if not self.left:
            return None, self
        (process,) = context.free
        begins = max(context.time, self.next_time)
        attempts = self.attempts if process == self.process else 0
        value = RECOVERY_VALUES + process * ATTEMPTS_MAX + attempts
        after = replace(
            self, process=process, under_way=self.left[0], attempts=attempts + 1, next_time=begins + AGAIN_EVERY
        )
        return Wanted(process, "send", [self.left[0], value], begins), after

    def told(self, operation: Operation) -> Generator:
        if operation.kind == "invoke" or operation.process != self.process or operation.f != "send":
            return self
        rest = tuple(one for one in self.left if one != self.under_way)
        # A name that cannot be written to does not block the others.
        return replace(self, left=rest if operation.kind == "ok" else (*rest, self.under_way))


@dataclass(frozen=True, slots=True)
class ReadOn(Generator):
    """Polls and commits of one worker until the group has received everything in the dumps, for `EachWorker`."""

    last: Mapping[topic_lives.Place, int] = field(default_factory=dict)
    """Place → the last offset in the dump."""
    seen: Mapping[topic_lives.Place, int] = field(default_factory=dict)
    """Place → the highest offset that any member has received since the run began."""
    process: int = -1
    polled: bool = False
    """Whether a poll of this process has succeeded."""
    count: int = 0
    next_time: int = 0

    def draw(self, context: Context) -> Drawn:
        (process,) = context.free
        here = self if process == self.process else replace(self, process=process, polled=False)
        if here.polled and all(self.seen.get(place, -1) >= last for place, last in self.last.items()):
            return None, here
        begins = max(context.time, here.next_time)
        f = "commit" if here.polled and here.count % COMMIT_EVERY == 0 else "poll"
        return Wanted(process, f, None, begins), replace(here, count=here.count + 1, next_time=begins + POLL_EVERY)

    def told(self, operation: Operation) -> Generator:
        if operation.kind != "ok":
            return self
        if operation.f == "dump" and operation.value[1] is not None:
            name, topic_id, partitions = operation.value
            ends = {(name, topic_id, n): pairs[-1][0] for n, pairs in enumerate(partitions) if pairs}
            return replace(self, last={**self.last, **ends})
        if operation.f == "poll" and isinstance(operation.value, Mapping):
            handed = topic_lives.handed_of(operation, "records", "unclear")
            highest = {place: max(self.seen.get(place, -1), *(o for o, _ in pairs)) for place, pairs in handed.items()}
            here = replace(self, seen={**self.seen, **highest}) if highest else self
            return replace(here, polled=True) if operation.process == self.process else here
        return self


def _name(operation: Operation) -> str | None:
    """Return the name that is changed."""
    return operation.value[0] if isinstance(operation.value, list) and operation.value else None


def _topics(plan: RunPlan) -> list[TopicPlan]:
    partitions = int(option(plan.options, "partitions", 3))
    return [TopicPlan(f"again{number}", partitions) for number in range(int(option(plan.options, "topics", 3)))]


def _operations(plan: RunPlan, options: Mapping[str, Any]) -> Generator:
    return LivesOperations(
        tuple(sorted(options["topics"])),
        int(option(plan.options, "partitions", 3)),
        option(plan.options, "recreate_every_s", 4) * 1e9,
        option(plan.options, "crash_every", 300),
        option(plan.options, "stall_every", 200),
    )


def _recovery(plan: RunPlan, options: Mapping[str, Any]) -> Generator:
    names = tuple(sorted(options["topics"]))

    def settle(key: str, attempt: int, context: Context) -> Wanted:
        return Wanted(-1, "settle", [key, 1 + attempt % 3])

    return Phases((UntilOk(settle, names), EachWorker(SendToEach(names))))


def _last_reads(plan: RunPlan, options: Mapping[str, Any]) -> Generator:
    def dump(key: str, attempt: int, context: Context) -> Wanted:
        return Wanted(-1, "dump", [key, None, []])

    names = tuple(sorted(options["topics"]))
    offsets = Limit(1, Calls(lambda context: ("read", None)))
    return Phases((UntilOk(dump, names), EachWorker(ReadOn()), EachWorker(offsets)))


def _checkers(plan: RunPlan) -> Mapping[str, Checker]:
    def parts(operation: Operation) -> list[str]:
        assert isinstance(operation.process, int)
        return [f"{operation.value[0]}, worker {operation.process % plan.processes}"]

    wanted = ("send", "poll", "commit", "read", "create", "delete", "settle", "dump")
    return {
        "lives": topic_lives.check,
        "stats": functools.partial(stats.check, wanted=wanted),
        "recovery": functools.partial(stats.recovery, parts=parts, writes=("send",)),
    }


TOPIC_LIVES = Workload("topic-lives", "topic_lives", _topics, _operations, _recovery, _last_reads, _checkers)
