"""`group-offsets`: committed offsets are registers that a commit never lowers, and only the current owner commits (S8).

Members of one group poll (so that they keep their partitions), commit, read committed offsets, leave, are killed, and
are stopped until others get their partitions. A second group has no members, and every process commits in it. Committed
offsets rise, with a few lower ones among them, which must have no effect. The offsets of a third group are reset (S8),
either unconditionally or only if they still have the value that was planned with: registers with compare-and-set.

A commit may also be late (`late_every`): it carries the membership under which the member owned the partition, and
arrives after others have owned it and the member owns it again. It must not count for the new ownership.

| option | default | |
|---|---|---|
| `partitions` | 4 | |
| `crash_every` | 300 | one in this many operations kills its client's process; 0: none |
| `stall_every` | 120 | one in this many stops a member beyond its session, after which it commits; 0: none |
| `late_every` | 0 | one in this many of a member that lost partitions is a late commit; a stopped member first polls |
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from jepsen_like.histories.history import Operation

from ..checkers import group_fencing, keyed, stats
from ..clients.group_offsets import LONE, SOUGHT
from ..clients.members import SESSION_MS
from ..clients.messages import option
from ..run_records import RunPlan
from .generators import PENDING, Context, Drawn, EachWorker, Generator, Limit, Wanted
from .log import keys_of
from .metadata_registers import ReadEach
from .metadata_registers import keys_of as key_of_operation
from .workload import Checker, TopicPlan, Workload

RECORDS = 3_000
"""In every partition, so that members find records at the committed offsets."""
STALL_SECONDS = SESSION_MS / 1000 + 4
"""After this time other members own the partitions, if they poll."""
LOWER = 0.1
"""Share of the commits."""
POLL_EVERY = 200_000_000
"""Nanoseconds between polls of a worker that waits for its partitions."""


@dataclass(frozen=True, slots=True)
class OffsetOperations(Generator):
    """The operations of members while faults are injected."""

    keys: tuple[str, ...]
    crash_every: float = 300
    stall_every: float = 0
    owned: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Process → the keys that it owns by its last poll."""
    next_offset: Mapping[str, int] = field(default_factory=dict)
    sought: Mapping[str, int | None] = field(default_factory=dict)
    """Key → the last known offset, in the group whose offsets are reset."""
    zombies: frozenset[int] = frozenset()
    """Processes that were stopped and have not learned yet what became of their partitions."""
    late_every: float = 0
    former: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Process → the keys that it has lost by its last poll; used for late commits only."""

    def draw(self, context: Context) -> Drawn:
        if not context.free:
            return PENDING, self
        chance, now = context.random, context.time
        process = chance.choice(context.free)
        if self.crash_every and chance.random() * self.crash_every < 1:
            return Wanted(process, "crash", None, now), self
        own = self.owned.get(process, ())
        if process in self.zombies and own:
            if self.late_every:
                return Wanted(process, "poll", None, now), self
            return self._commit(process, chance.choice(own), context)
        lost = self.former.get(process, ())
        if lost and chance.random() * self.late_every < 1:
            wanted, after = self._commit(process, chance.choice(lost), context)
            return replace(wanted, hint={"late": True}), after
        if own and self.stall_every and chance.random() * self.stall_every < 1:
            return Wanted(process, "stall", STALL_SECONDS, now), self
        drawn = chance.random()
        if drawn < 0.4 or (drawn < 0.7 and not own):
            return Wanted(process, "poll", None, now), self
        if drawn < 0.7:
            return self._commit(process, chance.choice(own), context)
        key = chance.choice(self.keys)
        if drawn < 0.8:
            return self._commit(process, LONE + key, context)
        if drawn < 0.88:
            return self._reset(process, SOUGHT + key, context), self
        if drawn < 0.98:
            return Wanted(process, "read", [chance.choice((key, LONE + key, SOUGHT + key)), None], now), self
        return Wanted(process, "leave", None, now), self

    def told(self, operation: Operation) -> Generator:
        process, value = operation.process, operation.value
        if not isinstance(process, int):
            return self
        if operation.kind == "invoke":
            return self._asked(operation)
        if operation.kind == "ok" and operation.f in {"read", "reset", "cas"} and value[0].startswith(SOUGHT):
            known = value[1][1] if operation.f == "cas" else value[1]
            return replace(self, sought={**self.sought, value[0]: known})
        if operation.f == "stall" and operation.kind == "ok":
            return replace(self, zombies=self.zombies | {process})
        if process in self.zombies and operation.f == "commit":
            return replace(self, zombies=self.zombies - {process}, owned={**self.owned, process: ()})
        if operation.f == "poll" and isinstance(value, Mapping):
            return self._polled(process, value)
        if operation.kind == "info" or operation.f == "leave":
            return replace(self, owned=_without(process, self.owned), former=_without(process, self.former))
        return self

    def _polled(self, process: int, told: Mapping[str, Any]) -> OffsetOperations:
        here = replace(self, owned={**self.owned, process: tuple(told["owned"])})
        if not self.late_every:
            return here
        had = {*self.former.get(process, ()), *told["gone"]} - {*told["owned"]}
        return replace(here, zombies=self.zombies - {process}, former={**self.former, process: tuple(sorted(had))})

    def _asked(self, operation: Operation) -> OffsetOperations:
        """Raise the next offset above every one that was attempted, by any generator."""
        if operation.f != "commit":
            return self
        key, offset = operation.value
        highest = max(self.next_offset.get(key, 1), offset + 1)
        return replace(self, next_offset={**self.next_offset, key: highest})

    def _reset(self, process: int, key: str, context: Context) -> Wanted:
        """Reset to any offset; half of the resets expect the last known one, which may be outdated."""
        new = context.random.randrange(RECORDS)
        if context.random.random() < 0.5:
            return Wanted(process, "reset", [key, new], context.time)
        return Wanted(process, "cas", [key, [self.sought.get(key), new]], context.time)

    def _commit(self, process: int, key: str, context: Context) -> tuple[Wanted, OffsetOperations]:
        chance = context.random
        highest = self.next_offset.get(key, 1)
        if chance.random() < LOWER or highest >= RECORDS:
            return Wanted(process, "commit", [key, chance.randrange(highest)], context.time), self
        after = replace(self, next_offset={**self.next_offset, key: highest + 1})
        return Wanted(process, "commit", [key, highest], context.time), after


def _without(process: int, keys: Mapping[int, tuple[str, ...]]) -> Mapping[int, tuple[str, ...]]:
    return {one: held for one, held in keys.items() if one != process}


@dataclass(frozen=True, slots=True)
class CommitEverywhere(Generator):
    """Members poll until they own a key and then commit it, until every key was committed (S10)."""

    left: frozenset[str]
    inner: OffsetOperations
    next_time: int = 0

    def draw(self, context: Context) -> Drawn:
        if not self.left:
            return None, self
        if not context.free:
            return PENDING, self
        chance = context.random
        begins = max(context.time, self.next_time)
        after = replace(self, next_time=begins + POLL_EVERY // len(context.processes))
        lone = sorted(key for key in self.left if key.startswith(LONE))
        process = chance.choice(context.free)
        own = sorted(self.left & set(self.inner.owned.get(process, ())))
        if not own and (not lone or chance.random() < 0.5):
            return Wanted(process, "poll", None, begins), after
        wanted, inner = self.inner._commit(process, chance.choice(own or lone), context)
        return replace(wanted, time=begins), replace(after, inner=inner)

    def told(self, operation: Operation) -> Generator:
        inner = self.inner.told(operation)
        assert isinstance(inner, OffsetOperations)
        return replace(self, inner=inner)


@dataclass(frozen=True, slots=True)
class Recovering(Generator):
    """`CommitEverywhere` after the heal: earlier commits do not count."""

    inner: CommitEverywhere
    begun: bool = False

    def draw(self, context: Context) -> Drawn:
        wanted, inner = self.inner.draw(context)
        assert isinstance(inner, CommitEverywhere)
        return wanted, Recovering(inner, begun=True)

    def told(self, operation: Operation) -> Generator:
        inner = self.inner.told(operation)
        assert isinstance(inner, CommitEverywhere)
        if self.begun and operation.f == "commit" and operation.kind == "ok":
            inner = replace(inner, left=inner.left - {operation.value[0]})
        return replace(self, inner=inner)


def _keys(options: Mapping[str, Any]) -> tuple[str, ...]:
    keys = keys_of(options)
    return (*keys, *(LONE + key for key in keys))


def _topics(plan: RunPlan) -> list[TopicPlan]:
    return [TopicPlan("consumed", int(option(plan.options, "partitions", 4)))]


def _operations(plan: RunPlan, options: Mapping[str, Any]) -> Generator:
    every = (option(plan.options, "crash_every", 300), option(plan.options, "stall_every", 120))
    return OffsetOperations(keys_of(options), *every, late_every=option(plan.options, "late_every", 0))


def _recovery(plan: RunPlan, options: Mapping[str, Any]) -> Generator:
    return Recovering(CommitEverywhere(frozenset(_keys(options)), OffsetOperations(keys_of(options))))


def _last_reads(plan: RunPlan, options: Mapping[str, Any]) -> Generator:
    keys = (*_keys(options), *(SOUGHT + key for key in keys_of(options)))
    return EachWorker(Limit(len(keys), ReadEach(keys)))


def _checkers(plan: RunPlan) -> Mapping[str, Checker]:
    return {
        "offsets": functools.partial(keyed.check, kind="offset"),
        "fencing": group_fencing.check,
        "stats": functools.partial(stats.check, wanted=("poll", "commit", "read")),
        "recovery": functools.partial(stats.recovery, parts=key_of_operation, writes=("commit",)),
    }


GROUP_OFFSETS = Workload(
    "group-offsets", "group_offsets", _topics, _operations, _recovery, _last_reads, _checkers, RECORDS
)
