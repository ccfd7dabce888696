"""Dependency cycles: `G0` (write cycle) and `G1c` (circular information flow).

Edges between completed operations: **ww** from the writer of a value to the writer of the next value of the same key
(only on request: a log may order the writes of different transactions in any way), **wr** from the writer of a value to
its other readers. There are no rw edges from readers to later writers (anti-dependencies): a consumer may lag. The
variants with `-process` add the order of each process, those with `-realtime` the real-time order: one operation
completed before the other was invoked.

`G0` is a cycle of writes alone, `G1c` one with at least one read. One cycle is shown for each strongly connected
component: a shortest one, or for a large component a short one. Every edge within a component lies on a cycle, so one
search finds one, and only a bounded effort goes into shorter ones. The time is that of reading the graph a few times; a
search that exceeds its budget is abandoned.

Source: Adya 1999; Elle (Kingsbury and Alvaro 2020).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from .kafka_log import Done, LogHistory, pairs, proof

STEPS_MAX = 50_000_000
"""Budget of edges for all searches together: about a minute."""
SHORTER_STEPS = 100_000
"""Part of the budget for finding a shorter cycle of one component."""


class TooManySteps(Exception):
    """The search for cycles was abandoned."""


@dataclass(slots=True)
class Budget:
    """The remaining steps."""

    left: int = STEPS_MAX

    def take(self, count: int) -> None:
        """Raises `TooManySteps`."""
        self.left -= count
        if self.left < 0:
            raise TooManySteps("the search for cycles was abandoned: the history is too large; check a part of it")


@dataclass(slots=True)
class Graph:
    """A graph of operations by number. An edge keeps the strongest of its reasons."""

    edges: dict[int, dict[int, dict[str, Any]]] = field(default_factory=dict)

    def add(self, one: int, other: int, reason: dict[str, Any]) -> None:
        """Add an edge, unless it exists: the first reason stays."""
        if one != other:
            self.edges.setdefault(one, {}).setdefault(other, reason)

    @property
    def size(self) -> int:
        """The number of edges."""
        return sum(map(len, self.edges.values()))

    def joined(self, other: Graph) -> Graph:
        both = Graph({node: dict(after) for node, after in self.edges.items()})
        for node, after in other.edges.items():
            for target, reason in after.items():
                both.add(node, target, reason)
        return both


def cycles(history: LogHistory, *, ww_deps: bool, timed: bool, budget: Budget) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the description of each cycle.

    `timed`: also search with process order and real-time order; a cycle that exists without them is not repeated.
    Raises `TooManySteps`.
    """
    done = [one for one in history.done if one.kind != "fail"]
    numbers = {one.seq: number for number, one in enumerate(done)}
    writes = _write_order(history, numbers) if ww_deps else Graph()
    reads = _reads(history, numbers)
    told: set[frozenset[int]] = set()
    orders = [("", Graph())]
    if timed:
        orders += [("-process", _processes(done)), ("-realtime", _real_time(history, done))]
    for suffix, more in orders:
        for name, graph, wanted in (("G0", writes, "ww"), ("G1c", writes.joined(reads), "wr")):
            joined = graph.joined(more)
            budget.take(joined.size)
            for knot in knots(joined):
                cycle = _cycle_with(joined, knot, wanted, budget)
                if cycle is not None and frozenset(cycle) not in told:
                    told.add(frozenset(cycle))
                    yield name + suffix, _shown(joined, cycle, done)


def _write_order(history: LogHistory, numbers: dict[int, int]) -> Graph:
    graph = Graph()
    for key, log in history.logs.items():
        writers = history.writer.get(key, {})
        for one, other in zip(log.dense, log.dense[1:], strict=False):
            first, second = writers.get(one), writers.get(other)
            if first is not None and second is not None and first.seq in numbers and second.seq in numbers:
                reason = {"type": "ww", "key": key, "value": one, "value2": other}
                graph.add(numbers[first.seq], numbers[second.seq], reason)
    return graph


def _reads(history: LogHistory, numbers: dict[int, int]) -> Graph:
    graph = Graph()
    for done in history.done:
        if done.seq in numbers:
            for key, _, value in pairs(done.polls):
                writer = history.writer.get(key, {}).get(value)
                if writer is not None and writer.seq in numbers:
                    graph.add(numbers[writer.seq], numbers[done.seq], {"type": "wr", "key": key, "value": value})
    return graph


