"""Generators of operations: pure values that return the next operation and learn the outcomes.

`draw` takes what is known now (`Context`: the time, the free processes, a source of chance) and returns an operation,
`PENDING` (nothing now; draw again after the next event), or None (the generator is exhausted), each with the next
generator. A generator is never changed, so drawing too early has no effect. `told` returns the generator that knows of
an operation's beginning or end; generators that read back what others wrote, or that write until an acknowledgement,
depend on it.

Chance belongs to the context: it is seeded for every operation with the plan's seed and the operation's number, so the
n-th operation of a plan does not depend on how often `draw` was called before.

Source: Jepsen's generators (jepsen.generator), the pure ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias, TypeVar

from jepsen_like.histories.history import Operation

T = TypeVar("T")


class Chance(Protocol):
    """The part of `random.Random` that generators use."""

    def random(self) -> float: ...
    def randrange(self, start: int, stop: int = ..., /) -> int: ...
    def choice(self, options: Sequence[T], /) -> T: ...
    def choices(self, options: Sequence[T], weights: Sequence[float], /) -> list[T]: ...
    def sample(self, options: Sequence[T], count: int, /) -> list[T]: ...


@dataclass(frozen=True, slots=True)
class Context:
    """The facts that a draw may use."""

    time: int
    """Nanoseconds since the run began."""
    free: tuple[int, ...]
    """Idle processes, in the order of their workers."""
    processes: tuple[int, ...]
    """All living processes: that of worker 0, of worker 1, ... The number of a worker's next process is higher by the
    number of workers.
    """
    random: Chance

    def worker(self, process: int) -> int:
        return process % len(self.processes)

    def only(self, process: int) -> Context:
        """Return the context in which only this process is free."""
        return replace(self, free=(process,))


@dataclass(frozen=True, slots=True)
class Wanted:
    """An operation to invoke by a process, at a time or as soon after it as possible."""

    process: int
    f: str
    value: Any = None
    time: int = 0
    hint: Mapping[str, Any] = field(default_factory=dict)
    """Instructions for the client on how to do it; checkers do not see them."""


class Pending:
    """No operation now."""


PENDING = Pending()

Drawn: TypeAlias = "tuple[Wanted | Pending | None, Generator]"


class Generator:
    """A generator; the module's docstring defines `draw` and `told`. Subclasses override `draw`."""

    __slots__ = ()

    def draw(self, context: Context) -> Drawn:
        raise NotImplementedError

    def told(self, operation: Operation) -> Generator:
        """Return the generator after `operation` was invoked or completed."""
        return self


@dataclass(frozen=True, slots=True)
class Nothing(Generator):
    """An exhausted generator."""

    def draw(self, context: Context) -> Drawn:
        return None, self


@dataclass(frozen=True, slots=True)
class Calls(Generator):
    """Endless operations made by a function of the context (`f` and value), for any free process."""

    make: Callable[[Context], tuple[str, Any]]

    def draw(self, context: Context) -> Drawn:
        if not context.free:
            return PENDING, self
        process = context.random.choice(context.free)
        f, value = self.make(context)
        return Wanted(process, f, value, context.time), self


@dataclass(frozen=True, slots=True)
class Limit(Generator):
    """At most `count` operations."""

    count: int
    inner: Generator

    def draw(self, context: Context) -> Drawn:
        if self.count <= 0:
            return None, self
        wanted, inner = self.inner.draw(context)
        return wanted, replace(self, count=self.count - isinstance(wanted, Wanted), inner=inner)

    def told(self, operation: Operation) -> Generator:
        return replace(self, inner=self.inner.told(operation))


@dataclass(frozen=True, slots=True)
class TimeLimit(Generator):
    """Operations that begin within `length` nanoseconds after the first draw."""

    length: int
    inner: Generator
    end: int | None = None

    def draw(self, context: Context) -> Drawn:
        end = context.time + self.length if self.end is None else self.end
        if context.time >= end:
            return None, replace(self, end=end)
        wanted, inner = self.inner.draw(context)
        if isinstance(wanted, Wanted) and wanted.time >= end:
            return None, replace(self, end=end)
        return wanted, replace(self, inner=inner, end=end)

    def told(self, operation: Operation) -> Generator:
        return replace(self, inner=self.inner.told(operation))


