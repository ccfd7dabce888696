"""`positions`: named positions move by compare-and-set, each in a transaction with a record of the move (S7, S13).

A move goes from the last known position to the next number, so that many moves conflict. Names take turns
(`rotation.py`). At the end every worker reads all committed records, and every position.

| option | default | |
|---|---|---|
| `partitions` | 2 | of the topic with the records |
| `crash_every` | 300 | one in this many operations kills its client's process; 0: none |
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jepsen_like.histories.history import Operation

from ..checkers import keyed, positions, stats
from ..checkers.verdict import Verdict
from ..clients.messages import option
from ..run_records import RunPlan
from .generators import PENDING, Context, Drawn, EachWorker, Generator, Limit, Phases, Wanted
from .log import RETENTION
from .metadata_registers import ReadEach
from .rotation import key_at, key_count
from .workload import Checker, TopicPlan, UntilOk, Workload

RECOVERY_NUMBERS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class PositionOperations(Generator):
    """Moves, and reads (a third)."""

    names: int
    crash_every: float = 300
    count: int = 0
    known: Mapping[str, int] = field(default_factory=dict)
    """Name → position, by the latest answer."""

    def draw(self, context: Context) -> Drawn:
        if not context.free:
            return PENDING, self
        chance, now = context.random, context.time
        process = chance.choice(context.free)
        if self.crash_every and chance.random() * self.crash_every < 1:
            return Wanted(process, "crash", None, now), self
        name = name_of(key_at(self.count, self.names, context))
        after = replace(self, count=self.count + 1)
        if chance.random() < 1 / 3:
            return Wanted(process, "read", [name, None], now), after
        at = self.known.get(name)
        move = [at, 0 if at is None else at + 1]
        return Wanted(process, "cas", [name, move, self.count], now), after

    def told(self, operation: Operation) -> Generator:
        if operation.kind != "ok" or operation.f not in {"read", "cas"}:
            return self
        name, at = operation.value[0], operation.value[1]
        at = at[1] if operation.f == "cas" else at
        if at is None or at < self.known.get(name, -1):
            return self
        return replace(self, known={**self.known, name: at})


@dataclass(frozen=True, slots=True)
class ReadRecords(Generator):
    """Reads the records once successfully, for `EachWorker`."""

    process: int = -1
    done: bool = False

    def draw(self, context: Context) -> Drawn:
        if self.done:
            return None, self
        if not context.free:
            return PENDING, self
        process = context.free[0]
        wanted = Wanted(process, "records", None, context.time)
        return wanted, replace(self, process=process)

    def told(self, operation: Operation) -> Generator:
        mine = operation.process == self.process and operation.f == "records" and operation.kind == "ok"
        return replace(self, done=True) if mine else self


def name_of(number: int) -> str:
    """Return the name of a position."""
    return f"position{number}"


def _topics(plan: RunPlan) -> list[TopicPlan]:
    return [TopicPlan("moves", int(option(plan.options, "partitions", 2)), RETENTION)]


def _operations(plan: RunPlan, options: Mapping[str, Any]) -> Generator:
    return PositionOperations(key_count(plan), option(plan.options, "crash_every", 300))


def _recovery(plan: RunPlan, options: Mapping[str, Any]) -> Generator:
    """Move a position that was never used before; each attempt takes a new one."""

    def make(key: str, attempt: int, context: Context) -> Wanted:
        return Wanted(-1, "cas", [f"recovery{attempt}", [None, 0], RECOVERY_NUMBERS + attempt])

    return UntilOk(make, tuple(str(worker) for worker in range(plan.processes)))


def _last_reads(plan: RunPlan, options: Mapping[str, Any]) -> Generator:
    names = tuple(name_of(number) for number in range(key_count(plan)))
    return Phases((EachWorker(Limit(len(names), ReadEach(names))), EachWorker(ReadRecords())))


def _checkers(plan: RunPlan) -> Mapping[str, Checker]:
    return {
        "linearizable": _registers,
        "transactions": positions.check,
        "stats": functools.partial(stats.check, wanted=("read", "cas", "records")),
        "recovery": functools.partial(stats.recovery, parts=lambda _: ("transactions",), writes=("cas",)),
    }


def _registers(history: Sequence[Operation]) -> Verdict:
    return keyed.check(history, "position")


POSITIONS = Workload("positions", "positions", _topics, _operations, _recovery, _last_reads, _checkers)