def _processes(done: list[Done]) -> Graph:
    graph = Graph()
    last: dict[int | str, int] = {}
    for number, one in enumerate(done):
        process = one.operation.process
        if process in last:
            graph.add(last[process], number, {"type": "process", "process": process})
        last[process] = number
    return graph


def _real_time(history: LogHistory, done: list[Done]) -> Graph:
    """Add edges from the latest completed operations only; earlier ones follow by transitivity."""
    numbers = {one.seq: number for number, one in enumerate(done)}
    invoked: dict[int | str, int] = {}
    behind: dict[int | str, frozenset[int]] = {}
    graph, frontier = Graph(), frozenset[int]()
    for seq, operation in enumerate(history.operations):
        process = operation.process
        if operation.kind == "invoke":
            invoked[process], behind[process] = seq, frontier
            continue
        number = numbers.get(seq)
        if number is None or process not in behind:
            continue
        for earlier in behind[process]:
            graph.add(earlier, number, {"type": "realtime"})
        if operation.kind == "ok":
            frontier = frontier - behind[process] | {number}
    return graph


# --- Cycles in a graph ------------------------------------------------------------------------------------------------


def knots(graph: Graph) -> list[list[int]]:
    """Return the strongly connected components of more than one node (Tarjan 1972, without recursion)."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[list[int]] = []
    for root in list(graph.edges):
        if root in order:
            continue
        work: list[tuple[int, Iterator[int]]] = [_visit(root, graph, order, low, stack, on_stack)]
        while work:
            node, after = work[-1]
            target = next(after, None)
            if target is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    found.append(_unstacked(node, stack, on_stack))
            elif target not in order:
                work.append(_visit(target, graph, order, low, stack, on_stack))
            elif target in on_stack:
                low[node] = min(low[node], order[target])
    return [knot for knot in found if len(knot) > 1]


def _visit(
    node: int, graph: Graph, order: dict[int, int], low: dict[int, int], stack: list[int], on_stack: set[int]
) -> tuple[int, Iterator[int]]:
    order[node] = low[node] = len(order)
    stack.append(node)
    on_stack.add(node)
    return node, iter(graph.edges.get(node, ()))


def _unstacked(node: int, stack: list[int], on_stack: set[int]) -> list[int]:
    knot: list[int] = []
    while not knot or knot[-1] != node:
        knot.append(stack.pop())
        on_stack.discard(knot[-1])
    return knot


def _cycle_with(graph: Graph, knot: list[int], wanted: str, budget: Budget) -> list[int] | None:
    """Return a short cycle of the component that contains an edge of this kind; a shortest one if it is found soon."""
    inside, best = set(knot), None
    enough = budget.left - SHORTER_STEPS
    for node in sorted(knot):
        for target, reason in graph.edges.get(node, {}).items():
            if reason["type"] != wanted or target not in inside:
                continue
            way = _shortest(graph, inside, target, node, budget)
            if way is not None and (best is None or len(way) < len(best)):
                best = way
            if best is not None and (len(best) == 2 or budget.left < enough):
                return best
    return best


def _shortest(graph: Graph, inside: set[int], start: int, end: int, budget: Budget) -> list[int] | None:
    came_from: dict[int, int] = {start: start}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        if node == end:
            way = [end]
            while way[-1] != start:
                way.append(came_from[way[-1]])
            return way[::-1]
        after = graph.edges.get(node, {})
        budget.take(len(after))
        for target in after:
            if target in inside and target not in came_from:
                came_from[target] = node
                queue.append(target)
    return None


def _shown(graph: Graph, cycle: list[int], done: list[Done]) -> dict[str, Any]:
    """Describe the cycle, beginning and ending with its latest operation."""
    at = cycle.index(max(cycle))
    turned = [*cycle[at:], *cycle[:at], cycle[at]]
    steps = [graph.edges[one][other] for one, other in pairwise(turned)]
    told = {"cycle_indices": [done[number].operation.index for number in turned], "steps": steps}
    return told | proof(*(done[number] for number in turned))
