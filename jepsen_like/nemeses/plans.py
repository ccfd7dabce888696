"""The next step, drawn from a seeded random and the known facts about the cluster. Pure.

Each draw takes `(rng, facts, options)` and returns a step, or None if this cluster has no target for it. The same seed
and facts give the same steps. `options` are those of a run, by name; the allowed values stand where they are read, and
anything else is refused (`checked`) before the run begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raftlog.errors import InvalidRequest
from raftlog.ports import Random

from . import crafted_steps, steps
from .damage import FILES
from .steps import Facts
from .targets import AIMS, CONTROLLER, LEADER_SHAPES, ONE_WAY_SHAPES, SHAPES, aim, choice, sample, shape

SURVIVORS = ("nothing", "names", "parts")
BUMP_SECONDS_MAX = 288.0
BUMP_SECONDS_MIN = 4.0
"""Smaller offsets cannot be proved by a node's own clock, which reports whole seconds."""
WRONG_DAYS = (8.0, 40.0)
"""Longer than any retention."""
MOVES_MAX = 4
SLOW_MS = 100
"""Delay of each fsync; below an election timeout, so that the quorum continues."""
JOURNAL_SLOW_MS = 30
"""A voter's thread waits for three calls in a row, which must not cause an election."""
SPARE_DESCRIPTORS = (0, 1, 4, 16)
FEW_DESCRIPTORS = (1024, 1200)
"""The first is the lowest number with which a node starts."""
IDLE_CONNECTIONS = 300
"""Connections to each listener. With those limits it accepts fewer."""
TRUNCATED_BYTES = (1, 7, 61, 512, 4096, 65_536)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a nemesis, by the names of a run's plan."""

    aims: tuple[str, ...] = AIMS
    shapes: tuple[str, ...] = ()
    """Shapes of partitions; empty: those of the nemesis."""
    files: tuple[str, ...] = ()
    """Kinds of files; empty: those of the nemesis."""
    hold: tuple[float, float] = (5.0, 15.0)
    """Minimum and maximum duration of a fault in seconds."""
    quiet: tuple[float, float] = (2.0, 10.0)
    """Minimum and maximum pause between two faults in seconds."""
    redraw: float = 30.0
    """Seconds after which `mixed` redraws."""
    nemeses: tuple[str, ...] = ()
    """The nemeses of `mixed`; empty: all that the cluster supports."""
    at_once: int = 3
    """Maximum number of nemeses at once."""


def checked(given: Mapping[str, Any]) -> Options:
    """Parse options by name, as JSON has them, ignoring names that belong to others. Raises `InvalidRequest`."""
    known: dict[str, Any] = {}
    shapes = (*SHAPES, *ONE_WAY_SHAPES, *LEADER_SHAPES)
    for name, allowed in (("aims", (*AIMS, CONTROLLER)), ("shapes", shapes), ("files", FILES)):
        if name in given:
            values = tuple(given[name])
            wrong = [value for value in values if value not in allowed]
            if wrong or not values:
                raise _refused(f"{name} must be some of {', '.join(allowed)}, not {given[name]!r}")
            known[name] = values
    for name in ("hold", "quiet"):
        if name in given:
            known[name] = _range(name, given[name])
    if "redraw" in given:
        known["redraw"] = _range("redraw", [given["redraw"]] * 2)[0]
    if "at_once" in given:
        if given["at_once"] not in (1, 2, 3):
            raise _refused(f"at_once must be 1, 2 or 3, not {given['at_once']!r}")
        known["at_once"] = given["at_once"]
    if "nemeses" in given:
        known["nemeses"] = tuple(map(str, given["nemeses"]))
    return Options(**known)


def _range(name: str, given: Sequence[Any]) -> tuple[float, float]:
    try:
        low, high = map(float, given)
    except (TypeError, ValueError):
        raise _refused(f"{name} must be two numbers of seconds, not {given!r}") from None
    if not 0 <= low <= high <= 3600:
        raise _refused(f"{name} must be two rising numbers of seconds up to 3600, not {given!r}")
    return low, high


def _refused(why: str) -> InvalidRequest:
    return InvalidRequest("invalid_request", f"a nemesis's option {why}")


# --- Processes --------------------------------------------------------------------------------------------------------


