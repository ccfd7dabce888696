"""Creates a nemesis from its name: none, one recipe of the catalogue, or a mix."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from jepsen_like.run_records import Nemesis, RealCluster
from raftlog.errors import InvalidRequest

from .catalogue import MIXED, RECIPES
from .injection import Tell
from .mixed import MixedNemesis
from .nemesis import RecipeNemesis
from .plans import checked

NONE = "none"
NAMES = (NONE, *RECIPES, MIXED)


class Unbroken:
    """Leaves the cluster alone. Implements `Nemesis`."""

    name = NONE
    needs: frozenset[str] = frozenset()

    async def disturb(self, cluster: RealCluster, seconds: float, tell: Tell) -> None:
        await asyncio.sleep(seconds)


def make(name: str, *, seed: int, origin_ns: int, options: Mapping[str, Any] | None = None) -> Nemesis:
    """Return a nemesis for one run.

    `origin_ns`: the time on this machine's monotonic clock when the run began. Raises `InvalidRequest` for unknown
    names and options.
    """
    known = checked(options or {})
    if name == NONE:
        return Unbroken()
    if name == MIXED:
        return MixedNemesis(seed, origin_ns, known)
    if name not in RECIPES:
        raise InvalidRequest("invalid_request", f"there is no nemesis {name!r}; there are {', '.join(NAMES)}")
    return RecipeNemesis(name, RECIPES[name], seed, origin_ns, known)
