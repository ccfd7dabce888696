"""`topics`: topics are repeatedly created and deleted under the same names, and exist or do not (S7).

Names take turns (`rotation.py`). A topic's existence is a register: it can be created only while it does not exist, and
deleted only while it does.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from jepsen_like.histories.history import Operation

from ..checkers import keyed, stats
from ..clients.registers import LOOK
from ..run_records import RunPlan
from .generators import PENDING, Context, Drawn, EachWorker, Generator, Limit, Wanted
from .metadata_registers import ReadEach
from .rotation import key_at, key_count, keys_at_once
from .workload import Checker, TopicPlan, UntilOk, Workload


@dataclass(frozen=True, slots=True)
class TopicOperations(Generator):
    """Creations, deletions and reads, a third each. The last known state decides the attempt, so few are refused."""

    names: int
    at_once: int
    count: int = 0
    there: frozenset[int] = frozenset()

    def draw(self, context: Context) -> Drawn:
        if not context.free:
            return PENDING, self
        process = context.random.choice(context.free)
        name = key_at(self.count, self.names, context, self.at_once)
        after = replace(self, count=self.count + 1)
        if context.random.random() < 1 / 3:
            f = "read"
        elif context.random.random() < 1 / 8:
            f = context.random.choice(("create", "delete"))
        else:
            f = "delete" if name in self.there else "create"
        return Wanted(process, f, [name, None], context.time), after

    def told(self, operation: Operation) -> Generator:
        if operation.kind != "ok" or operation.f not in {"create", "delete", "read"}:
            return self
        name, seen = operation.value
        there = operation.f == "create" or (operation.f == "read" and seen)
        return replace(self, there=self.there | {name} if there else self.there - {name})


def _operations(plan: RunPlan, options: Mapping[str, Any]) -> Generator:
    return TopicOperations(key_count(plan), keys_at_once(plan))


def _recovery(plan: RunPlan, options: Mapping[str, Any]) -> Generator:
    """Create a new name at each attempt: such a topic can always be created."""
    first = key_count(plan)

    def make(key: str, attempt: int, context: Context) -> Wanted:
        return Wanted(-1, "create", [first + attempt, None])

    return UntilOk(make, ("making",))


def _last_reads(plan: RunPlan, options: Mapping[str, Any]) -> Generator:
    names = tuple(range(key_count(plan)))
    return EachWorker(Limit(len(names), ReadEach(names)))


def _checkers(plan: RunPlan) -> Mapping[str, Checker]:
    return {
        "linearizable": functools.partial(keyed.check, kind="topic"),
        "stats": functools.partial(stats.check, wanted=("create", "delete", "read")),
        "recovery": functools.partial(stats.recovery, parts=lambda _: ("making",), writes=("create",)),
    }


TOPICS = Workload(
    "topics", "topics", lambda _: [TopicPlan("barrier", 1, LOOK)], _operations, _recovery, _last_reads, _checkers
)
