"""`metadata-set`: topics are created and listed; an acknowledged topic is in every later list (S7).

One operation in eight reads the whole set. At most `elements` (option, 1,500) are added, because the time of a read
grows with their number.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jepsen_like.histories.history import Operation

from ..checkers import set_full, stats
from ..checkers.verdict import Verdict
from ..clients.messages import option
from ..clients.registers import LOOK
from ..run_records import RunPlan
from .generators import PENDING, Context, Drawn, EachWorker, Generator, Limit, Wanted
from .workload import Checker, TopicPlan, UntilOk, Workload

ELEMENTS = 1_500
RECOVERY_ELEMENTS = 1_000_000


@dataclass(frozen=True, slots=True)
class SetOperations(Generator):
    """Adds and reads."""

    elements: int
    added: int = 0

    def draw(self, context: Context) -> Drawn:
        if not context.free:
            return PENDING, self
        process = context.random.choice(context.free)
        if self.added >= self.elements or context.random.random() < 1 / 8:
            return Wanted(process, "read", None, context.time), self
        return Wanted(process, "add", self.added, context.time), replace(self, added=self.added + 1)


@dataclass(frozen=True, slots=True)
class Read(Generator):
    """Endless reads."""

    def draw(self, context: Context) -> Drawn:
        if not context.free:
            return PENDING, self
        return Wanted(context.random.choice(context.free), "read", None, context.time), self


def _operations(plan: RunPlan, options: Mapping[str, Any]) -> Generator:
    return SetOperations(int(option(plan.options, "elements", ELEMENTS)))


def _recovery(plan: RunPlan, options: Mapping[str, Any]) -> Generator:
    def make(key: str, attempt: int, context: Context) -> Wanted:
        return Wanted(-1, "add", RECOVERY_ELEMENTS + attempt)

    return UntilOk(make, ("the set",))


def _checkers(plan: RunPlan) -> Mapping[str, Checker]:
    return {
        "set": _set,
        "stats": functools.partial(stats.check, wanted=("add", "read")),
        "recovery": functools.partial(stats.recovery, parts=lambda _: ("the set",), writes=("add",)),
    }


def _set(history: Sequence[Operation]) -> Verdict:
    return set_full.check([one for one in history if one.f in {"add", "read"}])


METADATA_SET = Workload(
    "metadata-set",
    "topic_set",
    lambda _: [TopicPlan("barrier", 1, LOOK)],
    _operations,
    _recovery,
    lambda plan, options: EachWorker(Limit(2, Read())),
    _checkers,
)
