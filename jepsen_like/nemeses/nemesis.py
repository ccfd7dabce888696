"""The loop of a nemesis: look, draw, inject, hold, heal, rest, until its time is over.

    nemesis = make("kill", seed=7, origin_ns=began, options={"hold": [5, 10]})
    await nemesis.disturb(cluster, 60.0, faults.append)

The order of steps is a function of the seed and of what the cluster reported. When `disturb` returns or is cancelled,
every fault is healed; nothing else of the cluster is changed.
"""

from __future__ import annotations

import asyncio
import random

from jepsen_like.clusters.cluster import NodeCluster
from jepsen_like.run_records import RealCluster
from raftlog.errors import InvalidRequest

from .catalogue import Recipe
from .injection import Tell, carry_out
from .injections import injection_of
from .looking import look, minority_of
from .plans import Options
from .targets import choice


class RecipeNemesis:
    """One recipe, repeatedly. Implements `Nemesis`."""

    def __init__(self, name: str, recipe: Recipe, seed: int, origin_ns: int, options: Options) -> None:
        self.name = name
        self.needs = recipe.needs
        self._recipe = recipe
        self._seed = seed
        self._rng = random.Random(f"{seed} {name}")
        self._origin_ns = origin_ns
        self._options = options

    async def disturb(self, cluster: RealCluster, seconds: float, tell: Tell) -> None:
        """Raises `HealFailed`, and `InvalidRequest` if the cluster does not support these faults."""
        breakable = as_breakable(cluster, self.name, self.needs)
        minority = minority_of(breakable, self._seed)
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            draw = choice(self._rng, self._recipe.draws)
            step = draw(self._rng, await look(breakable, minority), self._options)
            hold, rest = (self._rng.uniform(*span) for span in (self._options.hold, self._options.quiet))
            if step is not None:
                hold = max(min(hold, end - loop.time()), 0.0)
                await carry_out(step, injection_of(step, breakable), breakable, hold, self._origin_ns, tell)
            await asyncio.sleep(max(min(rest, end - loop.time()), 0.0))


def as_breakable(cluster: RealCluster, name: str, needs: frozenset[str]) -> NodeCluster:
    """Return the cluster as one that accepts faults.

    Raises `InvalidRequest` if it is another kind of cluster, or lacks a capability of `needs`.
    """
    if not isinstance(cluster, NodeCluster):
        raise InvalidRequest("invalid_request", f"nemesis {name} breaks only clusters of `jepsen_like/clusters/`")
    lacking = needs - cluster.capabilities
    if lacking:
        raise InvalidRequest(
            "invalid_request", f"nemesis {name} needs what this cluster lacks: {', '.join(sorted(lacking))}"
        )
    return cluster
