"""Which operation comes next: pure values, asked again and again, and told what became of what they asked for.

A generator is asked by `draw` with what is to be known now (`Context`: the time, who is free, a source of chance) and
gives an operation, `PENDING` (nothing now: ask again when something has happened), or None (it is over), each with the
generator that is asked next. It is itself never changed, so one that was asked too early is simply asked again.
`told` gives the generator that knows of an operation which began or ended; a generator that reads back what others
wrote, or writes until it is acknowledged, lives from that.

Chance is the context's, drawn anew for every operation from the plan's seed and the operation's number: the n-th
operation of a plan does not depend on how often anybody had to ask for it.

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
    """What may be known when an operation is drawn."""

    time: int
    """Nanoseconds since the run began."""
    free: tuple[int, ...]
    """Processes that wait for something to do, in the order of their workers."""
    processes: tuple[int, ...]
    """All that live now: that of worker 0, of worker 1, ... A worker's next process has a number that is greater by
    the number of workers."""
    random: Chance

    def worker(self, process: int) -> int:
        return process % len(self.processes)

    def only(self, process: int) -> Context:
        """The same, as if only this one were free."""
        return replace(self, free=(process,))


@dataclass(frozen=True, slots=True)
class Wanted:
    """An operation that is to be invoked by a process, at a time or as soon after it as can be."""

    process: int
    f: str
    value: Any = None
    time: int = 0
    hint: Mapping[str, Any] = field(default_factory=dict)
    """For the client alone: how it is to be done, where that means nothing to those who judge."""


class Pending:
    """Nothing now."""


PENDING = Pending()

Drawn: TypeAlias = "tuple[Wanted | Pending | None, Generator]"


class Generator:
    """See the module. Whoever inherits this says `draw`."""

    __slots__ = ()

    def draw(self, context: Context) -> Drawn:
        raise NotImplementedError

    def told(self, operation: Operation) -> Generator:
        """`operation` was invoked, or completed."""
        return self


@dataclass(frozen=True, slots=True)
class Nothing(Generator):
    """It is over before it began."""

    def draw(self, context: Context) -> Drawn:
        return None, self


@dataclass(frozen=True, slots=True)
class Calls(Generator):
    """For ever what a function makes of the context: `f` and value, for any process that is free."""

    make: Callable[[Context], tuple[str, Any]]

    def draw(self, context: Context) -> Drawn:
        if not context.free:
            return PENDING, self
        process = context.random.choice(context.free)
        f, value = self.make(context)
        return Wanted(process, f, value, context.time), self


@dataclass(frozen=True, slots=True)
class Limit(Generator):
    """At most so many operations."""

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
    """Operations that are to begin less than so many nanoseconds after it was asked first."""

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
    """Each operation is one of several generators', chosen by chance and weight; over when all of them are."""

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
    """One after the other. The next begins when all processes are free: nothing of the one before is under way."""

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
        # Those to come are told, too: what was written in one phase is read back in a later one.
        return replace(self, parts=tuple(part.told(operation) for part in self.parts))


@dataclass(frozen=True, slots=True)
class Stagger(Generator):
    """Operations begin so many nanoseconds apart on average, by chance between none and twice that."""

    interval: int
    inner: Generator
    next_time: int = 0

    def draw(self, context: Context) -> Drawn:
        wanted, inner = self.inner.draw(context)
        if not isinstance(wanted, Wanted):
            return wanted, replace(self, inner=inner)
        begins = max(wanted.time, self.next_time)
        # Time that was lost is not made up for: what was slow would be answered by a flood.
        after = max(begins, context.time) + context.random.randrange(2 * self.interval + 1)
        return replace(wanted, time=begins), replace(self, inner=inner, next_time=after)

    def told(self, operation: Operation) -> Generator:
        return replace(self, inner=self.inner.told(operation))


@dataclass(frozen=True, slots=True)
class EachWorker(Generator):
    """A generator of its own for every worker, whatever number its process has by then; over when all of them are."""

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
    """So many operations a second, all processes together."""
    return Stagger(int(1e9 / rate), inner)