@dataclass(frozen=True, slots=True)
class Mix(Generator):
    """Operations of several generators, chosen by weighted chance; exhausted when all of them are."""

    parts: tuple[tuple[float, Generator], ...]

    def draw(self, context: Context) -> Drawn:
        left = list(enumerate(self.parts))
        waiting = False
        while left:
            weights = [weight for _, (weight, _) in left]
            chosen = context.random.choices(range(len(left)), weights)[0]
            number, (weight, inner) = left.pop(chosen)
            wanted, after = inner.draw(context)
            if isinstance(wanted, Wanted):
                parts = (*self.parts[:number], (weight, after), *self.parts[number + 1 :])
                return wanted, replace(self, parts=parts)
            waiting = waiting or wanted is PENDING
        return (PENDING if waiting else None), self

    def told(self, operation: Operation) -> Generator:
        return replace(self, parts=tuple((weight, inner.told(operation)) for weight, inner in self.parts))


@dataclass(frozen=True, slots=True)
class Phases(Generator):
    """Generators one after the other. The next one begins when all processes are free, so that no operation is in
    flight.
    """

    parts: tuple[Generator, ...]
    begun: bool = False

    def draw(self, context: Context) -> Drawn:
        here = self
        while here.parts:
            if not here.begun and len(context.free) < len(context.processes):
                return PENDING, here
            wanted, first = here.parts[0].draw(context)
            if wanted is not None:
                return wanted, Phases((first, *here.parts[1:]), begun=True)
            here = Phases(here.parts[1:])
        return None, here

    def told(self, operation: Operation) -> Generator:
        if not self.parts:
            return self
        # Later phases learn outcomes too: they may read back what an earlier phase wrote.
        return replace(self, parts=tuple(part.told(operation) for part in self.parts))


@dataclass(frozen=True, slots=True)
class Stagger(Generator):
    """Operations that begin `interval` nanoseconds apart on average, evenly distributed between zero and twice that."""

    interval: int
    inner: Generator
    next_time: int = 0

    def draw(self, context: Context) -> Drawn:
        wanted, inner = self.inner.draw(context)
        if not isinstance(wanted, Wanted):
            return wanted, replace(self, inner=inner)
        begins = max(wanted.time, self.next_time)
        # Lost time is not made up for: otherwise a flood would follow every slow period.
        after = max(begins, context.time) + context.random.randrange(2 * self.interval + 1)
        return replace(wanted, time=begins), replace(self, inner=inner, next_time=after)

    def told(self, operation: Operation) -> Generator:
        return replace(self, inner=self.inner.told(operation))


@dataclass(frozen=True, slots=True)
class EachWorker(Generator):
    """A separate generator for every worker, across its processes; exhausted when all of them are."""

    fresh: Generator
    own: Mapping[int, Generator] = field(default_factory=dict)

    def draw(self, context: Context) -> Drawn:
        own = {worker: self.own.get(worker, self.fresh) for worker in range(len(context.processes))}
        is_free = {context.worker(process): process for process in context.free}
        waiting = False
        soonest: Wanted | None = None
        chosen = -1
        after: Generator = self.fresh
        for worker in context.random.sample(sorted(own), len(own)):
            if worker not in is_free:
                waiting = waiting or not isinstance(own[worker], Nothing)
                continue
            wanted, inner = own[worker].draw(context.only(is_free[worker]))
            if wanted is None:
                own[worker] = Nothing()
            elif isinstance(wanted, Pending):
                waiting, own[worker] = True, inner
            elif soonest is None or wanted.time < soonest.time:
                soonest, chosen, after = wanted, worker, inner
        if soonest is not None:
            own[chosen] = after
            return soonest, replace(self, own=own)
        return (PENDING if waiting else None), replace(self, own=own)

    def told(self, operation: Operation) -> Generator:
        fresh = self.fresh.told(operation)
        return replace(self, fresh=fresh, own={worker: inner.told(operation) for worker, inner in self.own.items()})


def staggered(rate: float, inner: Generator) -> Generator:
    """Return a generator of `rate` operations per second, by all processes together."""
    return Stagger(int(1e9 / rate), inner)
