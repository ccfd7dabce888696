"""The nemeses by name: which draws each makes, and what a cluster must be able to be given for it."""

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
    """Each as likely as the others."""


def _recipe(means: str, needs: set[str], *draws: Draw) -> Recipe:
    return Recipe(means, frozenset(needs), draws)


def _partition(*shapes: str) -> Draw:
    return partial(plans.partition, shapes=shapes)


MIXED = "mixed"
"""The name of the nemesis that draws from all recipes."""

RECIPES: Mapping[str, Recipe] = {
    "kill": _recipe("SIGKILL and a start", set(), plans.kill),
    "slow-kill": _recipe("SIGKILL and a start, while fsyncs take long", {STRACE}, plans.slow_kill),
    "pause": _recipe("SIGSTOP and SIGCONT", set(), plans.pause),
    "partition": _recipe("a node alone, or halves", {LINKS}, _partition("one", "majority")),
    "partition-ring": _recipe(
        "no two see the same majority, or a bridge", {LINKS}, _partition("majorities-ring", "bridge")
    ),
    "partition-one-way": _recipe("one direction is lost", {LINKS}, _partition(*ONE_WAY_SHAPES)),
    "partition-leaders": _recipe("who leads is alone", {LINKS}, _partition(*LEADER_SHAPES)),
    "slow-links": _recipe("delay and jitter", {PROXIES}, plans.slow_links),
    "stall": _recipe("some connections stop without a word", {PROXIES}, plans.stall),
    "reset": _recipe("connections end again and again", {PROXIES}, plans.reset),
    "late-bytes": _recipe("old bytes arrive after newer ones", {PROXIES}, plans.late_bytes),
    "links": _recipe("all that proxies do", {PROXIES}, plans.slow_links, plans.stall, plans.reset, plans.late_bytes),
    "clock": _recipe("wall clocks leap", {FAKETIME}, plans.bump, plans.strobe),
    "clock-start": _recipe("nodes start with wrong wall clocks", {FAKETIME}, plans.wrong_start),
    "clock-monotonic": _recipe("monotonic clocks differ", {TIME_NAMESPACE}, plans.monotonic_offset),
    "power": _recipe("the power of one, a minority or leaders fails", {POWER_LOSS}, plans.power),
    "power-all": _recipe("the power of all fails at once", {POWER_LOSS}, plans.power_of_all),
    "power-rot": _recipe(
        "the power of all fails at once, and a bit of the last batch of a replica flips",
        {POWER_LOSS},
        plans.power_and_rot,
    ),
    "power-rot-each": _recipe(
        "the same, of the last batch of every replica of one node",
        {POWER_LOSS},
        partial(plans.power_and_rot, each=True),
    ),
    "pause-kill": _recipe(
        "a node forgets between two that were paused", {LINKS, POWER_LOSS}, partial(plans.amnesia, by="pause")
    ),
    "part-kill": _recipe(
        "a node forgets between two that were cut off", {LINKS, POWER_LOSS}, partial(plans.amnesia, by="cut")
    ),
    "slow-power-all": _recipe(
        "the power of all fails at once while fsyncs take long", {POWER_LOSS, STRACE}, plans.slow_power_of_all
    ),
    "slow-pause-kill": _recipe(
        "a node forgets between two that were paused, and its fsyncs took long",
        {LINKS, POWER_LOSS, STRACE},
        partial(plans.amnesia, by="pause", slow_ms=plans.SLOW_MS),
    ),
    "followers-forget": _recipe(
        "all but one that leads lose power while their fsyncs take long, and come back without it",
        {POWER_LOSS, STRACE},
        plans.followers_forget,
    ),
    "bitflip": _recipe(f"bits of {', '.join(FILES)}", set(), plans.flip),
    "truncate": _recipe("files lose their ends", set(), plans.truncate),
    "rollback": _recipe("files are as they were", set(), plans.roll_back),
    "disk-full": _recipe("no room, until retention makes some", {DISKS}, plans.full_disk),
    "read-only": _recipe("file systems refuse to be written", {DISKS, READ_ONLY}, plans.read_only),
    "descriptors": _recipe("no file can be opened, no connection be taken", {DESCRIPTORS}, plans.few_descriptors),
    "idle-connections": _recipe(
        "nodes start with few descriptors, and connections that do nothing want all of them",
        {DESCRIPTORS},
        plans.idle_connections,
    ),
    "fsync-error": _recipe("fsyncs fail", {STRACE}, plans.fail_sync),
    "slow-fsync": _recipe("fsyncs take long", {STRACE}, plans.slow_sync),
    "replace-disk": _recipe("a node comes back on an empty disk", set(), plans.replace_disk),
    "membership": _recipe(
        "voters go, partitions move, brokers are drained", set(), plans.remove_voter, plans.reassign, plans.drain
    ),
    "move-kill": _recipe(
        "a partition is on its way to a replica that has hardly anything, and its leader is killed",
        {LINKS},
        plans.move_and_kill,
    ),
    "left-behind": _recipe(
        "one of two replicas is away while the other goes on, and back when that is away", set(), plans.leave_behind
    ),
}
