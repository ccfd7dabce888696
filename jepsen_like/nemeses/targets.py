"""Targets of faults: sets of nodes, and shapes of partitions as sets of directed links. Pure.

Sets: one node, a minority, a majority, all, some of the leaders (of a partition or the quorum), or the quorum's leader,
which is targeted only if a run asks for it. Shapes:

| | |
|---|---|
| `one` | one node is isolated |
| `majority` | two halves, as equal as the number allows |
| `majorities-ring` | every node sees a majority, and no two see the same (five nodes or more) |
| `bridge` | two halves that only one node in the middle sees |
| `one-way-in`, `one-way-out` | a node receives nothing, or what it sends is lost |
| `one-way-link` | one direction of one link |
| `partition-leader`, `controller`, `leaders` | a partition's leader, the quorum's leader, or both, each isolated |

Source: the vocabulary of Jepsen's nemeses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from raftlog.ports import Random

from .steps import Facts

T = TypeVar("T")

AIMS = ("one", "minority", "majority", "all", "leaders")
CONTROLLER = "controller"
"""A target that is never drawn by chance."""
SHAPES = ("one", "majority", "bridge", "majorities-ring")
ONE_WAY_SHAPES = ("one-way-in", "one-way-out", "one-way-link")
LEADER_SHAPES = ("partition-leader", "controller", "leaders")
RING_NODES_MIN = 5
"""With three nodes, every direction of every link but one pair's would be cut."""


def choice(rng: Random, items: Sequence[T]) -> T:
    return items[rng.randrange(0, len(items))]


def sample(rng: Random, items: Iterable[T], count: int) -> tuple[T, ...]:
    """Return `count` different items, in the order in which they were drawn."""
    left = list(items)
    return tuple(left.pop(rng.randrange(0, len(left))) for _ in range(min(count, len(left))))


def minority_size(nodes: int) -> int:
    """Return the largest number that is less than half; at least one."""
    return max((nodes - 1) // 2, 1)


def fixed_minority(nodes: Sequence[str], rng: Random) -> tuple[str, ...]:
    """Return the nodes whose files a whole run may damage."""
    return tuple(sorted(sample(rng, nodes, minority_size(len(nodes)))))


def aim(name: str, facts: Facts, rng: Random) -> tuple[str, ...]:
    """Return nodes, in the order of their names.

    `leaders` returns some of the leaders, `controller` the quorum's leader; if no leader is known, one node.
    """
    nodes = facts.nodes
    if name == "all":
        return nodes
    if name == CONTROLLER and facts.controller is not None:
        return (facts.controller,)
    if name == "leaders":
        leading = tuple(node for node in nodes if node in facts.leaders or node == facts.controller)
        return tuple(sorted(sample(rng, leading, rng.randrange(1, len(leading) + 1)))) if leading else _one(facts, rng)
    if name == "majority":
        return tuple(sorted(sample(rng, nodes, len(nodes) // 2 + 1)))
    if name == "minority":
        return tuple(sorted(sample(rng, nodes, rng.randrange(1, minority_size(len(nodes)) + 1))))
    return _one(facts, rng)


def shape(name: str, facts: Facts, rng: Random) -> tuple[str, ...]:
    """Return the links to cut, sorted; none if the cluster is too small for the shape, or no leader is known."""
    nodes = facts.nodes
    if name == "one":
        return apart([_one(facts, rng)], nodes)
    if name == "majority":
        return apart([sample(rng, nodes, minority_size(len(nodes)))], nodes)
    if name == "majorities-ring":
        return _ring(sample(rng, nodes, len(nodes)))
    if name == "bridge":
        return _bridge(sample(rng, nodes, len(nodes)))
    if name in ONE_WAY_SHAPES:
        return _one_way(name, nodes, rng)
    leaders = facts.leaders if name != "controller" else ()
    controller = (facts.controller,) if facts.controller is not None and name != "partition-leader" else ()
    alone = dict.fromkeys([*sample(rng, leaders, 1), *controller])
    return apart([(node,) for node in alone], nodes)


def apart(groups: Sequence[Sequence[str]], nodes: Sequence[str]) -> tuple[str, ...]:
    """Return the links out of and into each group, whose members see only one another."""
    cut = set()
    for group in groups:
        for inside in group:
            for outside in set(nodes) - set(group):
                cut |= {f"{inside}>{outside}", f"{outside}>{inside}"}
    return tuple(sorted(cut))


def _one(facts: Facts, rng: Random) -> tuple[str, ...]:
    return (choice(rng, facts.nodes),)


def _ring(order: Sequence[str]) -> tuple[str, ...]:
    """Each node sees its neighbours on both sides, as many as make a majority with itself."""
    count = len(order)
    if count < RING_NODES_MIN:
        return ()
    reach = (count // 2 + 1) // 2
    cut = [
        f"{order[a]}>{order[b]}"
        for a in range(count)
        for b in range(count)
        if min((a - b) % count, (b - a) % count) > reach
    ]
    return tuple(sorted(cut))


def _bridge(order: Sequence[str]) -> tuple[str, ...]:
    """The first node sees all; the others see it and their half."""
    others = order[1:]
    if len(others) < 2:
        return ()
    left, right = others[: len(others) // 2], others[len(others) // 2 :]
    cut = [name for a in left for b in right for name in (f"{a}>{b}", f"{b}>{a}")]
    return tuple(sorted(cut))


def _one_way(name: str, nodes: Sequence[str], rng: Random) -> tuple[str, ...]:
    node, *others = sample(rng, nodes, len(nodes))
    if name == "one-way-in":
        return tuple(sorted(f"{other}>{node}" for other in others))
    if name == "one-way-out":
        return tuple(sorted(f"{node}>{other}" for other in others))
    return tuple(f"{node}>{other}" for other in others[:1])
