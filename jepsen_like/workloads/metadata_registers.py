"""`metadata-registers`: registers in the metadata are written and read, and must be linearizable (S7).

A register is a setting of a topic (`clients/registers.py` explains the reads). Keys take turns (`rotation.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jepsen_like.histories.history import Operation

from ..checkers import keyed, stats
from ..clients.registers import BASE_MS, LOOK, REGISTER
from ..run_records import RunPlan
from .generators import PENDING, Context, Drawn, EachWorker, Generator, Limit, Wanted
from .rotation import key_at, key_count
from .workload import Checker, TopicPlan, UntilOk, Workload

RECOVERY_VALUES = 10_000_000


@dataclass(frozen=True, slots=True)
class RegisterOperations(Generator):
    """Reads and writes, half each. Every value is written once, so that a read identifies the write that it saw."""

    registers: tuple[str, ...]
    count: int = 0

    def draw(self, context: Context) -> Drawn:
        if not context.free:
            return PENDING, self
        process = context.random.choice(context.free)
        register = self.registers[key_at(self.count, len(self.registers), context)]
        after = replace(self, count=self.count + 1)
        if context.random.random() < 0.5:
            return Wanted(process, "read", [register, None], context.time), after
        return Wanted(process, "write", [register, self.count + 1], context.time), after


@dataclass(frozen=True, slots=True)
class ReadEach(Generator):
    """Reads every key once, one after the other."""

    keys: tuple[Any, ...]

    def draw(self, context: Context) -> Drawn:
        if not self.keys:
            return None, self
        if not context.free:
            return PENDING, self
        process = context.random.choice(context.free)
        return Wanted(process, "read", [self.keys[0], None], context.time), ReadEach(self.keys[1:])


def keys_of(operation: Operation) -> Sequence[str]:
    """Return the key of an operation whose value begins with it."""
    return [str(operation.value[0])]


def _registers(options: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(options["topics"])


def _topics(plan: RunPlan) -> list[TopicPlan]:
    configs = {REGISTER: str(BASE_MS), **LOOK}
    return [TopicPlan(f"register{number}", 1, configs) for number in range(key_count(plan))]


def _operations(plan: RunPlan, options: Mapping[str, Any]) -> Generator:
    return RegisterOperations(_registers(options))


def _recovery(plan: RunPlan, options: Mapping[str, Any]) -> Generator:
    def make(key: str, attempt: int, context: Context) -> Wanted:
        return Wanted(-1, "write", [key, RECOVERY_VALUES + attempt])

    return UntilOk(make, _registers(options), interval=50_000_000)


def _last_reads(plan: RunPlan, options: Mapping[str, Any]) -> Generator:
    registers = _registers(options)
    return EachWorker(Limit(len(registers), ReadEach(registers)))


def _checkers(plan: RunPlan) -> Mapping[str, Checker]:
    return {
        "linearizable": functools.partial(keyed.check, kind="register"),
        "stats": functools.partial(stats.check, wanted=("read", "write")),
        "recovery": functools.partial(stats.recovery, parts=keys_of, writes=("write",)),
    }


METADATA_REGISTERS = Workload(
    "metadata-registers", "registers", _topics, _operations, _recovery, _last_reads, _checkers
)
