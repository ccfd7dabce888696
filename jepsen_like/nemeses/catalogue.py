"""The nemeses by name: the faults that each draws, and the capabilities that the cluster needs for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from jepsen_like.clusters.capabilities import (
    DESCRIPTORS,
    DISKS,
    FAKETIME,
    LINKS,
    POWER_LOSS,
    PROXIES,
    READ_ONLY,
    STRACE,
    TIME_NAMESPACE,
)
from raftlog.ports import Random

from . import plans
from .damage import FILES
from .plans import Options
from .steps import Facts, Step
from .targets import LEADER_SHAPES, ONE_WAY_SHAPES

Draw = Callable[[Random, Facts, Options], Step | None]


@dataclass(frozen=True, slots=True)
class Recipe:
    """One nemesis."""

    means: str
    needs: frozenset[str]
    draws: tuple[Draw, ...]
    """Equally likely."""


def _recipe(means: str, needs: set[str], *draws: Draw) -> Recipe:
    return Recipe(means, frozenset(needs), draws)


def _partition(*shapes: str) -> Draw:
    return partial(plans.partition, shapes=shapes)


MIXED = "mixed"
"""The name of the nemesis that draws from all recipes."""

RECIPES: Mapping[str, Recipe] = {
    "kill": _recipe("SIGKILL and a start", set(), plans.kill),
    "slow-kill": _recipe("SIGKILL and a start, while fsyncs are slow", {STRACE}, plans.slow_kill),
    "pause": _recipe("SIGSTOP and SIGCONT", set(), plans.pause),
    "partition": _recipe("a node alone, or halves", {LINKS}, _partition("one", "majority")),
    "partition-ring": _recipe(
        "every node sees a different majority, or a bridge", {LINKS}, _partition("majorities-ring", "bridge")
    ),
    "partition-one-way": _recipe("one direction of links is cut", {LINKS}, _partition(*ONE_WAY_SHAPES)),
    "partition-leaders": _recipe("leaders are isolated", {LINKS}, _partition(*LEADER_SHAPES)),
    "slow-links": _recipe("delay and jitter", {PROXIES}, plans.slow_links),
    "stall": _recipe("some connections stall silently", {PROXIES}, plans.stall),
    "reset": _recipe("connections are reset repeatedly", {PROXIES}, plans.reset),
    "late-bytes": _recipe("old bytes arrive after newer ones", {PROXIES}, plans.late_bytes),
    "links": _recipe("all faults of proxies", {PROXIES}, plans.slow_links, plans.stall, plans.reset, plans.late_bytes),
    "clock": _recipe("wall clocks jump", {FAKETIME}, plans.bump, plans.strobe),
    "clock-start": _recipe("nodes start with wrong wall clocks", {FAKETIME}, plans.wrong_start),
    "clock-monotonic": _recipe("monotonic clocks differ", {TIME_NAMESPACE}, plans.monotonic_offset),
    "power": _recipe("power failure of one node, a minority or leaders", {POWER_LOSS}, plans.power),
    "power-all": _recipe("power failure of all nodes at once", {POWER_LOSS}, plans.power_of_all),
    "power-rot": _recipe(
        "power failure of all nodes at once, and a bit flip in the last batch of a replica",
        {POWER_LOSS},
        plans.power_and_rot,
    ),
    "power-rot-each": _recipe(
        "the same, with a bit flip in every replica of one node",
        {POWER_LOSS},
        partial(plans.power_and_rot, each=True),
    ),
    "pause-kill": _recipe(
        "a node loses power while a minority is paused", {LINKS, POWER_LOSS}, partial(plans.amnesia, by="pause")
    ),
    "part-kill": _recipe(
        "a node loses power while a minority is cut off", {LINKS, POWER_LOSS}, partial(plans.amnesia, by="cut")
    ),
    "slow-power-all": _recipe(
        "power failure of all nodes at once, while fsyncs are slow", {POWER_LOSS, STRACE}, plans.slow_power_of_all
    ),
    "slow-pause-kill": _recipe(
        "a node with slow fsyncs loses power while a minority is paused",
        {LINKS, POWER_LOSS, STRACE},
        partial(plans.amnesia, by="pause", slow_ms=plans.SLOW_MS),
    ),
    "followers-forget": _recipe(
        "all nodes but a leader lose power while fsyncs are slow, and return without the leader",
        {POWER_LOSS, STRACE},
        plans.followers_forget,
    ),
    "bitflip": _recipe(f"bits of {', '.join(FILES)}", set(), plans.flip),
    "truncate": _recipe("files are truncated", set(), plans.truncate),
    "rollback": _recipe("files are rolled back to an older version", set(), plans.roll_back),
    "disk-full": _recipe("full disks, until retention frees space", {DISKS}, plans.full_disk),
    "read-only": _recipe("file systems turn read-only", {DISKS, READ_ONLY}, plans.read_only),
    "descriptors": _recipe("nodes can open no file and accept no connection", {DESCRIPTORS}, plans.few_descriptors),
    "idle-connections": _recipe(
        "nodes start with few descriptors, and idle connections use them up",
        {DESCRIPTORS},
        plans.idle_connections,
    ),
    "fsync-error": _recipe("fsyncs fail", {STRACE}, plans.fail_sync),
    "slow-fsync": _recipe("fsyncs are slow", {STRACE}, plans.slow_sync),
    "replace-disk": _recipe("a node returns with an empty disk", set(), plans.replace_disk),
    "membership": _recipe(
        "voters are removed, partitions moved, brokers drained", set(), plans.remove_voter, plans.reassign, plans.drain
    ),
    "move-kill": _recipe(
        "a leader is killed while its partition moves to a replica that has hardly any data",
        {LINKS},
        plans.move_and_kill,
    ),
    "left-behind": _recipe(
        "one of two replicas is down while the other continues, and returns when that one is down",
        set(),
        plans.leave_behind,
    ),
}
