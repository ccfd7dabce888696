"""Who is aimed at: sets of nodes, and shapes of partitions as sets of directed links. Pure.

Sets: one, a minority, a majority, all, some of those that lead (a partition, or the quorum), or the one that leads the
quorum, which is aimed at only where a run asks for it. Shapes:

| | |
|---|---|
| `one` | a node alone |
| `majority` | two halves, as far as the number allows |
| `majorities-ring` | every node sees a majority, no two the same (five nodes or more) |
| `bridge` | two halves that only one node in the middle sees |
| `one-way-in`, `one-way-out` | a node is sent nothing, or what it sends is lost |
| `one-way-link` | one direction of one link |
| `partition-leader`, `controller`, `leaders` | who leads a partition, who leads the quorum, or both, each alone |

Sources: the vocabulary of Jepsen's nemeses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from raftlog.ports import Random

from .steps import Facts

T = TypeVar("T")

AIMS = ("one", "minority", "majority", "all", "leaders")
CONTROLLER = "controller"
"""An aim that nobody draws by chance."""
SHAPES = ("one", "majority", "bridge", "majorities-ring")
ONE_WAY_SHAPES = ("one-way-in", "one-way-out", "one-way-link")
LEADER_SHAPES = ("partition-leader", "controller", "leaders")
RING_NODES_MIN = 5
"""With three, each direction of every link but one pair's would be cut."""


def choice(rng: Random, items: Sequence[T]) -> T:
    return items[rng.randrange(0, len(items))]


def sample(rng: Random, items: Iterable[T], count: int) -> tuple[T, ...]:
    """So many different ones, in the order in which they were drawn."""
    left = list(items)
    return tuple(left.pop(rng.randrange(0, len(left))) for _ in range(min(count, len(left))))


def minority_size(nodes: int) -> int:
    """The most that are less than half; at least one."""
    return max((nodes - 1) // 2, 1)


def fixed_minority(nodes: Sequence[str], rng: Random) -> tuple[str, ...]:
    """Those whose files a whole run may damage."""
    return tuple(sorted(sample(rng, nodes, minority_size(len(nodes)))))


def aim(name: str, facts: Facts, rng: Random) -> tuple[str, ...]:
    """Nodes, in the order of their names. `leaders`: some of those that lead, or one node where nobody is known to;
    `controller` the same."""
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
    """The links that are cut, sorted; none where this cluster is too small for it, or nobody is known to lead."""
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
    """Links out of and into each group, whose members see one another only."""
    cut = set()
    for group in groups:
        for inside in group:
            for outside in set(nodes) - set(group):
                cut |= {f"{inside}>{outside}", f"{outside}>{inside}"}
    return tuple(sorted(cut))


def _one(facts: Facts, rng: Random) -> tuple[str, ...]:
    return (choice(rng, facts.nodes),)


def _ring(order: Sequence[str]) -> tuple[str, ...]:
    """Each sees those next to it, on both sides, until it sees a majority with itself."""
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
    """The first one sees all; the others see it and their half."""
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