def kill(rng: Random, facts: Facts, options: Options) -> steps.Step:
    name = choice(rng, options.aims)
    return steps.Kill(aim(name, facts, rng), name)


def slow_kill(rng: Random, facts: Facts, options: Options) -> crafted_steps.SlowKill:
    """Slow down the nodes that survive, or all if none does."""
    name = choice(rng, options.aims)
    killed = aim(name, facts, rng)
    slowed = tuple(node for node in facts.nodes if node not in killed) or killed
    return crafted_steps.SlowKill(killed, name, slowed, SLOW_MS)


def pause(rng: Random, facts: Facts, options: Options) -> steps.Step:
    name = choice(rng, options.aims)
    return steps.Pause(aim(name, facts, rng), name)


# --- Links ------------------------------------------------------------------------------------------------------------


def partition(rng: Random, facts: Facts, options: Options, shapes: Sequence[str]) -> steps.Step | None:
    name = choice(rng, options.shapes or shapes)
    cut = shape(name, facts, rng)
    return steps.Cut(cut, name) if cut else None


def slow_links(rng: Random, facts: Facts, options: Options) -> steps.Step:
    delay = choice(rng, (20, 50, 100, 300))
    return steps.Slow(_some_links(rng, facts), "some", delay_ms=delay, jitter_ms=delay // choice(rng, (1, 2, 4)))


def stall(rng: Random, facts: Facts, options: Options) -> steps.Step:
    return steps.Stall(_some_links(rng, facts), "some", seed=_seed(rng))


def reset(rng: Random, facts: Facts, options: Options) -> steps.Step:
    return steps.Reset(_some_links(rng, facts), "some", period_ms=choice(rng, (200, 1000, 3000)))


def late_bytes(rng: Random, facts: Facts, options: Options) -> steps.Step:
    delay = choice(rng, (20, 100))
    return steps.Linger(_some_links(rng, facts), "some", delay_ms=delay, linger_ms=choice(rng, (500, 2000)))


def _some_links(rng: Random, facts: Facts) -> tuple[str, ...]:
    links = [f"{a}>{b}" for a in facts.nodes for b in facts.nodes if a != b]
    if not links:
        return ()
    return tuple(sorted(sample(rng, links, rng.randrange(1, len(links) + 1))))


# --- Clocks -----------------------------------------------------------------------------------------------------------


def bump(rng: Random, facts: Facts, options: Options) -> steps.Step:
    nodes = aim(choice(rng, ("one", "minority", "majority", "all")), facts, rng)
    return steps.Bump(nodes, tuple(_offset(rng) for _ in nodes))


def wrong_start(rng: Random, facts: Facts, options: Options) -> steps.Step:
    """Wrong by days in either direction, at a minority: the cluster trusts the clock of the majority."""
    nodes = aim(choice(rng, ("one", "minority")), facts, rng)
    days = (rng.uniform(*WRONG_DAYS) * (1 if rng.random() < 0.5 else -1) for _ in nodes)
    return steps.WrongStart(nodes, tuple(round(86_400 * wrong, 3) for wrong in days))


def strobe(rng: Random, facts: Facts, options: Options) -> steps.Step:
    nodes = aim(choice(rng, ("one", "minority", "majority", "all")), facts, rng)
    return steps.Strobe(nodes, _offset(rng), choice(rng, (0.05, 0.2, 1.0)))


def monotonic_offset(rng: Random, facts: Facts, options: Options) -> steps.Step:
    name = choice(rng, ("one", "minority", "all"))
    return steps.MonotonicOffset(aim(name, facts, rng), name, seconds=choice(rng, (60, 3600, 10_000_000)))


def _offset(rng: Random) -> float:
    """Return an offset of any order of magnitude up to the largest, in either direction."""
    size: float = BUMP_SECONDS_MIN * (BUMP_SECONDS_MAX / BUMP_SECONDS_MIN) ** rng.random()
    return round(size if rng.random() < 0.5 else -size, 3)


# --- Power and disks --------------------------------------------------------------------------------------------------


def power(rng: Random, facts: Facts, options: Options) -> steps.Step:
    name = choice(rng, ("one", "minority", "leaders"))
    return _power(rng, aim(name, facts, rng), name)


def power_of_all(rng: Random, facts: Facts, options: Options) -> steps.Step:
    return _power(rng, facts.nodes, "all")


def slow_power_of_all(rng: Random, facts: Facts, options: Options) -> steps.Step:
    cut = _power(rng, facts.nodes, "all")
    return steps.SlowPower(cut.nodes, "all", cut.survivors, cut.seed, SLOW_MS)


def power_and_rot(rng: Random, facts: Facts, options: Options, each: bool = False) -> steps.Step:
    """Damage only nodes whose files may be damaged."""
    cut = _power(rng, facts.nodes, "all")
    rotten = choice(rng, facts.minority)
    return steps.PowerAndRot(cut.nodes, "all", cut.survivors, cut.seed, rotten=rotten, each=each)


def _power(rng: Random, nodes: tuple[str, ...], name: str) -> steps.Power:
    order = sample(rng, nodes, len(nodes))
    return steps.Power(order, name, survivors=tuple(choice(rng, SURVIVORS) for _ in order), seed=_seed(rng))


def amnesia(rng: Random, facts: Facts, options: Options, by: str, slow_ms: int = 0) -> steps.Step | None:
    """The victim is a known leader, if any: the records that it loses were acknowledged by it."""
    if len(facts.nodes) < 3:
        return None
    leading = [node for node in facts.nodes if node in facts.leaders or node == facts.controller]
    victim = choice(rng, leading or facts.nodes)
    rest = sample(rng, (node for node in facts.nodes if node != victim), len(facts.nodes) - 1)
    half = (len(facts.nodes) - 1) // 2
    return steps.AmnesiaInTheMiddle(
        tuple(sorted(rest[:half])),
        (victim,),
        tuple(sorted(rest[half:])),
        by,
        phase_seconds=round(rng.uniform(*options.hold), 2),
        survivors=choice(rng, SURVIVORS),
        seed=_seed(rng),
        slow_ms=slow_ms,
    )


def followers_forget(rng: Random, facts: Facts, options: Options) -> steps.Step | None:
    """Power off all nodes but one leader: of a partition, or of the quorum if the shapes say so.

    The leader's own copy is on its disk, so the copies it counted must have been on the disks of the others; nothing
    else survives.
    """
    leading, slow_ms = facts.leaders, SLOW_MS
    if facts.controller is not None and CONTROLLER in options.shapes:
        leading, slow_ms = (facts.controller,), JOURNAL_SLOW_MS
    if len(facts.nodes) < 3 or not leading:
        return None
    leader = choice(rng, leading)
    victims = tuple(node for node in facts.nodes if node != leader)
    return steps.AmnesiaInTheMiddle((), victims, (leader,), "", 0.0, "nothing", _seed(rng), slow_ms)


def full_disk(rng: Random, facts: Facts, options: Options) -> steps.Step:
    name = choice(rng, ("one", "minority", "leaders", "all"))
    return steps.FullDisk(aim(name, facts, rng), name)


def read_only(rng: Random, facts: Facts, options: Options) -> steps.Step:
    return steps.ReadOnly(aim("one", facts, rng), "one")


def few_descriptors(rng: Random, facts: Facts, options: Options) -> steps.Step:
    name = choice(rng, options.aims)
    return steps.FewDescriptors(aim(name, facts, rng), name, spare=choice(rng, SPARE_DESCRIPTORS))


def idle_connections(rng: Random, facts: Facts, options: Options) -> steps.Step:
    name = choice(rng, options.aims)
    return steps.IdleConnections(aim(name, facts, rng), name, choice(rng, FEW_DESCRIPTORS), IDLE_CONNECTIONS)


def fail_sync(rng: Random, facts: Facts, options: Options) -> steps.Step:
    return steps.FailSync(aim("one", facts, rng), "one", first=choice(rng, (1, 3, 20)))


def slow_sync(rng: Random, facts: Facts, options: Options) -> steps.Step:
    name = choice(rng, ("one", "minority", "leaders"))
    return steps.SlowSync(aim(name, facts, rng), name, delay_ms=choice(rng, (50, 300, 2000)))


# --- Files ------------------------------------------------------------------------------------------------------------


def flip(rng: Random, facts: Facts, options: Options) -> steps.Step:
    """For files that are read while a node runs, the bits flip while it runs in half of the cases."""
    running = rng.random() < 0.5
    node = choice(rng, facts.minority)
    return steps.Flip(node, _files(rng, options), _seed(rng), bits=choice(rng, (1, 2, 8)), running=running)


def truncate(rng: Random, facts: Facts, options: Options) -> steps.Step:
    files = _files(rng, options)
    return steps.Truncate(choice(rng, facts.minority), files, _seed(rng), bytes=choice(rng, TRUNCATED_BYTES))


def _files(rng: Random, options: Options) -> tuple[str, ...]:
    """Return all kinds in random order, since a node may not have the first ones yet.

    Segments are listed three times, so that they come early more often: they hold the records.
    """
    kinds = options.files or (*FILES, "segment", "segment")
    return sample(rng, kinds, len(kinds))


def roll_back(rng: Random, facts: Facts, options: Options) -> steps.Step:
    """Roll back a partition's file only: an old journal is intact, and no checksum distinguishes it from a new one.

    A voter that loses its vote that way is in the situation of a replaced disk, which has its own procedure.
    """
    kinds = options.files or ("segment", "segment", "checkpoint", "epoch-history")
    files, age = sample(rng, kinds, len(kinds)), round(rng.uniform(*options.hold), 2)
    return steps.RollBack(choice(rng, facts.minority), files, _seed(rng), age=age)


# --- Membership -------------------------------------------------------------------------------------------------------


def replace_disk(rng: Random, facts: Facts, options: Options) -> steps.Step:
    """Only nodes whose files may be damaged: the node loses all of them."""
    return steps.ReplaceDisk(choice(rng, facts.minority))


def remove_voter(rng: Random, facts: Facts, options: Options) -> steps.Step | None:
    return steps.RemoveVoter(choice(rng, facts.voters)) if len(facts.voters) > 2 else None


def reassign(rng: Random, facts: Facts, options: Options) -> steps.Step | None:
    """Draw another order, fewer replicas down to the minimum ISR, or other nodes if there are more nodes than
    replicas.
    """
    moves = []
    for one in sample(rng, facts.partitions, MOVES_MAX):
        count = rng.randrange(max(one.min_insync_replicas, 1), len(one.replicas) + 1)
        wanted = sample(rng, facts.nodes, count)
        if wanted != one.replicas:
            moves.append((one.topic, one.partition, wanted))
    return steps.Reassign(tuple(sorted(moves))) if moves else None


def move_and_kill(rng: Random, facts: Facts, options: Options) -> steps.Step | None:
    """Choose a partition with followers, and a node outside of it that can receive."""
    fitting = [
        one for one in facts.partitions
        if one.leader in one.replicas and one.min_insync_replicas <= 2
        and 1 < len(one.replicas) < len(facts.nodes)
    ]  # fmt: skip
    if not fitting:
        return None
    one = choice(rng, fitting)
    followers = tuple(node for node in one.replicas if node != one.leader)
    receiver = choice(rng, [node for node in facts.nodes if node not in one.replicas])
    assert one.leader is not None
    return crafted_steps.MoveAndKill((one.leader,), "", followers, receiver, one.topic, one.partition)


def leave_behind(rng: Random, facts: Facts, options: Options) -> steps.Step | None:
    """Choose a partition with two replicas, if the quorum survives the loss of one node."""
    fitting = [
        one for one in facts.partitions
        if one.leader in one.replicas and len(one.replicas) == 2 and len(facts.nodes) > 2
    ]  # fmt: skip
    if not fitting:
        return None
    one = choice(rng, fitting)
    assert one.leader is not None
    (other,) = (node for node in one.replicas if node != one.leader)
    return crafted_steps.LeaveBehind((other, one.leader), "", one.topic, one.partition)


def drain(rng: Random, facts: Facts, options: Options) -> steps.Step | None:
    """Choose a node whose replicas fit on the others."""
    most = max((len(one.replicas) for one in facts.partitions), default=0)
    return steps.Drain(choice(rng, facts.nodes)) if 0 < most < len(facts.nodes) else None


def _seed(rng: Random) -> int:
    return rng.randrange(0, 2**32)
