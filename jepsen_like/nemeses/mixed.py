"""A mix of all nemeses, redrawn every half minute: none for a quarter of the time, otherwise one to three at once.

So a run reaches combinations of faults, and the cluster is not down for all of it. Everything is healed before each
redraw. Faults that would undo each other are not injected at the same time (`steps.py`, claims).

Source: the mix of Jepsen's Bufstream and NATS suites.
"""

from __future__ import annotations

import asyncio
import random

from jepsen_like.run_records import RealCluster
from raftlog.errors import InvalidRequest

from .catalogue import MIXED, RECIPES
from .injection import Tell
from .nemesis import RecipeNemesis, as_breakable
from .plans import Options
from .targets import sample

NONE_SHARE = 0.25
MERGED = ("slow-links", "stall", "reset", "late-bytes")
"""`links` contains all of these."""
CRAFTED = ("slow-kill", "power-rot-each", "followers-forget", "move-kill", "left-behind")
"""For rounds, and by name only: the mix contains the faults from which they are composed."""


class MixedNemesis:
    """Several recipes at once. Implements `Nemesis`."""

    name = MIXED
    needs: frozenset[str] = frozenset()

    def __init__(self, seed: int, origin_ns: int, options: Options) -> None:
        """Raises `InvalidRequest` for unknown nemeses."""
        wrong = [name for name in options.nemeses if name not in RECIPES]
        if wrong:
            raise InvalidRequest("invalid_request", f"mixed has no {wrong[0]!r}; there are {', '.join(RECIPES)}")
        self._options = options
        self._rng = random.Random(f"{seed} {MIXED}")
        self._members = {
            name: RecipeNemesis(name, RECIPES[name], seed, origin_ns, options) for name in members(options)
        }

    async def disturb(self, cluster: RealCluster, seconds: float, tell: Tell) -> None:
        """Run the mix for some seconds.

        Raises `HealFailed`; raises `InvalidRequest` if the cluster does not support a nemesis that was named, or any of
        the mix.
        """
        named = frozenset().union(*(RECIPES[name].needs for name in self._options.nemeses))
        able = as_breakable(cluster, ", ".join((self.name, *self._options.nemeses)), named).capabilities
        names = [name for name, member in self._members.items() if member.needs <= able]
        if not names:
            raise InvalidRequest("invalid_request", "this cluster supports none of the nemeses of the mix")
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (left := end - loop.time()) > 0:
            span = min(self._options.redraw, left)
            chosen = drawn(self._rng, names, self._options.at_once)
            if not chosen:
                await asyncio.sleep(span)
                continue
            async with asyncio.TaskGroup() as group:
                for name in chosen:
                    group.create_task(self._members[name].disturb(cluster, span, tell))


def members(options: Options) -> tuple[str, ...]:
    """Return the names of the mix, regardless of what the cluster supports."""
    return tuple(name for name in RECIPES if name in (options.nemeses or set(RECIPES) - {*MERGED, *CRAFTED}))


def left_out(options: Options, able: frozenset[str]) -> dict[str, tuple[str, ...]]:
    """Return the nemeses of a complete mix that the cluster does not support: name → the missing capabilities.

    Nemeses that were named explicitly are refused instead of left out.
    """
    lacking = {name: tuple(sorted(RECIPES[name].needs - able)) for name in members(options)}
    return {} if options.nemeses else {name: needs for name, needs in lacking.items() if needs}


def drawn(rng: random.Random, names: list[str], at_once: int) -> list[str]:
    """Return no name, or a few."""
    return [] if rng.random() < NONE_SHARE else sorted(sample(rng, names, rng.randrange(1, at_once + 1)))
